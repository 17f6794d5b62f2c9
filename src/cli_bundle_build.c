// draftwood bundle build: a list of kernels, or a shard of it, as one file.
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "cli_bundle.h"
#include "companions.h"
#include "flow.h"

typedef struct maker {
  dw_ctx *ctx;
  dw__bundle_writer *writer;
  pthread_mutex_t lock;  // of the writer
  uint64_t cubin_bytes;
} maker;

// ---- the work -------------------------------------------------------------------------------------------------

static dw__digest digest_of(const char *hex) {
  dw__digest digest;
  for (size_t i = 0; i < sizeof digest.bytes; i++) {
    char pair[3] = {hex[2 * i], hex[2 * i + 1], 0};
    digest.bytes[i] = (unsigned char)strtoul(pair, NULL, 16);
  }
  return digest;
}

// Metadata as of a cubin that took no time: how long a compile took is not what was compiled. And with the request's own texts,
// where the cache may have those of another request that led to the same source.
static dw_status add(maker *make, const dw_cubin *cubin, const char *shape, const char *variant, dw_error *error) {
  dw_cubin timeless = *cubin;
  timeless.compile_ms = 0;
  dw__entry entry = {.request = digest_of(cubin->request_key),
                     .build = digest_of(cubin->build_key),
                     .cubin = (void *)cubin->data,
                     .cubin_size = cubin->size};
  dw_status status = dw__metadata_print(&timeless, shape, variant, &entry.metadata, error);
  pthread_mutex_lock(&make->lock);
  if (!status) status = dw__bundle_writer_add(make->writer, &entry, cubin->target, error);
  make->cubin_bytes += cubin->size;
  pthread_mutex_unlock(&make->lock);
  dw__release(entry.metadata);
  return status;
}

static void make_one(void *user, cli_job *item) {
  maker *make = user;
  char shape[DW_TEXT_MAX], variant[DW_TEXT_MAX];
  dw_cubin *cubin;
  if (dw_cubin_build(make->ctx, &item->shape, &item->variant, &cubin, &item->error)) return;
  dw_shape_print(&item->shape, shape, sizeof shape);
  dw_variant_print(&item->variant, variant, sizeof variant);
  add(make, cubin, shape, variant, &item->error);
  dw_cubin_free(cubin);
}

static dw_status make_companions(maker *make, const cli_jobs *all, dw_error *error) {
  dw_status status = DW_OK;
  for (int i = 0; i < all->companion_count && !status; i++) {
    dw_cubin *cubin = NULL;
    status = dw__companions_cubin(make->ctx, all->companions[i], &cubin, error);
    if (!status) status = add(make, cubin, DW__COMPANIONS, "", error);
    dw_cubin_free(cubin);
  }
  return status;
}

// ---- where to -------------------------------------------------------------------------------------------------

// %i and %n of the shard. Shards that write into one file would leave only the last.
static int name_output(const char *pattern, const cli_shard *shard, bool automatic, dw__buf *path) {
  if (automatic && shard->count > 1 && !strstr(pattern, "%i"))
    return cli_usage("bundle build: found --output %s with --shard auto, allowed a name with %%i in it, one for each shard",
                     pattern);
  for (const char *at = pattern; *at; at++) {
    if (at[0] == '%' && (at[1] == 'i' || at[1] == 'n')) dw__buf_printf(path, "%d", *++at == 'i' ? shard->number : shard->count);
    else dw__buf_append(path, at, 1);
  }
  return path->failed || !path->size ? cli_usage("bundle build: --output names no file") : CLI_GO_ON;
}

// ---- the report -----------------------------------------------------------------------------------------------

static void report(const maker *make, const cli_jobs *all, const char *path, size_t bytes, double ms, bool json) {
  dw_stats stats;
  struct rusage usage;
  dw_stats_get(make->ctx, &stats);
  getrusage(RUSAGE_SELF, &usage);
  size_t entries = dw__bundle_writer_count(make->writer);
  if (json) {
    json_t *object =
      json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:I, s:I}", "file", path, "entries", (json_int_t)entries, "bytes",
                (json_int_t)bytes, "cubin_bytes", (json_int_t)make->cubin_bytes, "compiled", (json_int_t)stats.compiles, "ms",
                ms, "memory_bytes", (json_int_t)usage.ru_maxrss * 1024, "left_out", (json_int_t)all->left_out);
    cli_print_json(object);
    json_decref(object);
  } else {
    printf("%zu %s, %zu bytes, %s\n%" PRIu64 " compiled, %.1f %s, %.0f MiB of memory\n", entries,
           entries == 1 ? "entry" : "entries", bytes, path, stats.compiles, ms < 6e4 ? ms / 1e3 : ms / 6e4,
           ms < 6e4 ? "s" : "minutes", (double)usage.ru_maxrss / 1024);
    if (all->left_out) printf("%zu of %zu shapes left out\n", all->left_out, all->shapes);
  }
}

