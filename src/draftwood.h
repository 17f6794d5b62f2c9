// draftwood: tree-verify attention kernels for speculative decoding, made to order for one shape.
//
// The chain: shape -> variant -> source -> cubin -> cache -> kernel -> launch. A shape says what is asked, a variant what was
// chosen for it; the source is a pure function of both; a cubin is the compiled source for one target; a kernel is a loaded
// cubin. dw_kernel_get walks the whole chain; each step is a function of its own below, in that order.
//
// Threads: a context may be used from many threads at once. Functions that take a `dw_error *` accept NULL there. No function
// prints, aborts or ends the process. Nothing here needs a GPU before dw_kernel_get.
#ifndef DRAFTWOOD_H
#define DRAFTWOOD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DW_VERSION "0.1.0"

#if defined(DRAFTWOOD_BUILD) || defined(__GNUC__)
#define DW_API __attribute__((visibility("default")))
#else
#define DW_API
#endif

// ---- errors ---------------------------------------------------------------------------------------------------

// X(name, text). DW_OK is 0.
#define DW_STATUS_MAP(X)                                              \
  X(OK, "done")                                                       \
  X(BAD_ARGUMENT, "an argument is wrong")                             \
  X(BAD_SHAPE, "the shape is not valid")                              \
  X(NOT_APPLICABLE, "the variant cannot serve this shape")            \
  X(UNSUPPORTED_TARGET, "no template or compiler serves this target") \
  X(OUT_OF_MEMORY, "out of memory")                                   \
  X(TEMPLATE, "a template failed")                                    \
  X(NO_COMPILER, "NVRTC 12.9 or newer was not found")                 \
  X(COMPILE, "the kernel did not compile")                            \
  X(NO_DRIVER, "the CUDA driver was not found")                       \
  X(DRIVER, "the CUDA driver reported an error")                      \
  X(BAD_CUBIN, "the cubin is damaged")                                \
  X(WRONG_ARCH, "the cubin is for another GPU architecture")          \
  X(IO, "a file could not be read or written")                        \
  X(NOT_FOUND, "not found")                                           \
  X(FROZEN, "not prepared before dw_freeze")                          \
  X(CANCELLED, "cancelled by the caller")                             \
  X(HOST_EXECUTION, "host execution found a fault")                   \
  X(WRONG_RESULT, "the result differs from the oracle")               \
  X(INTERNAL, "internal error")                                       \
  X(BAD_BUNDLE, "the bundle cannot be used")

typedef enum dw_status {
#define X(name, text) DW_##name,
  DW_STATUS_MAP(X)
#undef X
} dw_status;

// What went wrong, with its evidence. Unused parts are empty strings. `log` (a compiler log) is owned by the error.
typedef struct dw_error {
  dw_status status;
  char field[48];     // the argument, field or file it is about
  char found[192];    // what was there
  char allowed[256];  // what would have been right
  char message[640];  // one sentence that says all of the above
  char *log;          // compiler or interpreter log, or NULL
} dw_error;

DW_API const char *dw_status_name(dw_status status);
DW_API const char *dw_status_text(dw_status status);
// Frees the log and empties the record. An error record must start zeroed (`dw_error e = {0};`).
DW_API void dw_error_clear(dw_error *error);
DW_API const char *dw_version(void);

// ---- shape: what is asked -------------------------------------------------------------------------------------

typedef enum dw_attention { DW_MLA, DW_GQA } dw_attention;
// E4M3: KV alone, a byte an element (no infinity, up to 448, NaN is 0x7F and 0xFF), with q in bf16 or fp16. See dw_args.kv_scale.
// RECORD656: KV of MLA with qk=576, v=512 and q in bf16 alone. A token is 656 bytes: 512 latents in e4m3, 4 scales in fp32, each of which
// multiplies 128 of them in turn, 64 of the rope in bf16. Strides of such KV count bytes.
typedef enum dw_dtype { DW_BF16, DW_F16, DW_F32, DW_E4M3, DW_RECORD656 } dw_dtype;

typedef struct dw_shape {
  dw_attention attention;
  int heads;     // query heads on this GPU, 1 to 128
  int kv_heads;  // GQA: KV heads on this GPU, a divisor of heads; query head h reads KV head h / (heads / kv_heads). 1 for MLA
  int width;     // most draft tokens a request may bring, 1 to 1025
  int head_dim_qk;  // MLA: latent + rope, 576 for DeepSeek-type models
  int head_dim_v;   // MLA: latent, 512; V is the first head_dim_v elements of a token's record. GQA: of a head's V
  int page;         // tokens a page: 1 or a multiple of 16
  dw_dtype q, kv, out;
  int target;  // device class: 120 for sm_120, 90 for sm_90
  int limits;  // 0: the target's own; 120: at most what sm_120 has
  // A tree that all requests share and that is folded into the code, for DW_MASK_STATIC: `width` nodes, at most 64, each with its
  // parent (before it, or -1). A request with fewer rows has the first ones. tree_nodes 0: none, and all of `tree` is 0.
  int tree_nodes;
  signed char tree[64];
} dw_shape;

