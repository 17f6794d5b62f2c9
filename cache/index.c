// Entries seen by this process: request -> build -> bytes, and builds that failed. Open-addressed tables under one lock; finding
// copies, so nothing handed out depends on what happens here later. Once frozen they no longer change and need no lock.
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "parts.h"

typedef struct slot {
  dw__digest key;
  void *value;  // owned; NULL: free slot
} slot;

typedef struct table {
  slot *slots;
  size_t capacity, count;  // capacity: 0 or a power of two, never more than half full
} table;

struct dw__index {
  pthread_rwlock_t lock;
  atomic_bool frozen;
  table builds;    // build -> dw__entry
  table requests;  // request -> dw__digest, the build
  table failures;  // build -> failure
};

typedef struct failure {
  double until;  // dw__seconds
  char text[];
} failure;

static bool begin_read(dw__index *index) {
  bool locked = !atomic_load_explicit(&index->frozen, memory_order_acquire);
  if (locked) pthread_rwlock_rdlock(&index->lock);
  return locked;
}

static void end_read(dw__index *index, bool locked) {
  if (locked) pthread_rwlock_unlock(&index->lock);
}

// Keys are SHA-256, any eight bytes of them are a hash.
static slot *table_slot(const table *t, const dw__digest *key) {
  uint64_t hash;
  memcpy(&hash, key->bytes, sizeof hash);
  size_t i = (size_t)hash & (t->capacity - 1);
  while (t->slots[i].value && !dw__digest_equal(&t->slots[i].key, key)) i = (i + 1) & (t->capacity - 1);
  return &t->slots[i];
}

static void *table_find(const table *t, const dw__digest *key) { return t->capacity ? table_slot(t, key)->value : NULL; }

static bool table_reserve(table *t) {
  if (2 * (t->count + 1) <= t->capacity) return true;
  table larger = {.capacity = t->capacity ? 2 * t->capacity : 16, .count = t->count};
  larger.slots = dw__calloc(larger.capacity, sizeof *larger.slots);
  if (!larger.slots) return false;
  for (size_t i = 0; i < t->capacity; i++) {
    if (t->slots[i].value) *table_slot(&larger, &t->slots[i].key) = t->slots[i];
  }
  dw__release(t->slots);
  *t = larger;
  return true;
}

// After table_reserve; returns the value it replaced.
static void *table_put(table *t, const dw__digest *key, void *value) {
  slot *place = table_slot(t, key);
  void *old = place->value;
  if (!old) t->count++;
  *place = (slot){*key, value};
  return old;
}

static void release_entry(void *value) {
  dw__entry_free(value);
  dw__release(value);
}

static void table_clear(table *t, void (*release)(void *)) {
  for (size_t i = 0; i < t->capacity; i++) {
    if (t->slots[i].value) release(t->slots[i].value);
  }
  dw__release(t->slots);
  *t = (table){0};
}

dw__index *dw__index_create(void) {
  dw__index *index = dw__calloc(1, sizeof *index);
  if (index && pthread_rwlock_init(&index->lock, NULL)) {
    dw__release(index);
    index = NULL;
  }
  return index;
}

void dw__index_freeze(dw__index *index) {
  pthread_rwlock_wrlock(&index->lock);
  atomic_store(&index->frozen, true);
  pthread_rwlock_unlock(&index->lock);
}

static bool is_frozen(const dw__index *index) { return atomic_load(&index->frozen); }

static void clear_all(dw__index *index) {
  table_clear(&index->builds, release_entry);
  table_clear(&index->requests, dw__release);
  table_clear(&index->failures, dw__release);
}

uint64_t dw__index_clear(dw__index *index) {
  pthread_rwlock_wrlock(&index->lock);
  uint64_t count = is_frozen(index) ? 0 : index->builds.count;
  if (!is_frozen(index)) clear_all(index);
  pthread_rwlock_unlock(&index->lock);
  return count;
}

void dw__index_free(dw__index *index) {
  if (!index) return;
  clear_all(index);
  pthread_rwlock_destroy(&index->lock);
  dw__release(index);
}

dw_status dw__index_put(dw__index *index, const dw__entry *entry) {
  if (is_frozen(index)) return DW_OK;
  dw__entry *copy = dw__alloc(sizeof *copy);
  dw__digest *build = dw__alloc(sizeof *build);
  dw__entry *old_entry = NULL;
  dw__digest *old_build = NULL;
  dw_status status = DW_OUT_OF_MEMORY;
  if (!copy || !build || dw__entry_copy(entry, copy)) goto not_kept;
  *build = entry->build;

  pthread_rwlock_wrlock(&index->lock);
  bool frozen = is_frozen(index);  // meanwhile
  bool room = !frozen && table_reserve(&index->builds) && table_reserve(&index->requests);
  if (room) {
    old_entry = table_put(&index->builds, &entry->build, copy);
    old_build = table_put(&index->requests, &entry->request, build);
  }
  pthread_rwlock_unlock(&index->lock);
  if (!room) dw__entry_free(copy);
  if (frozen) status = DW_OK;
  if (!room) goto not_kept;
  if (old_entry) release_entry(old_entry);
  dw__release(old_build);
  return DW_OK;

not_kept:
  dw__release(copy);
  dw__release(build);
  return status;
}

// Under the lock. The request key is the asker's: an entry may serve many.
static dw_status copy_build(const dw__index *index, const dw__digest *build, const dw__digest *request, dw__entry *entry) {
  const dw__entry *found = build ? table_find(&index->builds, build) : NULL;
  if (!found) return DW_NOT_FOUND;
  dw_status status = dw__entry_copy(found, entry);
  if (!status) entry->request = request ? *request : (dw__digest){0};
  return status;
}

dw_status dw__index_find(dw__index *index, const dw__digest *request, dw__entry *entry) {
  bool locked = begin_read(index);
  dw_status status = copy_build(index, table_find(&index->requests, request), request, entry);
  end_read(index, locked);
  return status;
}

dw_status dw__index_find_build(dw__index *index, const dw__digest *build, dw__entry *entry) {
  bool locked = begin_read(index);
  dw_status status = copy_build(index, build, NULL, entry);
  end_read(index, locked);
  return status;
}

// ---- failures -------------------------------------------------------------------------------------------------

dw_status dw__index_fail(dw__index *index, const dw__digest *build, const char *text, double seconds) {
  if (is_frozen(index)) return DW_OK;
  size_t size = strlen(text) + 1;
  failure *made = dw__alloc(sizeof *made + size), *old = NULL;
  if (!made) return DW_OUT_OF_MEMORY;
  made->until = dw__seconds() + seconds;
  memcpy(made->text, text, size);
  pthread_rwlock_wrlock(&index->lock);
  bool frozen = is_frozen(index), room = !frozen && table_reserve(&index->failures);
  if (room) old = table_put(&index->failures, build, made);
  pthread_rwlock_unlock(&index->lock);
  dw__release(room ? old : made);
  return room || frozen ? DW_OK : DW_OUT_OF_MEMORY;
}

char *dw__index_failure(dw__index *index, const dw__digest *build) {
  bool locked = begin_read(index);
  const failure *found = table_find(&index->failures, build);
  char *text = found && dw__seconds() < found->until ? dw__strdup(found->text) : NULL;
  end_read(index, locked);
  return text;
}
