// draftwood tune --worker: the process that has the GPU while dw_tune (src/tune_run.c) measures. It reads questions from stdin, a JSON line
// each, and answers on stdout; it may crash or hang without harm to the sweep. It ends when stdin does.
//
//   {"do":"hello"}                              -> {"board":{...}, "driver", "conditions"}
//   {"do":"problem", "shape", "batch", ...}     -> the same, once the problem's arrays are on the GPU
//   {"do":"build"|"prepare", "variant"}         -> {"verdict", "build_key", "compiler", "rel_err", "why"}
//   {"do":"time", "variant", "l2"}              -> {"verdict", "us"}
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cli_bench.h"
#include "tune.h"

#define POOL_MOST (1 << 20)  // token slots

typedef struct entrant {
  contender in;
  dw__graph *graphs[DW__L2_STATES];  // in.graph is the one in hand
} entrant;

typedef struct server {
  FILE *out;
  asked want;
  bench bench;
  dw__gpu_judges judges;
  int device;
  bool has_problem;
  problem problem;
  int calls[DW__L2_STATES];
  dw__gpu_problem *data;
  entrant *list[DW__CANDIDATES_MAX];
  size_t count;
} server;

static void answer(const server *s, json_t *reply) {
  json_dumpf(reply, s->out, JSON_COMPACT | JSON_REAL_PRECISION(9));
  fputc('\n', s->out);
  fflush(s->out);
  json_decref(reply);
}

static void answer_error(const server *s, dw_error *error) {
  answer(s, json_pack("{s:s, s:i}", "error", error->message[0] ? error->message : dw_status_text(error->status), "status",
                      (int)error->status));
  dw_error_clear(error);
}

// A device that failed is of no use to this process any more, and its answers to nobody.
static void leave(const dw_error *error) {
  fprintf(stderr, "draftwood tune: %s\n", error->message);
  _exit(3);
}

// ---- the GPU and the problem ----------------------------------------------------------------------------------

static dw_status open_gpu(server *s, dw_error *error) {
  if (s->bench.gpu) return DW_OK;
  dw_status status = cli_gpu_device(s->bench.ctx, s->device, &s->bench.gpu, error);
  if (!status) cli_read_driver(dw__gpu_device(s->bench.gpu), s->bench.driver, sizeof s->bench.driver);
  return status;
}

static json_t *greeting(const server *s) {
  const dw__device *d = dw__gpu_device(s->bench.gpu);
  dw__gpu_facts facts;
  char conditions[256];
  bench_read_facts(&s->bench, &facts);
  dw__gpu_conditions(&facts, 1, conditions, sizeof conditions);
  json_t *board = json_pack("{s:s, s:i, s:i, s:I, s:i, s:i, s:i, s:i, s:i}", "name", d->name, "cc", d->cc, "sms", d->sm_count,
                            "l2_bytes", (json_int_t)d->l2_bytes, "sm_mhz", facts.sm_mhz, "memory_mhz", facts.memory_mhz,
                            "power_watts", facts.power_watts, "mig", facts.mig, "ecc", facts.ecc);
  return json_pack("{s:o, s:s, s:s}", "board", board, "driver", s->bench.driver, "conditions", conditions);
}

static void drop_problem(server *s) {
  for (size_t i = 0; i < s->count; i++) {
    for (int l2 = 0; l2 < DW__L2_STATES; l2++) dw__graph_free(s->bench.gpu, s->list[i]->graphs[l2]);
    s->list[i]->in.graph = NULL;
    bench_unload(&s->bench, &s->list[i]->in);
    free(s->list[i]);
  }
  s->count = 0;
  dw__gpu_problem_free(s->data);
  s->data = NULL;
  free(s->problem.prefix);
  s->problem.prefix = NULL;
  s->has_problem = false;
}

static dw_status read_bounds(server *s, const json_t *request, dw_error *error) {
  const char *shape = "";
  int batch = 0, kv_len = 0, call = 0, features = 0, split = 0;
  if (json_unpack((json_t *)request, "{s:s, s:i, s:i, s:i, s:i, s:i}", "shape", &shape, "batch", &batch, "kv_len", &kv_len,
                  "call", &call, "features", &features, "split_tokens", &split))
    return dw__fail(error, DW_BAD_ARGUMENT, "request", "a problem with a field too few", "", "%s", "");
  problem *p = &s->problem;
  dw_status status = dw_shape_parse(shape, &p->shape, error);
  if (status) return status;
  if (kv_len <= p->shape.width)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "kv_len", kv_len, "more than the width", "the drafts are part of it");
  p->batch = batch;
  p->bounds = cli_bounds(&p->shape, batch, kv_len);
  p->bounds.sm_count = dw__gpu_device(s->bench.gpu)->sm_count;
  p->bounds.call = call ? DW_CALL_TABLE : DW_CALL_ANY;
  p->bounds.features = features;
  p->bounds.split_tokens = split;
  p->prefix = calloc((size_t)batch, sizeof *p->prefix);
  if (!p->prefix) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  for (int b = 0; b < batch; b++) p->prefix[b] = kv_len - p->shape.width;
  return DW_OK;
}

