// The answer on the CPU, from the contract in draftwood.h alone. Two arithmetics share one walk over requests, rows and tokens:
// fp64, and what a straightforward fp32 kernel would give (its error is the yardstick for ours). All pointers in args are host
// pointers.
#ifndef DRAFTWOOD_ORACLE_H
#define DRAFTWOOD_ORACLE_H

#include "core.h"

// out [total_q, heads, v] and lse [total_q, heads] (base as in args), tight. threads: 0 = all cores.
dw_status dw__oracle_exact(const dw_shape *shape, const dw_args *args, int threads, double *out, double *lse, dw_error *error);
// fp32 accumulation, P rounded to the KV type, the result rounded to the output type.
dw_status dw__oracle_plain(const dw_shape *shape, const dw_args *args, int threads, double *out, double *lse, dw_error *error);

// Rows and tokens of one request, as the lengths and row offsets in args say.
typedef struct dw__request {
  int index;
  int first_row, rows;
  int prefix;  // committed tokens, visible to every live row
  int tokens;  // prefix and the drafts that are there
} dw__request;
dw__request dw__oracle_request(const dw_shape *shape, const dw_args *args, int index);
// Address of a request's token (prefix first, then drafts), GQA: of its K of KV head 0; and of its last qk - v elements, which lie
// behind the v first ones or apart.
const void *dw__oracle_token(const dw_shape *shape, const dw_args *args, int index, int token);
// GQA: of the K and the V that a KV head has of it.
const void *dw__oracle_key(const dw_shape *shape, const dw_args *args, int index, int token, int kv_head);
const void *dw__oracle_value(const dw_shape *shape, const dw_args *args, int index, int token, int kv_head);
const void *dw__oracle_token_rope(const dw_shape *shape, const dw_args *args, int index, int token);

#endif