#define DW_TEXT_MAX 512

// Text form, e.g. "mla:h=8,t=9,qk=576,v=512,page=1,q=bf16,kv=bf16,target=sm_120,limits=native". Fields may come in any order and
// have defaults (mla: qk=576, v=512, page=1, bf16, sm_120, native; out defaults to q). kv is q's type, e4m3 or record656. Printing
// gives the canonical form.
// A tree follows as "tree=r.0.0.1": the parent of each node, r for a root.
// A text that starts with a preset's name may override fields: "kimi-k2.6-tp8,t=17".
DW_API dw_status dw_shape_parse(const char *text, dw_shape *shape, dw_error *error);
// Writes at most n bytes with the closing 0; returns the length the whole text has.
DW_API size_t dw_shape_print(const dw_shape *shape, char *text, size_t n);
DW_API dw_status dw_shape_check(const dw_shape *shape, dw_error *error);

// Presets: names and shapes of well-known models at a tensor-parallel degree.
DW_API size_t dw_preset_count(void);
DW_API const char *dw_preset_name(size_t i);
DW_API dw_status dw_preset_shape(const char *name, dw_shape *shape, dw_error *error);

// ---- variant: what is chosen ----------------------------------------------------------------------------------

// ROWSPLIT and DIMSPLIT (for MLA), GROUPED and WARPSPLIT (for GQA), the tensor-core kernels, keep the results of KV ranges as fp16 until
// they are merged. With fp16 and e4m3 KV that holds all there is (a scale comes after the merge). With records, whose scales may be of any
// size, the results are fp32; scales are held from 2^-54 (with fewer bits from 2^-64) to 2^97, and a row that sees a larger one is NaN.
// With bf16 KV elements of a range's result up to 65,504 are held; beyond it the row comes out inf or NaN, never finite and wrong.
// Below 6e-5 they are exact to 3e-8. SPLIT and REFERENCE keep fp32 and have no such limit.
typedef enum dw_family { DW_REFERENCE, DW_SPLIT, DW_ROWSPLIT, DW_GROUPED, DW_WARPSPLIT, DW_DIMSPLIT } dw_family;
// What all calls of a kernel have in common. TABLE: addressing by block table, kv_len counts the drafts, every request has the same
// number of rows (no qo_indptr), AUTO split; some 0.3 us less a call than ANY, which serves everything.
typedef enum dw_call { DW_CALL_ANY, DW_CALL_TABLE } dw_call;
typedef enum dw_combine { DW_COMBINE_NONE, DW_COMBINE_FEW, DW_COMBINE_MANY } dw_combine;
// What the products on tensor cores add up in, for boards whose fp16 accumulators are twice as fast as fp32 ones (GeForce). Chains of 16 or
// 32 products add up in fp16, the chains in fp32. No product overflows. FP16_OUTPUT keeps the accuracy of FP32; with FP16 the error
// of a score is some 2^-11 of what its terms add up to, offsets that all scores share included. Never chosen where it is not asked for.
typedef enum dw_accumulate { DW_ACCUMULATE_FP32, DW_ACCUMULATE_FP16_OUTPUT, DW_ACCUMULATE_FP16 } dw_accumulate;

// One member a line of draftwood_variant.def, where each is described.
typedef struct dw_variant {
#define DW_PARAM(name, kind, least, most, normal, help) int name;
#include "draftwood_variant.def"
#undef DW_PARAM
} dw_variant;

// Text form, e.g. "family=rowsplit,n_tiles=5,setmaxnreg=1,combine=many,combine_splits=72,checked=0".
DW_API dw_status dw_variant_parse(const char *text, dw_variant *variant, dw_error *error);
DW_API size_t dw_variant_print(const dw_variant *variant, char *text, size_t n);

// Can this variant serve this shape? A pure function: no device, no file. DW_OK, or DW_NOT_APPLICABLE with the reason.
DW_API dw_status dw_variant_applicable(const dw_shape *shape, const dw_variant *variant, dw_error *error);

// What calls may have beyond the plain form: a kernel has code for what it was made for alone, since all of it together costs a few
// per cent of a short call.
typedef enum dw_feature {
  DW_WITH_WINDOW = 1,    // dw_args.window
  DW_WITH_SOFT_CAP = 2,  // dw_args.soft_cap
  DW_WITH_Q_ROPE = 4,    // dw_args.q_rope
  DW_WITH_KV_ROPE = 8    // dw_args.kv_rope
} dw_feature;