// The workspace that the most demanding candidate needs: graphs hold its address.
static dw_status make_workspace(server *s, dw_error *error) {
  dw__candidate *list = calloc(DW__CANDIDATES_MAX, sizeof *list);
  contender *plans = calloc(DW__CANDIDATES_MAX, sizeof *plans);
  size_t count = 0;
  dw_status status = list && plans ? dw__candidates(&s->problem.shape, &s->problem.bounds, true, list, &count, error)
                                   : dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  for (size_t i = 0; i < count; i++)
    plans[i].error.status = dw__plan_make(&s->problem.shape, &list[i].variant, &s->problem.bounds, &plans[i].plan, NULL);
  if (!status) status = bench_make_workspace(&s->bench, plans, (int)count, error);
  free(list);
  free(plans);
  return status;
}

// All calls of a graph read three times what the L2 holds, and the pool they read from is larger still.
static void count_calls(server *s) {
  problem *p = &s->problem;
  const double l2 = (double)dw__gpu_device(s->bench.gpu)->l2_bytes, calls = ceil(3 * l2 / p->kv_bytes);
  const double slots = 32 * l2 / (double)dw__kv_token_bytes(&p->shape);
  p->calls = calls < LEAST_CALLS ? LEAST_CALLS : calls > CALLS_MAX ? CALLS_MAX : (int)calls;
  s->calls[DW__COLD] = p->calls;
  s->calls[DW__WARM] = p->calls < WARM_CALLS ? p->calls : WARM_CALLS;
  s->want.pool = slots < POOL_MOST ? (int)slots : POOL_MOST;
  s->want.warm = false;
}

static dw_status open_problem(server *s, const json_t *request, dw_error *error) {
  problem *p = &s->problem;
  asked *want = &s->want;
  drop_problem(s);
  dw_status status = read_bounds(s, request, error);
  if (status) return status;
  // What the callers of such a kernel bring: a tree mask as bits, and by a block table where they promise one.
  want->addressing = p->bounds.call == DW_CALL_TABLE || p->shape.page > 1 ? 1 + DW_BLOCK_TABLE : 1 + DW_CSR;
  want->mask = p->shape.tree_nodes ? DW_MASK_STATIC : DW_MASK_BITS;
  want->split_tokens = p->bounds.split_tokens;
  want->window = p->bounds.features & DW_WITH_WINDOW ? p->bounds.kv_len : 0;
  want->soft_cap = p->bounds.features & DW_WITH_SOFT_CAP ? 30 : 0;
  want->q_rope = (p->bounds.features & DW_WITH_Q_ROPE) != 0;
  want->kv_rope = (p->bounds.features & DW_WITH_KV_ROPE) != 0;
  bench_count_work(p);
  count_calls(s);
  status = dw__gpu_judges_find(&s->judges, s->bench.ctx, s->bench.gpu, &p->shape, &s->bench.tools, &s->bench.judge, error);
  if (!status) status = make_workspace(s, error);
  if (!status) status = bench_make_data(&s->bench, p, &s->data, error);
  if (status) return status;
  // Once: every candidate is held against these answers.
  const dw_args args = dw__gpu_problem_args(s->data, 0);
  status = dw__gpu_judge_solve(s->bench.judge, &p->shape, &args, dw__gpu_problem_most_tokens(s->data), error);
  if (!status) status = dw__gpu_sync(s->bench.gpu, error);
  s->has_problem = !status;
  return status;
}

// ---- candidates -----------------------------------------------------------------------------------------------

static dw_status find(server *s, const json_t *request, entrant **found, dw_error *error) {
  dw_variant variant;
  const char *text = json_string_value(json_object_get(request, "variant"));
  *found = NULL;
  if (!s->has_problem) return dw__fail(error, DW_BAD_ARGUMENT, "request", "a candidate", "a problem first", "%s", "");
  dw_status status = dw_variant_parse(text ? text : "no variant", &variant, error);
  if (status) return status;
  for (size_t i = 0; i < s->count && !*found; i++)
    if (!memcmp(&s->list[i]->in.variant, &variant, sizeof variant)) *found = s->list[i];
  if (*found) return DW_OK;
  entrant *made = s->count < DW__CANDIDATES_MAX ? calloc(1, sizeof *made) : NULL;
  if (!made) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  made->in.variant = variant;
  made->in.rel_err = -1;
  s->list[s->count++] = *found = made;
  return DW_OK;
}

static void hand(server *s, entrant *e, dw__l2_state l2) {
  s->want.warm = l2 == DW__WARM;
  s->problem.calls = s->calls[l2];
  e->in.graph = e->graphs[l2];
}

static dw_status compare(server *s, contender *c, dw_error *error) {
  dw__comparison comparison;
  const dw_args args = dw__gpu_problem_args(s->data, 0);
  dw_status status = dw__gpu_sync(s->bench.gpu, error);
  if (!status)
    status = dw__gpu_judge_compare(s->bench.judge, &s->problem.shape, &args, dw__gpu_problem_rows(s->data),
                                   dw__has_wide_bound(&c->variant), &comparison, error);
  if (!status && comparison.total_relative > c->rel_err) c->rel_err = comparison.total_relative;
  return status;
}

