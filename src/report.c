// What a checked kernel's report says, in words.
#include <stdio.h>

#include "core.h"

static const struct {
  const char *array, *sound;
} faults[DW_FAULTS] = {
#define X(name, array, sound) {array, sound},
  DW_FAULT_MAP(X)
#undef X
};

dw_status dw_report_check(const uint32_t *report, dw_error *error) {
  if (!report) return dw__no_argument(error, "report");
  // The kinds in their order; that requests were masked at all comes last.
  for (int i = 1; i <= DW_FAULTS; i++) {
    const int kind = i % DW_FAULTS;
    const uint32_t *words = report + (size_t)kind * DW_FAULT_WORDS, masked = report[0];
    if (!words[0]) continue;
    char found[96];
    snprintf(found, sizeof found, "%d for request %u at %d", (int32_t)words[3], words[1], (int32_t)words[2]);
    if (kind == DW_FAULT_LENGTH || kind == DW_FAULT_TABLE || kind == DW_FAULT_MASK_SIZE)
      snprintf(found, sizeof found, "%d for request %u, with %d to compare", (int32_t)words[3], words[1], (int32_t)words[2]);
    if (kind == DW_FAULT_REQUEST) snprintf(found, sizeof found, "request %u masked", words[1]);
    return dw__fail(error, DW_BAD_ARGUMENT, faults[kind].array, found, faults[kind].sound, "%u such; %u requests were masked",
                    words[0], masked);
  }
  return DW_OK;
}