// What a launch will look like; host integers only. They fix the grid and the workspace.
typedef struct dw_bounds {
  size_t size;   // sizeof(dw_bounds)
  int batch;     // most requests
  int total_q;   // most rows of q in all (0: batch x width)
  int kv_len;    // most tokens a request, drafts included
  int sm_count;  // multiprocessors of the GPU (0: of the current device, or the target's usual count without one)
  dw_call call;  // what the caller promises of its calls
  int features;  // dw_feature values, or'ed: what calls may have
  int split_tokens;  // 0: AUTO, the split is chosen on the device; else FIXED: tokens a KV range, a multiple of 16 up to 2^24, batch-invariant
} dw_bounds;

// The rule table: the variant for a shape and bounds, with no tuning and no device. Always applicable. bounds NULL: one request of
// up to 65,536 tokens. With FIXED ranges the promise TABLE is not used: the variant says call=any.
DW_API dw_status dw_variant_choose(const dw_shape *shape, const dw_bounds *bounds, dw_variant *variant, dw_error *error);
// Every variant the table returns for this shape, whatever the bounds but without features, i = 0, 1, ...; DW_NOT_FOUND past the end. (A
// few of the last need a board that nobody built.)
DW_API dw_status dw_variant_enumerate(const dw_shape *shape, size_t i, dw_variant *variant);
// Compile target, e.g. "sm_120f", that (shape, variant) needs.
DW_API dw_status dw_compile_target(const dw_shape *shape, const dw_variant *variant, char text[16], dw_error *error);
// Dynamic shared memory of the main kernel in bytes, as predicted from the variant alone; the two must be applicable.
DW_API size_t dw_shared_bytes(const dw_shape *shape, const dw_variant *variant);

// ---- context --------------------------------------------------------------------------------------------------

typedef struct dw_ctx dw_ctx;
typedef enum dw_log_level { DW_LOG_DEBUG, DW_LOG_INFO, DW_LOG_WARNING } dw_log_level;
typedef void (*dw_log_fn)(void *user, dw_log_level level, const char *message);

typedef struct dw_options {
  size_t size;  // sizeof(dw_options)
  const char
    *cache_dir;  // NULL: $DRAFTWOOD_CACHE_DIR, else $XDG_CACHE_HOME/draftwood, else $HOME/.cache/draftwood; "": memory only
  const char *template_dir;  // NULL: $DRAFTWOOD_TEMPLATES, else the embedded templates
  const char *nvrtc_path;    // NULL: $DRAFTWOOD_NVRTC, else found by the loader or beside the library
  const char *driver_path;   // NULL: $DRAFTWOOD_DRIVER, else libcuda.so.1
  dw_log_fn log;             // NULL: silent
  void *log_user;
  const char *system_dirs;  // directories that look like the cache's and are only read, after it; absolute, parted by colons, the
                            // first hit wins. NULL: $DRAFTWOOD_SYSTEM_CACHE; "": none
  uint64_t cache_limit;  // bytes; 0: $DRAFTWOOD_CACHE_LIMIT ("512M"), else 512 MiB. What was used longest ago goes first, but
                         // nothing younger than an hour
  int cache_shared;      // 1: the directory's group is trusted and may write; 0: as $DRAFTWOOD_CACHE_SHARED says (0 or 1)
  int compile_slots;  // compiles at once of all processes on this host; 0: $DRAFTWOOD_COMPILE_SLOTS, else one a core, and one a
                      // 512 MiB of memory at most, within the limits of our control group
  int lock_timeout_ms;  // how long to wait for a process that compiles the same, before compiling it too; 0: 60,000
  int no_compile;       // 1: what neither bundles nor cache have is DW_NOT_FOUND and goes to the miss list; 0: as
                        // $DRAFTWOOD_NO_COMPILE says (0 or 1)
  const char
    *plan;  // a file that draftwood plan export or dw_tune wrote: variants come from it alone, on every rank the same. "none":
            // from dw_variant_choose. NULL: $DRAFTWOOD_PLAN, else the cache's plan for the GPU, then the ones that
            // draftwood comes with
} dw_options;

// options may be NULL; an environment variable that is empty counts as not set. Never fails for want of a driver, a compiler or a cache
// directory: those are reported when needed.
DW_API dw_status dw_ctx_create(const dw_options *options, dw_ctx **ctx, dw_error *error);
// Unloads its kernels; no launch may be in flight.
DW_API void dw_ctx_destroy(dw_ctx *ctx);

// ---- source and cubin -----------------------------------------------------------------------------------------

// The CUDA C++ text; free with dw_free. Same shape, variant and templates: same bytes, in any process. Not after dw_freeze.
DW_API dw_status dw_source_generate(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, char **source, size_t *size,
                                    dw_error *error);
