// See nvml.h.
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>

#include "symbols.h"

typedef struct table {
#define X(name, arguments) int(*name) arguments;
  DW__NVML_REQUIRED(X)
  DW__NVML_OPTIONAL(X)
#undef X
} table;

static const dw__symbol symbols[] = {
#define X(name, arguments) {#name, offsetof(table, name), true},
  DW__NVML_REQUIRED(X)
#undef X
#define X(name, arguments) {#name, offsetof(table, name), false},
    DW__NVML_OPTIONAL(X)
#undef X
};

enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, UNCORRECTED = 1, SINCE_LOAD = 0, INSUFFICIENT_SIZE = 7, PROCESSES = 64 };

typedef struct process {
  unsigned pid;
  unsigned long long bytes;
  unsigned instances[2];
} process;

static void read_device(const table *t, void *device, dw__gpu_facts *f) {
  unsigned value, other, count = PROCESSES;
  process list[PROCESSES];
  // The result of what the library has; another number where it lacks it.
#define ASK(name, ...) (t->name ? t->name(device, __VA_ARGS__) : -1)
  if (!ASK(nvmlDeviceGetMaxClockInfo, CLOCK_SM, &value)) f->sm_mhz = (int)value;
  if (!ASK(nvmlDeviceGetMaxClockInfo, CLOCK_MEMORY, &value)) f->memory_mhz = (int)value;
  if (!ASK(nvmlDeviceGetClockInfo, CLOCK_SM, &value)) f->sm_mhz_now = (int)value;
  if (!ASK(nvmlDeviceGetEnforcedPowerLimit, &value)) f->power_watts = (int)(value / 1000);
  if (!ASK(nvmlDeviceGetPowerManagementDefaultLimit, &value)) f->power_watts_normal = (int)(value / 1000);
  if (!ASK(nvmlDeviceGetMigMode, &value, &other)) f->mig = value != 0;
  if (!ASK(nvmlDeviceGetEccMode, &value, &other)) f->ecc = value != 0;
  if (ASK(nvmlDeviceGetCurrentClocksThrottleReasons, &f->held_down)) f->held_down = 0;
  if (ASK(nvmlDeviceGetTotalEccErrors, UNCORRECTED, SINCE_LOAD, &f->ecc_errors)) f->ecc_errors = 0;
  const int listed = ASK(nvmlDeviceGetComputeRunningProcesses_v3, &count, list);
  if (!listed || listed == INSUFFICIENT_SIZE) f->processes = (int)count;
#undef ASK
}

void dw__gpu_facts_read(const char *path, const char *bus, dw__gpu_facts *facts) {
  table t;
  void *device;
  *facts = (dw__gpu_facts){.mig = -1, .ecc = -1, .processes = -1};
  const char *variable = secure_getenv("DRAFTWOOD_NVML");
  if (!path) path = variable && *variable ? variable : "libnvidia-ml.so.1";
  void *library = bus ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!library) return;
  if (!dw__symbols_fill(library, symbols, DW__COUNT(symbols), &t) && !t.nvmlInit_v2()) {
    if (!t.nvmlDeviceGetHandleByPciBusId_v2(bus, &device)) read_device(&t, device, facts);
    t.nvmlShutdown();
  }
  dlclose(library);
}

void dw__gpu_conditions(const dw__gpu_facts *f, int own, char *text, size_t n) {
  static const struct {
    unsigned long long bit;
    const char *why;
  } reasons[] = {{0x2, "clocks set lower"},
                 {0x4, "clocks held down by the power limit"},
                 {0x8, "clocks held down by the hardware"},
                 {0x20, "clocks held down by heat"},
                 {0x40, "clocks held down by heat (hardware)"},
                 {0x80, "clocks held down by the power supply"}};
  size_t used = 0;
  *text = 0;
#define SAY(...)                                                                     \
  do {                                                                               \
    if (used && used + 2 < n) used += (size_t)snprintf(text + used, n - used, "; "); \
    if (used < n) used += (size_t)snprintf(text + used, n - used, __VA_ARGS__);      \
  } while (0)
  for (size_t i = 0; i < DW__COUNT(reasons); i++)
    if (f->held_down & reasons[i].bit) SAY("%s", reasons[i].why);
  if (f->power_watts && f->power_watts < f->power_watts_normal)
    SAY("power limit %d W of %d W", f->power_watts, f->power_watts_normal);
  if (f->mig == 1) SAY("MIG is on");
  if (f->ecc_errors) SAY("%llu memory errors that ECC did not correct", f->ecc_errors);
  if (f->processes > own) SAY("%d other processes compute on the GPU", f->processes - own);
#undef SAY
}