// ---- the command ----------------------------------------------------------------------------------------------

typedef struct asked {
  cli_wanted list;
  const char *output, *sign;
  bool json, dry_run;
} asked;

static int count(const cli_jobs *all, const asked *want) {
  int companions = want->list.shard.number ? 0 : all->companion_count;
  printf("%zu kernels and %d companions to build, %zu of %zu shapes left out\n", all->count, companions, all->left_out,
         all->shapes);
  return CLI_DONE;
}

static int build(maker *make, cli_jobs *all, const asked *want, const char *path) {
  dw_error error = {0};
  size_t bytes = 0;
  double ms = cli_jobs_run(all, make_one, make, "made", want->list.jobs);
  int code = cli_jobs_errors(all);
  if (code == CLI_DONE && want->list.shard.number == 0 && make_companions(make, all, &error)) code = cli_error(&error);
  if (code != CLI_DONE) {
    fprintf(stderr, "draftwood: bundle build: nothing was written, since not all could be made\n");
    return code;
  }
  code = cli_bundle_write(make->writer, want->sign, path, &bytes);
  if (code != CLI_GO_ON) return code;
  report(make, all, path, bytes, ms, want->json);
  return CLI_DONE;
}

static int open_and_build(cli_jobs *all, const asked *want, const char *path) {
  dw_error error = {0};
  dw__bundle_facts facts;
  maker make = {.lock = PTHREAD_MUTEX_INITIALIZER};
  int code = cli_open(&make.ctx);
  if (code != CLI_GO_ON) return code;
  dw_status status = dw__bundle_facts_here(make.ctx, &facts, &error);
  if (!status) make.writer = dw__bundle_writer_create(&facts);
  if (!status && !make.writer) status = dw__fail(&error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  code = status ? cli_error(&error) : build(&make, all, want, path);
  dw__bundle_writer_free(make.writer);
  dw_ctx_destroy(make.ctx);
  return code;
}

int cli_bundle_build(const cli_command *self, int argc, char **argv) {
  asked want = {.list = cli_wanted_usual()};
  const cli_option options[] = {
    {"output", "FILE", CLI_TEXT, &want.output, 0, 0, "the bundle to write"},
    {"release", NULL, CLI_FLAG, &want.list.release, 0, 0,
     "the release bundle: every preset, widths 1,2,4,8,9,16,17,32,33,64, pages 1,64, what is chosen there, companions"},
    {"dry-run", NULL, CLI_FLAG, &want.dry_run, 0, 0, "count, build nothing"},
    {"companions", NULL, CLI_FLAG, &want.list.companions, 0, 0, "also the companion kernels of each target"},
    {"from-misses", "FILE", CLI_TEXT, &want.list.misses, 0, 0, "what a host was asked for and lacked (dw_miss_list)"},
    {"sign", "KEYFILE", CLI_TEXT, &want.sign, 0, 0, "sign it with this Ed25519 private key"},
    CLI_WANTED_OPTIONS(want.list),
    {"json", NULL, CLI_FLAG, &want.json, 0, 0, "print JSON"},
  };
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (!want.output && !want.dry_run)
    return cli_usage("bundle build: found no --output FILE; draftwood bundle build --help tells more");
  unsigned char seed[DW__BUNDLE_KEY_SIZE];  // a key that is no key is told of before hours of work, not after
  if (want.sign && (code = cli_bundle_key("sign", want.sign, true, seed)) != CLI_GO_ON) return code;
  cli_jobs all = {0};
  dw__buf path = {0};
  code = cli_jobs_list(&all, &want.list, "bundle build", argc, argv);
  if (code == CLI_GO_ON && want.dry_run) code = count(&all, &want);
  if (code == CLI_GO_ON) {
    bool automatic = want.list.shard_text && !strcmp(want.list.shard_text, "auto");
    code = name_output(want.output, &want.list.shard, automatic, &path);
  }
  if (code == CLI_GO_ON) code = open_and_build(&all, &want, path.data);
  dw__buf_free(&path);
  cli_jobs_free(&all);
  return code;
}
