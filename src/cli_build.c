// draftwood build: many cubins into the cache, by several threads, and what they cost.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "flow.h"
#include "plan.h"

// ---- the work -------------------------------------------------------------------------------------------------

static void compile(void *user, cli_job *item) {
  dw_cubin_build(user, &item->shape, &item->variant, &item->cubin, &item->error);
}

static void check(void *user, cli_job *item) {
  if (!item->cubin) return;  // its compile failed, which has been said
  cli_problem usual = cli_problem_usual();
  if (item->variant.call == DW_CALL_TABLE) usual.addressing = DW_BLOCK_TABLE;
  dw__problem *problem;
  dw_status status = cli_problem_make(&item->shape, &usual, &problem, &item->error);
  if (!status) cli_check_host(user, &item->shape, &item->variant, &usual, problem, &item->checked, &item->error);
  dw__problem_free(problem);
}

// ---- the table ------------------------------------------------------------------------------------------------

// Dynamic shared memory of each kernel, as the plan has it.
static size_t dynamic_shared(const cli_job *item, const char *kernel) {
  dw__plan plan;
  dw_bounds bounds = cli_bounds(&item->shape, 1, 4096);
  bounds.sm_count = dw__target_sm_count(item->shape.target);
  if (dw__plan_make(&item->shape, &item->variant, &bounds, &plan, NULL)) return 0;
  for (int i = 0; i < plan.count; i++)
    if (strcmp(plan.kernels[i].entry, kernel) == 0) return plan.kernels[i].dynamic_shared;
  if (plan.check.entry && strcmp(plan.check.entry, kernel) == 0) return plan.check.dynamic_shared;
  return plan.pack.entry && strcmp(plan.pack.entry, kernel) == 0 ? plan.pack.dynamic_shared : 0;
}

static int spilled(const dw_resources *kernel) {
  if (kernel->spill_stores < 0 || kernel->spill_loads < 0) return -1;
  return kernel->spill_stores + kernel->spill_loads;
}

static bool is_wrong(const cli_job *item) { return item->error.status != DW_OK; }

static void print_check(const cli_job *item, bool verify) {
  if (!verify) return;
  if (!item->checked.rows) printf("  %-17s", "-");
  else printf("  %.2e/%.2e", item->checked.worst.relative, item->checked.worst.bound);
}

static void print_job(const cli_job *item, bool verify) {
  char variant[DW_TEXT_MAX];
  cli_variant_text(&item->variant, variant);
  if (!item->cubin) {
    printf("  failed  %s\n", variant);
    return;
  }
  for (int i = 0; i < item->cubin->kernel_count; i++) {
    const dw_resources *kernel = &item->cubin->kernels[i];
    printf("  %-8s %-14s %9d  %7zu  %6d  %5d", i ? "" : item->cubin->target, kernel->name, kernel->registers,
           (size_t)kernel->shared_static + dynamic_shared(item, kernel->name), spilled(kernel), kernel->stack_bytes);
    if (i == 0) {
      printf("  %10.0f  %-5s", item->cubin->compile_ms, item->cubin->from_cache ? "hit" : "miss");
      print_check(item, verify);
      printf("  %s", variant);
    }
    putchar('\n');
  }
}

static void print_table(const cli_jobs *all, bool verify) {
  const dw_shape *before = NULL;
  for (size_t i = 0; i < all->count; i++) {
    const cli_job *item = &all->list[i];
    if (!before || memcmp(before, &item->shape, sizeof *before) != 0) {
      char shape[DW_TEXT_MAX];
      dw_shape_print(&item->shape, shape, sizeof shape);
      printf("%s\n  %-8s %-14s %9s  %7s  %6s  %5s  %10s  %-5s", shape, "target", "kernel", "registers", "shared", "spills",
             "stack", "compile ms", "cache");
      printf(verify ? "  %-17s  variant\n" : "%s  variant\n", verify ? "worst row/bound" : "");
    }
    before = &item->shape;
    print_job(item, verify);
  }
}

// ---- JSON -----------------------------------------------------------------------------------------------------

static json_t *kernels_json(const cli_job *item) {
  json_t *list = json_array();
  for (int i = 0; i < item->cubin->kernel_count; i++) {
    const dw_resources *kernel = &item->cubin->kernels[i];
    json_array_append_new(list, json_pack("{s:s, s:i, s:i, s:I, s:i, s:i, s:i, s:i}", "name", kernel->name, "registers",
                                          kernel->registers, "shared_static", kernel->shared_static, "shared_dynamic",
                                          (json_int_t)dynamic_shared(item, kernel->name), "spill_stores", kernel->spill_stores,
                                          "spill_loads", kernel->spill_loads, "stack_bytes", kernel->stack_bytes, "barriers",
                                          kernel->barriers));
  }
  return list;
}

