// draftwood verify --named: the cases of tests/cases.tsv on a GPU, by name.
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../runtime/gpu.h"
#include "cli.h"
#include "named_cases.h"
#include "plan.h"

typedef struct asked {
  int device_word, device, target;
  bool named, list, small, verbose, build_only;
  const char *only;
} asked;

typedef struct runner {
  const asked *want;
  dw_ctx *ctx;
  dw__gpu *gpu;
  dw__gpu_judges judges;
  dw__named_check made;  // the case that is run
  int passed, failed;
  double worst;
} runner;

static bool wanted(const asked *want, size_t i) { return !want->only || fnmatch(want->only, dw__named_name(i), 0) == 0; }

static int count_wanted(const asked *want) {
  int count = 0;
  for (size_t i = 0; i < dw__named_count(); i++) count += wanted(want, i);
  return count;
}

static double ratio(const dw__comparison *comparison) {
  const dw__row_error *row = &comparison->worst;
  return row->bound > 0 ? row->relative / row->bound : 0;
}

static void tell(runner *r, const dw__gpu_verdict *verdict, const dw_error *error) {
  const dw__gpu_check *check = &r->made.check;
  char shape[DW_TEXT_MAX], variant[DW_TEXT_MAX];
  const double eager = ratio(&verdict->eager), replay = ratio(&verdict->replay), worse = eager > replay ? eager : replay;
  if (worse > r->worst) r->worst = worse;
  dw_shape_print(&check->shape, shape, sizeof shape);
  cli_variant_text(&check->variant, variant);
  cli_progress("%s", "");
  if (error->status) printf("FAILED %s\n  %s %s\n  at %s: %s\n", r->made.name, shape, variant, verdict->step, error->message);
  else if (r->want->verbose)
    printf("ok %s: %s %s, %.2f s, worst row at %.2f of its bound\n", r->made.name, shape, variant, verdict->seconds, worse);
  if (error->status && error->log) printf("%s\n", error->log);
  fflush(stdout);
}

// False where the device cannot go on.
static bool run_case(runner *r, size_t i) {
  dw_error error = {0};
  dw__gpu_verdict verdict = {.step = "case"};
  dw__gpu_tools *tools = NULL;
  dw__gpu_judge *judge = NULL;
  const dw__device *device = dw__gpu_device(r->gpu);
  dw_status status = dw__named_make(i, device->cc, device->sm_count, r->want->small, &r->made, &error);
  if (!status) status = dw__gpu_judges_find(&r->judges, r->ctx, r->gpu, &r->made.check.shape, &tools, &judge, &error);
  if (!status) status = dw__gpu_verify(r->ctx, tools, judge, &r->made.check, &verdict, &error);
  *(status ? &r->failed : &r->passed) += 1;
  tell(r, &verdict, &error);
  dw_error_clear(&error);
  return status != DW_DRIVER;
}

static int run_all(runner *r) {
  dw_error error = {0};
  dw_status status = cli_gpu_device(r->ctx, r->want->device, &r->gpu, &error);
  if (status) {
    cli_error(&error);
    return status == DW_NO_DRIVER || status == DW_DRIVER ? CLI_USAGE : cli_exit_code(status);
  }
  const int count = count_wanted(r->want);
  bool go_on = true;
  for (size_t i = 0; i < dw__named_count() && go_on; i++) {
    if (!wanted(r->want, i)) continue;
    cli_progress("%s, %d of %d, %d failed", dw__named_name(i), r->passed + r->failed + 1, count, r->failed);
    go_on = run_case(r, i);
  }
  if (!go_on) printf("the device cannot go on: %d cases were not run\n", count - r->passed - r->failed);
  printf("worst row at %.2f of its bound\n%d passed, %d failed\n", r->worst, r->passed, r->failed);
  return r->failed ? CLI_WRONG : CLI_DONE;
}

static dw_status build_variant(runner *r, const dw_variant *variant, dw_error *error) {
  dw_cubin *cubin = NULL;
  dw_status status = dw_cubin_build(r->ctx, &r->made.check.shape, variant, &cubin, error);
  dw_cubin_free(cubin);
  return status;
}

// Everything that a run will load, for a machine without a compiler.
static int build_all(runner *r) {
  dw_error error = {0};
  dw_variant reference;
  const int target = r->want->target;
  dw_status status = dw_variant_parse("family=reference", &reference, &error);
  for (size_t i = 0; i < dw__named_count() && !status; i++) {
    if (!wanted(r->want, i)) continue;
    cli_progress("building %s", dw__named_name(i));
    status = dw__named_make(i, target, dw__target_sm_count(target), false, &r->made, &error);
    const dw_shape *shape = &r->made.check.shape;
    if (!status) status = dw__gpu_tools_build(r->ctx, shape->head_dim_qk, shape->head_dim_v, target, &error);
    if (!status) status = build_variant(r, &r->made.check.variant, &error);
    if (!status && r->made.check.asks & DW__ASK_COLD) status = build_variant(r, &reference, &error);
  }
  cli_progress("%s", "");
  if (status) return cli_error(&error);
  cli_tell_builds(r->ctx);
  return CLI_DONE;
}

int cli_named(const cli_command *self, int argc, char **argv) {
  asked want = {.target = 90};
  const cli_option options[] = {
    {"named", NULL, CLI_FLAG, &want.named, 0, 0, "this: the cases of users' reports, by name"},
    {"device", "host|gpu", CLI_WORD, &want.device_word, 0, 0, "gpu; by host execution they are tests"},
    {"only", "PATTERN", CLI_TEXT, &want.only, 0, 0, "cases with these names alone, e.g. 'a04*'"},
    {"list", NULL, CLI_FLAG, &want.list, 0, 0, "print the names; needs no GPU"},
    {"small", NULL, CLI_FLAG, &want.small, 0, 0, "few heads, tokens and requests: for an emulated GPU"},
    {"gpu", "N", CLI_INT, &want.device, 0, 63, "which GPU (0)"},
    {"verbose", NULL, CLI_FLAG, &want.verbose, 0, 0, "a line for each case, not only for failures"},
    {"build-only", NULL, CLI_FLAG, &want.build_only, 0, 0, "compile what the run needs into the cache; needs no GPU"},
    {"target", "N", CLI_INT, &want.target, 80, 199, "with --build-only: for this device class (90)"},
  };
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc > 1) return cli_usage("verify --named takes no shape, found %s", argv[1]);
  if (!count_wanted(&want)) return cli_usage("--only: found \"%s\", allowed the names that --list prints", want.only);
  for (size_t i = 0; i < dw__named_count() && want.list; i++)
    if (wanted(&want, i)) puts(dw__named_name(i));
  if (want.list) return CLI_DONE;
  if (!want.device_word && !want.build_only) return cli_usage("verify --named: needs --device gpu");
  runner *r = calloc(1, sizeof *r);
  if (!r) return cli_usage("out of memory");
  r->want = &want;
  code = cli_open(&r->ctx);
  if (code == CLI_GO_ON) code = want.build_only ? build_all(r) : run_all(r);
  dw__gpu_judges_close(&r->judges);
  dw_ctx_destroy(r->ctx);  // its kernels live in the GPU's CUDA context
  dw__gpu_close(r->gpu);
  free(r);
  return code;
}
