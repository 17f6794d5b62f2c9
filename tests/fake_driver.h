// A stand-in for the CUDA driver: one GPU of any kind, calls counted, faults made on order. One a process, reset before a test.
#ifndef DRAFTWOOD_FAKE_DRIVER_H
#define DRAFTWOOD_FAKE_DRIVER_H

#include "driver_table.h"

// FAKE_cuInit, FAKE_cuModuleLoadData, ...
enum {
#define X(name, arguments) FAKE_##name,
  DW__DRIVER_REQUIRED(X) DW__DRIVER_OPTIONAL(X)
#undef X
    FAKE_COUNT
};

typedef struct fake_driver {
  // Set by a test.
  int result[FAKE_COUNT];  // what a call answers; 0: success
  int version, cc, sm_count, shared_optin;
  void *context;       // current in every thread; NULL: none
  int capture_status;  // of every stream

  // Seen by a test.
  int calls[FAKE_COUNT];
  int loaded;            // libraries and modules not unloaded again
  int capture_mode;      // of the thread
  int mode_at_load;      // the capture mode while the driver loaded
  int dynamic_shared;    // last value allowed with cuFuncSetAttribute
  void *pushed;          // last context pushed
  dw__cu_launch launch;  // last launch
  dw__cu_attribute attributes[4];
  void *function, *first_param;
} fake_driver;

extern fake_driver fake;

// An H200-like device with a current context.
void fake_driver_reset(void);
int fake_driver_calls(void);  // of any kind
dw__driver_table fake_driver_table(void);
// Without what CUDA 12 added, and without cuLaunchKernelEx.
dw__driver_table fake_driver_table_old(void);

#endif