static json_t *job_json(const cli_job *item, bool verify) {
  char shape[DW_TEXT_MAX], variant[DW_TEXT_MAX];
  dw_shape_print(&item->shape, shape, sizeof shape);
  dw_variant_print(&item->variant, variant, sizeof variant);
  json_t *object = json_pack("{s:s, s:s}", "shape", shape, "variant", variant);
  const dw_cubin *cubin = item->cubin;
  if (cubin) {
    json_t *built =
      json_pack("{s:s, s:s, s:s, s:s, s:I, s:f, s:s, s:o}", "target", cubin->target, "compiler", cubin->compiler, "request_key",
                cubin->request_key, "build_key", cubin->build_key, "cubin_bytes", (json_int_t)cubin->size, "compile_ms",
                cubin->compile_ms, "cache", cubin->from_cache ? "hit" : "miss", "kernels", kernels_json(item));
    json_object_update(object, built);
    json_decref(built);
  }
  if (verify && item->checked.rows) json_object_set_new(object, "verify", cli_comparison_json(&item->checked));
  if (is_wrong(item)) json_object_set_new(object, "error", json_string(item->error.message));
  return object;
}

// ---- the command ----------------------------------------------------------------------------------------------

typedef struct summary {
  size_t compiled, cached, failed;
  double build_ms, verify_ms;
} summary;

static void print_json(const cli_jobs *all, bool verify, const summary *sum) {
  json_t *list = json_array();
  for (size_t i = 0; i < all->count; i++) json_array_append_new(list, job_json(&all->list[i], verify));
  json_t *object = json_pack("{s:o, s:I, s:I, s:I, s:f}", "variants", list, "compiled", (json_int_t)sum->compiled, "from_cache",
                             (json_int_t)sum->cached, "failed", (json_int_t)sum->failed, "ms", sum->build_ms);
  if (verify) json_object_set_new(object, "verify_ms", json_real(sum->verify_ms));
  cli_print_json(object);
  json_decref(object);
}

static void print_summary(const cli_jobs *all, bool verify, const summary *sum) {
  print_table(all, verify);
  printf("%zu variant%s, %zu compiled, %zu from cache", all->count, all->count == 1 ? "" : "s", sum->compiled, sum->cached);
  if (sum->failed) printf(", %zu failed", sum->failed);
  printf(", %.0f ms", sum->build_ms);
  if (verify) printf("; checked by host execution in %.1f s", sum->verify_ms / 1e3);
  putchar('\n');
}

static int report(cli_jobs *all, bool verify, bool json, summary *sum, uint64_t compiles) {
  sum->compiled = (size_t)compiles;
  for (size_t i = 0; i < all->count; i++) {
    sum->cached += all->list[i].cubin && all->list[i].cubin->from_cache;
    sum->failed += is_wrong(&all->list[i]);
  }
  if (json) print_json(all, verify, sum);
  else print_summary(all, verify, sum);
  fflush(stdout);
  return cli_jobs_errors(all);
}

static int build(dw_ctx *ctx, cli_jobs *all, int threads, bool verify, bool json) {
  summary sum = {0};
  dw_stats stats;
  sum.build_ms = cli_jobs_run(all, compile, ctx, "compiled", threads);
  dw_stats_get(ctx, &stats);
  if (verify) sum.verify_ms = cli_jobs_run(all, check, ctx, "checked", threads);
  return report(all, verify, json, &sum, stats.compiles - stats.compile_failures);
}

int cli_build(const cli_command *self, int argc, char **argv) {
  if (cli_has(argc, argv, "--companions")) return cli_companions_build(self, argc, argv);
  int verify = -1;
  bool json = false;
  cli_wanted want = cli_wanted_usual();
  const cli_option options[] = {
    CLI_WANTED_OPTIONS(want),
    {"verify", "host", CLI_WORD, &verify, 0, 0, "also run each on the CPU against the oracle"},
    {"json", NULL, CLI_FLAG, &json, 0, 0, "print JSON"},
  };
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  cli_jobs all = {0};
  dw_ctx *ctx = NULL;
  code = cli_jobs_list(&all, &want, "build", argc, argv);
  if (code == CLI_GO_ON) code = cli_open(&ctx);
  if (code == CLI_GO_ON) code = build(ctx, &all, want.jobs, verify == 0, json);
  dw_ctx_destroy(ctx);
  cli_jobs_free(&all);
  return code;
}
