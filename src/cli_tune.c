// draftwood tune: dw_tune for problems from the command line, on one GPU or on all at once, and what came of it as a table.
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"
#include "flow.h"
#include "gpu_tools.h"
#include "plan.h"
#include "tune_plan.h"

enum { PROBLEMS_MAX = 4096, GPUS_MAX = 64 };

typedef struct tuning {
  cli_list lengths, batches, widths;
  const char *gpu, *budget, *limits, *folder, *shard_text;
  int effort, call, split_tokens, threads;
  bool warm, any_numerics, resume, all_presets, json, quiet, worker, build_only;
  cli_shard shard;
  double seconds;
} tuning;

typedef struct problems {
  dw_shape shapes[PROBLEMS_MAX];
  dw_bounds bounds[PROBLEMS_MAX];
  dw_request list[PROBLEMS_MAX];
  size_t count;
} problems;

// ---- what is asked --------------------------------------------------------------------------------------------

// "90", "90s", "5m", "2h".
static int read_budget(const char *text, double *seconds) {
  char *end;
  *seconds = strtod(text, &end);
  const double unit = !*end || !strcmp(end, "s") ? 1 : !strcmp(end, "m") ? 60 : !strcmp(end, "h") ? 3600 : 0;
  *seconds *= unit;
  if (end != text && *seconds >= 1 && *seconds <= 1e6) return CLI_GO_ON;
  return cli_usage("--budget: found \"%s\", allowed a time from 1s on, as 60s, 10m or 2h", text);
}

static dw_status add_shape(const tuning *want, const dw_shape *shape, problems *all, dw_error *error) {
  for (int b = 0; b < want->batches.count; b++)
    for (int l = 0; l < want->lengths.count; l++) {
      if (all->count == PROBLEMS_MAX)
        return dw__fail_int(error, DW_BAD_ARGUMENT, "problems", PROBLEMS_MAX + 1, "up to 4096", "too many at once");
      const size_t i = all->count++;
      dw_bounds *bounds = &all->bounds[i];
      *bounds = cli_bounds(shape, want->batches.values[b], want->lengths.values[l] + shape->width);
      bounds->split_tokens = want->split_tokens;
      bounds->call = want->split_tokens ? DW_CALL_ANY : (dw_call)want->call;
      all->shapes[i] = *shape;
      all->list[i] = (dw_request){.shape = &all->shapes[i], .bounds = bounds};
    }
  return DW_OK;
}

static dw_status add_text(const tuning *want, const char *text, int cc, problems *all, dw_error *error) {
  dw_shape shape;
  dw_status status = dw_shape_parse(text, &shape, error);
  if (status) return status;
  if (!strstr(text, "target=")) shape.target = cc;
  if (want->limits) status = cli_shape_field(&shape, "limits", want->limits, error);
  for (int w = 0; !status && w < (want->widths.count ? want->widths.count : 1); w++) {
    if (want->widths.count) shape.width = want->widths.values[w];
    status = dw_shape_check(&shape, error);
    if (!status) status = add_shape(want, &shape, all, error);
  }
  return status;
}

static dw_status list_problems(const tuning *want, int argc, char **argv, int cc, problems *all, dw_error *error) {
  dw_status status = DW_OK;
  for (int i = 1; i < argc && !status; i++) status = add_text(want, argv[i], cc, all, error);
  for (size_t i = 0; want->all_presets && i < dw_preset_count() && !status; i++) {
    dw_shape shape;
    dw_variant variant;
    status = dw_preset_shape(dw_preset_name(i), &shape, error);
    shape.target = cc;
    if (!status && dw_variant_choose(&shape, NULL, &variant, NULL) == DW_OK)
      status = add_text(want, dw_preset_name(i), cc, all, error);
  }
  return status;
}

// ---- results --------------------------------------------------------------------------------------------------

static int show_progress(void *user, const dw_tune_progress *p) {
  const tuning *want = user;
  if (!want->quiet)
    cli_progress("problem %zu of %zu: %zu of %zu checked, %zu in play, round %d, %.0f of %.0f s", p->problem + 1, p->problems,
                 p->prepared, p->candidates, p->in_play, p->rounds, p->seconds, p->budget_seconds);
  return 0;
}

