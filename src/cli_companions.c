// draftwood gen, build and verify --companions: the companion kernels' source and cubins, and their checks on the CPU or on a GPU.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "companion_checks.h"
#include "companions.h"

// ---- gen ------------------------------------------------------------------------------------------------------

int cli_companions_gen(const cli_command *self, int argc, char **argv) {
  bool companions = false;
  const cli_option options[] = {
    {"companions", NULL, CLI_FLAG, &companions, 0, 0, "this: the companion kernels, one text for every target"},
  };
  dw_ctx *ctx = NULL;
  dw_error error = {0};
  char *source = NULL;
  size_t size;
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc > 1) return cli_usage("gen --companions takes no shape, found %s", argv[1]);
  code = cli_open(&ctx);
  if (code != CLI_GO_ON) return code;
  code = dw__companions_source(ctx, &source, &size, &error) ? cli_error(&error) : CLI_DONE;
  if (source) fwrite(source, 1, size, stdout);
  dw__release(source);
  dw_ctx_destroy(ctx);
  return code;
}

// ---- build ----------------------------------------------------------------------------------------------------

static void print_cubin(const dw_cubin *cubin) {
  for (int i = 0; i < cubin->kernel_count; i++) {
    const dw_resources *k = &cubin->kernels[i];
    printf("%-8s %-18s %9d %7d %7d %10s\n", cubin->target, k->name, k->registers, k->stack_bytes,
           k->spill_stores < 0 ? 0 : k->spill_stores + k->spill_loads, cubin->from_cache ? "hit" : "miss");
  }
}

static json_t *cubin_json(const dw_cubin *cubin) {
  json_t *kernels = json_array();
  for (int i = 0; i < cubin->kernel_count; i++) {
    const dw_resources *k = &cubin->kernels[i];
    json_array_append_new(kernels,
                          json_pack("{s:s, s:i, s:i, s:i, s:i}", "name", k->name, "registers", k->registers, "stack_bytes",
                                    k->stack_bytes, "spill_stores", k->spill_stores, "spill_loads", k->spill_loads));
  }
  return json_pack("{s:s, s:s, s:s, s:s, s:I, s:f, s:s, s:o}", "target", cubin->target, "compiler", cubin->compiler,
                   "request_key", cubin->request_key, "build_key", cubin->build_key, "cubin_bytes", (json_int_t)cubin->size,
                   "compile_ms", cubin->compile_ms, "cache", cubin->from_cache ? "hit" : "miss", "kernels", kernels);
}

// One target of the list, by the shape's own words for it.
static dw_status build_one(dw_ctx *ctx, const char *text, json_t *list, dw_error *error) {
  dw_shape shape;
  dw_cubin *cubin = NULL;
  dw_status status = dw_shape_parse("mla:h=1,t=1", &shape, error);
  if (!status) status = cli_shape_field(&shape, "target", text, error);
  if (!status) status = dw_companions_build(ctx, shape.target, &cubin, error);
  if (status) return status;
  if (list) json_array_append_new(list, cubin_json(cubin));
  else print_cubin(cubin);
  dw_cubin_free(cubin);
  return DW_OK;
}

static int build(dw_ctx *ctx, const char *targets, bool json) {
  dw_error error = {0};
  dw_status status = DW_OK;
  json_t *list = json ? json_array() : NULL;
  if (!json) printf("%-8s %-18s %9s %7s %7s %10s\n", "target", "kernel", "registers", "stack", "spills", "cache");
  for (const char *at = targets; !status;) {
    char text[32];
    size_t size = strcspn(at, ",");
    snprintf(text, sizeof text, "%.*s", (int)(size < 31 ? size : 31), at);
    status = build_one(ctx, text, list, &error);
    if (!at[size]) break;
    at += size + 1;
  }
  if (json && !status) cli_print_json(list);
  json_decref(list);
  return status ? cli_error(&error) : CLI_DONE;
}

int cli_companions_build(const cli_command *self, int argc, char **argv) {
  bool companions = false, json = false;
  const char *targets = "sm_120";
  const cli_option options[] = {
    {"companions", NULL, CLI_FLAG, &companions, 0, 0, "this: the companion kernels, one cubin a target"},
    {"target", "SM,...", CLI_TEXT, &targets, 0, 0, "for these targets (sm_120)"},
    {"json", NULL, CLI_FLAG, &json, 0, 0, "print JSON"},
  };
  dw_ctx *ctx = NULL;
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc > 1) return cli_usage("build --companions takes no shape, found %s", argv[1]);
  code = cli_open(&ctx);
  if (code == CLI_GO_ON) code = build(ctx, targets, json);
  dw_ctx_destroy(ctx);
  return code;
}