DW_API void dw_free(void *p);

// Resources of one kernel of a cubin, read from the cubin itself and, for spills, from the compiler's log.
typedef struct dw_resources {
  char name[64];
  int registers;      // a thread
  int stack_bytes;    // a thread; 0: nothing spilled and no local arrays
  int shared_static;  // bytes
  int barriers;       // named barriers
  int spill_stores;   // bytes; -1: not known (a cubin without its log)
  int spill_loads;    // bytes; -1: not known
  int max_threads;
  int uses_setmaxnreg;
} dw_resources;

#define DW_KERNELS_MAX 8

typedef struct dw_cubin {
  const void *data;
  size_t size;
  char target[16];       // e.g. "sm_120f"
  char compiler[32];     // e.g. "nvrtc 13.0.88"
  char request_key[65];  // hex
  char build_key[65];    // hex
  double compile_ms;     // of the compile that made it, not of this call
  int from_cache;        // 1: no compile in this call
  int kernel_count;
  dw_resources kernels[DW_KERNELS_MAX];
} dw_cubin;

// Through the cache, else generate and compile. A compile that failed is not tried again for an hour, by no process with this cache
// directory: the error is the same, with its log. Free with dw_cubin_free.
DW_API dw_status dw_cubin_build(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, dw_cubin **cubin,
                                dw_error *error);
DW_API void dw_cubin_free(dw_cubin *cubin);

// ---- bundles: cubins made beforehand --------------------------------------------------------------------------
// A bundle is one file with many cubins (`draftwood bundle build`), or its bytes in memory, e.g. in the host's own binary. It is
// asked before the cache's directory, the first added first, and is never written. Where it has all that is asked for, neither NVRTC
// nor Lua nor a writable directory is touched.
//
// public_key: 32 bytes, the Ed25519 key that has to have signed it, or NULL: whoever can write the file then decides what runs.
// DW_BAD_BUNDLE: damaged, not signed with this key, or made by another version, with both versions in the error. DW_NOT_FOUND, DW_IO.
// An entry that proves damaged later is passed over, counted and warned of once. At most 32 bundles a context, none after dw_freeze.
//
// $DRAFTWOOD_BUNDLES adds more when a context is created: files, or folders for the *.dwb in them, parted by colons, without
// a key. One that cannot be used is a warning.
DW_API dw_status dw_bundle_add_file(dw_ctx *ctx, const char *path, const unsigned char *public_key, dw_error *error);
// The bytes are not copied: they stay the caller's, unchanged until dw_ctx_destroy. Any alignment.
DW_API dw_status dw_bundle_add_memory(dw_ctx *ctx, const void *data, size_t size, const unsigned char *public_key,
                                      dw_error *error);

typedef struct dw_stats {
  uint64_t compiles, compile_failures;
  uint64_t hits_memory, hits_disk, misses;
  uint64_t damaged, publish_failures;
  uint64_t hits_layers;     // of bundles and system directories
  uint64_t known_failures;  // compiles spared since the same one had failed before, here or in another process
  uint64_t lock_timeouts;   // compiled anyway after lock_timeout_ms
  uint64_t evicted;         // entries, to keep the directory's limit
  uint64_t list_misses;     // requests that dw_miss_list tells of, each time it was asked for
} dw_stats;
DW_API void dw_stats_get(dw_ctx *ctx, dw_stats *stats);

// ---- kernel and launch ----------------------------------------------------------------------------------------

typedef struct dw_kernel dw_kernel;

// The whole chain. variant NULL: dw_variant_choose. The kernel belongs to the context and to the CUDA context that is current
// in this call; the same request returns the same kernel. bounds must be given. The first time never during stream capture; after that
// a request is one look-up in memory, with no lock, system call or allocation: cheap enough for every call.
DW_API dw_status dw_kernel_get(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds,
                               dw_kernel **kernel, dw_error *error);
DW_API void dw_kernel_variant(const dw_kernel *kernel, dw_variant *variant);
// Bytes of workspace for launches within the kernel's bounds; 256-byte aligned device memory, owned by the caller. It need not
// be zeroed and may be shared by launches of one stream.
DW_API size_t dw_workspace_size(const dw_kernel *kernel);

// ---- prepare, freeze, misses ----------------------------------------------------------------------------------

typedef struct dw_request {
  const dw_shape *shape;
  const dw_variant *variant;  // NULL: dw_variant_tuned, for the current device or, with cubins_only, one of the shape's target
  const dw_bounds *bounds;    // as for dw_kernel_get. With cubins_only it may be NULL
} dw_request;