static void print_choice(const tuning *want, const dw_request *asked, const dw__plan_choice *c) {
  char shape[DW_TEXT_MAX], variant[DW_TEXT_MAX];
  dw_shape_print(asked->shape, shape, sizeof shape);
  if (c) cli_variant_text(&c->variant, variant);
  const int prefix = asked->bounds->kv_len - asked->shape->width;
  if (want->json) {
    json_t *row = json_pack("{s:s, s:i, s:i, s:s?}", "shape", shape, "batch", asked->bounds->batch, "prefix", prefix, "variant",
                            c ? variant : NULL);
    const struct {
      const char *name;
      double value;
    } numbers[] = {{"us", c ? c->us : 0},
                   {"default_us", c ? c->default_us : 0},
                   {"ratio", c ? c->ratio : 0},
                   {"ratio_mad", c ? c->ratio_mad : 0}};
    for (size_t i = 0; i < DW__COUNT(numbers); i++) json_object_set_new(row, numbers[i].name, json_real(numbers[i].value));
    json_object_set_new(row, "n", json_integer(c ? c->n : 0));
    cli_write_line(stdout, row);
    json_decref(row);
  } else if (c) {
    printf("h=%-3d t=%-4d B=%-4d %-8d %-50s %9.2f %9.2f %7.3f %7.4f %4d\n", asked->shape->heads, asked->shape->width,
           asked->bounds->batch, prefix, variant, c->us, c->default_us, c->ratio, c->ratio_mad, c->n);
  } else {
    printf("h=%-3d t=%-4d B=%-4d %-8d not measured within the budget: the rule table's\n", asked->shape->heads,
           asked->shape->width, asked->bounds->batch, prefix);
  }
}

static int show(const tuning *want, dw_ctx *ctx, const problems *all, const dw__board *board) {
  dw__choices choices = {0};
  dw_error error = {0};
  dw__buf path = {0};
  char hex[65];
  char *folder = dw__tune_folder(ctx, want->folder, board, NULL);
  dw__buf_printf(&path, "%s/plan.jsonl", folder ? folder : "");
  dw_status status = dw__choices_load(path.data, &choices, &error);
  if (!status && !want->json)
    printf("%-6s%-7s%-7s%-9s%-50s %9s %9s %7s %7s %4s\n", "heads", "width", "batch", "prefix", "variant", "us", "default",
           "ratio", "mad", "n");
  for (size_t i = 0; i < all->count && !status; i++) {
    const dw__tune_key key = dw__tune_key_of(&all->shapes[i], &all->bounds[i], board->l2_bytes);
    dw__nearness near;
    const dw__plan_choice *c = dw__choices_find(&choices, board, &key, &near);
    print_choice(want, &all->list[i], near == DW__SAME_PROBLEM ? c : NULL);
  }
  if (!status) {
    const dw__digest digest = dw__choices_digest(&choices);
    dw__hex(&digest, hex);
    if (!want->json) printf("plan %s\ndigest %s\n", path.data, hex);
  }
  dw__choices_free(&choices);
  dw__buf_free(&path);
  dw__release(folder);
  return status ? cli_error(&error) : CLI_DONE;
}

// ---- all GPUs -------------------------------------------------------------------------------------------------

// GPUs of one kind share its problems; each kind has all of them.
static void share(const dw__device *devices, int count, int i, cli_shard *shard) {
  *shard = (cli_shard){0, 0};
  for (int k = 0; k < count; k++) {
    const bool same = !strcmp(devices[k].name, devices[i].name) && devices[k].sm_count == devices[i].sm_count;
    shard->count += same;
    shard->number += same && k < i;
  }
}

static pid_t start_child(const tuning *want, const dw__device *devices, int gpus, int i, int argc, char **argv) {
  char gpu[16], part[64], *arguments[512];
  int count = 0;
  pid_t pid;
  cli_shard own;
  share(devices, gpus, i, &own);
  const int parts = want->shard.count ? want->shard.count : 1;
  snprintf(gpu, sizeof gpu, "%d", i);
  snprintf(part, sizeof part, "%d/%d", want->shard.number * own.count + own.number, parts * own.count);
  arguments[count++] = "draftwood";
  arguments[count++] = "tune";
  for (int k = 1; k < argc && count < 500; k++) arguments[count++] = argv[k];
  char *const more[] = {"--gpu", gpu, "--shard", part, "--quiet", NULL};
  for (size_t k = 0; k < DW__COUNT(more); k++) arguments[count++] = more[k];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  const int fault = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (fault) fprintf(stderr, "draftwood: GPU %d: %s\n", i, strerror(fault));
  return fault ? 0 : pid;
}

