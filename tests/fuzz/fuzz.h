// Fuzz targets: readers of bytes that may come from anywhere. Each is a program of its own, with libFuzzer (-DDRAFTWOOD_FUZZ=ON, clang)
// or with replay.c, which runs the corpus of tests/data/fuzz and changes of it. What a reader accepts has to be sound; besides, no
// sanitizer may have anything to say.
#ifndef DRAFTWOOD_FUZZ_H
#define DRAFTWOOD_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

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

// For fuzz_seeds.
static inline void fuzz_write_seed(const char *folder, const char *name, const void *data, size_t size) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "wb");
  FUZZ_CHECK(file && fwrite(data, 1, size, file) == size && fclose(file) == 0);
}

#endif
