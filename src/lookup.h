// A table from fixed-size keys to pointers that is read without a lock: what is in it stays, and is never changed.
#ifndef DRAFTWOOD_LOOKUP_H
#define DRAFTWOOD_LOOKUP_H

#include <stdatomic.h>

#include "core.h"

typedef struct dw__lookup_table dw__lookup_table;
typedef struct dw__lookup {
  dw__lookup_table *_Atomic table;  // NULL: empty. Zero is a sound start
} dw__lookup;

// Any thread, at any time; neither waits nor allocates nor calls the system. NULL: not there.
void *dw__lookup_find(const dw__lookup *lookup, const void *key, size_t size);
// One thread at a time. The key is copied; one that is there already keeps its value. False: out of memory, nothing has changed.
bool dw__lookup_put(dw__lookup *lookup, const void *key, size_t size, void *value);
// Nobody may be looking.
void dw__lookup_free(dw__lookup *lookup);

#endif
