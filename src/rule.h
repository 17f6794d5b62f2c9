// The rule table: what to use for a problem when nothing was measured. All of it is in rule.c.
#ifndef DRAFTWOOD_RULE_H
#define DRAFTWOOD_RULE_H

#include "core.h"

typedef struct dw_plan_slots {
  int groups;  // row groups: CTAs that share a KV range
  int slots;   // AUTO: KV ranges of the whole batch; FIXED: of a request
} dw_plan_slots;

// bounds->sm_count must be set.
dw_plan_slots dw__rule_slots(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds);

#endif
