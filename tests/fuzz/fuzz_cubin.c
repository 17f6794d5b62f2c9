// What a cubin says of itself: bundle verify and every compile read it.
#include <string.h>

#include "fuzz.h"
#include "runtime.h"

long fuzz_accepted;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  dw_resources kernels[DW_KERNELS_MAX];
  int arch, count = -1;
  bool specific;
  char symbol[64];
  dw__cubin_calls_driver(data, size, symbol);
  FUZZ_CHECK(memchr(symbol, 0, sizeof symbol));
  dw_status status = dw__cubin_read(data, size, &arch, &specific, kernels, &count, NULL);
  FUZZ_CHECK(status == DW_OK || status == DW_BAD_CUBIN);
  if (status) return 0;
  FUZZ_CHECK(arch > 0 && count >= 0 && count <= DW_KERNELS_MAX);
  for (int i = 0; i < count; i++) FUZZ_CHECK(memchr(kernels[i].name, 0, sizeof kernels[i].name) && kernels[i].registers >= 0);
  fuzz_accepted++;
  return 0;
}

// Its corpus begins with the cubins of tests/data.
void fuzz_seeds(const char *folder) { (void)folder; }
