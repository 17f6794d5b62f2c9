// A host engine in small, on what is installed: draftwood.h and the CUDA driver.
//
// Requests come, talk and leave. A step of all of them is one graph replay: verify in every layer, accept, compact. Graphs are
// captured once for each size of batch; between replays only what device arrays hold changes. The model is made of random
// numbers: its q, the KV of its drafts, and the tokens it answers. Everything that comes back is compared with loops below that
// know nothing of draftwood: tokens, lengths and the pool's bytes exactly, vectors in double precision.
//
//   usage: verify_step [--small] [--steps N] [--seed N] [--without-compact]
//
// Exit status 0: all as it should be; 1: something is not; 2: bad usage; 77: no GPU.
#include <dlfcn.h>
#include <draftwood.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- the driver: what an engine needs of it, with no toolkit ---------------------------------------------------

#define DRIVER(X)                                                                      \
  X(cuInit, (unsigned flags))                                                          \
  X(cuDeviceGet, (int *device, int ordinal))                                           \
  X(cuDeviceGetAttribute, (int *value, int attribute, int device))                     \
  X(cuDevicePrimaryCtxRetain, (void **context, int device))                            \
  X(cuDevicePrimaryCtxRelease_v2, (int device))                                        \
  X(cuCtxSetCurrent, (void *context))                                                  \
  X(cuStreamCreate, (void **stream, unsigned flags))                                   \
  X(cuStreamDestroy_v2, (void *stream))                                                \
  X(cuStreamSynchronize, (void *stream))                                               \
  X(cuStreamBeginCapture_v2, (void *stream, int mode))                                 \
  X(cuStreamEndCapture, (void *stream, void **graph))                                  \
  X(cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags)) \
  X(cuGraphLaunch, (void *exec, void *stream))                                         \
  X(cuGraphExecDestroy, (void *exec))                                                  \
  X(cuGraphDestroy, (void *graph))                                                     \
  X(cuMemAlloc_v2, (uint64_t * address, size_t bytes))                                 \
  X(cuMemFree_v2, (uint64_t address))                                                  \
  X(cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t bytes, void *stream)) \
  X(cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t bytes, void *stream))       \
  X(cuMemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t bytes, void *stream))    \
  X(cuMemsetD8Async, (uint64_t address, unsigned char value, size_t bytes, void *stream))

static struct {
#define X(name, arguments) int(*name) arguments;
  DRIVER(X)
#undef X
} cu;

enum { CC_MAJOR = 75, CC_MINOR = 76, CAPTURE_RELAXED = 2, SKIPPED = 77, ALLOCATIONS_MAX = 64 };

static int skip(const char *why) {
  printf("SKIP verify_step: %s\n", why);
  exit(SKIPPED);
}

static void load_driver(void) {
  const char *path = getenv("DRAFTWOOD_DRIVER");
  void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) skip(dlerror());
