// See lookup.h. Open addressing over pointers to items. A table that gets half full is followed by one twice as large; readers
// of the old one miss nothing that was in it, so both are sound. Old tables live as long as the whole: half as large each, they
// are never more than the last one.
#include "lookup.h"

#include <string.h>
#include <xxhash.h>

typedef struct item {
  uint64_t hash;
  void *value;
  size_t size;
  unsigned char key[];
} item;

struct dw__lookup_table {
  dw__lookup_table *older;
  size_t capacity, count;  // a power of two; count is the writer's
  item *_Atomic slots[];
};

static uint64_t hash_of(const void *key, size_t size) { return XXH3_64bits(key, size); }

static item *find_item(dw__lookup_table *table, uint64_t hash, const void *key, size_t size) {
  for (size_t i = hash;; i++) {
    item *found = atomic_load_explicit(&table->slots[i & (table->capacity - 1)], memory_order_acquire);
    if (!found || (found->hash == hash && found->size == size && !memcmp(found->key, key, size))) return found;
  }
}

void *dw__lookup_find(const dw__lookup *lookup, const void *key, size_t size) {
  dw__lookup_table *table = atomic_load_explicit(&lookup->table, memory_order_acquire);
  item *found = table ? find_item(table, hash_of(key, size), key, size) : NULL;
  return found ? found->value : NULL;
}

static void insert(dw__lookup_table *table, item *made) {
  size_t i = made->hash;
  while (atomic_load_explicit(&table->slots[i & (table->capacity - 1)], memory_order_relaxed)) i++;
  atomic_store_explicit(&table->slots[i & (table->capacity - 1)], made, memory_order_release);
  table->count++;
}

// With room for one more.
static dw__lookup_table *room(dw__lookup *lookup) {
  dw__lookup_table *old = atomic_load(&lookup->table);
  if (old && 2 * (old->count + 1) <= old->capacity) return old;
  size_t capacity = old ? 2 * old->capacity : 64;
  dw__lookup_table *made = dw__calloc(1, sizeof *made + capacity * sizeof made->slots[0]);
  if (!made) return NULL;
  made->older = old;
  made->capacity = capacity;
  for (size_t i = 0; old && i < old->capacity; i++) {
    item *moved = atomic_load(&old->slots[i]);
    if (moved) insert(made, moved);
  }
  atomic_store_explicit(&lookup->table, made, memory_order_release);
  return made;
}

bool dw__lookup_put(dw__lookup *lookup, const void *key, size_t size, void *value) {
  uint64_t hash = hash_of(key, size);
  dw__lookup_table *table = room(lookup);
  if (!table) return false;
  if (find_item(table, hash, key, size)) return true;
  item *made = dw__alloc(sizeof *made + size);
  if (!made) return false;
  *made = (item){.hash = hash, .value = value, .size = size};
  memcpy(made->key, key, size);
  insert(table, made);
  return true;
}

void dw__lookup_free(dw__lookup *lookup) {
  dw__lookup_table *table = atomic_load(&lookup->table);
  for (size_t i = 0; table && i < table->capacity; i++) dw__release(atomic_load(&table->slots[i]));
  for (dw__lookup_table *older; table; table = older) {
    older = table->older;
    dw__release(table);
  }
  atomic_store(&lookup->table, NULL);
}