// ---- verify ---------------------------------------------------------------------------------------------------

typedef struct asked {
  bool companions, small, sanitize;
  int gpu, seed, rounds, order;
  const char *only;
} asked;

typedef struct place {
  dw_ctx *host;
  cli_gpu gpu;
  dw__stage *stage;
} place;

static int place_open(place *here, const asked *want) {
  dw_error error = {0};
  *here = (place){.host = NULL};
  int code = want->gpu ? cli_gpu_open(&here->gpu) : cli_open(&here->host);
  if (code != CLI_GO_ON) return code;
  dw_status status = want->gpu ? dw__stage_gpu(here->gpu.ctx, here->gpu.gpu, &here->stage, &error)
                               : dw__stage_host(here->host, want->sanitize, (dw_host_order)want->order, (uint64_t)want->seed,
                                                &here->stage, &error);
  return status ? cli_error(&error) : CLI_GO_ON;
}

static void place_close(place *here) {
  dw__stage_close(here->stage);
  dw_ctx_destroy(here->host);
  cli_gpu_close(&here->gpu);
}

// False where the device cannot go on.
static bool run_check(const place *here, const asked *want, const dw__companion_check *check, int *failed) {
  int runs = 0;
  for (int round = 0; round < want->rounds; round++)
    for (int variant = 0; variant < check->variants; variant++, runs++) {
      dw_error error = {0};
      uint64_t seed = (uint64_t)want->seed + 1000003u * (uint64_t)round + (uint64_t)variant;
      cli_progress("%s, round %d of %d, variant %d of %d", check->name, round + 1, want->rounds, variant + 1, check->variants);
      dw_status status = dw__companion_check_run(check, variant, seed, here->stage, &error);
      if (!status) continue;
      cli_progress("%s", "");
      printf("FAILED %s\n", error.message);
      dw_error_clear(&error);
      *failed += 1;
      return status != DW_DRIVER;
    }
  cli_progress("%s", "");
  printf("ok %-8s %4d runs  %s\n", check->name, runs, check->what);
  fflush(stdout);
  return true;
}

static int run_checks(const place *here, const asked *want) {
  int failed = 0, passed = 0;
  for (size_t i = 0; i < dw__companion_check_count; i++) {
    const dw__companion_check *check = &dw__companion_checks[i];
    int before = failed;
    if (want->only && strcmp(want->only, check->name) != 0) continue;
    if (check->large && want->small) {
      printf("not run (--small): %-8s %s\n", check->name, check->what);
      continue;
    }
    if (!run_check(here, want, check, &failed)) {
      printf("the device cannot go on: %zu checks were not run\n", dw__companion_check_count - i - 1);
      break;
    }
    passed += failed == before;
  }
  if (!passed && !failed) return cli_usage("--check: found \"%s\", allowed the name of a check", want->only ? want->only : "");
  printf("%d checks passed, %d failed; each run is an eager launch and two with other contents%s\n", passed, failed,
         want->gpu ? ", replayed from a graph" : "");
  return failed ? CLI_WRONG : CLI_DONE;
}

int cli_companions_verify(const cli_command *self, int argc, char **argv) {
  asked want = {.seed = (int)(time(NULL) & 0x3FFFFFFF), .rounds = 1};
  const cli_option options[] = {
    {"companions", NULL, CLI_FLAG, &want.companions, 0, 0, "this: the companion kernels, check after check"},
    {"device", "host|gpu", CLI_WORD, &want.gpu, 0, 0, "where to run them (host)"},
    {"check", "NAME", CLI_TEXT, &want.only, 0, 0, "this check alone"},
    {"rounds", "N", CLI_INT, &want.rounds, 1, 100000, "with so many seeds each (1)"},
    {"seed", "S", CLI_INT, &want.seed, 0, 1 << 30, "of the first round (the time)"},
    {"small", NULL, CLI_FLAG, &want.small, 0, 0, "without the pool of gigabytes: for an emulated GPU"},
    {"order", "forward|reverse|random", CLI_WORD, &want.order, 0, 0, "host: the order in which warps run (forward)"},
  };
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc > 1) return cli_usage("verify --companions takes no shape, found %s", argv[1]);
#ifdef __SANITIZE_ADDRESS__
  want.sanitize = true;
#endif
  place here;
  code = place_open(&here, &want);
  if (code == CLI_GO_ON) {
    printf("companions on %s, seed %d\n", want.gpu ? here.gpu.name : "host", want.seed);
    code = run_checks(&here, &want);
  }
  place_close(&here);
  return code;
}
