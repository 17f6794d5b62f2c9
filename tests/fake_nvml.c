// A stand-in for the driver's management library. FAKE_NVML holds settings: "sm=1980 memory=3201 now=1200 limit=300 normal=600 held=0x44
// mig=1 ecc=1 errors=2 processes=3"; what is left out the library does not know.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
enum { NOT_SUPPORTED = 3, NOT_FOUND = 6 };

static int setting(const char *name, unsigned long long *value) {
  const char *all = getenv("FAKE_NVML");
  const size_t size = strlen(name);
  for (const char *at = all ? all : ""; *at; at += strcspn(at, " "), at += *at == ' ') {
    if (strncmp(at, name, size) != 0 || at[size] != '=') continue;
    *value = strtoull(at + size + 1, NULL, 0);
    return 0;
  }
  return NOT_SUPPORTED;
}

static int put(const char *name, unsigned factor, unsigned *to) {
  unsigned long long value;
  const int result = setting(name, &value);
  if (!result) *to = (unsigned)value * factor;
  return result;
}

static int opened;
static const char device[] = "the GPU";

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlInit_v2(void) {
  unsigned long long broken;
  if (!setting("broken", &broken)) return 9;
  opened++;
  return 0;
}
EXPORT int nvmlShutdown(void);
EXPORT int nvmlShutdown(void) { return opened-- > 0 ? 0 : 1; }
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **found);
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **found) {
  *found = (void *)device;
  return opened == 1 && !strcmp(bus, "0000:65:00.0") ? 0 : NOT_FOUND;
}
EXPORT int nvmlDeviceGetMaxClockInfo(void *of, int clock, unsigned *mhz);
EXPORT int nvmlDeviceGetMaxClockInfo(void *of, int clock, unsigned *mhz) {
  return of != device ? NOT_FOUND : put(clock == 1 ? "sm" : clock == 2 ? "memory" : "", 1, mhz);
}
EXPORT int nvmlDeviceGetClockInfo(void *of, int clock, unsigned *mhz);
EXPORT int nvmlDeviceGetClockInfo(void *of, int clock, unsigned *mhz) {
  return of != device || clock != 1 ? NOT_FOUND : put("now", 1, mhz);
}
EXPORT int nvmlDeviceGetEnforcedPowerLimit(void *of, unsigned *milliwatts);
EXPORT int nvmlDeviceGetEnforcedPowerLimit(void *of, unsigned *milliwatts) {
  return of != device ? NOT_FOUND : put("limit", 1000, milliwatts);
}
EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(void *of, unsigned *milliwatts);
EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(void *of, unsigned *milliwatts) {
  return of != device ? NOT_FOUND : put("normal", 1000, milliwatts);
}
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *of, unsigned long long *reasons);
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *of, unsigned long long *reasons) {
  return of != device ? NOT_FOUND : setting("held", reasons);
}
EXPORT int nvmlDeviceGetMigMode(void *of, unsigned *current, unsigned *pending);
EXPORT int nvmlDeviceGetMigMode(void *of, unsigned *current, unsigned *pending) {
  *pending = 0;
  return of != device ? NOT_FOUND : put("mig", 1, current);
}
EXPORT int nvmlDeviceGetEccMode(void *of, unsigned *current, unsigned *pending);
EXPORT int nvmlDeviceGetEccMode(void *of, unsigned *current, unsigned *pending) {
  *pending = 0;
  return of != device ? NOT_FOUND : put("ecc", 1, current);
}
EXPORT int nvmlDeviceGetTotalEccErrors(void *of, int kind, int counter, unsigned long long *count);
EXPORT int nvmlDeviceGetTotalEccErrors(void *of, int kind, int counter, unsigned long long *count) {
  return of != device || kind != 1 || counter != 0 ? NOT_FOUND : setting("errors", count);
}
// As the real one: with too little room it says how many there are.
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *of, unsigned *count, void *list);
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *of, unsigned *count, void *list) {
  unsigned room = *count;
  const int result = of != device ? NOT_FOUND : put("processes", 1, count);
  if (result || *count > room) return result ? result : 7;
  memset(list, 0, *count * 24);
  return 0;
}
