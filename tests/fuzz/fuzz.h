// Fuzz targets: readers of bytes that may come from anywhere. Each is a program of its own, with libFuzzer (-DDRAFTWOOD_FUZZ=ON, clang)
// or with replay.c, which runs the corpus of tests/data/fuzz and changes of it. What a reader accepts has to be sound; besides, no
// sanitizer may have anything to say.
#ifndef DRAFTWOOD_FUZZ_H
#define DRAFTWOOD_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
// Inputs that the reader took for sound, so that a corpus that went stale is found out.
extern long fuzz_accepted;
// Writes sound inputs into a folder. They are the corpus that everything starts from.
void fuzz_seeds(const char *folder);

#define FUZZ_CHECK(condition)                                                        \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                                       \
    }                                                                                \
  } while (0)

// The bytes as they are, and again with the checksum at their end made right, so that what lies behind its check is met, too.
static inline void fuzz_with_checksum(const uint8_t *data, size_t size, void (*try_bytes)(const char *bytes, size_t size)) {
  XXH128_canonical_t checksum;
  try_bytes((const char *)data, size);
  if (size < sizeof checksum) return;
  char *mended = malloc(size);
  FUZZ_CHECK(mended);
  memcpy(mended, data, size);
  XXH128_canonicalFromHash(&checksum, XXH3_128bits(mended, size - sizeof checksum));
  memcpy(mended + size - sizeof checksum, &checksum, sizeof checksum);
  try_bytes(mended, size);
  free(mended);
}

// For fuzz_seeds.
static inline void fuzz_write_seed(const char *folder, const char *name, const void *data, size_t size) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "wb");
  FUZZ_CHECK(file && fwrite(data, 1, size, file) == size && fclose(file) == 0);
}

#endif
