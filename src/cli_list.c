// What build and bundle build share: the list of kernels asked for, shared out to machines and threads.
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "model.h"
#include "plan.h"
#include "tune_plan.h"

#define JOBS_MAX 64

cli_wanted cli_wanted_usual(void) {
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  return (cli_wanted){.batch = 8,
                      .kv_len = 32768,
                      .jobs = cores < 1          ? 1
                              : cores > JOBS_MAX ? JOBS_MAX
                                                 : (int)cores,
                      .shard = {0, 1}};
}

// ---- the list -------------------------------------------------------------------------------------------------

static void add_companions(cli_jobs *all, int target) {
  int i = 0;
  while (i < all->companion_count && all->companions[i] != target) i++;
  if (i == all->companion_count && i < (int)DW__COUNT(all->companions)) all->companions[all->companion_count++] = target;
}

// Presets have shapes in common, and a list of misses may name one often.
static bool is_there(const cli_jobs *all, const dw_shape *shape, const dw_variant *variant) {
  for (size_t i = 0; i < all->count; i++)
    if (!memcmp(&all->list[i].variant, variant, sizeof *variant) && !memcmp(&all->list[i].shape, shape, sizeof *shape))
      return true;
  return false;
}

static dw_status add_job(cli_jobs *all, const dw_shape *shape, const dw_variant *variant, dw_error *error) {
  if (is_there(all, shape, variant)) return DW_OK;
  if (all->count == all->capacity) {
    size_t capacity = all->capacity ? 2 * all->capacity : 16;
    cli_job *grown = realloc(all->list, capacity * sizeof *grown);
    if (!grown) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
    all->list = grown;
    all->capacity = capacity;
  }
  all->list[all->count++] = (cli_job){.shape = *shape, .variant = *variant};
  return DW_OK;
}

// Unless it is among those from `first` on.
static dw_status add_new_job(cli_jobs *all, size_t first, const dw_shape *shape, const dw_variant *variant, dw_error *error) {
  for (size_t i = first; i < all->count; i++)
    if (!memcmp(&all->list[i].variant, variant, sizeof *variant)) return DW_OK;
  return add_job(all, shape, variant, error);
}

// How many multiprocessors the boards of a target have, each number once.
#define SM_COUNTS_MOST 8
static int sm_counts_of(int target, int counts[SM_COUNTS_MOST]) {
  int found = 0;
  counts[found++] = dw__target_sm_count(target);
  for (size_t m = 0; m < dw__machine_count && found < SM_COUNTS_MOST; m++) {
    const dw__machine *board = &dw__machines[m];
    int i = 0;
    while (i < found && counts[i] != board->sm_count) i++;
    if (i == found && board->cc == target) counts[found++] = board->sm_count;
  }
  return found;
}

// What the rule table chooses on the boards of the target, up to a request a multiprocessor and 1M tokens each, in steps of a factor of
// 2^(1/4); by tables alone with pages of more than a token; with FIXED ranges; and what was tuned for just this shape.
static dw_status add_chosen(cli_jobs *all, const dw_shape *shape, dw_error *error) {
  const size_t first = all->count;
  int sm_counts[SM_COUNTS_MOST];
  const int counts = sm_counts_of(shape->target, sm_counts);
  dw_status status = DW_OK;
  for (int k = 0; k < counts; k++)
    for (int call = DW_CALL_ANY; call <= (shape->page > 1 ? DW_CALL_TABLE : DW_CALL_ANY); call++)
      for (int batch = 1; batch <= sm_counts[k]; batch++)
        for (int step = -1; step <= 64 && !status; step++) {
          const dw_bounds bounds = {.size = sizeof bounds,
                                    .batch = batch,
                                    .kv_len = (int)(16 * exp2(step < 0 ? 8 : step / 4.)),
                                    .sm_count = sm_counts[k],
                                    .call = (dw_call)call,
                                    .split_tokens = step < 0 ? 512 : 0};
          dw_variant variant;
          status = dw_variant_choose(shape, &bounds, &variant, error);
          if (!status) status = add_new_job(all, first, shape, &variant, error);
        }
  for (size_t i = 0; i < all->tuned.count && !status; i++)
    if (!memcmp(&all->tuned.list[i].key.shape, shape, sizeof *shape))
      status = add_new_job(all, first, shape, &all->tuned.list[i].variant, error);
  return status;
}

