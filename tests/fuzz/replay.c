// A fuzz target without a fuzzer. PROGRAM FOLDER: every file, all its beginnings, and each with single bytes changed.
// PROGRAM --seeds FOLDER: writes the seeds.
#include <dirent.h>
#include <string.h>

#include "core.h"
#include "fuzz.h"

// Of its own size, so that a sanitizer sees every read beyond it.
static void try_copy(const char *data, size_t size) {
  uint8_t *copy = malloc(size ? size : 1);
  FUZZ_CHECK(copy);
  memcpy(copy, data, size);
  LLVMFuzzerTestOneInput(copy, size);
  free(copy);
}

static void try_changes(char *data, size_t size) {
  static const unsigned char changes[] = {0x01, 0x80, 0xff};
  const size_t step = 1 + size / 2000;  // some files are large
  for (size_t cut = 0; cut < size; cut += step) try_copy(data, cut);
  for (size_t i = 0; i < size; i += step)
    for (size_t c = 0; c < sizeof changes; c++) {
      data[i] = (char)(data[i] ^ changes[c]);
      try_copy(data, size);
      data[i] = (char)(data[i] ^ changes[c]);
    }
}

int main(int argc, char **argv) {
  if (argc == 3 && !strcmp(argv[1], "--seeds")) {
    fuzz_seeds(argv[2]);
    return 0;
  }
  struct dirent **files;
  int count = argc == 2 ? scandir(argv[1], &files, NULL, alphasort) : -1;
  if (count < 0) {
    fprintf(stderr, "usage: %s [--seeds] FOLDER\n", argv[0]);
    return 2;
  }
  int tried = 0;
  for (int i = 0; i < count; i++) {
    char path[4096], *data;
    size_t size;
    snprintf(path, sizeof path, "%s/%s", argv[1], files[i]->d_name);
    if (files[i]->d_name[0] != '.' && !dw__file_read(path, &data, &size, NULL)) {
      try_copy(data, size);
      try_changes(data, size);
      dw__release(data);
      tried++;
    }
    free(files[i]);
  }
  free(files);
  printf("%d files, %ld inputs accepted\n", tried, fuzz_accepted);
  return tried > 0 && fuzz_accepted > 0 ? 0 : 1;
}
