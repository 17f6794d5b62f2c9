// Places that are only read: bundles, and directories of the system, which look like our own but are somebody else's to keep.
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "parts.h"

// ---- adding and asking ----------------------------------------------------------------------------------------

static void close_layer(dw__layer *layer) {
  if (layer->close) layer->close(layer->user);
  dw__release((void *)layer->name);
}

dw_status dw__cache_add_layer(dw__cache *cache, const dw__layer *layer, dw__layer_place place, dw_error *error) {
  dw__layer own = *layer;
  own.name = dw__strdup(layer->name);
  pthread_mutex_lock(&cache->lock);
  dw__layers *all = &cache->layers[place];
  size_t count = atomic_load(&all->count);
  bool added = own.name && count < DW__LAYERS_MAX;
  if (added) {
    all->list[count] = own;
    atomic_store(&all->count, count + 1);
  }
  pthread_mutex_unlock(&cache->lock);
  if (added) return DW_OK;
  bool full = own.name != NULL;
  close_layer(&own);
  if (!full) return dw__cache_no_memory(error);
  return dw__fail_int(error, DW_BAD_ARGUMENT, "layers", DW__LAYERS_MAX + 1, "up to 32",
                      place == DW__LAYER_BUNDLE ? "bundles" : "system directories");
}

const char *dw__cache_layer_name(const dw__cache *cache, size_t i, dw__layer_place *place) {
  for (int p = 0; p < DW__LAYER_PLACES; p++) {
    size_t count = atomic_load(&cache->layers[p].count);
    if (place) *place = (dw__layer_place)p;
    if (i < count) return cache->layers[p].list[i].name;
    i -= count;
  }
  return NULL;
}

dw_status dw__layers_find(dw__cache *cache, dw__layer_place place, const dw__digest *request, dw__entry *entry,
                          const char **found) {
  const dw__layers *all = &cache->layers[place];
  size_t count = atomic_load(&all->count);
  for (size_t i = 0; i < count; i++) {
    const dw__layer *layer = &all->list[i];
    const char *damaged = "damaged";
    dw_status status = layer->find(layer->user, request, entry, &damaged);
    if (!status) atomic_fetch_add(&cache->hits_layers, 1), *found = layer->name;
    if (status == DW_OK || status == DW_OUT_OF_MEMORY) return status;
    *entry = (dw__entry){0};
    if (status == DW_NOT_FOUND) continue;
    char name[65];
    dw__hex(request, name);
    dw__count_damaged(cache, layer->name, name, damaged);
  }
  return DW_NOT_FOUND;
}

void dw__layers_close(dw__cache *cache) {
  for (int place = 0; place < DW__LAYER_PLACES; place++) {
    dw__layers *all = &cache->layers[place];
    for (size_t i = 0; i < atomic_load(&all->count); i++) close_layer(&all->list[i]);
  }
}

// ---- one directory, as a layer and as the cache's own ---------------------------------------------------------

static dw_status fault_status(const dw__fault *fault, const char **damaged) {
  if (fault->kind == DW__FAULT_MEMORY) return DW_OUT_OF_MEMORY;
  if (fault->kind == DW__FAULT_ABSENT) return DW_NOT_FOUND;
  bool unsafe = fault->kind == DW__FAULT_UNSAFE || fault->error == EFBIG;
  *damaged = unsafe ? "not to be trusted: owner, mode, kind or size" : "cannot be read";
  return unsafe ? DW_BAD_CUBIN : DW_IO;
}

dw_status dw__tree_manifest(const dw__root *root, const dw__digest *request, dw__digest *build, const char **damaged,
                            dw__fault *fault) {
  char name[65];
  dw__file file;
  dw__hex(request, name);
  if (!dw__tree_read(root, "man", name, DW__MANIFEST_SIZE, &file, fault)) return fault_status(fault, damaged);
  *damaged = dw__manifest_unpack(file.bytes, file.size, request, build);
  dw__release(file.bytes);
  return *damaged ? DW_BAD_CUBIN : DW_OK;
}

dw_status dw__tree_entry(const dw__root *root, const dw__digest *build, dw__entry *entry, time_t *modified,
                         const char **damaged, dw__fault *fault) {
  char name[65];
  dw__file file;
  dw__hex(build, name);
  if (!dw__tree_read(root, "obj", name, dw__entry_file_most(), &file, fault)) return fault_status(fault, damaged);
  dw_status status = dw__entry_unpack(file.bytes, file.size, build, true, entry, damaged);
  dw__release(file.bytes);
  *modified = file.modified;
  return status;
}

typedef struct system_directory {
  dw__root root;
} system_directory;

// What cannot be read here is no matter of ours: the next layer is asked, and in the end the compiler.
static dw_status system_find(void *user, const dw__digest *request, dw__entry *entry, const char **damaged) {
  const system_directory *own = user;
  dw__digest build;
  dw__fault fault;
  time_t modified;
  dw_status status = dw__tree_manifest(&own->root, request, &build, damaged, &fault);
  if (!status) status = dw__tree_entry(&own->root, &build, entry, &modified, damaged, &fault);
  if (!status) entry->request = *request;
  return status;
}

static void system_close(void *user) {
  system_directory *own = user;
  dw__release(own->root.path);
  dw__release(own);
}

static dw_status add_directory(dw__cache *cache, const char *path, size_t length, dw_error *error) {
  system_directory *own = dw__calloc(1, sizeof *own);
  if (own) own->root.path = dw__alloc(length + 1);
  if (!own || !own->root.path) {
    dw__release(own);
    return dw__cache_no_memory(error);
  }
  while (length > 1 && path[length - 1] == '/') length--;  // a closing slash would follow a link
  memcpy(own->root.path, path, length);
  own->root.path[length] = 0;
  dw__layer layer = {own->root.path, own, system_find, system_close};
  return dw__cache_add_layer(cache, &layer, DW__LAYER_SYSTEM, error);
}

// Empty parts (a leading, closing or double colon) and relative ones name nothing.
dw_status dw__layers_add_directories(dw__cache *cache, const char *list, dw_error *error) {
  for (const char *part = list; part; part = strchr(part, ':')) {
    if (*part == ':') part++;
    size_t length = strcspn(part, ":");
    dw_status status = *part == '/' ? add_directory(cache, part, length, error) : DW_OK;
    if (status) return status;
  }
  return DW_OK;
}
