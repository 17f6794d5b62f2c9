// The command line: what its commands share. Exit 0: done; 1: it ran and something is wrong; 2: bad usage or bad input.
#ifndef DRAFTWOOD_CLI_H
#define DRAFTWOOD_CLI_H

#include <jansson.h>
#include <stdio.h>

#include "../runtime/gpu.h"
#include "core.h"
#include "problem.h"
#include "tune.h"

enum { CLI_DONE = 0, CLI_WRONG = 1, CLI_USAGE = 2, CLI_GO_ON = -1 };

// ---- commands (src/main.c has the table) ----------------------------------------------------------------------
typedef struct cli_command {
  const char *name;
  const char *usage;                                                  // what follows the name
  const char *summary;                                                // one line
  const char *help;                                                   // paragraphs below the usage, or NULL
  int (*run)(const struct cli_command *self, int argc, char **argv);  // argv[0] is the command's name
} cli_command;

int cli_gen(const cli_command *self, int argc, char **argv);
int cli_build(const cli_command *self, int argc, char **argv);
int cli_verify(const cli_command *self, int argc, char **argv);
int cli_suite(const cli_command *self, int argc, char **argv);   // verify --suite
int cli_named(const cli_command *self, int argc, char **argv);   // verify --named
int cli_random(const cli_command *self, int argc, char **argv);  // verify --random N
int cli_bench(const cli_command *self, int argc, char **argv);
// gen, build, verify and bench --companions (src/cli_companions.c, src/cli_companions_bench.c)
int cli_companions_gen(const cli_command *self, int argc, char **argv);
int cli_companions_build(const cli_command *self, int argc, char **argv);
int cli_companions_verify(const cli_command *self, int argc, char **argv);
int cli_companions_bench(const cli_command *self, int argc, char **argv);
int cli_predict(const cli_command *self, int argc, char **argv);  // bench --predict
int cli_tune(const cli_command *self, int argc, char **argv);
int cli_tune_worker(int device);  // tune --worker (src/cli_tune_worker.c)
int cli_plan(const cli_command *self, int argc, char **argv);
struct dw__choices;
// Writes a plan and says so. CLI_GO_ON, or CLI_USAGE where the file cannot be written.
int cli_write_plan(const struct dw__choices *choices, const char *path);
int cli_report(const cli_command *self, int argc, char **argv);
int cli_layout(const cli_command *self, int argc, char **argv);
int cli_presets(const cli_command *self, int argc, char **argv);
int cli_cache(const cli_command *self, int argc, char **argv);
int cli_bundle(const cli_command *self, int argc, char **argv);
int cli_doctor(const cli_command *self, int argc, char **argv);

// ---- options (src/cli_options.c) ------------------------------------------------------------------------------
typedef enum cli_kind { CLI_FLAG, CLI_TEXT, CLI_INT, CLI_INTS, CLI_NUMBER, CLI_WORD } cli_kind;

#define CLI_LIST_MAX 64
typedef struct cli_list {
  int values[CLI_LIST_MAX];
  int count;
} cli_list;

typedef struct cli_option {
  const char *name;      // without the two dashes
  const char *argument;  // its name in the help; CLI_WORD: the words allowed, parted by '|'. NULL for a flag
  cli_kind kind;
  void *value;      // FLAG bool, TEXT const char *, INT int, INTS cli_list, NUMBER double, WORD int (index of the word)
  int least, most;  // INT, INTS, NUMBER
  const char *help;
} cli_option;

typedef struct cli_options {
  const cli_option *list;
  size_t count;
} cli_options;
#define CLI_OPTIONS(array) ((cli_options){array, DW__COUNT(array)})

// Reads the options (anywhere among the arguments) and leaves the others in argv[1] to argv[*argc - 1]. CLI_GO_ON, or what to
// exit with: --help was printed, or one message about a bad option.
int cli_parse(const cli_command *command, cli_options options, int *argc, char **argv);

// Is this flag among the arguments? For commands that have a second form.
bool cli_has(int argc, char **argv, const char *flag);
void cli_help(const cli_command *command, cli_options options);
// "draftwood: <message>" on stderr; returns CLI_USAGE.
int cli_usage(const char *format, ...) DW__PRINTF(1, 2);
// Prints an error with its log and clears it; returns CLI_USAGE where the input was at fault, else CLI_WRONG.
int cli_error(dw_error *error);
int cli_exit_code(dw_status status);
// The candidate that looks most like word, or NULL if none is near.
const char *cli_nearest(const char *word, const char *const *candidates, size_t count);

