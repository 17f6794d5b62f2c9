// See fake_nvrtc.h.
#include "fake_nvrtc.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

fake_nvrtc_state fake_nvrtc;

void fake_nvrtc_reset(int major, int minor) {
  memset(&fake_nvrtc, 0, sizeof fake_nvrtc);
  fake_nvrtc.major = major;
  fake_nvrtc.minor = minor;
  fake_nvrtc.arch_count = 2;
  fake_nvrtc.log = "";
  fake_nvrtc.ptx = "// Cuda compilation tools, release 13.0, V13.0.88\n";
}

static int fake_version(int *major, int *minor) {
  *major = fake_nvrtc.major;
  *minor = fake_nvrtc.minor;
  return 0;
}

static int fake_arch_count(int *count) {
  *count = fake_nvrtc.arch_count;
  return 0;
}

static int fake_archs(int *archs) {
  static const int known[] = {90, 120, 121};
  memcpy(archs, known, (size_t)fake_nvrtc.arch_count * sizeof *known);
  return 0;
}

// All that is remembered of a program is whether it is a kernel.
static char kernel_program, other_program;

static int fake_create(dw__nvrtc_program **program, const char *source, const char *name, int count, const char *const *headers,
                       const char *const *names) {
  bool kernel = name && strcmp(name, "verify.cu") == 0;
  *program = (dw__nvrtc_program *)(kernel ? &kernel_program : &other_program);
  return !source || !name || count || headers || names;
}

static int fake_destroy(dw__nvrtc_program **program) {
  *program = NULL;
  return 0;
}

static int fake_compile(dw__nvrtc_program *program, int count, const char *const *options) {
  atomic_fetch_add(&fake_nvrtc.compiles, 1);
  if (program == (dw__nvrtc_program *)&kernel_program) {
    atomic_fetch_add(&fake_nvrtc.kernel_compiles, 1);
    if (fake_nvrtc.on_kernel) fake_nvrtc.on_kernel();
    usleep((unsigned)atomic_load(&fake_nvrtc.delay_us));
    if (fake_nvrtc.after_kernel) fake_nvrtc.after_kernel();
  }
  // Version and builtins are asked about by a compile to PTX.
  bool probe = count > 0 && strncmp(options[0], "-arch=compute_", 14) == 0;
  int result = atomic_load(&fake_nvrtc.compile_result);
  return probe && result != DW__NVRTC_BUILTINS ? DW__NVRTC_SUCCESS : result;
}

static int fake_cubin_size(dw__nvrtc_program *program, size_t *size) {
  (void)program;
  *size = fake_nvrtc.cubin_size;
  return 0;
}

static int fake_cubin(dw__nvrtc_program *program, char *cubin) {
  (void)program;
  memcpy(cubin, fake_nvrtc.cubin, fake_nvrtc.cubin_size);
  return 0;
}

static int fake_ptx_size(dw__nvrtc_program *program, size_t *size) {
  (void)program;
  *size = strlen(fake_nvrtc.ptx) + 1;
  return 0;
}

static int fake_ptx(dw__nvrtc_program *program, char *ptx) {
  (void)program;
  strcpy(ptx, fake_nvrtc.ptx);
  return 0;
}

static int fake_log_size(dw__nvrtc_program *program, size_t *size) {
  (void)program;
  *size = strlen(fake_nvrtc.log) + 1;
  return 0;
}

static int fake_log(dw__nvrtc_program *program, char *log) {
  (void)program;
  strcpy(log, fake_nvrtc.log);
  return 0;
}

const dw__nvrtc_table fake_nvrtc_table = {
  .nvrtcVersion = fake_version,
  .nvrtcGetNumSupportedArchs = fake_arch_count,
  .nvrtcGetSupportedArchs = fake_archs,
  .nvrtcCreateProgram = fake_create,
  .nvrtcDestroyProgram = fake_destroy,
  .nvrtcCompileProgram = fake_compile,
  .nvrtcGetCUBINSize = fake_cubin_size,
  .nvrtcGetCUBIN = fake_cubin,
  .nvrtcGetPTXSize = fake_ptx_size,
  .nvrtcGetPTX = fake_ptx,
  .nvrtcGetProgramLogSize = fake_log_size,
  .nvrtcGetProgramLog = fake_log,
};
