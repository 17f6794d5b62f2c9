// What the companions have to do, as checks that run on any stage: fresh random contents, an answer worked out here in plain C
// from the header's words alone, every byte of memory compared.
#ifndef DRAFTWOOD_COMPANION_CHECKS_H
#define DRAFTWOOD_COMPANION_CHECKS_H

#include "companion_stage.h"

typedef struct dw__companion_check {
  const char *name;  // a case of the field where it starts with a letter and two digits: d01
  const char *what;
  int variants;
  bool large;  // takes gigabytes of address space
  const struct dw__check_parts *parts;
} dw__companion_check;

extern const dw__companion_check dw__companion_checks[];
extern const size_t dw__companion_check_count;

// One variant: an eager launch, then two more with other lengths, lists and contents and the same arguments (on a GPU replays of a
// captured graph). DW_OK, or what went wrong, with the step.
dw_status dw__companion_check_run(const dw__companion_check *check, int variant, uint64_t seed, dw__stage *stage,
                                  dw_error *error);

#endif
