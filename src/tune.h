// What tuning knows and decides: problems, records of what was measured, the choice, plans. Pure functions of values and texts:
// no GPU, no files. tune_sweep.c decides what to measure, tune_run.c has it measured, tune_plan.c is what calls look into.
#ifndef DRAFTWOOD_TUNE_H
#define DRAFTWOOD_TUNE_H

#include "core.h"
#include "field.h"

// ---- the GPU --------------------------------------------------------------------------------------------------
// Of these name, cc, sm_count and l2_bytes say which GPUs are the same to a choice; the others are evidence.
typedef struct dw__board {
  char name[128];
  int cc, sm_count;
  int64_t l2_bytes;
  int sm_mhz, memory_mhz, power_watts;  // highest clocks and the limit in force; 0: not known
  int mig, ecc;                         // 1: on, 0: off, -1: not known
} dw__board;

// "nvidia-h200-sm90-132-50": a folder's name.
void dw__board_id(const dw__board *board, char text[192]);
bool dw__board_same(const dw__board *a, const dw__board *b);

// ---- problems -------------------------------------------------------------------------------------------------
// Problems with one key share a choice. Lengths fall into half octaves (rounded: 23k is 29, 19k to 27k), batches between powers of two
// (the bucket's largest stands for it), and the KV of such a batch of such lengths is held against the L2.
typedef enum dw__kv_fit { DW__KV_INSIDE, DW__KV_NEAR, DW__KV_BEYOND } dw__kv_fit;  // up to half of the L2, up to twice, more
typedef struct dw__tune_key {
  dw_shape shape;
  int batch;     // 1, 2, 4, 8 ...
  int kv_steps;  // round(2 log2(kv_len))
  int kv_fit;    // dw__kv_fit
  int call, features, split_tokens;
} dw__tune_key;

// Bytes of a token's KV.
int64_t dw__kv_token_bytes(const dw_shape *shape);
// bounds: checked, with batch and kv_len.
dw__tune_key dw__tune_key_of(const dw_shape *shape, const dw_bounds *bounds, int64_t l2_bytes);
// A total order: by attention, then sizes.
int dw__tune_key_compare(const dw__tune_key *a, const dw__tune_key *b);

// What fixes a result's bits, of what a variant decides. AUTO promises none: the split follows lengths, batch and GPU; "rowsplit/auto".
// With FIXED ranges they are the order of merging: "rowsplit/fixed:512/many:32".
void dw__numerics_class(const dw_variant *variant, int split_tokens, char text[64]);

// The variants that may serve a problem, by ascending id (the place in dw_variant_enumerate): what the caller promises of its
// calls, with its features; without `any_numerics` of the default's class alone. The default, dw_variant_choose's, is among them.
#define DW__CANDIDATES_MAX 256
typedef struct dw__candidate {
  dw_variant variant;
  int id;
  bool is_default;
  double predicted_us;  // 0: not predicted
} dw__candidate;
dw_status dw__candidates(const dw_shape *shape, const dw_bounds *bounds, bool any_numerics, dw__candidate *list, size_t *count,
                         dw_error *error);

// ---- records --------------------------------------------------------------------------------------------------
typedef enum dw__verdict {
  DW__SOUND,    // right, and timed to the end
  DW__SLOWER,   // right, and given up before the end: others were clearly faster
  DW__WRONG,    // differs from the oracle
  DW__CRASHED,  // took its process with it
  DW__HUNG,     // did not answer in time
  DW__UNBUILT,  // not compiled, or not loaded
  DW__VERDICTS
} dw__verdict;
extern const dw__name dw__verdict_names[];
typedef enum dw__l2_state { DW__COLD, DW__WARM, DW__L2_STATES } dw__l2_state;
extern const dw__name dw__l2_names[];

typedef struct dw__tune_record {
  char date[32], version[16];  // UTC, "2026-11-30T08:15:00Z"; draftwood's
  dw__tune_key key;
  int batch, kv_len;  // as measured
  dw_variant variant;
  int id;
  bool is_default;
  char build_key[65], compiler[32];  // "" where it came to no cubin
  dw__board board;
  char driver[64], policy[64];
  int l2;                             // dw__l2_state
  int n;                              // rounds
  double us, us_p10, us_p90, us_mad;  // median of a call, and its spread
  double ratio, ratio_mad;            // median of this over the default of the same round; 0: there is no such round
  int verdict;
  double rel_err;  // against the oracle; -1: not known
  char numerics[64];
  char conditions[256];  // what was not as it should be, in words, parted by "; "
  char why[192];         // of a bad verdict
} dw__tune_record;

