// Where the companions' checks run: by host execution, or on a GPU. Both go through the public launch functions; on the host the
// driver's launch call is one of ours that runs the generated source. What is on the stage lies between guards.
#ifndef DRAFTWOOD_COMPANION_STAGE_H
#define DRAFTWOOD_COMPANION_STAGE_H

#include "../runtime/gpu.h"
#include "../runtime/host/host.h"
#include "core.h"

typedef struct dw__stage dw__stage;

// An array in the stage's memory. A check fills `before` and, in `after`, what an oracle says; both start as poison.
typedef struct dw__array {
  struct dw__array *next;
  void *device;
  unsigned char *before, *after;
  size_t bytes;
  unsigned written_by;             // a bit a dw__companion: the launches that may write it
  unsigned made_by_kernel_before;  // a bit a dw__companion: of a dependent launch, not to be read before its grid_dependency_wait
  bool judged_apart;               // `after` is not the whole truth (rounding): left to the check
  void *guarded;                   // the stage's own
} dw__array;

// sanitize: as in dw__host_kernel_open.
dw_status dw__stage_host(dw_ctx *ctx, bool sanitize, dw_host_order order, uint64_t seed, dw__stage **stage, dw_error *error);
// A session's GPU: eager launches, then one captured and replayed.
dw_status dw__stage_gpu(dw_ctx *ctx, dw__gpu *gpu, dw__stage **stage, dw_error *error);
void dw__stage_close(dw__stage *stage);

// The first failure stays: everything after it does nothing, so that a check reads straight on. The record is handed over once.
dw_status dw__stage_status(const dw__stage *stage);
void dw__stage_fail(dw__stage *stage, const char *field, const char *format, ...) DW__PRINTF(3, 4);
dw_status dw__stage_take(dw__stage *stage, dw_error *error);

// NULL after a failure. Freed by dw__stage_clear.
dw__array *dw__stage_array(dw__stage *stage, size_t bytes);
// Memory with no copy on the host and no guards, for pools of many gigabytes.
void *dw__stage_sparse(dw__stage *stage, size_t bytes);
void dw__stage_write(dw__stage *stage, void *to, const void *from, size_t bytes);
void dw__stage_read(dw__stage *stage, void *to, const void *from, size_t bytes);
void dw__stage_clear(dw__stage *stage);

// All arrays as in `before`, with whole guards.
void dw__stage_send(dw__stage *stage);
// Every array that is not judged apart holds `after`, every guard is whole.
void dw__stage_judge(dw__stage *stage);
void dw__stage_fetch(dw__stage *stage, const dw__array *array, void *to);

// Enqueues a check's launches. Steps: 0 is eager; from 1 on, on a GPU, step 1 captures them and every step replays that graph.
typedef dw_status (*dw__stage_launch)(const dw_companions *companions, void *user, void *stream, dw_error *error);
void dw__stage_run(dw__stage *stage, int step, dw__stage_launch launch, void *user);

#endif
