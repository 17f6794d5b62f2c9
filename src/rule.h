// The rule table: what to use for a problem when nothing was measured. All of it is in rule.c.
#ifndef DRAFTWOOD_RULE_H
#define DRAFTWOOD_RULE_H

#include "core.h"

typedef struct dw_split {
  int groups;  // row groups: CTAs that share a KV range
  int ranges;  // KV ranges of a request. AUTO: where all are equally long, FIXED: of the longest
} dw_split;

// Is the family one of those on tensor cores; one of those for GQA?
bool dw__is_fast(int family);
bool dw__is_for_gqa(int family);

// Whether a variant takes bounds.split_tokens: 0 (AUTO) always, FIXED ranges not every one does. False: *error, if any, has
// DW_NOT_APPLICABLE and the reason.
bool dw__variant_fixed_ok(const dw_variant *variant, int split_tokens, dw_error *error);

// bounds->sm_count must be set.
dw_split dw__rule_split(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds);

// Shared memory that a block of the merge asks for, with `blocks` of them a request: `needed`, or more to keep them apart.
size_t dw__rule_merge_shared(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds, unsigned blocks,
                             size_t needed);

// dw_feature values, or'ed.
int dw__features(bool window, bool soft_cap, bool q_rope, bool kv_rope);
// dw_feature values that a variant's code has, and how it gets more of them.
int dw__variant_features(const dw_variant *variant);
void dw__variant_add_features(dw_variant *variant, int features);

#endif