typedef struct dw_progress {
  size_t size;      // sizeof(dw_progress)
  size_t requests;  // of the list
  size_t done;      // cubins there, or known to fail
  size_t compiled;  // of these, compiled by this process
  size_t failed;
  size_t elsewhere;  // not done, and being compiled by another process when last looked at
  size_t loaded;     // kernels
} dw_progress;
// 0: go on. Else dw_prepare ends with DW_CANCELLED once the compiles it has begun are over; what is done stays.
typedef int (*dw_progress_fn)(void *user, const dw_progress *progress);

typedef struct dw_prepare_options {
  size_t size;              // sizeof(dw_prepare_options)
  int cubins_only;          // 1: into memory and the cache; needs neither driver nor GPU
  int threads;              // that compile; 0: one a compile slot. They end before dw_prepare does
  dw_progress_fn progress;  // called in the calling thread, when something has changed and about ten times a second; NULL: none
  void *progress_user;
} dw_prepare_options;

// dw_kernel_get for a whole list, so that serving never waits for a compile. Processes that prepare the same list with one cache
// directory split it: each begins elsewhere, passes over what another one is compiling and finds it in the cache later. So N requests
// cost N compiles in all, as many at once as the host has slots for; what a process that was killed had begun, the others take over.
// A request that fails does not stop the others: the error is that of the first in the list. options may be NULL. count may be 0.
DW_API dw_status dw_prepare(dw_ctx *ctx, const dw_request *list, size_t count, const dw_prepare_options *options,
                            dw_error *error);

// From here on the context compiles nothing, opens no file and takes no lock. dw_kernel_get and dw_companions_get return what was
// loaded before, dw_cubin_build what is in memory; all else is DW_FROZEN and noted in the miss list. A call in progress in another
// thread ends as it began. There is no way back but another context.
DW_API dw_status dw_freeze(dw_ctx *ctx, dw_error *error);

// What this context was asked for and had to compile, or refuse since frozen: JSON lines, one a request and each once, in the order
// they were first asked for; up to 1,024. `draftwood bundle build --from-misses` takes them. Free *text with dw_free; it ends with a 0
// that *size (may be NULL) does not count. A line has four strings:
//   "call"     "any" or "table", the variant's; "companions" for the companion kernels
//   "shape"    canonical text, as dw_shape_parse takes it; "companions" for those
//   "target"   compile target, e.g. "sm_120f"
//   "variant"  canonical text, as dw_variant_parse takes it; empty for the companions
DW_API dw_status dw_miss_list(dw_ctx *ctx, char **text, size_t *size, dw_error *error);

// Where a request was found, or why not, as lines of "name  value": its keys' inputs, each place that was looked into, and of the
// cache directory's entries the one that is nearest with every field in which it differs. variant NULL: dw_variant_choose. Needs
// neither compiler nor driver; reads files, so not after dw_freeze. Free *text with dw_free.
DW_API dw_status dw_explain(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, char **text, dw_error *error);

// ---- tuning ---------------------------------------------------------------------------------------------------

// How many variants are looked at, and for how long: those that the model puts near the best; more of them; each one.
typedef enum dw_effort { DW_QUICK, DW_MEASURE, DW_EXHAUSTIVE } dw_effort;

typedef struct dw_tune_progress {
  size_t size;               // sizeof(dw_tune_progress)
  size_t problems, problem;  // of the list; in hand, from 0
  size_t candidates;         // of this problem, after pruning
  size_t prepared, in_play;  // built and checked; not given up
  int rounds;
  double seconds, budget_seconds;  // since the call; of the whole list
  const char *shape;               // canonical texts, good during the call
  const char *variant;
} dw_tune_progress;
// 0: go on. Else dw_tune ends with DW_CANCELLED; what was measured is kept.
typedef int (*dw_tune_progress_fn)(void *user, const dw_tune_progress *progress);

typedef struct dw_tune_options {
  size_t size;            // sizeof(dw_tune_options)
  int gpu;                // as the driver counts
  double budget_seconds;  // for the whole list; 0: 60. It ends within seconds of that, with what there is
  dw_effort effort;
  int warm;                      // 1: choose by times with the KV in the L2, as far as it fits; 0: with a cold L2
  int any_numerics;              // 1: variants of other numerics classes than the default's may be chosen
  int resume;                    // 1: what an interrupted call with the same folder has measured is not measured again
  int shard, shards;             // the shard-th of so many parts of the list, from 0; 0, 0: all of it
  int threads;                   // that compile beforehand; 0: one a compile slot, -1: none, candidates are compiled one by one
  const char *folder;            // of journals, records and plans; NULL: tune/ in the cache's directory
  const char *command;           // the program `draftwood`; NULL: $DRAFTWOOD_COMMAND, else found by PATH
  dw_tune_progress_fn progress;  // called in the calling thread; NULL: none
  void *progress_user;
  double answer_seconds;  // after which a candidate that is checked or timed counts as hung; 0: 30
} dw_tune_options;