// ---- shared pieces --------------------------------------------------------------------------------------------
// A context that warns on stderr. CLI_GO_ON, or the error has been printed.
int cli_open(dw_ctx **ctx);
// A variant's text without the parameters that have their normal value: shorter, and still what --variant takes.
void cli_variant_text(const dw_variant *variant, char text[DW_TEXT_MAX]);
// Bounds of a usual serving load, for choosing a variant where nothing else is known.
dw_bounds cli_bounds(const dw_shape *shape, int batch, int kv_len);
// --variant's text, or the rule table's choice where it is NULL.
dw_status cli_variant(const char *text, const dw_shape *shape, const dw_bounds *bounds, dw_variant *variant, dw_error *error);
// Replaces one field of a shape, from text: cli_shape_field(&shape, "target", "sm_90", &error).
dw_status cli_shape_field(dw_shape *shape, const char *field, const char *value, dw_error *error);
void cli_print_json(const json_t *value);

// ---- lists of kernels to build (src/cli_list.c) ---------------------------------------------------------------
#define CLI_SHARDS_MAX 100000
typedef struct cli_shard {
  int number, count;  // number from 0 to count - 1
} cli_shard;
// "i/n", or "auto": what a Slurm array or MPI says of this process. CLI_GO_ON, or what is wrong has been said.
int cli_shard_read(const char *text, cli_shard *shard);

typedef struct cli_wanted {
  cli_list widths, pages;
  const char *targets, *limits, *variant, *shard_text;
  const char *misses;  // a file of dw_miss_list's lines
  bool all_variants, all_presets, companions, release;
  bool chosen;  // of a release: what the rule table chooses for any problem
  int batch, kv_len, call, jobs;
  cli_shard shard;
} cli_wanted;
cli_wanted cli_wanted_usual(void);
#define CLI_WANTED_OPTIONS(want)                                                                                          \
  {"all-presets", NULL, CLI_FLAG, &want.all_presets, 0, 0, "every preset that a kernel serves, beside the shapes given"}, \
    {"widths", "T,...", CLI_INTS, &want.widths, 1, 1025, "for these widths (t) instead of the shape's own"},              \
    {"pages", "N,...", CLI_INTS, &want.pages, 1, 1 << 20, "for these page sizes instead of the shape's own"},             \
    {"target", "SM,...", CLI_TEXT, &want.targets, 0, 0, "for these targets, e.g. sm_120,sm_90"},                          \
    {"limits", "LIMITS", CLI_TEXT, &want.limits, 0, 0, "native or sm_120"},                                               \
    {"variant", "TEXT", CLI_TEXT, &want.variant, 0, 0, "this variant"},                                                   \
    {"all-variants", NULL, CLI_FLAG, &want.all_variants, 0, 0, "each variant that may serve the shape"},                  \
    {"batch", "N", CLI_INT, &want.batch, 1, 65535, "most requests, for the rule table's choice (8)"},                     \
    {"kv-len", "N", CLI_INT, &want.kv_len, 1, 1 << 24, "most tokens a request, for that choice (32768)"},                 \
    {"call", "any|table", CLI_WORD, &want.call, 0, 0, "what calls have in common, for that choice (any)"},                \
    {"shard",                                                                                                             \
     "I/N",                                                                                                               \
     CLI_TEXT,                                                                                                            \
     &want.shard_text,                                                                                                    \
     0,                                                                                                                   \
     0,                                                                                                                   \
     "the I-th of N parts of the list, from 0; auto: of a Slurm array or MPI"},                                           \
  {                                                                                                                       \
    "jobs", "N", CLI_INT, &want.jobs, 1, 64, "threads (default: one a core)"                                              \
  }

