@ -- The companion kernels: no parameter, one text for every target.
// draftwood companions
#include "types.cuh"
#include "ptx.cuh"
#include "companions.h"
#include "planes.cuh"
#include "kv_compact.cuh"
#include "kv_move.cuh"
#include "merge_states.cuh"
#include "tree.cuh"

#ifndef __CUDACC__
// Host execution calls the kernels through pointers to their parameters.
@ local takes = {
@   {"dw_kv_compact", "compact"}, {"dw_kv_move", "move"}, {"dw_merge_states", "merge"},
@   {"dw_tree_expand", "expand"}, {"dw_tree_accept", "accept"},
@ }
@ for _, entry in ipairs(takes) do
extern "C" void ${entry[1]}__host(const void *p) { ${entry[1]}(*(const dw_${entry[2]}_params *)p); }
@ end
#endif
