// Manifests of the cache's directory (man/), and its notes of failed compiles (neg/), with and without a checksum that fits.
#include <string.h>

#include "fuzz.h"
#include "parts.h"

long fuzz_accepted;

static void try_manifest(const char *bytes, size_t size) {
  dw__digest request = {0}, build;
  char again[DW__MANIFEST_SIZE];
  if (size >= 48) memcpy(request.bytes, bytes + 16, sizeof request.bytes);
  if (dw__manifest_unpack(bytes, size, &request, &build)) return;
  dw__manifest_pack(&request, &build, again);
  FUZZ_CHECK(size == sizeof again && !memcmp(again, bytes, size));
  fuzz_accepted++;
}

// It is handed over to be changed: the text is closed in place.
static void try_failure(char *bytes, size_t size) {
  dw__digest build = {0};
  const char *text = NULL;
  if (size >= 48) memcpy(build.bytes, bytes + 16, sizeof build.bytes);
  if (dw__failure_unpack(bytes, size, &build, 1000, &text) || !text) return;
  FUZZ_CHECK(text > bytes && text + strlen(text) < bytes + size);
  fuzz_accepted++;
}

static void try_bytes(const char *bytes, size_t size) {
  try_manifest(bytes, size);
  char *copy = malloc(size ? size : 1);
  memcpy(copy, bytes, size);
  try_failure(copy, size);
  free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_with_checksum(data, size, try_bytes);
  return 0;
}

void fuzz_seeds(const char *folder) {
  dw__digest request = {{1, 2}}, build = {{3, 4}};
  char manifest[DW__MANIFEST_SIZE], *failure;
  size_t size;
  dw__manifest_pack(&request, &build, manifest);
  fuzz_write_seed(folder, "manifest", manifest, sizeof manifest);
  FUZZ_CHECK(!dw__failure_pack(&build, 900, 3600, "{\"message\":\"it does not compile\"}", &failure, &size));
  fuzz_write_seed(folder, "failure", failure, size);
  dw__release(failure);
}