// One launch, then a replay of the graph whose calls are all of the first set, each over poisoned outputs.
static dw_status check(server *s, entrant *e, dw_error *error) {
  const dw_args args = dw__gpu_problem_args(s->data, 0);
  dw_status status = bench_poison(&s->bench, s->data, error);
  if (!status) status = bench_call(&s->bench, &s->problem, &e->in, &args, dw__gpu_stream(s->bench.gpu), error);
  if (!status) status = compare(s, &e->in, error);
  if (!status) status = bench_poison(&s->bench, s->data, error);
  if (!status) status = dw__gpu_replay(s->bench.gpu, e->graphs[DW__WARM], error);
  return status ? status : compare(s, &e->in, error);
}

static dw_status prepare(server *s, entrant *e, dw_error *error) {
  dw_status status = DW_OK;
  for (int l2 = 0; l2 < DW__L2_STATES && !status; l2++) {
    if (e->graphs[l2]) continue;
    hand(s, e, (dw__l2_state)l2);
    status = bench_capture(&s->bench, &s->problem, &e->in, s->data, error);
    e->graphs[l2] = e->in.graph;
  }
  if (!status) status = check(s, e, error);
  for (int l2 = 0; l2 < DW__L2_STATES && !status; l2++) {
    hand(s, e, (dw__l2_state)l2);
    status = bench_warm_up(&s->bench, &e->in, error);
  }
  return status;
}

static dw_status time_it(server *s, entrant *e, const json_t *request, double *us, dw_error *error) {
  const char *l2 = json_string_value(json_object_get(request, "l2"));
  hand(s, e, l2 && !strcmp(l2, "warm") ? DW__WARM : DW__COLD);
  if (!e->in.graph)
    return dw__fail(error, DW_BAD_ARGUMENT, "request", "a timing", "after the candidate was prepared", "%s", "");
  dw_status status = bench_time_once(&s->bench, &s->problem, &e->in, 0, error);
  *us = e->in.us[0];
  return status;
}

static void serve_candidate(server *s, const char *what, const json_t *request) {
  entrant *e;
  dw_error error = {0};
  double us = 0;
  dw_status status = find(s, request, &e, &error);
  if (!status && !e->in.cubin) status = bench_load(&s->bench, &s->problem, &e->in, &error);
  if (!status && !strcmp(what, "prepare")) status = prepare(s, e, &error);
  if (!status && !strcmp(what, "time")) status = time_it(s, e, request, &us, &error);
  if (bench_is_fatal(status)) leave(&error);
  const int verdict = !status ? DW__SOUND : status == DW_WRONG_RESULT ? DW__WRONG : DW__UNBUILT;
  json_t *reply = json_pack("{s:s, s:s, s:s, s:s}", "verdict", dw__verdict_names[verdict].text, "build_key",
                            e && e->in.cubin ? e->in.cubin->build_key : "", "compiler",
                            e && e->in.cubin ? e->in.cubin->compiler : "", "why", error.message);
  if (e && e->in.rel_err >= 0) json_object_set_new(reply, "rel_err", json_real(e->in.rel_err));
  if (us > 0) json_object_set_new(reply, "us", json_real(us));
  answer(s, reply);
  dw_error_clear(&error);
}

static void serve(server *s, const json_t *request) {
  const char *what = json_string_value(json_object_get(request, "do"));
  dw_error error = {0};
  if (!what) what = "";
  if (strcmp(what, "hello") != 0 && strcmp(what, "problem") != 0) {
    serve_candidate(s, what, request);
    return;
  }
  dw_status status = open_gpu(s, &error);
  if (!status && *what == 'p') status = open_problem(s, request, &error);
  if (status) answer_error(s, &error);
  else answer(s, greeting(s));
}

// ---- the process ----------------------------------------------------------------------------------------------

static void close_all(server *s) {
  if (s->bench.gpu) drop_problem(s);
  dw__gpu_judges_close(&s->judges);
  if (s->bench.workspace) dw__gpu_free(s->bench.gpu, s->bench.workspace);
  dw_ctx_destroy(s->bench.ctx);
  if (s->bench.gpu) dw__gpu_close(s->bench.gpu);
}

// Answers have a stream of their own: whatever else would be printed goes to stderr.
static FILE *take_stdout(void) {
  const int copy = dup(STDOUT_FILENO);
  if (copy < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return NULL;
  return fdopen(copy, "w");
}

int cli_tune_worker(int device) {
  static server s;
  char *line = NULL;
  size_t size = 0;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // also where it does not come to reading
  s = (server){.out = take_stdout(), .device = device, .want = {.seed = 1, .reps = 1}};
  s.bench.want = &s.want;
  if (!s.out || cli_open(&s.bench.ctx) != CLI_GO_ON) return CLI_WRONG;
  while (getline(&line, &size, stdin) > 0) {
    json_t *request = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    if (!request) break;
    serve(&s, request);
    json_decref(request);
  }
  free(line);
  close_all(&s);
  fclose(s.out);
  return CLI_DONE;
}