// A child a GPU; afterwards the plans anew, since each child's knew only what was there when it ended.
static int tune_all_gpus(const tuning *want, dw_ctx *ctx, const dw__device *devices, int gpus, int argc, char **argv) {
  pid_t children[GPUS_MAX];
  int code = CLI_DONE;
  dw_error error = {0};
  for (int i = 0; i < gpus; i++) children[i] = start_child(want, devices, gpus, i, argc, argv);
  for (int i = 0; i < gpus; i++) {
    int status = -1;
    if (children[i]) waitpid(children[i], &status, 0);
    if (status) {
      fprintf(stderr, "draftwood: the child of GPU %d failed\n", i);
      code = CLI_WRONG;
    }
  }
  for (int i = 0; i < gpus; i++) {
    const dw__board board = {.cc = devices[i].cc, .sm_count = devices[i].sm_count, .l2_bytes = devices[i].l2_bytes};
    dw__board named = board;
    memcpy(named.name, devices[i].name, sizeof named.name);
    char *folder = dw__tune_folder(ctx, want->folder, &named, NULL);
    const dw_status status =
      folder ? dw__tune_plan_write(folder, want->warm ? DW__WARM : DW__COLD, want->any_numerics, &error) : DW_OK;
    dw__release(folder);
    if (status) code = cli_error(&error);
  }
  return code;
}

// ---- compiling alone ------------------------------------------------------------------------------------------

static int build_only(const tuning *want, dw_ctx *ctx, int argc, char **argv) {
  static problems all;
  dw_error error = {0};
  const dw_tune_options options = {.size = sizeof options,
                                   .effort = (dw_effort)want->effort,
                                   .any_numerics = want->any_numerics,
                                   .threads = want->threads > 0 ? want->threads : 0};
  dw_status status = list_problems(want, argc, argv, 90, &all, &error);
  const int cc = all.count ? all.shapes[0].target : 90;
  const dw__board board = {.cc = cc, .sm_count = dw__target_sm_count(cc), .name = "H200"};
  if (!status) status = dw__tune_build(ctx, all.list, all.count, &options, &board, NULL, NULL, &error);
  for (size_t i = 0; i < all.count && !status; i++) {
    const dw_shape *s = &all.shapes[i];
    status = dw__gpu_tools_build(ctx, s->head_dim_qk, s->head_dim_v, s->target, &error);
  }
  if (status) return cli_error(&error);
  cli_tell_builds(ctx);
  return CLI_DONE;
}

// ---- the command ----------------------------------------------------------------------------------------------

static int tune_one_gpu(const tuning *want, dw_ctx *ctx, int gpu, const problems *all) {
  dw_error error = {0};
  const dw_tune_options options = {.size = sizeof options,
                                   .gpu = gpu,
                                   .budget_seconds = want->seconds,
                                   .effort = (dw_effort)want->effort,
                                   .warm = want->warm,
                                   .any_numerics = want->any_numerics,
                                   .resume = want->resume,
                                   .shard = want->shard.number,
                                   .shards = want->shard.count,
                                   .threads = want->threads,
                                   .folder = want->folder,
                                   .command = "/proc/self/exe",
                                   .progress = show_progress,
                                   .progress_user = (void *)want};
  const dw_status status = dw_tune(ctx, all->list, all->count, &options, &error);
  cli_progress("%s", "");
  return status ? cli_error(&error) : CLI_DONE;
}

static int read_gpus(dw_ctx *ctx, dw__device devices[GPUS_MAX], int *count) {
  dw_error error = {0};
  dw__driver *driver;
  dw_status status = dw__ctx_driver(ctx, &driver, &error);
  if (!status) status = dw__driver_device_count(driver, count, &error);
  if (!status && *count == 0) status = dw__fail(&error, DW_NO_DRIVER, "device", "no GPU", "a GPU of this machine", "%s", "");
  if (*count > GPUS_MAX) *count = GPUS_MAX;
  for (int i = 0; i < *count && !status; i++) status = dw__driver_device(driver, i, &devices[i], &error);
  if (!status) return CLI_GO_ON;
  cli_error(&error);
  return CLI_USAGE;
}

static int run(const tuning *want, dw_ctx *ctx, int argc, char **argv, int all_argc, char **all_argv) {
  static problems all;
  static dw__device devices[GPUS_MAX];
  dw_error error = {0};
  int gpus = 0, gpu = 0, code = read_gpus(ctx, devices, &gpus);
  if (code != CLI_GO_ON) return code;
  const bool every = !strcmp(want->gpu, "all");
  char *end;
  if (!every) gpu = (int)strtol(want->gpu, &end, 10);
  if (!every && (*end || end == want->gpu || gpu < 0 || gpu >= gpus))
    return cli_usage("--gpu: found \"%s\", allowed all, or a number from 0 to %d", want->gpu, gpus - 1);
  if (list_problems(want, argc, argv, devices[gpu].cc, &all, &error)) return cli_error(&error);
  code = every ? tune_all_gpus(want, ctx, devices, gpus, all_argc, all_argv) : tune_one_gpu(want, ctx, gpu, &all);
  if (code != CLI_DONE || want->quiet) return code;
  dw__board board = {.cc = devices[gpu].cc, .sm_count = devices[gpu].sm_count, .l2_bytes = devices[gpu].l2_bytes};
  memcpy(board.name, devices[gpu].name, sizeof board.name);
  return show(want, ctx, &all, &board);
}

