// The record of a cubin (JSON) that entries and bundles carry.
#include <string.h>

#include "flow.h"
#include "fuzz.h"

long fuzz_accepted;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1);
  dw_cubin cubin = {0};
  memcpy(text, data, size);
  text[size] = 0;
  dw_status status = dw__metadata_read(text, &cubin, NULL);
  FUZZ_CHECK(status == DW_OK || status == DW_BAD_CUBIN);
  if (!status) {
    FUZZ_CHECK(cubin.kernel_count >= 0 && cubin.kernel_count <= DW_KERNELS_MAX);
    FUZZ_CHECK(strlen(cubin.target) < sizeof cubin.target && strlen(cubin.compiler) < sizeof cubin.compiler);
    for (int i = 0; i < cubin.kernel_count; i++) FUZZ_CHECK(strlen(cubin.kernels[i].name) < sizeof cubin.kernels[i].name);
    fuzz_accepted++;
  }
  free(text);
  return 0;
}

void fuzz_seeds(const char *folder) {
  dw_cubin made = {.target = "sm_120f", .compiler = "nvrtc 13.0.88", .compile_ms = 402.5, .kernel_count = 2};
  char *text;
  made.kernels[0] = (dw_resources){"dw_verify", 168, 8, 16, 3, -1, -1, 512, 1};
  made.kernels[1] = (dw_resources){"dw_combine", 40, 0, 0, 1, 0, 4, 128, 0};
  FUZZ_CHECK(!dw__metadata_print(&made, "mla:h=8,t=9", "family=split", &text, NULL));
  fuzz_write_seed(folder, "seed0", text, strlen(text));
  dw__release(text);
}