#define X(name, arguments)                      \
  *(void **)(&cu.name) = dlsym(library, #name); \
  if (!cu.name) skip("the CUDA driver lacks " #name);
  DRIVER(X)
#undef X
}

#define CU(call)                                             \
  do {                                                       \
    int cu_result = (call);                                  \
    if (cu_result) {                                         \
      fprintf(stderr, "%s answered %d\n", #call, cu_result); \
      exit(1);                                               \
    }                                                        \
  } while (0)

// Every function of draftwood returns a status; the record says the rest.
static dw_error error;
#define DW(call)                                         \
  do {                                                   \
    if ((call) != DW_OK) {                               \
      fprintf(stderr, "%s: %s\n", #call, error.message); \
      if (error.log) fprintf(stderr, "%s\n", error.log); \
      exit(1);                                           \
    }                                                    \
  } while (0)

// ---- numbers --------------------------------------------------------------------------------------------------

static uint64_t random_state;

static uint32_t random_below(uint32_t bound) {
  uint64_t z = random_state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (uint32_t)((z >> 32) * bound >> 32);
}

// A bf16 is the upper half of a float. Random ones are cut, not rounded: they are exact as they are.
static uint16_t random_bf16(void) {
  float value = (float)((int)random_below(1 << 20) - (1 << 19)) / (1 << 19);
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)(bits >> 16);
}

static double value_of(uint16_t bf16) {
  uint32_t bits = (uint32_t)bf16 << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void *room(size_t count, size_t size) {
  void *made = calloc(count ? count : 1, size);
  if (!made) {
    fprintf(stderr, "out of memory\n");
    exit(1);
  }
  return made;
}

// ---- the engine -----------------------------------------------------------------------------------------------

enum { QK = 576, V = 512, BUCKETS_MAX = 8, WIDTH_MAX = 64, VOCABULARY = 1000 };
static const float SCALE = 0.0721688f;  // 1 / sqrt(192)

typedef struct settings {
  int layers, heads, width, page, batch, prefix, answer, requests, steps;
  bool compact;
} settings;

// One request: what was said so far, as the model's KV. It is the truth that the pool on the device is compared with.
typedef struct request {
  int length;      // committed tokens
  int end;         // leaves when it is this long
  int root_token;  // the last one said; its KV is made in the next step
  uint16_t *kv;    // [longest, layers, QK]
  int32_t *pages;
  int page_count;
} request;

// A size of batch with its kernel and graph; smaller batches are padded to it.
typedef struct bucket {
  int batch;
  dw_kernel *kernel;
  void *graph, *exec;
} bucket;

typedef struct engine {
  settings set;
  int longest, columns, pages;
  void *context, *stream;
  int target;
  dw_ctx *ctx;
  dw_companions *companions;
  bucket buckets[BUCKETS_MAX];
  int bucket_count;
  uint64_t allocations[ALLOCATIONS_MAX];
  int allocation_count;
  // On the device.
  uint64_t *pools;  // one a layer: [pages, page, QK]
  uint64_t bases, q, out, lse, kv_len, new_len, table, parents, draft_tokens, target_tokens;
  uint64_t accept_index, accept_count, bonus, workspace;
  size_t workspace_bytes;
  // Free pages, in no order.
  int32_t *free_pages;
  int free_count;
} engine;

static uint64_t device_room(engine *e, size_t bytes) {
  uint64_t address;
  if (e->allocation_count == ALLOCATIONS_MAX) exit(1);
  CU(cu.cuMemAlloc_v2(&address, bytes));
  e->allocations[e->allocation_count++] = address;
  return address;
}

static void *at(uint64_t address) { return (void *)(uintptr_t)address; }

static void upload(engine *e, uint64_t to, const void *from, size_t bytes) {
  CU(cu.cuMemcpyHtoDAsync_v2(to, from, bytes, e->stream));
}

static void download(engine *e, void *to, uint64_t from, size_t bytes) {
  CU(cu.cuMemcpyDtoHAsync_v2(to, from, bytes, e->stream));
  CU(cu.cuStreamSynchronize(e->stream));
}

static void open_gpu(engine *e) {
  int device = 0, major = 0, minor = 0;
  load_driver();
  if (cu.cuInit(0) || cu.cuDeviceGet(&device, 0)) skip("the driver finds no GPU");
  CU(cu.cuDeviceGetAttribute(&major, CC_MAJOR, device));
  CU(cu.cuDeviceGetAttribute(&minor, CC_MINOR, device));
  e->target = 10 * major + minor;
  CU(cu.cuDevicePrimaryCtxRetain(&e->context, device));
  CU(cu.cuCtxSetCurrent(e->context));
  CU(cu.cuStreamCreate(&e->stream, 1));  // one that does not wait for the default stream
}

static void log_line(void *user, dw_log_level level, const char *message) {
  (void)user;
  if (level >= DW_LOG_WARNING) fprintf(stderr, "draftwood: %s\n", message);
}

// Everything that may compile, read files or load, before the first request: a kernel for each size of batch. Afterwards the
// context is frozen, so that a kernel somebody forgot is an error and never a compile while serving.
static void prepare(engine *e) {
  const settings *s = &e->set;
  const dw_options options = {.size = sizeof options, .log = log_line};
  char text[DW_TEXT_MAX];
  dw_shape shape;
  dw_bounds bounds[BUCKETS_MAX];
  dw_request list[BUCKETS_MAX];
  snprintf(text, sizeof text, "mla:h=%d,t=%d,page=%d,target=sm_%d,limits=%s", s->heads, s->width, s->page, e->target,
           e->target < 120 ? "sm_120" : "native");
  DW(dw_ctx_create(&options, &e->ctx, &error));
  DW(dw_shape_parse(text, &shape, &error));
  for (int batch = 1, last = 0; !last; batch = batch * 2 < s->batch ? batch * 2 : s->batch) {
    const int i = e->bucket_count++;
    last = batch == s->batch || e->bucket_count == BUCKETS_MAX;
    e->buckets[i].batch = batch;
    // DW_CALL_TABLE: block tables, lengths with drafts, `width` rows a request. Trees are filled up with dead nodes.
    bounds[i] = (dw_bounds){.size = sizeof *bounds, .batch = batch, .kv_len = e->longest, .call = DW_CALL_TABLE};
    list[i] = (dw_request){.shape = &shape, .bounds = &bounds[i]};
  }
  DW(dw_companions_get(e->ctx, 0, &e->companions, &error));
  DW(dw_prepare(e->ctx, list, (size_t)e->bucket_count, NULL, &error));
  DW(dw_freeze(e->ctx, &error));
  for (int i = 0; i < e->bucket_count; i++) {
    DW(dw_kernel_get(e->ctx, &shape, NULL, &bounds[i], &e->buckets[i].kernel, &error));
    const size_t bytes = dw_workspace_size(e->buckets[i].kernel);
    if (bytes > e->workspace_bytes) e->workspace_bytes = bytes;
  }
}

static void make_room(engine *e) {
  const settings *s = &e->set;
  const size_t rows = (size_t)s->batch * (size_t)s->width, batch = (size_t)s->batch;
  const size_t pool = (size_t)e->pages * (size_t)s->page * QK * sizeof(uint16_t);
  e->pools = room((size_t)s->layers, sizeof *e->pools);
  for (int layer = 0; layer < s->layers; layer++) {
    e->pools[layer] = device_room(e, pool);
    CU(cu.cuMemsetD8Async(e->pools[layer], 0xff, pool, e->stream));  // NaN: nobody may count on what was never written
  }
  e->bases = device_room(e, (size_t)s->layers * sizeof(uint64_t));
  upload(e, e->bases, e->pools, (size_t)s->layers * sizeof(uint64_t));
  e->q = device_room(e, (size_t)s->layers * rows * (size_t)s->heads * QK * 2);
  e->out = device_room(e, (size_t)s->layers * rows * (size_t)s->heads * V * 2);
  e->lse = device_room(e, (size_t)s->layers * rows * (size_t)s->heads * sizeof(float));
  e->table = device_room(e, batch * (size_t)e->columns * sizeof(int32_t));
  e->kv_len = device_room(e, batch * sizeof(int32_t));
  e->new_len = device_room(e, batch * sizeof(int32_t));
  e->parents = device_room(e, rows * sizeof(int32_t));
  e->draft_tokens = device_room(e, rows * sizeof(int32_t));
  e->target_tokens = device_room(e, rows * sizeof(int32_t));
  e->accept_index = device_room(e, rows * sizeof(int32_t));
  e->accept_count = device_room(e, batch * sizeof(int32_t));
  e->bonus = device_room(e, batch * sizeof(int32_t));
  e->workspace = device_room(e, e->workspace_bytes);
}

static size_t layer_rows(const engine *e) { return (size_t)e->set.batch * (size_t)e->set.width * (size_t)e->set.heads; }

static dw_args verify_args(const engine *e, const bucket *b, int layer) {
  const size_t first = (size_t)layer * layer_rows(e);
  return (dw_args){
    .size = sizeof(dw_args),
    .q = at(e->q + first * QK * 2),
    .out = at(e->out + first * V * 2),
    .lse = at(e->lse + first * sizeof(float)),
    .lse_base_e = 1,
    .batch = b->batch,
    .kv = at(e->pools[layer]),
    .addressing = DW_BLOCK_TABLE,
    .block_table = at(e->table),
    .table_columns = e->columns,
    .kv_len = at(e->kv_len),
    .lengths_include_drafts = 1,
    .mask_kind = DW_MASK_PARENTS,
    .mask = at(e->parents),
    .softmax_scale = SCALE,
    .workspace = at(e->workspace),
    .workspace_size = e->workspace_bytes,
  };
}

static dw_accept_args accept_args(const engine *e, const bucket *b) {
  return (dw_accept_args){
    .size = sizeof(dw_accept_args),
    .parents = at(e->parents),
    .draft_tokens = at(e->draft_tokens),
    .target_tokens = at(e->target_tokens),
    .batch = b->batch,
    .width = e->set.width,
    .accept_index = at(e->accept_index),
    .accept_columns = e->set.width,
    .accept_count = at(e->accept_count),
    .bonus_tokens = at(e->bonus),
  };
}

// new_len is the next step's kv_len: the committed tokens and as many drafts again.
static dw_compact_args compact_args(const engine *e, const bucket *b) {
  return (dw_compact_args){
    .size = sizeof(dw_compact_args),
    .planes = {{.bases = at(e->bases), .count = e->set.layers, .row_bytes = QK * 2}},
    .plane_kinds = 1,
    .page = e->set.page,
    .batch = b->batch,
    .width = e->set.width,
    .kv_len = at(e->kv_len),
    .lengths_include_drafts = 1,
    .addressing = DW_BLOCK_TABLE,
    .block_table = at(e->table),
    .table_columns = e->columns,
    .accept_index = at(e->accept_index),
    .accept_columns = e->set.width,
    .next_drafts = e->set.width,
    .new_len = at(e->new_len),
  };
}

// All layers of a step. q and the drafts' KV of a real model would come from its own kernels between these launches.
static void capture(engine *e, bucket *b) {
  CU(cu.cuStreamBeginCapture_v2(e->stream, CAPTURE_RELAXED));
  for (int layer = 0; layer < e->set.layers; layer++) {
    const dw_args args = verify_args(e, b, layer);
    DW(dw_launch(b->kernel, &args, e->stream, &error));
  }
  const dw_accept_args accept = accept_args(e, b);
  const dw_compact_args compact = compact_args(e, b);
  DW(dw_tree_accept(e->companions, &accept, e->stream, &error));
  if (e->set.compact) DW(dw_kv_compact(e->companions, &compact, e->stream, &error));
  CU(cu.cuStreamEndCapture(e->stream, &b->graph));
  CU(cu.cuGraphInstantiateWithFlags(&b->exec, b->graph, 0));
}

static void engine_open(engine *e) {
  const settings *s = &e->set;
  e->longest = s->prefix + s->prefix / 2 + s->answer + 2 * s->width;
  e->columns = (e->longest + s->page - 1) / s->page;
  e->pages = s->batch * e->columns + 3;
  e->free_pages = room((size_t)e->pages, sizeof *e->free_pages);
  for (int i = 0; i < e->pages; i++) {
    const int j = (int)random_below((uint32_t)i + 1);
    e->free_pages[i] = e->free_pages[j];
    e->free_pages[j] = i;
  }
  e->free_count = e->pages;
  open_gpu(e);
  prepare(e);
  make_room(e);
  for (int i = 0; i < e->bucket_count; i++) capture(e, &e->buckets[i]);
}

static void engine_close(engine *e) {
  CU(cu.cuStreamSynchronize(e->stream));
  for (int i = 0; i < e->bucket_count; i++) {
    CU(cu.cuGraphExecDestroy(e->buckets[i].exec));
    CU(cu.cuGraphDestroy(e->buckets[i].graph));
  }
  dw_ctx_destroy(e->ctx);
  for (int i = 0; i < e->allocation_count; i++) CU(cu.cuMemFree_v2(e->allocations[i]));
  CU(cu.cuStreamDestroy_v2(e->stream));
  CU(cu.cuCtxSetCurrent(NULL));
  CU(cu.cuDevicePrimaryCtxRelease_v2(0));
  free(e->free_pages);
  free(e->pools);
}

// ---- requests -------------------------------------------------------------------------------------------------

static uint16_t *row_of(const engine *e, const request *r, int position, int layer) {
  return r->kv + ((size_t)position * (size_t)e->set.layers + (size_t)layer) * QK;
}

static uint64_t place_of(const engine *e, const request *r, int position, int layer) {
  const int page = e->set.page;
  return e->pools[layer] + ((size_t)r->pages[position / page] * (size_t)page + (size_t)(position % page)) * QK * 2;
}

// Pages for the first `tokens` tokens.
static void extend(engine *e, request *r, int tokens) {
  while (r->page_count * e->set.page < tokens) r->pages[r->page_count++] = e->free_pages[--e->free_count];
}

static void random_row(uint16_t *row) {
  for (int i = 0; i < QK; i++) row[i] = random_bf16();
}

// A prompt of prefix / 2 to 1.5 x prefix tokens.
static request request_begin(engine *e) {
  const settings *s = &e->set;
  request r = {.length = s->prefix / 2 + (int)random_below((uint32_t)s->prefix + 1)};
  r.end = r.length + s->answer / 2 + (int)random_below((uint32_t)(s->answer / 2));
  r.root_token = (int)random_below(VOCABULARY);
  r.kv = room((size_t)e->longest * (size_t)s->layers * QK, sizeof *r.kv);
  r.pages = room((size_t)e->columns, sizeof *r.pages);
  extend(e, &r, r.length);
  for (int position = 0; position < r.length; position++)
    for (int layer = 0; layer < s->layers; layer++) {
      random_row(row_of(e, &r, position, layer));
      upload(e, place_of(e, &r, position, layer), row_of(e, &r, position, layer), QK * 2);
    }
  return r;
}

static void request_end(engine *e, request *r) {
  while (r->page_count) e->free_pages[e->free_count++] = r->pages[--r->page_count];
  free(r->pages);
  free(r->kv);
}

// ---- a step's data --------------------------------------------------------------------------------------------

// What the model says in a step, and what it gave back. Arrays are laid out as on the device.
typedef struct step {
  int live;
  int32_t *parents, *draft_tokens, *target_tokens;  // [batch, width]
  uint16_t *q;                                      // [layers, batch x width, heads, QK]
  uint16_t *drafts;                                 // [batch, width, layers, QK]
  int32_t *table, *kv_len;
  int32_t *accept_index, *accept_count, *bonus, *new_len;
  uint16_t *out;
  float *lse;
} step;

static step step_room(const engine *e) {
  const settings *s = &e->set;
  const size_t batch = (size_t)s->batch, rows = batch * (size_t)s->width, all = (size_t)s->layers * layer_rows(e);
  return (step){
    .parents = room(rows, 4),
    .draft_tokens = room(rows, 4),
    .target_tokens = room(rows, 4),
    .q = room(all * QK, 2),
    .drafts = room(rows * (size_t)s->layers * QK, 2),
    .table = room(batch * (size_t)e->columns, 4),
    .kv_len = room(batch, 4),
    .accept_index = room(rows, 4),
    .accept_count = room(batch, 4),
    .bonus = room(batch, 4),
    .new_len = room(batch, 4),
    .out = room(all * V, 2),
    .lse = room(all, 4),
  };
}

static void step_free(step *t) {
  void *const all[] = {t->parents,      t->draft_tokens, t->target_tokens, t->q,       t->drafts, t->table, t->kv_len,
                       t->accept_index, t->accept_count, t->bonus,         t->new_len, t->out,    t->lse};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

// A tree of 1 to width nodes whose root is the last token said; the others are drafts, most of them what the target will say.
static void make_tree(const settings *s, int root_token, int32_t *parents, int32_t *draft, int32_t *target) {
  const int nodes = 1 + (int)random_below((uint32_t)s->width);
  for (int i = 0; i < s->width; i++) {
    target[i] = (int32_t)random_below(VOCABULARY);
    parents[i] = i >= nodes ? -2 : i == 0 ? -1 : (int32_t)random_below((uint32_t)i);
    draft[i] = i == 0 ? root_token : (int32_t)random_below(VOCABULARY);
    if (i > 0 && i < nodes && random_below(4)) draft[i] = target[parents[i]];
  }
}

static uint16_t *draft_row(const engine *e, const step *t, int b, int node, int layer) {
  return t->drafts + (((size_t)b * (size_t)e->set.width + (size_t)node) * (size_t)e->set.layers + (size_t)layer) * QK;
}

// The model's part of a step: trees, q, and the KV of the drafts behind each prefix.
static void make_step(engine *e, request *requests, step *t) {
  const settings *s = &e->set;
  const size_t q_count = (size_t)s->layers * layer_rows(e) * QK;
  for (size_t i = 0; i < q_count; i++) t->q[i] = random_bf16();
  memset(t->table, 0xff, (size_t)s->batch * (size_t)e->columns * 4);
  for (int b = 0; b < s->batch; b++) {
    int32_t *parents = t->parents + b * s->width;
    t->kv_len[b] = b < t->live ? requests[b].length + s->width : 0;  // 0: padding
    for (int i = 0; i < s->width; i++) parents[i] = -2;
    if (b >= t->live) continue;
    request *r = &requests[b];
    make_tree(s, r->root_token, parents, t->draft_tokens + b * s->width, t->target_tokens + b * s->width);
    extend(e, r, r->length + s->width);
    memcpy(t->table + b * e->columns, r->pages, (size_t)r->page_count * 4);
    for (int node = 0; node < s->width && parents[node] != -2; node++)
      for (int layer = 0; layer < s->layers; layer++) {
        random_row(draft_row(e, t, b, node, layer));
        upload(e, place_of(e, r, r->length + node, layer), draft_row(e, t, b, node, layer), QK * 2);
      }
  }
}

// kv_len is on the device already, where the step before left it, unless requests have come or gone.
static void send_step(engine *e, const step *t, bool changed) {
  const settings *s = &e->set;
  const size_t rows = (size_t)s->batch * (size_t)s->width, all = (size_t)s->layers * layer_rows(e);
  upload(e, e->q, t->q, all * QK * 2);
  upload(e, e->table, t->table, (size_t)s->batch * (size_t)e->columns * 4);
  upload(e, e->parents, t->parents, rows * 4);
  upload(e, e->draft_tokens, t->draft_tokens, rows * 4);
  upload(e, e->target_tokens, t->target_tokens, rows * 4);
  if (changed) upload(e, e->kv_len, t->kv_len, (size_t)s->batch * 4);
  CU(cu.cuMemsetD8Async(e->out, 0xff, all * V * 2, e->stream));
  CU(cu.cuMemsetD8Async(e->lse, 0xff, all * 4, e->stream));
}

static const bucket *bucket_for(const engine *e, int live) {
  const bucket *b = e->buckets;
  while (b->batch < live) b++;
  return b;
}

static void run_step(engine *e, step *t) {
  const settings *s = &e->set;
  const bucket *b = bucket_for(e, t->live);
  const size_t all = (size_t)s->layers * layer_rows(e);
  CU(cu.cuGraphLaunch(b->exec, e->stream));
  CU(cu.cuMemcpyDtoDAsync_v2(e->kv_len, e->new_len, (size_t)b->batch * 4, e->stream));
  download(e, t->accept_index, e->accept_index, (size_t)s->batch * (size_t)s->width * 4);
  download(e, t->accept_count, e->accept_count, (size_t)s->batch * 4);
  download(e, t->bonus, e->bonus, (size_t)s->batch * 4);
  download(e, t->new_len, e->new_len, (size_t)s->batch * 4);
  download(e, t->out, e->out, all * V * 2);
  download(e, t->lse, e->lse, all * 4);
}

// ---- the oracle: plain loops that know nothing of draftwood -----------------------------------------------------

// Within what 16-bit weights and outputs cost; a wrong key or a missing one is far outside.
static const double ROW_BOUND = 3e-3, LSE_BOUND = 1e-3;

typedef struct verdict {
  double worst_row, worst_lse;
  long rows, tokens, accepted, steps;
  int failures;
} verdict;

static void fail(verdict *v, const char *what, int b, double found, double right) {
  if (v->failures++ < 10) fprintf(stderr, "%s of request %d: found %g, right is %g\n", what, b, found, right);
}

static bool sees(const int32_t *parents, int node, int draft) {
  while (node >= 0 && node != draft) node = parents[node];
  return node == draft;
}

// One row of one head in double: scores, softmax, weighted sum. Returns the log-sum-exp.
static double exact_row(const uint16_t *q, const uint16_t *const *keys, int count, double *scores, double *out) {
  double most = -INFINITY, sum = 0;
  for (int k = 0; k < count; k++) {
    scores[k] = 0;
    for (int i = 0; i < QK; i++) scores[k] += value_of(q[i]) * value_of(keys[k][i]);
    scores[k] *= (double)SCALE;
    if (scores[k] > most) most = scores[k];
  }
  for (int i = 0; i < V; i++) out[i] = 0;
  for (int k = 0; k < count; k++) {
    const double weight = exp(scores[k] - most);
    sum += weight;
    for (int i = 0; i < V; i++) out[i] += weight * value_of(keys[k][i]);
  }
  for (int i = 0; i < V; i++) out[i] /= sum;
  return most + log(sum);
}

static void check_vector(const uint16_t *found, const double *right, int b, verdict *v) {
  double difference = 0, norm = 0;
  for (int i = 0; i < V; i++) {
    difference += (value_of(found[i]) - right[i]) * (value_of(found[i]) - right[i]);
    norm += right[i] * right[i];
  }
  const double relative = sqrt(difference / norm);
  v->rows++;
  if (relative > v->worst_row) v->worst_row = relative;
  if (!(relative <= ROW_BOUND)) fail(v, "relative error of a row", b, relative, ROW_BOUND);
}

// A dead node's row is 0 with lse -inf.
static void check_dead(const uint16_t *out, float lse, int b, verdict *v) {
  for (int i = 0; i < V; i++)
    if (value_of(out[i]) != 0) fail(v, "row of a dead node", b, value_of(out[i]), 0);
  if (lse != -INFINITY) fail(v, "lse of a dead node", b, (double)lse, -INFINITY);
}

// All rows and heads of a request in a layer.
static void check_attention(const engine *e, const request *r, const step *t, int b, int layer, verdict *v) {
  const settings *s = &e->set;
  const int32_t *parents = t->parents + b * s->width;
  const uint16_t **keys = room((size_t)(r->length + s->width), sizeof *keys);
  double *scores = room((size_t)(r->length + s->width), sizeof *scores), out[V];
  for (int position = 0; position < r->length; position++) keys[position] = row_of(e, r, position, layer);
  for (int node = 0; node < s->width; node++) {
    int count = r->length;
    for (int draft = 0; draft < s->width; draft++)
      if (sees(parents, node, draft)) keys[count++] = draft_row(e, t, b, draft, layer);
    for (int head = 0; head < s->heads; head++) {
      const size_t row = (size_t)layer * layer_rows(e) + (size_t)((b * s->width + node) * s->heads + head);
      if (parents[node] == -2) {
        check_dead(t->out + row * V, t->lse[row], b, v);
        continue;
      }
      const double lse = exact_row(t->q + row * QK, keys, count, scores, out), off = fabs(lse - (double)t->lse[row]);
      check_vector(t->out + row * V, out, b, v);
      if (off > v->worst_lse) v->worst_lse = off;
      if (!(off <= LSE_BOUND)) fail(v, "lse", b, (double)t->lse[row], lse);
    }
  }
  free(keys);
  free(scores);
}

// The deepest node that the target agrees with all the way from the root, the first of several; its path, root first.
static int exact_path(const int32_t *parents, const int32_t *draft, const int32_t *target, int width, int32_t *path) {
  int depths[WIDTH_MAX] = {[0] = 1}, best = 0;
  for (int i = 1; i < width; i++) {
    const int parent = parents[i];
    depths[i] = parent >= 0 && depths[parent] && draft[i] == target[parent] ? depths[parent] + 1 : 0;
    if (depths[i] > depths[best]) best = i;
  }
  for (int node = best, k = depths[best]; k--; node = parents[node]) path[k] = node;
  return depths[best];
}

// Acceptance and lengths, exactly; then the request goes on with what was accepted.
static void check_and_commit(engine *e, request *r, const step *t, int b, verdict *v) {
  const int width = e->set.width;
  const int32_t *target = t->target_tokens + b * width;
  int32_t path[WIDTH_MAX];
  const int count = exact_path(t->parents + b * width, t->draft_tokens + b * width, target, width, path);
  if (t->accept_count[b] != count) fail(v, "accept_count", b, t->accept_count[b], count);
  for (int k = 0; k < width; k++) {
    const int32_t found = t->accept_index[b * width + k], right = k < count ? path[k] : -1;
    if (found != right) fail(v, "accept_index", b, found, right);
  }
  if (t->bonus[b] != target[path[count - 1]]) fail(v, "bonus token", b, t->bonus[b], target[path[count - 1]]);
  if (t->new_len[b] != r->length + count + width) fail(v, "new_len", b, t->new_len[b], r->length + count + width);
  for (int k = 0; k < count; k++)
    for (int layer = 0; layer < e->set.layers; layer++)
      memcpy(row_of(e, r, r->length + k, layer), draft_row(e, t, b, path[k], layer), QK * 2);
  r->length += count;
  r->root_token = target[path[count - 1]];
  v->accepted += count;
}

// Every committed token of the pool, byte by byte.
static void check_pool(engine *e, const request *r, int b, verdict *v) {
  uint16_t found[QK];
  for (int layer = 0; layer < e->set.layers; layer++)
    for (int position = 0; position < r->length; position++) {
      download(e, found, place_of(e, r, position, layer), sizeof found);
      if (memcmp(found, row_of(e, r, position, layer), sizeof found)) fail(v, "token in the pool", b, position, position);
      v->tokens++;
    }
}

// ---- the conversation -----------------------------------------------------------------------------------------

// Those that have said enough leave, the last one takes the place; waiting ones come. true: the batch is another one.
static bool come_and_go(engine *e, request *requests, int *live, int *waiting, verdict *v) {
  bool changed = false;
  for (int b = 0; b < *live;) {
    if (requests[b].length < requests[b].end) {
      b++;
      continue;
    }
    check_pool(e, &requests[b], b, v);
    request_end(e, &requests[b]);
    requests[b] = requests[--*live];
    changed = true;
  }
  for (; *waiting && *live < e->set.batch; --*waiting) {
    requests[(*live)++] = request_begin(e);
    changed = true;
  }
  return changed;
}

static verdict converse(engine *e) {
  const settings *s = &e->set;
  request *requests = room((size_t)s->batch, sizeof *requests);
  step t = step_room(e);
  verdict v = {0};
  int waiting = s->requests, used[BUCKETS_MAX] = {0};
  bool changed = come_and_go(e, requests, &t.live, &waiting, &v);
  while (t.live && v.steps < s->steps) {
    make_step(e, requests, &t);
    send_step(e, &t, changed || !s->compact);
    run_step(e, &t);
    used[bucket_for(e, t.live) - e->buckets]++;
    for (int b = 0; b < t.live; b++) {
      check_attention(e, &requests[b], &t, b, (int)random_below((uint32_t)s->layers), &v);
      check_and_commit(e, &requests[b], &t, b, &v);
    }
    v.steps++;
    changed = come_and_go(e, requests, &t.live, &waiting, &v);
  }
  for (int b = 0; b < t.live; b++) {
    check_pool(e, &requests[b], b, &v);
    request_end(e, &requests[b]);
  }
  for (int i = 0; i < e->bucket_count; i++) printf("batch %d: %d replays\n", e->buckets[i].batch, used[i]);
  step_free(&t);
  free(requests);
  return v;
}

static int usage(void) {
  fprintf(stderr, "usage: verify_step [--small] [--steps N] [--seed N] [--without-compact]\n\n"
                  "  --small            sizes for a driver made of software\n"
                  "  --without-compact  leaves the compaction out of the graph, which the checks have to notice\n");
  return 2;
}

int main(int count, char **arguments) {
  static const settings large = {8, 8, 9, 64, 8, 1000, 100, 16, 1000, true}, small = {2, 2, 4, 16, 2, 24, 8, 3, 1000, true};
  engine e = {.set = large};
  random_state = 1;
  for (int i = 1; i < count; i++) {
    const char *value = i + 1 < count ? arguments[i + 1] : "";
    if (!strcmp(arguments[i], "--small")) e.set = small;
    else if (!strcmp(arguments[i], "--without-compact")) e.set.compact = false;
    else if (!strcmp(arguments[i], "--steps") && atoi(value) > 0) e.set.steps = atoi(arguments[++i]);
    else if (!strcmp(arguments[i], "--seed") && *value) random_state = strtoull(arguments[++i], NULL, 10);
    else return usage();
  }
  engine_open(&e);
  const verdict v = converse(&e);
  engine_close(&e);
  printf("%ld steps, %ld tokens accepted; %ld rows against double precision: worst error %.1e (bound %.1e), lse %.1e (%.1e); "
         "%ld tokens of the pool compared; %d failures\n",
         v.steps, v.accepted, v.rows, v.worst_row, ROW_BOUND, v.worst_lse, LSE_BOUND, v.tokens, v.failures);
  return v.failures || !v.rows || !v.tokens ? 1 : 0;
}
