// Arrays that end right at a page which may not be touched, with poison in front of them: reading or writing past the end
// faults at once, and a write before the start is found afterwards.
#ifndef DRAFTWOOD_GUARD_H
#define DRAFTWOOD_GUARD_H

#include "core.h"

// Two bytes that are a NaN in bf16 and fp16, and in fp32 when repeated.
#define DW__POISON 0x7FED

typedef struct dw__guarded {
  struct dw__guarded *next;
  unsigned char *map, *data;  // data + size is the guard page; [map, data) is poison
  size_t size, mapped;
} dw__guarded;

// All of it poisoned. size may be 0. Kept in *list; NULL when out of memory.
dw__guarded *dw__guard_make(dw__guarded **list, size_t size);
void dw__guard_free(dw__guarded *list);
void dw__guard_poison(dw__guarded *array);
// First byte of [from, to) of the data that no longer is poison. from may be negative, down to the start of the mapping, and
// so may the answer.
#define DW__UNCHANGED PTRDIFF_MAX
ptrdiff_t dw__guard_changed(const dw__guarded *array, ptrdiff_t from, ptrdiff_t to);

// What a problem owns, behind dw__problem.memory.
typedef struct dw__problem_memory {
  dw__guarded *arrays;
  dw__guarded *out, *lse;
  double *bounds;  // [total_q, heads], made by the first comparison after a solve
  bool solved;
  int threads;  // of the last solve
} dw__problem_memory;

#endif