// One cubin to build, then what came of it.
typedef struct cli_job {
  dw_shape shape;
  dw_variant variant;
  dw_cubin *cubin;
  dw_error error;          // of the build or the check
  dw__comparison checked;  // build --verify
} cli_job;
typedef struct cli_jobs {
  cli_job *list;
  size_t count, capacity;
  int companions[16], companion_count;  // targets whose companion kernels are asked for, by the first shard alone
  size_t shapes, left_out;              // of the presets, with widths and pages; those that no kernel serves yet
  bool may_leave_out;                   // while presets are added
  dw__choices tuned;                    // of a release: the shipped plans
} cli_jobs;
// The shard's part of what options and argv[1] to argv[argc - 1] ask for. CLI_GO_ON, or what is wrong has been said.
int cli_jobs_list(cli_jobs *all, cli_wanted *want, const char *command, int argc, char **argv);
void cli_jobs_free(cli_jobs *all);
typedef void (*cli_work)(void *user, cli_job *item);
// By that many threads; milliseconds that it took.
double cli_jobs_run(cli_jobs *all, cli_work work, void *user, const char *doing, int threads);
// Prints each error once; the exit code.
int cli_jobs_errors(cli_jobs *all);

// ---- checks against the oracle (src/cli_verify.c) -------------------------------------------------------------
// How K and V of GQA lie, as the words of dw__planes.
#define CLI_PLANES "apart|by-head|in-token|in-page"
#define CLI_PLANES_HELP \
  "GQA: K and V in pools of their own, or with heads before tokens, or a token's or a page's V behind its K (apart)"
typedef struct cli_problem {
  cli_list lengths;             // prefixes, dealt out in turn
  int batch;                    // 0: one request a length
  int mask, addressing, order;  // dw_mask, dw_addressing, dw_host_order
  int seed, split_tokens;
  int planes;        // dw__planes
  bool overlap;      // the call may start while the kernel before it runs
  bool prefix_only;  // lengths without the drafts
  int window;
  double soft_cap, kv_scale, v_scale;
  bool mask_shared, positions, sinks, q_rope, kv_rope, drafts_elsewhere, strided;  // as in dw__problem_spec
  bool sanitize;
} cli_problem;
// Lengths around a tile's and a page's edges, a tree by parents.
cli_problem cli_problem_usual(void);
dw_bounds cli_problem_bounds(const dw_shape *shape, const cli_problem *asked);
// Made and solved.
dw_status cli_problem_make(const dw_shape *shape, const cli_problem *asked, dw__problem **problem, dw_error *error);
// Both run and compare; comparison->rows stays 0 where it did not come to that.
dw_status cli_check_host(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, const cli_problem *asked,
                         dw__problem *problem, dw__comparison *comparison, dw_error *error);

// The GPU of this number, through the context's driver; it may be closed after the context (src/cli_gpu.c).
dw_status cli_gpu_device(dw_ctx *ctx, int ordinal, dw__gpu **gpu, dw_error *error);
// The first GPU's context and ours. CLI_GO_ON, or it has been said why there is none.
typedef struct cli_gpu {
  dw__gpu *gpu;
  dw_ctx *ctx;
  char name[128];
} cli_gpu;
int cli_gpu_open(cli_gpu *board);
void cli_gpu_close(cli_gpu *board);
dw_status cli_check_gpu(const cli_gpu *board, const dw_variant *variant, const cli_problem *asked, dw__problem *problem,
                        dw__comparison *comparison, dw_error *error);
json_t *cli_comparison_json(const dw__comparison *comparison);

// ---- measuring (src/cli_bench.c) ------------------------------------------------------------------------------
// Sorts them; between neighbours.
double cli_quantile(double *values, int n, double q);
// One JSON line.
void cli_write_line(FILE *to, const json_t *row);
// "580.159.04", else the CUDA version that it serves.
void cli_read_driver(const dw__device *device, char *text, size_t n);
// For the records: the command as it was given, without the folders of this machine, and the day.
typedef struct cli_noted {
  char command[1024], date[16];
} cli_noted;
void cli_note_command(cli_noted *noted, int argc, char **argv);
// Names of dw_mask, in order.
#define CLI_MASKS (DW_MASK_STATIC + 1)
extern const char *const cli_mask_names[CLI_MASKS];
// --build-only: how many cubins were compiled.
void cli_tell_builds(dw_ctx *ctx);

// A progress line on stderr, where that is a terminal; an empty text clears it.
void cli_progress(const char *format, ...) DW__PRINTF(1, 2);

#endif
