// NVRTC as a table of function pointers. Declared here, since no toolkit header is needed to build draftwood.
#ifndef DRAFTWOOD_NVRTC_TABLE_H
#define DRAFTWOOD_NVRTC_TABLE_H

#include <stddef.h>

typedef struct dw__nvrtc_program dw__nvrtc_program;

// The results we tell apart; any other is an error too.
enum {
  DW__NVRTC_SUCCESS = 0,
  DW__NVRTC_OUT_OF_MEMORY = 1,
  DW__NVRTC_INVALID_OPTION = 5,
  DW__NVRTC_COMPILATION = 6,
  DW__NVRTC_BUILTINS = 7,  // libnvrtc-builtins could not be opened or used
};

// X(name, arguments): all of them return an int result, except the error's text.
#define DW__NVRTC_REQUIRED(X)                                                                                  \
  X(nvrtcVersion, (int *major, int *minor))                                                                    \
  X(nvrtcGetNumSupportedArchs, (int *count))                                                                   \
  X(nvrtcGetSupportedArchs, (int *archs))                                                                      \
  X(nvrtcCreateProgram, (dw__nvrtc_program * *program, const char *source, const char *name, int header_count, \
                         const char *const *headers, const char *const *header_names))                         \
  X(nvrtcDestroyProgram, (dw__nvrtc_program * *program))                                                       \
  X(nvrtcCompileProgram, (dw__nvrtc_program * program, int option_count, const char *const *options))          \
  X(nvrtcGetCUBINSize, (dw__nvrtc_program * program, size_t * size))                                           \
  X(nvrtcGetCUBIN, (dw__nvrtc_program * program, char *cubin))                                                 \
  X(nvrtcGetPTXSize, (dw__nvrtc_program * program, size_t * size))                                             \
  X(nvrtcGetPTX, (dw__nvrtc_program * program, char *ptx))                                                     \
  X(nvrtcGetProgramLogSize, (dw__nvrtc_program * program, size_t * size))                                      \
  X(nvrtcGetProgramLog, (dw__nvrtc_program * program, char *log))

typedef struct dw__nvrtc_table {
#define X(name, arguments) int(*name) arguments;
  DW__NVRTC_REQUIRED(X)
#undef X
  const char *(*nvrtcGetErrorString)(int result);  // optional
} dw__nvrtc_table;

#endif
