// What draftwood bench and the worker of draftwood tune share: a variant that is loaded, captured and timed (src/cli_bench.c).
#ifndef DRAFTWOOD_CLI_BENCH_H
#define DRAFTWOOD_CLI_BENCH_H

#include "../runtime/nvml.h"
#include "cli.h"
#include "gpu_verify.h"
#include "plan.h"

enum { REPS_MAX = 101, VARIANTS_MAX = 256, CALLS_MAX = 512 };
#define COLD_BYTES 400e6  // KV bytes a graph reads at least: several times an L2
#define LEAST_CALLS 6
#define WARM_CALLS 16
#define WARM_UP_US 15000

typedef struct asked {
  const char *variants, *limits, *record, *commit;
  cli_list lengths, batches, widths, heads, pages, ragged, slots;
  int mask, addressing, order, reps, calls, pool, split_tokens, declared, seed, device;
  int window, sinks, q_rope, kv_rope, planes;
  double soft_cap;
  bool sweep, warm, chain, check, json, build_only, ceilings, any_call, read_only;
  cli_noted noted;
} asked;

// One variant of a problem, with its measurements.
typedef struct contender {
  bool reads;  // no kernel of ours: a launch that only reads the same KV by the same tables
  dw_variant variant;
  int slots;  // KV ranges a request asked for; 0: the rule's
  dw__plan plan;
  dw_cubin *cubin;
  dw__module *module;
  dw__launch launches[DW__PLAN_KERNELS], check, pack;
  dw__graph *graph;
  double us[REPS_MAX];
  double rel_err;  // -1: not checked
  dw_error error;
} contender;

// What is measured at one time.
typedef struct problem {
  dw_shape shape;
  int batch, *prefix;
  bool ragged;
  dw_bounds bounds;
  int calls;
  double tokens, kv_bytes, flops;
} problem;

typedef struct bench {
  const asked *want;
  dw_ctx *ctx;
  dw__gpu *gpu;
  dw__gpu_tools *tools;
  dw__gpu_judge *judge;
  dw__ceilings ceilings;
  char driver[64], conditions[256];
  FILE *record;
  void *workspace;
  size_t workspace_bytes;
  int head_dim_qk, head_dim_v;  // of the tools
  bool failed;
} bench;

// Bytes and operations of a problem.
void bench_count_work(problem *p);
// Plan, cubin and, with a GPU, module.
dw_status bench_load(const bench *b, const problem *p, contender *c, dw_error *error);
void bench_unload(const bench *b, contender *c);
// One call on `stream`; p->calls of them as c->graph. With want->warm all are of the first slot set.
dw_status bench_call(const bench *b, const problem *p, const contender *c, const dw_args *given, void *stream, dw_error *error);
dw_status bench_capture(const bench *b, const problem *p, contender *c, const dw__gpu_problem *data, dw_error *error);
// NaN in outputs and workspace.
dw_status bench_poison(const bench *b, dw__gpu_problem *data, dw_error *error);
dw_status bench_warm_up(const bench *b, contender *c, dw_error *error);
// c->us[rep]: microseconds of a call.
dw_status bench_time_once(const bench *b, const problem *p, contender *c, int rep, dw_error *error);
// Room for the largest of the contenders' plans.
dw_status bench_make_workspace(bench *b, const contender *list, int count, dw_error *error);
dw_status bench_make_data(const bench *b, const problem *p, dw__gpu_problem **data, dw_error *error);
// A failure of the device ends everything; any other is the contender's own.
bool bench_is_fatal(dw_status status);
// What the driver's management library tells of the GPU.
void bench_read_facts(const bench *b, dw__gpu_facts *facts);

#endif
