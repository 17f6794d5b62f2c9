// What the flow (src/draftwood.c) offers to our own command line and tests beside the public header.
#ifndef DRAFTWOOD_FLOW_H
#define DRAFTWOOD_FLOW_H

#include "../cache/bundle.h"
#include "../cache/cache.h"
#include "../gen/gen.h"
#include "../runtime/runtime.h"
#include "core.h"

// The context's parts. All but the cache are opened by the first call that needs them.
dw__cache *dw__ctx_cache(dw_ctx *ctx);
dw_status dw__ctx_gen(dw_ctx *ctx, dw__gen **gen, dw_error *error);
dw_status dw__ctx_nvrtc(dw_ctx *ctx, dw__nvrtc **nvrtc, dw_error *error);
dw_status dw__ctx_driver(dw_ctx *ctx, dw__driver **driver, dw_error *error);

// Through the context's log, where it has one.
void dw__ctx_warn(dw_ctx *ctx, const char *message);

// Adds what $DRAFTWOOD_BUNDLES names (src/bundles.c).
void dw__bundles_from_environment(dw_ctx *ctx);
// What a bundle made now would say of itself.
dw_status dw__bundle_facts_here(dw_ctx *ctx, dw__bundle_facts *facts, dw_error *error);

bool dw__ctx_is_frozen(const dw_ctx *ctx);

// How to come by a cubin that is not in the cache.
typedef enum dw__patience {
  DW__WAIT,  // for a process that compiles the same, and for a compile slot; as long as the context's options say
  DW__TRY,   // not at all: DW__ELSEWHERE or DW__NO_SLOT
  DW__FORCE  // compile, whoever else does
} dw__patience;
typedef enum dw__outcome { DW__FOUND, DW__COMPILED, DW__ELSEWHERE, DW__NO_SLOT, DW__FAILED } dw__outcome;
// As dw_cubin_build, with the cubin left in the cache. *outcome is always set; ELSEWHERE and NO_SLOT go with DW_NOT_FOUND.
dw_status dw__obtain(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, dw__patience patience, dw__outcome *outcome,
                     dw_error *error);
int dw__ctx_lock_timeout_ms(const dw_ctx *ctx);
// The variant for a request, with what the current device says where `device` is true.
dw_status dw__request_variant(dw_ctx *ctx, const dw_request *request, bool device, dw_variant *variant, dw_error *error);
// Key and compile target of a request.
dw_status dw__request_key_of(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, dw__digest *key, char target[16],
                             dw_error *error);

// Tests: the context compiles and loads through these from now on, and closes them.
void dw__ctx_use_nvrtc(dw_ctx *ctx, dw__nvrtc *nvrtc);
void dw__ctx_use_driver(dw_ctx *ctx, dw__driver *driver);

// The metadata of a cache entry, both ways. Reading takes what a cubin's record needs and refuses what is not whole.
dw_status dw__metadata_print(const dw_cubin *cubin, const char *shape, const char *variant, char **text, dw_error *error);
dw_status dw__metadata_read(const char *text, dw_cubin *cubin, dw_error *error);

// Does a device of compute capability cc (120) run a cubin compiled for target ("sm_120f")?
bool dw__device_runs(const char *target, int cc);

#endif
