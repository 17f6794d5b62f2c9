// Calls for a GPU that stand for the cases of tests/cases.tsv, by name: the case's id, then what it is about.
#ifndef DRAFTWOOD_NAMED_CASES_H
#define DRAFTWOOD_NAMED_CASES_H

#include "gpu_verify.h"

#define DW__NAMED_BATCH 256

// What a named case comes to. Owns nothing; its contents point into it.
typedef struct dw__named_check {
  char name[80];
  int prefix[2][DW__NAMED_BATCH], rows[2][DW__NAMED_BATCH];
  dw__gpu_check check;
} dw__named_check;

size_t dw__named_count(void);
const char *dw__named_name(size_t i);
// target: the device class; sm_count: of the board. small: fewer heads, tokens and requests, for an emulated GPU.
dw_status dw__named_make(size_t i, int target, int sm_count, bool small, dw__named_check *made, dw_error *error);

#endif
