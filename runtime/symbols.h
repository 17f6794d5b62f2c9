// Fills a table of function pointers from a shared library. Required and optional entries stand apart in the list, so that an
// older library is named by what it lacks.
#ifndef DRAFTWOOD_SYMBOLS_H
#define DRAFTWOOD_SYMBOLS_H

#include <dlfcn.h>
#include <string.h>

#include "core.h"

typedef struct dw__symbol {
  const char *name;
  size_t offset;  // of its pointer in the table
  bool required;
} dw__symbol;

// Returns the first required name that the library lacks, or NULL when the table is complete.
static inline const char *dw__symbols_fill(void *library, const dw__symbol *symbols, size_t count, void *table) {
  for (size_t i = 0; i < count; i++) {
    void *address = dlsym(library, symbols[i].name);
    if (!address && symbols[i].required) return symbols[i].name;
    memcpy((char *)table + symbols[i].offset, &address, sizeof address);
  }
  return NULL;
}

#endif
