// A stand-in for NVRTC: hands out the cubin it was given, and fails on order. One a process, reset before a test. Threads may
// compile at once.
#ifndef DRAFTWOOD_FAKE_NVRTC_H
#define DRAFTWOOD_FAKE_NVRTC_H

#include <stdatomic.h>
#include <stddef.h>

#include "nvrtc_table.h"

typedef struct fake_nvrtc_state {
  // Set by a test.
  int major, minor;
  int arch_count;         // of sm_90, sm_120, sm_121: how many it knows
  const char *log, *ptx;  // of every program
  const char *cubin;
  size_t cubin_size;
  atomic_int compile_result;   // what a compile answers; one to PTX only if builtins are what is wrong
  atomic_int delay_us;         // of a kernel's compile, so that threads meet
  void (*on_kernel)(void);     // called as a kernel's compile begins, before the delay; NULL: nothing
  void (*after_kernel)(void);  // and after it

  // Seen by a test.
  atomic_int compiles, kernel_compiles;  // all; of the flow's own source
} fake_nvrtc_state;

extern fake_nvrtc_state fake_nvrtc;
extern const dw__nvrtc_table fake_nvrtc_table;

void fake_nvrtc_reset(int major, int minor);

#endif
