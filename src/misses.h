// What a context was asked for and did not have: the list behind dw_miss_list. A fixed number of places, taken without lock or
// allocation, so that a frozen context can note what it must refuse.
#ifndef DRAFTWOOD_MISSES_H
#define DRAFTWOOD_MISSES_H

#include "core.h"

typedef struct dw__misses dw__misses;
dw__misses *dw__misses_create(void);  // NULL: out of memory
void dw__misses_free(dw__misses *misses);
// Once each; shape NULL: the companions for `target`. Those that find no place are counted.
void dw__misses_add(dw__misses *misses, const dw_shape *shape, const dw_variant *variant, const char *target);
uint64_t dw__misses_count(dw__misses *misses);
// JSON lines as dw_miss_list describes them; false: out of memory.
bool dw__misses_print(dw__misses *misses, dw__buf *text);

#endif
