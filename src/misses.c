// See misses.h.
#include "misses.h"

#include <stdatomic.h>
#include <string.h>
#include <xxhash.h>

#include "field.h"

enum { PLACES = 1024 };
enum { READY = 1 };

typedef struct miss {
  atomic_uint_fast64_t hash;  // of what follows; 0: a free place
  atomic_int state;
  bool companions;
  dw_shape shape;
  dw_variant variant;
  char target[16];
} miss;

struct dw__misses {
  atomic_uint_fast64_t count;  // with those that found no place
  miss places[PLACES];
};

dw__misses *dw__misses_create(void) { return dw__calloc(1, sizeof(dw__misses)); }
void dw__misses_free(dw__misses *misses) { dw__release(misses); }
uint64_t dw__misses_count(dw__misses *misses) { return atomic_load(&misses->count); }

static uint64_t hash_of(const dw_shape *shape, const dw_variant *variant, const char *target) {
  XXH64_hash_t hash = XXH3_64bits(target, strlen(target));
  if (shape) hash = XXH3_64bits_withSeed(shape, sizeof *shape, hash);
  if (variant) hash = XXH3_64bits_withSeed(variant, sizeof *variant, hash);
  return hash ? hash : 1;
}

// The hash stands for the request: two that share it by chance, one in 2^64, are one line less.
void dw__misses_add(dw__misses *misses, const dw_shape *shape, const dw_variant *variant, const char *target) {
  uint64_t hash = hash_of(shape, variant, target);
  atomic_fetch_add(&misses->count, 1);
  for (size_t n = 0; n < PLACES; n++) {
    miss *place = &misses->places[n];
    uint_fast64_t seen = 0;
    if (!atomic_compare_exchange_strong(&place->hash, &seen, hash)) {
      if (seen == hash) return;
      continue;
    }
    place->companions = !shape;
    if (shape) place->shape = *shape;
    if (variant) place->variant = *variant;
    strncpy(place->target, target, sizeof place->target - 1);
    atomic_store_explicit(&place->state, READY, memory_order_release);
    return;
  }
}

static void print(const miss *place, dw__buf *text) {
  char shape[DW_TEXT_MAX] = "companions", variant[DW_TEXT_MAX] = "";
  const char *call = "companions";
  if (!place->companions) {
    dw_shape_print(&place->shape, shape, sizeof shape);
    dw_variant_print(&place->variant, variant, sizeof variant);
    call = dw__name_of(dw__call_names, place->variant.call);
  }
  // Canonical texts have no character that JSON would escape.
  dw__buf_printf(text, "{\"call\":\"%s\",\"shape\":\"%s\",\"target\":\"%s\",\"variant\":\"%s\"}\n", call, shape, place->target,
                 variant);
}

bool dw__misses_print(dw__misses *misses, dw__buf *text) {
  dw__buf_puts(text, "");
  for (size_t n = 0; n < PLACES; n++) {
    const miss *place = &misses->places[n];
    if (atomic_load_explicit(&place->state, memory_order_acquire) == READY) print(place, text);
  }
  return !text->failed;
}