// Measures which variant is the fastest for each problem (a request without variant, bounds with batch and kv_len) and writes a plan:
// folder/<GPU>/records.jsonl has what was measured, plan.jsonl beside it what follows from all records there. Contexts made later take
// their variants from it. Each candidate is compared with the fp64 oracle before it is timed, in a process of its own (`draftwood tune
// --worker`): one that crashes, hangs or is wrong is recorded as such and never chosen. This process makes no CUDA call but to see
// whether a capture is in progress, which is refused: DW_BAD_ARGUMENT, field "stream". options may be NULL.
// A problem that the budget did not reach has no record: its variant stays dw_variant_choose's.
DW_API dw_status dw_tune(dw_ctx *ctx, const dw_request *list, size_t count, const dw_tune_options *options, dw_error *error);

// Where a variant comes from: dw_variant_choose; a record of this problem on this GPU (bench/README.md says which problems are one);
// of a near shape, batch or length; of another GPU of the same architecture. The latter two are told by the log once, and give way to the
// rule where the model expects them to be slower.
typedef enum dw_source { DW_FROM_RULE, DW_FROM_RECORD, DW_FROM_NEAR_SHAPE, DW_FROM_NEAR_GPU } dw_source;
typedef struct dw_choice {
  size_t size;  // sizeof(dw_choice)
  dw_source source;
  int predicted;          // 1: by the model, nothing was measured
  double us, default_us;  // as recorded, of the problem that was measured; 0: not known
} dw_choice;
// The variant for a problem on the current device (without one: of a board of the shape's target), from the context's plan or else from
// dw_variant_choose. bounds as for dw_kernel_get. The plan is read when it is first needed and stays: a question has one answer as long
// as the context lives, and asked again costs one look-up without lock, system call or allocation. choice may be NULL.
DW_API dw_status dw_variant_tuned(dw_ctx *ctx, const dw_shape *shape, const dw_bounds *bounds, dw_variant *variant,
                                  dw_choice *choice, dw_error *error);
// SHA-256 of all choices that the context's plan has for the current device, in hex: ranks with the same digest choose the same.
DW_API dw_status dw_plan_digest(dw_ctx *ctx, char text[65], dw_error *error);

typedef enum dw_addressing { DW_CSR, DW_BLOCK_TABLE } dw_addressing;
typedef enum dw_mask {
  DW_MASK_NONE,     // chain: node i sees drafts 0..i
  DW_MASK_PARENTS,  // int32 [total_q]: a node's parent (local id, smaller than its own), -1 root, -2 dead padding node; a node
                    // sees its ancestors and itself, a dead one nothing
  DW_MASK_BITS,     // uint32 [total_q, mask_row_stride]: bit j of row i: i sees draft j
  DW_MASK_BYTES_QLEN,  // uint8 [batch, width, width]: byte j of row i is not 0: i sees draft j. See mask_request_stride
  DW_MASK_BYTES_FULL,  // uint8, SGLang's custom_mask: from byte mask_indptr[b] on, a row for each of the request's rows, of a byte
                       // for each token of prefix and rows; only the last `rows` bytes of a row are read
  DW_MASK_BIAS_F32,  // float [batch, width, width]: 0: i sees draft j, -inf: it does not; nothing else is allowed
  DW_MASK_STATIC,    // the shape's tree; no mask is read
} dw_mask;
// Draft columns of BITS, BYTES and BIAS are taken as given, the diagonal too.