static dw_status add_variants(cli_jobs *all, const cli_wanted *want, const dw_shape *shape, dw_error *error) {
  dw_bounds bounds = cli_bounds(shape, want->batch, want->kv_len);
  bounds.call = (dw_call)want->call;
  dw_variant variant;
  dw_error why = {0};
  dw_status status = cli_variant(want->variant, shape, &bounds, &variant, &why);
  all->shapes += all->may_leave_out;
  if (status && (status != DW_NOT_APPLICABLE || !all->may_leave_out || !error->status)) {
    dw_error_clear(error);
    *error = why;
  } else {
    dw_error_clear(&why);
  }
  if (status == DW_NOT_APPLICABLE && all->may_leave_out) return all->left_out++, DW_OK;
  if (!status && want->chosen) return add_chosen(all, shape, error);
  if (status || !want->all_variants) return status ? status : add_job(all, shape, &variant, error);
  for (size_t i = 0; !status && dw_variant_enumerate(shape, i, &variant) == DW_OK; i++) {
    status = add_job(all, shape, &variant, error);
  }
  return status;
}

// The shape with each of a list's values in one of its fields, or as it is.
static dw_status add_pages(cli_jobs *all, const cli_wanted *want, dw_shape shape, dw_error *error) {
  dw_status status = DW_OK;
  for (int i = 0; !status && i < (want->pages.count ? want->pages.count : 1); i++) {
    if (want->pages.count) shape.page = want->pages.values[i];
    status = add_variants(all, want, &shape, error);
  }
  return status;
}

static dw_status add_widths(cli_jobs *all, const cli_wanted *want, dw_shape shape, dw_error *error) {
  dw_status status = DW_OK;
  for (int i = 0; !status && i < (want->widths.count ? want->widths.count : 1); i++) {
    if (want->widths.count) shape.width = want->widths.values[i];
    status = add_pages(all, want, shape, error);
  }
  return status;
}

static dw_status add_targets(cli_jobs *all, const cli_wanted *want, dw_shape *base, dw_error *error) {
  dw_status status = DW_OK;
  if (!want->targets) return add_widths(all, want, *base, error);
  for (const char *at = want->targets; !status;) {
    char target[32];
    size_t size = strcspn(at, ",");
    snprintf(target, sizeof target, "%.*s", (int)(size < 31 ? size : 31), at);
    status = cli_shape_field(base, "target", target, error);
    if (!status) status = add_widths(all, want, *base, error);
    if (!at[size]) break;
    at += size + 1;
  }
  return status;
}

static dw_status add_shape(cli_jobs *all, const cli_wanted *want, const char *text, dw_error *error) {
  dw_shape shape;
  dw_status status = dw_shape_parse(text, &shape, error);
  if (!status && want->limits) status = cli_shape_field(&shape, "limits", want->limits, error);
  if (!status) status = add_targets(all, want, &shape, error);
  for (size_t i = 0; want->companions && i < all->count; i++) add_companions(all, all->list[i].shape.target);
  return status;
}

// Shapes that no kernel serves yet are counted, and left out with the first's reason.
static dw_status add_presets(cli_jobs *all, const cli_wanted *want, dw_error *error) {
  for (size_t i = 0; i < dw_preset_count(); i++) {
    size_t shapes = all->shapes, left_out = all->left_out;
    dw_error_clear(error);
    all->may_leave_out = true;
    dw_status status = add_shape(all, want, dw_preset_name(i), error);
    all->may_leave_out = false;
    if (status) return status;
    if (all->left_out > left_out)
      fprintf(stderr, "draftwood: %s: %zu of %zu shapes left out: %s\n", dw_preset_name(i), all->left_out - left_out,
              all->shapes - shapes, error->message);
  }
  dw_error_clear(error);
  return DW_OK;
}

static const char *text_of(const json_t *line, const char *key) {
  const char *text = json_string_value(json_object_get(line, key));
  return text ? text : "";
}

