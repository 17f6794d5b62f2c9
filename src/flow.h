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

// Tests: the context compiles and loads through these from now on, and closes them.
void dw__ctx_use_nvrtc(dw_ctx *ctx, dw__nvrtc *nvrtc);
void dw__ctx_use_driver(dw_ctx *ctx, dw__driver *driver);

// The metadata of a cache entry, both ways. Reading takes what a cubin's record needs and refuses what is not whole.
dw_status dw__metadata_print(const dw_cubin *cubin, const char *shape, const char *variant, char **text, dw_error *error);
dw_status dw__metadata_read(const char *text, dw_cubin *cubin, dw_error *error);

// Does a device of compute capability cc (120) run a cubin compiled for target ("sm_120f")?
bool dw__device_runs(const char *target, int cc);

#endif