// One attention call. Device pointers unless said otherwise; strides in elements of their array.
// Row r of request b is row qo_indptr[b] + r of q, out and the mask. Each row sees the request's whole prefix and, of its
// drafts, what the mask says. A row that sees nothing gets out 0 and lse -inf.
//
// Elements that are not finite: what a row does not see does not reach it. A row that sees NaN, an infinite element of V, or a score of +inf
// is not finite. A score of -inf, which an infinite q or K makes, weighs nothing; a row without a sink whose visible tokens all have one is
// NaN, but where it sees no prefix, or has a window, it may come out as one that sees nothing. With ROWSPLIT and DIMSPLIT a score of -inf
// makes NaN, where V is finite too, in tiles (16 or 32 tokens) that hold drafts, the end of a range or the beginning of a window.
typedef struct dw_args {
  size_t size;                 // sizeof(dw_args)
  const void *q;               // [total_q, heads, qk], 16-byte aligned rows
  int64_t q_row_stride;        // 0: heads x q_head_stride
  int64_t q_head_stride;       // 0: qk, or v with q_rope
  const void *q_rope;          // MLA: [total_q, heads, qk - v], the last elements of q where they lie apart; NULL: they do not
  int64_t q_rope_row_stride;   // 0: heads x q_rope_head_stride
  int64_t q_rope_head_stride;  // 0: qk - v
  void *out;                   // [total_q, heads, v]
  int64_t out_row_stride;      // 0: heads x out_head_stride
  int64_t out_head_stride;     // 0: v
  float *lse;                  // [total_q, heads], or NULL
  int64_t lse_row_stride;      // 0: heads
  int lse_base_e;              // 0: base 2, 1: base e
  const int32_t *qo_indptr;    // [batch + 1], or NULL: `width` rows a request
  int batch;
  int total_q;  // rows of q; 0: batch x width
  int width;    // rows a request where qo_indptr is NULL; 0: the shape's
  // MLA: one pool; a token's record has qk elements at least. GQA: kv is the pool of K, v that of V, in the same pages or slots; both
  // may lie in one buffer, K and V of a token, of a page or of a head beside each other: what counts are the bases and strides.
  const void *kv;           // pages of `page` tokens; 16-byte aligned tokens and heads
  int64_t kv_token_stride;  // 0: qk, or v with kv_rope; 656 (bytes) of records; GQA: kv_heads x kv_head_stride
  int64_t kv_page_stride;   // 0: page x kv_token_stride
  int kv_pages;             // pages in the pool, for checked kernels: ids lie below it, slots below it x page. 0: not known
  int64_t kv_head_stride;   // GQA: from a KV head to the next; 0: qk
  const void *v;            // GQA; NULL for MLA
  int64_t v_token_stride;   // 0: kv_heads x v_head_stride
  int64_t v_page_stride;    // 0: page x v_token_stride
  int64_t v_head_stride;    // 0: v
  const void *kv_rope;  // MLA: pool of the last qk - v elements of each token where they lie apart, in the same slots or pages
  int64_t kv_rope_token_stride;  // 0: qk - v
  int64_t kv_rope_page_stride;   // 0: page x kv_rope_token_stride
  dw_addressing addressing;
  const int32_t *kv_indptr;    // CSR: [batch + 1]
  const void *kv_indices;      // CSR: token slots
  int index64;                 // kv_indices and draft_slots are int64, else int32
  const void *draft_slots;     // CSR, prefix-only lengths: [total_q] slots of the drafts
  const int32_t *block_table;  // block table: [batch, table_columns]
  int64_t block_table_stride;  // 0: table_columns
  int table_columns;           // block table: pages a row can name
  const int32_t *kv_len;       // [batch]
  int lengths_include_drafts;  // 1: kv_len counts prefix and drafts, 0: the prefix only
  int drafts_elsewhere;  // 1: the KV of the drafts is not here but on another rank (decode context parallel): kv_len counts
                         // this rank's tokens, every row sees them all, the mask is not read. Merge the ranks by their lse.
                         // Goes with lengths of the prefix only, without window, positions and draft_slots
  dw_mask mask_kind;
  const void *mask;             // NULL for DW_MASK_NONE and DW_MASK_STATIC
  int64_t mask_row_stride;      // BITS: words a row, 0: ceil(width / 32); BYTES_QLEN, BIAS: elements a row, 0: width
  int64_t mask_request_stride;  // BYTES_QLEN, BIAS: elements from a request's matrix to the next, 0: width x mask_row_stride
  int mask_shared;              // BYTES_QLEN, BIAS: 1: all requests have the first matrix
  const int64_t *mask_indptr;   // BYTES_FULL: [batch + 1]
  int64_t mask_size;            // bytes at `mask`, for checks. 0: not known
  float softmax_scale;          // multiplies q . k, e.g. 1 / sqrt(192)
  float soft_cap;               // 0: none; else a scaled score s counts as soft_cap x tanh(s / soft_cap). 0.001 and more
  int window;                // 0: none; else a row at position p sees positions above p - window alone (itself and window - 1)
  const int32_t *positions;  // [total_q] position of each row's token in its sequence; NULL: the prefix plus the number of other
    // drafts that the row sees, a node's depth in the tree. Read with a window only. Not below the prefix, but for a dead node's,
    // which does not matter
  const float *sinks;    // [heads], or NULL: a score that joins each row's softmax with no value: out shrinks, and lse holds
                         // it. A row that sees nothing else has out 0 and this as its lse, a dead one lse -inf
  int overlap_prologue;  // 1: start while the kernel before this one in the stream still runs (about 1.5 us less a call
    // between neighbours). That kernel must not write kv_len, qo_indptr, tables, indices, draft_slots or scales.
  void *workspace;  // dw_workspace_size bytes
  size_t workspace_size;
  uint32_t *report;  // [DW_REPORT_WORDS], for checked kernels: what they find is added here. NULL: faults are masked alone
  // Entries of arrays, for checks; 0: not known. One that is too short for the call is refused, but for kv_indices, whose need only
  // the device knows: checked kernels take it as the list's end (fault TABLE).
  int64_t kv_len_count;       // at least batch
  int64_t qo_indptr_count;    // at least batch + 1
  int64_t kv_indptr_count;    // at least batch + 1
  int64_t block_table_count;  // at least (batch - 1) x block_table_stride + table_columns
  int64_t kv_indices_count;
  int64_t draft_slots_count;  // at least total_q
  // KV in e4m3: one float on the device by which its elements are multiplied, for GQA those of K alone, and for GQA those of V. NULL: 1.
  // With other types of KV both are NULL (records have scales of their own), with MLA, whose V is part of the record, v_scale.
  const float *kv_scale;
  const float *v_scale;
} dw_args;

