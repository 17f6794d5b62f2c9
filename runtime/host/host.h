// Running a kernel on the CPU, to prove it where there is no GPU.
//
//   dw_host_module_open   source text -> compiled, loaded module (needs a C++ compiler)
//   dw_host_module_entry  its kernel NAME, found as NAME__host
//   dw_host_run           runs a grid of it: lanes are fibers, every shared-memory access, copy and barrier is checked
//
// Nothing here prints, aborts or keeps global state; the first error ends the launch and is a sentence in the report.
// Launches on different host threads are independent.
//
// What is checked, and how finely
//   Happens-before is kept per thread (lane), by vector clocks over all threads of a cluster. Only what orders memory in the
//   PTX model orders it here: sync_warp, named barriers, mbarriers, cluster barriers, completed copies. Shuffles, votes,
//   ldmatrix, stmatrix and mma do not. The relaxed arrivals order earlier reads but not earlier writes. Two accesses to the
//   same bytes, at least one a write, with nothing between them that orders them, are a race. Granularity: two bytes.
//   A row of ldmatrix or stmatrix is an access by the lane that gives its address.
//   Bytes are unreadable until written. The destination of a copy is neither readable nor writable until a wait completes the
//   copy; the source is read at that moment.
//   Global memory: width and alignment always; bounds, permission and grid dependency where the launch lists its buffers.
//   Races on global memory are not looked for. CTAs (clusters) run one after another.
#ifndef DRAFTWOOD_HOST_H
#define DRAFTWOOD_HOST_H
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// name, what it means
#define DW_HOST_STATUS_MAP(X)                                                           \
  X(OK, "no error")                                                                     \
  X(BAD_ARGUMENT, "the launch or build was described wrongly")                          \
  X(NO_COMPILER, "no C++ compiler was found")                                           \
  X(COMPILE, "the compiler refused the source")                                         \
  X(LOAD, "the compiled module could not be loaded")                                    \
  X(SYSTEM, "the operating system refused a file, process or memory")                   \
  X(OUT_OF_BOUNDS, "shared-memory access outside what the launch asked for")            \
  X(MISALIGNED, "address or size not aligned as the instruction needs")                 \
  X(UNWRITTEN, "read of shared memory that nobody wrote")                               \
  X(IN_FLIGHT, "access to the destination of a copy that was not waited for")           \
  X(RACE, "two accesses to the same bytes that nothing orders")                         \
  X(FENCE, "a proxy or initialisation fence is missing")                                \
  X(DIVERGED, "the lanes of a warp are not at the same collective function")            \
  X(MBARRIER, "mbarrier used wrongly: not initialised, initialised twice, overwritten") \
  X(OVER_ARRIVAL, "more arrivals than the barrier counts")                              \
  X(TX_COUNT, "more bytes arrive at an mbarrier than were announced")                   \
  X(PHASE, "an mbarrier phase can pass unseen by a thread that waits for it")           \
  X(NAMED_BARRIER, "named barrier used wrongly")                                        \
  X(CLUSTER, "cluster used wrongly: rank, arrival order, peer not started or gone")     \
  X(REGISTERS, "setmaxnreg used wrongly, or more registers asked than there are")       \
  X(GLOBAL, "global access outside the listed buffers or against their permission")     \
  X(DEPENDENCY, "access to the previous grid's data before grid_dependency_wait")       \
  X(UNFINISHED, "a CTA ended while a copy into its shared memory was under way")        \
  X(DEADLOCK, "every thread waits")                                                     \
  X(LIVELOCK, "threads poll without end, or the call limit was reached")

typedef enum dw_host_status {
#define X(name, text) DW_HOST_##name,
  DW_HOST_STATUS_MAP(X)
#undef X
} dw_host_status;

const char *dw_host_status_name(dw_host_status status);  // "RACE"
const char *dw_host_status_text(dw_host_status status);

typedef struct dw_host_report {
  size_t size;  // sizeof(dw_host_report), set by the caller
  dw_host_status status;
  unsigned long long ctas;         // that ran to their end
  unsigned long long collectives;  // by warp
  unsigned long long mmas;
  unsigned long long shared_accesses;  // lds and sts by thread, ldmatrix and stmatrix rows
  unsigned long long copied_bytes;     // delivered by cp.async, bulk copies and st.async
  char message[8192];                  // what went wrong; of a failed compile, the compiler's own words
} dw_host_report;

// ---- modules --------------------------------------------------------------------------------------------------
typedef struct dw_host_module dw_host_module;
typedef void (*dw_host_entry)(const void *params);  // NAME__host of a kernel NAME

typedef struct dw_host_build_options {
  size_t size;
  const char *compiler;  // NULL: $CXX, else g++ or clang++ found in PATH
  // draftwood_host.h: as text (header_size bytes), or NULL and found in one of the directories.
  const char *header;
  size_t header_size;
  const char *const *include_dirs;
  size_t n_include_dirs;
  int sanitize;  // 1: AddressSanitizer and UndefinedBehaviorSanitizer; the running program must be built with them too
} dw_host_build_options;

// Writes the text to a fresh private directory, compiles it, loads it, removes the directory.
dw_host_status dw_host_module_open(dw_host_module **module, const char *source, size_t n, const dw_host_build_options *options,
                                   dw_host_report *report);
dw_host_entry dw_host_module_entry(const dw_host_module *module, const char *kernel);  // NULL: there is none
void dw_host_module_close(dw_host_module *module);

// For kernels compiled into the program itself: `dw_host_bind(dw_host_ops_table())` before the first launch.
const struct dw_host_ops *dw_host_ops_table(void);

// ---- launches -------------------------------------------------------------------------------------------------
typedef enum dw_host_order {
  DW_HOST_FORWARD,  // the lowest warp that can run; copies complete when nothing else can happen
  DW_HOST_REVERSE,  // the highest warp that can run; copies complete as soon as someone waits for them
  DW_HOST_RANDOM    // from the seed, in changing moods; also changes warps at some memory accesses
} dw_host_order;

enum { DW_HOST_BUFFER_WRITE = 1, DW_HOST_BUFFER_PREVIOUS_GRID = 2 };
typedef struct dw_host_buffer {
  const void *data;
  size_t size;
  unsigned flags;  // WRITE: this grid may write it. PREVIOUS_GRID: not before grid_dependency_wait
} dw_host_buffer;

typedef struct dw_host_launch {
  size_t size;
  dw_host_entry entry;
  const void *params;  // handed to entry as it is
  unsigned grid[3];    // CTAs; 0 reads as 1 in all three
  unsigned block[3];   // threads; the product is a multiple of 32, at most 1024
  unsigned cluster[3];
  size_t shared_bytes;
  unsigned registers_per_thread;  // at the start, for setmaxnreg; 0: an equal share of 65536
  dw_host_order order;
  unsigned long long seed;
  // With a list, every access by the functions of ptx.cuh must fall inside one buffer. PREVIOUS_GRID counts when dependent.
  // The buffers must not overlap; there may be many (one a page).
  const dw_host_buffer *buffers;
  size_t n_buffers;
  int dependent;
  size_t stack_bytes;            // a lane; 0: 128 KiB, with AddressSanitizer 512 KiB
  unsigned long long max_calls;  // of ptx.cuh functions in one cluster; 0: four thousand million
} dw_host_launch;

dw_host_status dw_host_run(const dw_host_launch *launch, dw_host_report *report);

#ifdef __cplusplus
}
#endif
#endif
