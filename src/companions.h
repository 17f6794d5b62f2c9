// The companions inside the library: what draftwood.c (source, cubin, context), companions.c (handle, launches) and our own tools
// share.
#ifndef DRAFTWOOD_COMPANIONS_PARTS_H
#define DRAFTWOOD_COMPANIONS_PARTS_H

#include "../runtime/runtime.h"
#include "../templates/companions.h"
#include "core.h"

// Stands where a kernel's cache entry has the text of its shape.
#define DW__COMPANIONS "companions"

// ---- src/draftwood.c ------------------------------------------------------------------------------------------
// Free the source with dw__release, the cubin with dw_cubin_free.
dw_status dw__companions_source(dw_ctx *ctx, char **source, size_t *size, dw_error *error);
dw_status dw__companions_cubin(dw_ctx *ctx, int target, dw_cubin **cubin, dw_error *error);
// The context's list. It grows at its head, under the lock, and may be walked without it.
dw_companions *dw__ctx_companions(const dw_ctx *ctx);
void dw__ctx_companions_lock(dw_ctx *ctx);
void dw__ctx_companions_add(dw_ctx *ctx, dw_companions *added);
void dw__ctx_companions_unlock(dw_ctx *ctx);

// ---- src/companions.c -----------------------------------------------------------------------------------------
typedef enum dw__companion { DW__COMPACT, DW__MOVE, DW__MERGE, DW__EXPAND, DW__ACCEPT, DW__COMPANION_COUNT } dw__companion;
extern const char *const dw__companion_names[DW__COMPANION_COUNT];

// A handle over functions of the caller's own, for host execution. Free with dw__companions_free.
dw_status dw__companions_of(dw__driver *driver, void *const functions[DW__COMPANION_COUNT], dw_companions **companions,
                            dw_error *error);
// All of a list.
void dw__companions_free(dw_companions *list);

#endif