static dw_status add_miss(cli_jobs *all, const json_t *line, dw_error *error) {
  dw_shape shape;
  dw_variant variant;
  if (!strcmp(text_of(line, "call"), "companions")) {
    dw_status status = dw_shape_parse("mla:h=1,t=1", &shape, error);
    if (!status) status = cli_shape_field(&shape, "target", text_of(line, "target"), error);
    if (!status) add_companions(all, shape.target);
    return status;
  }
  dw_status status = dw_shape_parse(text_of(line, "shape"), &shape, error);
  if (!status) status = cli_variant(text_of(line, "variant"), &shape, NULL, &variant, error);
  return status ? status : add_job(all, &shape, &variant, error);
}

// JSON lines as dw_miss_list writes them; those of many hosts may follow one another.
static dw_status add_misses(cli_jobs *all, const char *path, dw_error *error) {
  char *text, *rest = NULL;
  size_t size, number = 0;
  dw_status status = dw__file_read(path, &text, &size, error);
  if (status) return status;
  for (char *at = strtok_r(text, "\r\n", &rest); at && !status; at = strtok_r(NULL, "\r\n", &rest)) {
    char place[32];
    json_t *line = json_loads(at, 0, NULL);
    number++;
    if (line) {
      status = add_miss(all, line, error);
    } else {
      snprintf(place, sizeof place, "line %zu", number);
      status = dw__fail(error, DW_BAD_ARGUMENT, "--from-misses", place, "a line of dw_miss_list", "%s", path);
    }
    json_decref(line);
  }
  dw__release(text);
  return status;
}

// Every n-th from the i-th on: neighbours in the list cost about the same.
static void keep_shard(cli_jobs *all, const cli_shard *shard) {
  size_t kept = 0;
  for (size_t i = (size_t)shard->number; i < all->count; i += (size_t)shard->count) all->list[kept++] = all->list[i];
  all->count = kept;
}

// The release bundle; what the caller gave stays.
static void fill_release(cli_wanted *want) {
  static const cli_list widths = {{1, 2, 4, 8, 9, 16, 17, 32, 33, 64}, 10}, pages = {{1, 64}, 2};
  want->all_presets = want->companions = true;
  want->chosen = !want->variant && !want->all_variants;
  if (!want->widths.count) want->widths = widths;
  if (!want->pages.count) want->pages = pages;
}

int cli_jobs_list(cli_jobs *all, cli_wanted *want, const char *command, int argc, char **argv) {
  dw_error error = {0};
  if (want->release) fill_release(want);
  if (argc < 2 && !want->all_presets && !want->misses)
    return cli_usage("%s: found no shape, allowed one or more, or --all-presets; draftwood %s --help tells more", command,
                     command);
  if (want->variant && want->all_variants) return cli_usage("%s: --variant and --all-variants exclude one another", command);
  int code = want->shard_text ? cli_shard_read(want->shard_text, &want->shard) : CLI_GO_ON;
  if (code != CLI_GO_ON) return code;
  dw_status status = want->chosen ? dw__choices_shipped(&all->tuned, &error) : DW_OK;
  if (want->all_presets && !status) status = add_presets(all, want, &error);
  for (int i = 1; i < argc && !status; i++) status = add_shape(all, want, argv[i], &error);
  if (want->misses && !status) status = add_misses(all, want->misses, &error);
  if (status) return cli_error(&error);
  if (!all->count && all->left_out) return cli_usage("%s: no kernel serves any of the %zu shapes", command, all->shapes);
  keep_shard(all, &want->shard);
  return CLI_GO_ON;
}

void cli_jobs_free(cli_jobs *all) {
  for (size_t i = 0; i < all->count; i++) {
    dw_cubin_free(all->list[i].cubin);
    dw_error_clear(&all->list[i].error);
  }
  free(all->list);
  dw__choices_free(&all->tuned);
}

// ---- shards ---------------------------------------------------------------------------------------------------

// What starts a process of many, and where it says which one this is. A Slurm array's numbers may begin anywhere.
static const struct {
  const char *number, *count, *first, *step;
} starters[] = {
  {"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP"},
  {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL, NULL},
  {"PMI_RANK", "PMI_SIZE", NULL, NULL},
};

static bool variable(const char *name, int *value) {
  const char *text = name ? getenv(name) : NULL;
  char *end = NULL;
  long number = text && *text ? strtol(text, &end, 10) : -1;
  if (!end || *end || number < 0 || number > CLI_SHARDS_MAX) return false;
  *value = (int)number;
  return true;
}

