// A random valid call as a value: a shape, a variant, every way in which arguments may come, and the lengths of one or two
// contents of the same buffers. It has a text that reads back, it shrinks, and its arguments can be broken one field at a time.
#ifndef DRAFTWOOD_RANDOM_CASE_H
#define DRAFTWOOD_RANDOM_CASE_H

#include "plan.h"
#include "problem.h"

#define DW__CASE_BATCH 64  // most requests of a case

// X(name, least, most, help). 0 is plain, but for batch, where it is 1.
#define DW__CASE_FIELDS(X)                                                     \
  X(batch, 1, DW__CASE_BATCH, "requests")                                      \
  X(width, 0, 1025, "rows a request; 0: the shape's")                          \
  X(ragged, 0, 1, "rows by qo_indptr")                                         \
  X(mask, 0, 6, "dw_mask")                                                     \
  X(shared, 0, 1, "one matrix for all requests")                               \
  X(tree, 0, 2, "dw__tree_kind")                                               \
  X(any, 0, 1, "a mask that is no tree")                                       \
  X(dead, 0, 1, "dead nodes")                                                  \
  X(table, 0, 1, "block table, else CSR")                                      \
  X(index64, 0, 1, "CSR: int64 slots")                                         \
  X(all, 0, 1, "lengths include the drafts")                                   \
  X(slots, 0, 1, "drafts by draft_slots")                                      \
  X(elsewhere, 0, 1, "drafts on another rank")                                 \
  X(strided, 0, 1, "strides above the tight ones")                             \
  X(shuffle, 0, 1, "pages in random order")                                    \
  X(scatter, 0, 1, "CSR: every slot anywhere")                                 \
  X(share, 0, 1, "requests share pages")                                       \
  X(q_rope, 0, 1, "q in two parts")                                            \
  X(kv_rope, 0, 1, "KV in two parts")                                          \
  X(planes, 0, 3, "GQA: dw__planes")                                           \
  X(no_lse, 0, 1, "no lse asked for")                                          \
  X(base_e, 0, 1, "lse in base e")                                             \
  X(window, 0, 1 << 24, "sliding window")                                      \
  X(positions, 0, 1, "positions given")                                        \
  X(cap, 0, 100000, "soft cap in hundredths")                                  \
  X(sinks, 0, 1, "attention sinks")                                            \
  X(overlap, 0, 1, "overlap_prologue")                                         \
  X(peaked, 0, 1, "q three times as large")                                    \
  X(scale, 0, 3, "KV in e4m3: which scales")                                   \
  X(split, 0, 1 << 20, "FIXED: tokens a range")                                \
  X(spare, 0, 1, "the kernel's bounds are larger than the call")               \
  X(capture, 0, 2, "mode of the capture: global, thread, relaxed")             \
  X(replay, 0, 1, "captured, and replayed with other contents in the buffers") \
  X(order, 0, 2, "host: order in which warps run")                             \
  X(seed, 0, 0x7FFFFFFF, "of the contents")

typedef struct dw__case {
  dw_shape shape;
  dw_variant variant;
#define X(name, least, most, help) int name;
  DW__CASE_FIELDS(X)
#undef X
  int prefix[2][DW__CASE_BATCH];  // below 0: drafts that are not there
  int rows[2][DW__CASE_BATCH];
} dw__case;

// How large cases may be.
typedef struct dw__case_scale {
  int heads, width, batch, longest;
  int64_t pairs;  // rows x heads x tokens of a case
  int wide;       // most drafts of the few wide shapes, 65 or more
  bool widths;    // other vectors than 576 and 512, too
  int target;     // 0: sm_90 and sm_120 in turn
} dw__case_scale;
extern const dw__case_scale dw__case_large, dw__case_small;

// Shape and variants of a group of cases: one that has code for no feature; one for some features; one that serves fewer calls, or
// a plain family.
enum { DW__CASE_VARIANTS = 3 };
void dw__case_group(const dw__case_scale *scale, uint64_t seed, int group, dw_shape *shape,
                    dw_variant variants[DW__CASE_VARIANTS]);
// Case `index` of a seed; `per_group` neighbours have one shape. The same arguments give the same case.
void dw__case_make(const dw__case_scale *scale, uint64_t seed, int index, int per_group, dw__case *c);
// Takes back whatever does not go together, so that what is left is a valid call.
void dw__case_settle(dw__case *c);
int dw__case_width(const dw__case *c);
float dw__case_kv_scale(const dw__case *c);  // 0: NULL
float dw__case_v_scale(const dw__case *c);
int dw__case_longest(const dw__case *c);  // most committed tokens of any content

// "SHAPE VARIANT field=value,...,prefix=1/2,rows=3/4": 0 and what follows from other fields is left out.
void dw__case_print(const dw__case *c, dw__buf *text);
dw_status dw__case_parse(const char *text, dw__case *c, dw_error *error);

// Runs a case. DW_OK, or what is wrong.
typedef dw_status dw__case_run(void *user, const dw__case *c, dw_error *error);
// Smaller cases that still fail with this status, until none is found or `most` were tried. *c is the smallest, *error what it
// fails with. Returns how many were tried.
int dw__case_shrink(dw__case *c, dw_status status, int most, dw__case_run *run, void *user, dw_error *error);

// ---- arguments that must be refused ----------------------------------------------------------------------------
// One field of valid arguments spoilt at random. `field` is what the refusal has to name, `what` says what was done.
typedef struct dw__broken {
  const char *field;
  const char *what;
  int way;  // of dw__args_break_count
} dw__broken;
size_t dw__args_break_count(void);
dw__broken dw__args_break(const dw_shape *shape, const dw_bounds *bounds, const dw__plan *plan, uint64_t *seed, dw_args *args);
// Does this error name the field?
bool dw__broken_named(const dw__broken *broken, const dw_error *error);

#endif
