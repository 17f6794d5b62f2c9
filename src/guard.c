// See guard.h.
#define _GNU_SOURCE 1

#include "guard.h"

#include <sys/mman.h>
#include <unistd.h>

static unsigned char poison_at(size_t i) { return i % 2 ? DW__POISON >> 8 : DW__POISON & 0xFF; }

// The data's length may be odd in bytes only if its elements are bytes; the pattern counts from the guard page backwards, so
// that it is in step with elements of two or four bytes.
static unsigned char expected(const dw__guarded *array, const unsigned char *at) {
  size_t from_end = (size_t)(array->data + array->size - at);
  return poison_at(from_end % 2);
}

void dw__guard_poison(dw__guarded *array) {
  for (unsigned char *at = array->map; at < array->data + array->size; at++) *at = expected(array, at);
}

dw__guarded *dw__guard_make(dw__guarded **list, size_t size) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), used = (size + page - 1) / page * page;
  dw__guarded *array = dw__alloc(sizeof *array);
  if (!array) return NULL;
  void *map = mmap(NULL, used + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED || mprotect((char *)map + used, page, PROT_NONE)) {
    if (map != MAP_FAILED) munmap(map, used + page);
    dw__release(array);
    return NULL;
  }
  *array = (dw__guarded){.next = *list, .map = map, .size = size, .mapped = used + page};
  array->data = array->map + used - size;
  *list = array;
  dw__guard_poison(array);
  return array;
}

void dw__guard_free(dw__guarded *list) {
  while (list) {
    dw__guarded *next = list->next;
    munmap(list->map, list->mapped);
    dw__release(list);
    list = next;
  }
}

ptrdiff_t dw__guard_changed(const dw__guarded *array, ptrdiff_t from, ptrdiff_t to) {
  for (ptrdiff_t i = from; i < to; i++)
    if (array->data[i] != expected(array, array->data + i)) return i;
  return DW__UNCHANGED;
}