int cli_tune(const cli_command *self, int argc, char **argv) {
  tuning want = {.gpu = "0",
                 .budget = "60s",
                 .lengths = {.values = {1000, 5700, 23000, 91000}, .count = 4},
                 .batches = {.values = {1, 8}, .count = 2},
                 .effort = DW_MEASURE,
                 .call = DW_CALL_TABLE};
  const cli_option options[] = {
    {"gpu", "N|all", CLI_TEXT, &want.gpu, 0, 0, "which GPU; all: every one of this machine at once (0)"},
    {"budget", "TIME", CLI_TEXT, &want.budget, 0, 0, "for everything, as 60s, 10m or 2h (60s)"},
    {"effort", "quick|measure|exhaustive", CLI_WORD, &want.effort, 0, 0,
     "how many variants are looked at, and how long (measure)"},
    {"lengths", "N,...", CLI_INTS, &want.lengths, 1, 1 << 22, "committed tokens a request (1000,5700,23000,91000)"},
    {"batches", "N,...", CLI_INTS, &want.batches, 1, 4096, "requests (1,8)"},
    {"widths", "N,...", CLI_INTS, &want.widths, 1, 1025, "draft tokens (the shape's)"},
    {"all-presets", NULL, CLI_FLAG, &want.all_presets, 0, 0, "every preset that a kernel serves, beside the shapes given"},
    {"call", "any|table", CLI_WORD, &want.call, 0, 0, "what calls have in common (table)"},
    {"split-tokens", "N", CLI_INT, &want.split_tokens, 16, 1 << 20, "fixed KV ranges of so many tokens, a multiple of 16"},
    {"limits", "native|sm_120", CLI_TEXT, &want.limits, 0, 0, "resources (the shape's)"},
    {"warm", NULL, CLI_FLAG, &want.warm, 0, 0, "choose by times with the KV in the L2, as far as it fits"},
    {"any-numerics", NULL, CLI_FLAG, &want.any_numerics, 0, 0, "also variants whose results have other bits by right"},
    {"resume", NULL, CLI_FLAG, &want.resume, 0, 0, "go on where an interrupted run with the same folder was"},
    {"shard", "I/N", CLI_TEXT, &want.shard_text, 0, 0,
     "the I-th of N parts of the problems, from 0; auto: of a Slurm array or MPI"},
    {"threads", "N", CLI_INT, &want.threads, -1, 64, "that compile beforehand (one a compile slot; -1: none)"},
    {"folder", "DIR", CLI_TEXT, &want.folder, 0, 0, "of journals, records and plans (tune/ in the cache)"},
    {"build-only", NULL, CLI_FLAG, &want.build_only, 0, 0,
     "compile what the run needs into the cache; needs no GPU (target sm_90, or the shape's)"},
    {"json", NULL, CLI_FLAG, &want.json, 0, 0, "the choices as JSON lines"},
    {"quiet", NULL, CLI_FLAG, &want.quiet, 0, 0, "neither progress nor table"},
    {"worker", NULL, CLI_FLAG, &want.worker, 0, 0, "for dw_tune: answer questions on stdin"},
  };
  char *given[512];
  const int all_argc = argc < 512 ? argc : 512;
  memcpy(given, argv, (size_t)all_argc * sizeof *given);  // cli_parse changes argv
  dw_ctx *ctx;
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (want.worker) return cli_tune_worker(atoi(want.gpu));
  if (argc < 2 && !want.all_presets)
    return cli_usage("tune: found no shape, allowed one or more; draftwood tune --help tells more");
  code = read_budget(want.budget, &want.seconds);
  if (code == CLI_GO_ON && want.shard_text) code = cli_shard_read(want.shard_text, &want.shard);
  if (code == CLI_GO_ON) code = cli_open(&ctx);
  if (code != CLI_GO_ON) return code;
  code = want.build_only ? build_only(&want, ctx, argc, argv) : run(&want, ctx, argc, argv, all_argc, given);
  dw_ctx_destroy(ctx);
  return code;
}
