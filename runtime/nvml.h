// What the driver's management library tells of a GPU: clocks, limits, who else is on it. Reached by dlopen like the driver; where it is
// missing, or does not know, the facts are "not known".
#ifndef DRAFTWOOD_NVML_H
#define DRAFTWOOD_NVML_H

#include "core.h"

#define DW__NVML_REQUIRED(X) \
  X(nvmlInit_v2, (void))     \
  X(nvmlShutdown, (void))    \
  X(nvmlDeviceGetHandleByPciBusId_v2, (const char *bus, void **device))
#define DW__NVML_OPTIONAL(X)                                                                \
  X(nvmlDeviceGetClockInfo, (void *device, int clock, unsigned *mhz))                       \
  X(nvmlDeviceGetMaxClockInfo, (void *device, int clock, unsigned *mhz))                    \
  X(nvmlDeviceGetEnforcedPowerLimit, (void *device, unsigned *milliwatts))                  \
  X(nvmlDeviceGetPowerManagementDefaultLimit, (void *device, unsigned *milliwatts))         \
  X(nvmlDeviceGetCurrentClocksThrottleReasons, (void *device, unsigned long long *reasons)) \
  X(nvmlDeviceGetComputeRunningProcesses_v3, (void *device, unsigned *count, void *list))   \
  X(nvmlDeviceGetMigMode, (void *device, unsigned *current, unsigned *pending))             \
  X(nvmlDeviceGetEccMode, (void *device, unsigned *current, unsigned *pending))             \
  X(nvmlDeviceGetTotalEccErrors, (void *device, int kind, int counter, unsigned long long *count))

typedef struct dw__gpu_facts {
  int sm_mhz, memory_mhz;               // highest
  int sm_mhz_now;                       // all of these: 0: not known
  int power_watts, power_watts_normal;  // the limit in force, and the board's own
  int mig, ecc;                         // 1: on, 0: off, -1: not known
  unsigned long long held_down;         // why clocks are low now, bits as NVML's; 0: they are not, or not known
  unsigned long long ecc_errors;        // not corrected, since the driver was loaded
  int processes;                        // that compute on it, this one among them; -1: not known
} dw__gpu_facts;

// bus: "0000:65:00.0"; NULL or a library that is not there: all not known. path NULL: $DRAFTWOOD_NVML, else libnvidia-ml.so.1.
void dw__gpu_facts_read(const char *path, const char *bus, dw__gpu_facts *facts);
// What is not as it should be for measuring, in words, parted by "; ": clocks held down, a lower power limit, MIG, ECC errors, other
// processes beyond `own`. Empty: nothing.
void dw__gpu_conditions(const dw__gpu_facts *facts, int own, char *text, size_t n);

#endif