// Checks what a host can check. DW_OK or DW_BAD_ARGUMENT with field, found, allowed.
DW_API dw_status dw_args_check(const dw_kernel *kernel, const dw_args *args, dw_error *error);
// Enqueues the call on `stream` (a CUstream). Never compiles, allocates, synchronises, reads a file or takes a lock; safe
// during capture. Lengths, tables, masks and contents may change between replays.
DW_API dw_status dw_launch(const dw_kernel *kernel, const dw_args *args, void *stream, dw_error *error);
// Packs a mask of any kind to BITS, once for all layers of a step: args->mask -> bits [total_q, bits_row_stride] words.
// A dead node (parent -2) becomes a row of zeros: handed back as BITS it sees the prefix and no draft, itself included.
DW_API dw_status dw_pack_mask(const dw_kernel *kernel, const dw_args *args, uint32_t *bits, int64_t bits_row_stride,
                              void *stream, dw_error *error);

// ---- checked kernels ------------------------------------------------------------------------------------------
// A variant with checked=1 looks, on the device and before anything is read through it, at what only the device can see. A request
// with a fault is masked: its rows get out 0 and lse -inf, none of its KV is read, and the other requests come out as if it
// had neither rows nor tokens. Where qo_indptr is at fault, "its rows" are those between its entries that no sound request has.
// What a fault leaves unknown is not looked at: after ROWS nothing else of the request, after LENGTH and TABLE nothing that they locate.

// X(name, array, what would have been right).
#define DW_FAULT_MAP(X)                                                                   \
  X(REQUEST, "requests", "no fault")                                                      \
  X(ROWS, "qo_indptr", "ascending, within total_q, at most width rows a request")         \
  X(LENGTH, "kv_len", "0 or more, and with the drafts at most bounds.kv_len")             \
  X(TABLE, "block_table or kv_indptr", "an entry for each page or token that is read")    \
  X(PAGE, "block_table or kv_indices", "pages or slots inside the pool of kv_pages")      \
  X(DRAFT_SLOT, "draft_slots", "slots inside the pool of kv_pages")                       \
  X(PARENT, "mask (parents)", "-2, -1 or an earlier node that is not dead")               \
  X(MASK_SIZE, "mask_indptr", "rows x (prefix + rows) bytes a request, within mask_size") \
  X(BIAS, "mask (bias)", "0 or -inf")                                                     \
  X(POSITION, "positions", "not below the prefix, but for dead nodes")

typedef enum dw_fault {
#define X(name, array, sound) DW_FAULT_##name,
  DW_FAULT_MAP(X)
#undef X
    DW_FAULTS
} dw_fault;

// The report has four words for each kind of fault, from DW_FAULT_WORDS x kind on: how many there were, and of one of them its
// request, its place and what was found there (as int32, held to its range). That one is the fault at the lowest place of the
// request that was counted first.
//
//   kind         counts             place                            found
//   REQUEST      masked requests    0                                0
//   ROWS         requests           entry of qo_indptr               the entry
//   LENGTH       requests           bounds.kv_len                    kv_len
//   TABLE        requests           tokens the request reads         tokens its table row or list has; -1: no valid list
//   PAGE         pages or slots     column, or token of the request  page or slot
//   DRAFT_SLOT   slots              node                             slot
//   PARENT       nodes              node                             parent
//   MASK_SIZE    requests           bytes the request's mask has     bytes there; -1: no valid start and end
//   BIAS         elements           node                             bits of the float
//   POSITION     nodes              node                             position
//
// Launches add to a report and never reset it: zero it first.
#define DW_FAULT_WORDS 4
#define DW_REPORT_WORDS (DW_FAULT_WORDS * DW_FAULTS)

// What a report says once it is on the host: DW_OK, or DW_BAD_ARGUMENT with the first kind of fault in it, e.g. "block_table or
// kv_indices: found 4711 for request 3 at 17, allowed pages or slots inside the pool of kv_pages: 1 such; 1 requests were masked".
DW_API dw_status dw_report_check(const uint32_t *report, dw_error *error);

#ifdef __cplusplus
}
#endif

#include "draftwood_companions.h"

#endif