// One JSON line, closed by a line feed. The same record gives the same bytes.
void dw__tune_record_print(const dw__tune_record *record, dw__buf *text);
// Strict: every field once, of its kind and in its range, and no other. DW_BAD_ARGUMENT with the field.
dw_status dw__tune_record_parse(const char *line, size_t size, dw__tune_record *record, dw_error *error);

// A text's lines one by one, empty ones left out. What has no line feed behind it was cut off by a kill and is passed over. The first
// error ends it, with the line's number.
typedef dw_status (*dw__line_fn)(void *user, const char *line, size_t size, dw_error *error);
dw_status dw__lines_read(const char *text, size_t size, dw__line_fn take, void *user, dw_error *error);

typedef struct dw__tune_records {
  dw__tune_record *list;
  size_t count, capacity;
} dw__tune_records;
bool dw__tune_records_add(dw__tune_records *records, const dw__tune_record *record);
// Lines of records, added to those that are there.
dw_status dw__tune_records_read(const char *text, size_t size, dw__tune_records *records, dw_error *error);
void dw__tune_records_free(dw__tune_records *records);
// What several sweeps say of one variant becomes one record: with a bad verdict of the same build, that one; else the one with the most
// rounds, then the latest, then the lower text. The order of the records does not matter. They end up sorted.
void dw__tune_records_merge(dw__tune_records *records);

// ---- the choice -----------------------------------------------------------------------------------------------
typedef struct dw__measured {
  int id;
  bool is_default;
  int verdict;
  double ratio, ratio_mad, us, us_mad;
  const char *numerics;
} dw__measured;
// Which one to take; -1: none. Only sound ones of the default's numerics class (all classes with any_numerics) take part. Of those within
// max(1 %, twice the best one's MAD) of the best the default, where it is one of them, else the lowest id. Compared are the ratios
// to the default, so that a drift of the clocks is none of the candidates'; where the default has no sound time, the times themselves.
int dw__tune_choose(const dw__measured *list, size_t count, bool any_numerics);
double dw__median(double *values, size_t count);              // sorts them; 0 of none
double dw__mad(double *values, size_t count, double median);  // of the values' distances, which replace them

// ---- plans ----------------------------------------------------------------------------------------------------
typedef struct dw__plan_choice {
  dw__tune_key key;
  dw__board board;    // name, cc, sm_count, l2_bytes
  int batch, kv_len;  // as measured
  dw_variant variant;
  char numerics[64];
  bool predicted;  // by the model, nothing was measured
  int n;
  double us, default_us, ratio, ratio_mad;
} dw__plan_choice;

void dw__plan_choice_print(const dw__plan_choice *choice, dw__buf *text);
dw_status dw__plan_choice_parse(const char *line, size_t size, dw__plan_choice *choice, dw_error *error);
// By GPU, then by problem.
int dw__choice_compare(const dw__board *board_a, const dw__tune_key *a, const dw__board *board_b, const dw__tune_key *b);

typedef struct dw__choices {
  dw__plan_choice *list;  // sorted by board, then key; each pair once
  size_t count, capacity;
} dw__choices;
// Merged records -> a choice a problem. Problems with nothing to choose from have none.
dw_status dw__choices_make(const dw__tune_records *merged, dw__l2_state l2, bool any_numerics, dw__choices *choices,
                           dw_error *error);
// Adds those of problems that `to` lacks, and, where `replace` says so, puts them in place of its own. A measured choice is never
// replaced by a predicted one.
bool dw__choices_add(dw__choices *to, const dw__choices *from, bool replace);
// JSON lines: a head with the digest, then a choice a line. Reading is strict; the digest has to fit.
bool dw__choices_print(const dw__choices *choices, dw__buf *text);
dw_status dw__choices_read(const char *text, size_t size, dw__choices *choices, dw_error *error);
void dw__choices_free(dw__choices *choices);
// SHA-256 of GPU, problem and variant of every choice, in order: what ranks have to agree in. No times are in it.
dw__digest dw__choices_digest(const dw__choices *choices);

// How far a choice is from what is asked.
typedef enum dw__nearness {
  DW__SAME_PROBLEM,  // this GPU, this key
  DW__NEAR_SHAPE,    // this GPU, near shape, batch and length
  DW__NEAR_GPU,      // a GPU of the same architecture
  DW__NOT_NEAR
} dw__nearness;
// The nearest choice for a problem, or NULL. Near means: attention, heads, widths of vectors, types, limits, call and split are the same;
// width of the tree and lengths within a factor of 1.5, batch within 2. Among several the nearest, then the first in order.
const dw__plan_choice *dw__choices_find(const dw__choices *choices, const dw__board *board, const dw__tune_key *key,
                                        dw__nearness *nearness);

#endif