static int shard_of_starter(cli_shard *shard) {
  for (size_t i = 0; i < DW__COUNT(starters); i++) {
    int number, count, first = 0, step = 1;
    if (!getenv(starters[i].number)) continue;
    bool known = variable(starters[i].number, &number) && variable(starters[i].count, &count);
    if (known && starters[i].first && getenv(starters[i].first)) known = variable(starters[i].first, &first);
    if (known && starters[i].step && getenv(starters[i].step)) known = variable(starters[i].step, &step);
    if (known && step > 0) number = (number - first) / step;
    if (!known || number < 0 || number >= count)
      return cli_usage("--shard auto: found %s=%s and %s=%s, allowed a number below a count", starters[i].number,
                       getenv(starters[i].number), starters[i].count,
                       getenv(starters[i].count) ? getenv(starters[i].count) : "");
    *shard = (cli_shard){number, count};
    return CLI_GO_ON;
  }
  return cli_usage("--shard auto: found none of SLURM_ARRAY_TASK_ID, OMPI_COMM_WORLD_RANK and PMI_RANK, allowed a process that "
                   "a Slurm array, mpirun or another MPI started");
}

int cli_shard_read(const char *text, cli_shard *shard) {
  int number, count, used = 0;
  if (!strcmp(text, "auto")) return shard_of_starter(shard);
  if (sscanf(text, "%d/%d%n", &number, &count, &used) != 2 || text[used] || count < 1 || count > CLI_SHARDS_MAX || number < 0 ||
      number >= count)
    return cli_usage("--shard: found \"%.60s\", allowed i/n with i from 0 to n - 1, or auto", text);
  *shard = (cli_shard){number, count};
  return CLI_GO_ON;
}

// ---- the work -------------------------------------------------------------------------------------------------

typedef struct crew {
  cli_jobs *all;
  cli_work work;
  void *user;
  const char *doing;
  pthread_mutex_t lock;  // of the two below and the progress line
  size_t next, done;
} crew;

static void *crew_member(void *user) {
  crew *team = user;
  pthread_mutex_lock(&team->lock);
  while (team->next < team->all->count) {
    cli_job *item = &team->all->list[team->next++];
    pthread_mutex_unlock(&team->lock);
    team->work(team->user, item);
    pthread_mutex_lock(&team->lock);
    cli_progress("%s %zu of %zu", team->doing, ++team->done, team->all->count);
  }
  pthread_mutex_unlock(&team->lock);
  return NULL;
}

// The caller works too, so a thread that cannot be had costs speed only.
double cli_jobs_run(cli_jobs *all, cli_work work, void *user, const char *doing, int threads) {
  double start = dw__seconds();
  crew team = {.all = all, .work = work, .user = user, .doing = doing};
  pthread_t members[JOBS_MAX];
  int hired = 0;
  pthread_mutex_init(&team.lock, NULL);
  while (hired < threads - 1 && (size_t)hired + 1 < all->count) {
    if (pthread_create(&members[hired], NULL, crew_member, &team)) break;
    hired++;
  }
  crew_member(&team);
  for (int i = 0; i < hired; i++) pthread_join(members[i], NULL);
  pthread_mutex_destroy(&team.lock);
  cli_progress("%s", "");
  return (dw__seconds() - start) * 1e3;
}

// One mistake in a template fails every variant in the same words: they are printed once. A missing compiler fails all that
// the cache lacks, and only the first need be named.
static bool said_before(const cli_jobs *all, size_t index) {
  const dw_error *error = &all->list[index].error;
  for (size_t i = 0; i < index; i++) {
    const dw_error *other = &all->list[i].error;
    if (!strcmp(other->message, error->message)) return true;
    if (other->status == DW_NO_COMPILER && error->status == DW_NO_COMPILER) return true;
  }
  return false;
}

int cli_jobs_errors(cli_jobs *all) {
  int code = CLI_DONE;
  for (size_t i = all->count; i-- > 0;) {  // from the end, so that what is compared with is still there
    cli_job *item = &all->list[i];
    if (!item->error.status) continue;
    int one = said_before(all, i) ? cli_exit_code(item->error.status) : cli_error(&item->error);
    code = one > code ? one : code;
  }
  return code;
}
