// draftwood bench --companions: what compaction, moves, merges and the packing of masks take on this machine's GPU, each beside a
// plain copy kernel that moves as many bytes in the same run, compaction also beside one of the same rows. Graph replays in turns; the L2
// holds none of what a call touches, but for masks whose rows say so.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "companions.h"
#include "flow.h"
#include "gpu_tools.h"
#include "random.h"

enum { REPS_MAX = 101, CALLS_MAX = 256, COPY_GRIDS = 4, BUFFERS_MAX = 16, WARM_UP_US = 15000 };
#define COLD_BYTES 400e6  // that a graph touches at least: several times an L2

typedef struct asked {
  bool companions, small, json, build_only;
  int reps, device, seed, target;
  const char *record, *commit;
  cli_noted noted;
} asked;

typedef struct bench {
  const asked *want;
  dw_ctx *ctx;
  dw__gpu *gpu;
  dw__gpu_tools *tools;
  dw_companions *companions;
  dw_cubin *cubin;
  char driver[64];
  FILE *record;
  uint64_t seed;
  void *buffers[BUFFERS_MAX];  // of the contest that is on
  int buffer_count;
} bench;

// What is measured: `calls` launches in a graph, as many copies of as many bytes that lie together, and, where rows lie anywhere, of the
// very rows by addresses worked out before.
typedef enum timed { CALL, COPY, COPY_ROWS } timed;
typedef struct contest {
  char shape[96], lists[48];
  int page, batch, calls, nodes;
  double bytes;           // that a call has to move, as a copy of them would: read once, written once
  double bar;             // time over the copy's that is to be met
  double bar_us;          // time that is to be met
  const char *mask, *l2;  // NULL: none; cold
  dw_status (*launch)(const bench *b, const struct contest *c, int call, void *stream, dw_error *error);
  dw_compact_args compact;
  dw_move_args move;
  dw_merge_args merge;
  dw_kernel *kernel;
  dw_args pack;
  uint32_t *bits;
  int64_t part, part_lse, result;  // elements from call to call
  // Compaction: the rows to move, as addresses from and to, and where each call's begin, in rows of one layer.
  void *rows;
  long row_starts[CALLS_MAX + 1];
  dw__graph *graphs[COPY_ROWS + 1];  // of the call, and of what it is held against
  double us[COPY_ROWS + 1][REPS_MAX];
} contest;

// ---- memory ---------------------------------------------------------------------------------------------------

static dw_status reserve(bench *b, size_t bytes, void **address, dw_error *error) {
  dw_status status = dw__gpu_alloc(b->gpu, bytes, address, error);
  if (!status) b->buffers[b->buffer_count++] = *address;
  return status ? status : dw__gpu_fill_word(b->gpu, *address, 0x3F813F82, bytes / 4 * 4, error);
}

static dw_status put(bench *b, const void *from, size_t bytes, void **address, dw_error *error) {
  dw_status status = reserve(b, bytes, address, error);
  return status ? status : dw__gpu_upload(b->gpu, *address, from, bytes, error);
}

static void free_buffers(bench *b) {
  while (b->buffer_count) dw__gpu_free(b->gpu, b->buffers[--b->buffer_count]);
}

// One plane a layer in one block, and the table of their addresses.
static dw_status make_planes(bench *b, int layers, int64_t plane_bytes, dw_planes *planes, void **pool, dw_error *error) {
  void *bases;
  void **list = calloc((size_t)layers, sizeof *list);
  if (!list) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  dw_status status = reserve(b, (size_t)(layers * plane_bytes), pool, error);
  for (int i = 0; i < layers && !status; i++) list[i] = (char *)*pool + i * plane_bytes;
  if (!status) status = put(b, list, (size_t)layers * sizeof *list, &bases, error);
  free(list);
  *planes = (dw_planes){.bases = status ? NULL : bases, .count = layers, .row_bytes = 1152};
  return status;
}

static int *random_order(bench *b, int n) {
  int *list = malloc((size_t)n * sizeof *list + 1);
  for (int i = 0; list && i < n; i++) list[i] = i;
  for (int i = n; list && i-- > 1;) {
    int k = dw__random_below(&b->seed, i + 1), kept = list[i];
    list[i] = list[k];
    list[k] = kept;
  }
  return list;
}

// ---- compaction -----------------------------------------------------------------------------------------------

enum { WIDTH = 9, LIST = 9 };

static dw_status compact_call(const bench *b, const contest *c, int call, void *stream, dw_error *error) {
  dw_compact_args a = c->compact;
  a.kv_len += call * a.batch;
  a.accept_index += call * a.batch * LIST;
  if (a.block_table) a.block_table += (int64_t)call * a.batch * a.table_columns;
  if (a.kv_indptr) a.kv_indptr += call * (a.batch + 1);
  if (a.draft_slots) a.draft_slots = (const int32_t *)a.draft_slots + call * a.batch * WIDTH;
  return dw_kv_compact(b->companions, &a, stream, error);
}

// Host copies of what the calls take: every call has requests of its own, in pages or slots of its own; `moves` has a row's slots, from and to.
typedef struct batch_data {
  int32_t (*moves)[2];
  int32_t *kv_len, *accept, *table, *indptr, *slots;
  int *order, requests;
} batch_data;

static void drop_data(batch_data *d) {
  free(d->moves);
  free(d->kv_len);
  free(d->accept);
  free(d->table);
  free(d->indptr);
  free(d->slots);
  free(d->order);
}

// "tree": a path of one to six nodes, the root among them; "all moved": nodes 1 to 8.
static void fill_list(bench *b, int32_t *list, bool all) {
  int n = 0, depth = 1 + dw__random_below(&b->seed, 6);
  for (int i = 0; i < LIST; i++) list[i] = -1;
  if (!all) list[n++] = 0;
  for (int id = 1; id < WIDTH && (all || n < depth); id++)
    if (all || dw__random_below(&b->seed, 2)) list[n++] = id;
}

// Requests are 1,000 tokens and more long; only the pages at the end exist, the table's other columns name one page.
static bool fill_data(bench *b, contest *c, batch_data *d, bool all) {
  int columns = c->compact.table_columns, next = 0;
  long moved = 0;
  d->moves = calloc((size_t)d->requests * WIDTH, sizeof *d->moves);
  d->kv_len = calloc((size_t)d->requests, sizeof(int32_t));
  d->accept = calloc((size_t)d->requests * LIST, sizeof(int32_t));
  d->table = calloc((size_t)d->requests * (size_t)(c->page > 1 ? columns : WIDTH), sizeof(int32_t));
  d->indptr = calloc((size_t)(c->calls * (c->batch + 1)), sizeof(int32_t));
  d->slots = calloc((size_t)d->requests * WIDTH, sizeof(int32_t));
  d->order = random_order(b, d->requests * (c->page > 1 ? 2 : 4 * WIDTH));
  if (!d->moves || !d->kv_len || !d->accept || !d->table || !d->indptr || !d->slots || !d->order) return false;
  for (int i = 0; i < d->requests; i++) {
    int32_t *list = d->accept + i * LIST, *slots = d->slots + i * WIDTH;
    int prefix = c->page > 1 ? 1000 + dw__random_below(&b->seed, 2000) : 0;
    d->kv_len[i] = prefix + (c->compact.lengths_include_drafts ? WIDTH : 0);
    fill_list(b, list, all);
    if (c->page > 1) {
      for (int k = prefix / c->page; k <= (prefix + WIDTH - 1) / c->page; k++) d->table[i * columns + k] = d->order[next++];
    } else {
      for (int k = 0; k < WIDTH; k++) d->table[i * WIDTH + k] = d->order[next++];
    }
    for (int k = 0; k < WIDTH; k++)
      slots[k] = c->page > 1 ? d->table[i * columns + (prefix + k) / c->page] * c->page + (prefix + k) % c->page
                             : d->table[i * WIDTH + k];
    if (i % c->batch == 0) c->row_starts[i / c->batch] = moved;
    for (int k = 0; k < LIST && list[k] >= 0; k++) {
      if (list[k] == k) continue;
      d->moves[moved][0] = slots[list[k]];
      d->moves[moved++][1] = slots[k];
    }
  }
  c->row_starts[c->calls] = moved;
  for (int call = 0; call < c->calls; call++)
    for (int r = 0; r <= c->batch; r++) d->indptr[call * (c->batch + 1) + r] = (call * c->batch + r) * WIDTH;
  return true;
}

// What the calls move, as addresses: a call's rows layer by layer.
static dw_status put_rows(bench *b, contest *c, const batch_data *d, int layers, const char *pool, int64_t plane,
                          dw_error *error) {
  long moved = c->row_starts[c->calls];
  uint64_t *list = malloc((size_t)(moved * layers) * 2 * sizeof *list + 1), *at = list;
  if (!list) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  for (int call = 0; call < c->calls; call++)
    for (int layer = 0; layer < layers; layer++)
      for (long i = c->row_starts[call]; i < c->row_starts[call + 1]; i++)
        for (int end = 0; end < 2; end++)
          *at++ = (uint64_t)(uintptr_t)(pool + layer * plane + d->moves[i][end] * (int64_t)1152);
  dw_status status = put(b, list, (size_t)(moved * layers) * 2 * sizeof *list, &c->rows, error);
  free(list);
  return status;
}

// OVERLAP: each call begins while the one before it runs, as behind dw_tree_accept. SLOTS: the drafts' slots are given, as engines
// have them, in place of a table.
typedef enum compact_form { PLAIN, OVERLAP, SLOTS, COMPACT_FORMS } compact_form;

static dw_status make_compact(bench *b, contest *c, int page, bool all, compact_form form, dw_error *error) {
  static const char *const names[] = {"", ", overlap", ", slots"};
  bool table = page > 1 && form != SLOTS;
  int layers = b->want->small ? 3 : 61;
  batch_data d = {.requests = 0};
  *c = (contest){.page = page, .batch = b->want->small ? 2 : 32, .bar = 1.5, .launch = compact_call};
  c->calls = b->want->small ? 2 : all ? 12 : 32;
  d.requests = c->calls * c->batch;
  c->compact = (dw_compact_args){.size = sizeof c->compact,
                                 .plane_kinds = 1,
                                 .page = page,
                                 .batch = c->batch,
                                 .width = WIDTH,
                                 .lengths_include_drafts = form != SLOTS,
                                 .addressing = table ? DW_BLOCK_TABLE : DW_CSR,
                                 .table_columns = page > 1 ? 4096 / page : 0,
                                 .accept_columns = LIST,
                                 .overlap_prologue = form == OVERLAP};
  snprintf(c->shape, sizeof c->shape, "kv_compact:layers=%d,row=1152,width=%d,page=%d", layers, WIDTH, page);
  snprintf(c->lists, sizeof c->lists, "%s%s", all ? "all moved" : "tree", names[form]);
  if (!fill_data(b, c, &d, all)) {
    drop_data(&d);
    return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  }
  c->bytes = (double)c->row_starts[c->calls] / c->calls * layers * 1152;
  int64_t slots = (int64_t)d.requests * (page > 1 ? 2 * page : 4 * WIDTH);
  void *kv_len, *accept, *entries, *indptr, *draft_slots, *new_len;
  size_t table_size = (size_t)d.requests * (size_t)(page > 1 ? c->compact.table_columns : WIDTH);
  void *pool;
  dw_status status = make_planes(b, layers, slots * 1152, &c->compact.planes[0], &pool, error);
  if (!status) status = put_rows(b, c, &d, layers, pool, slots * 1152, error);
  if (!status) status = put(b, d.kv_len, (size_t)d.requests * 4, &kv_len, error);
  if (!status) status = put(b, d.accept, (size_t)d.requests * LIST * 4, &accept, error);
  if (!status) status = put(b, d.table, table_size * 4, &entries, error);
  if (!status) status = put(b, d.indptr, (size_t)(c->calls * (c->batch + 1)) * 4, &indptr, error);
  if (!status) status = put(b, d.slots, (size_t)d.requests * WIDTH * 4, &draft_slots, error);
  if (!status) status = reserve(b, (size_t)c->batch * 4, &new_len, error);
  drop_data(&d);
  if (status) return status;
  c->compact.kv_len = kv_len;
  c->compact.accept_index = accept;
  c->compact.new_len = new_len;
  if (form == SLOTS) c->compact.draft_slots = draft_slots;
  else if (table) c->compact.block_table = entries;
  else c->compact.kv_indices = entries, c->compact.kv_indptr = indptr;
  return DW_OK;
}

// ---- moves ----------------------------------------------------------------------------------------------------

static dw_status move_call(const bench *b, const contest *c, int call, void *stream, dw_error *error) {
  (void)call;
  return dw_kv_move(b->companions, &c->move, stream, error);
}

// "permuted": every place's row goes to another, in cycles of all lengths; "gathered": half of the places move to the other half.
static dw_status plan_moves(bench *b, int n, int places, bool permuted, dw_move_list *list, dw_error *error) {
  int *from = random_order(b, places), *to = permuted ? random_order(b, places) : from + n;
  dw_move *moves = malloc((size_t)n * sizeof *moves);
  dw_status status = DW_OK;
  if (!from || !to || !moves) status = dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  for (int i = 0; i < n && !status; i++) moves[i] = (dw_move){from[i], to[i]};
  if (!status) status = dw_move_plan(moves, n, places, list, error);
  if (permuted) free(to);
  free(from);
  free(moves);
  return status;
}

static dw_status make_move(bench *b, contest *c, int page, bool permuted, dw_error *error) {
  int layers = b->want->small ? 3 : 61, n, places;
  int64_t moved = b->want->small ? 300000 : 1 << 30;
  dw_move_list list = {.data = NULL};
  void *pool, *device;
  *c = (contest){.page = page, .batch = 1, .calls = 1, .bar = 1.25, .launch = move_call};
  n = (int)(moved / ((int64_t)layers * 1152 * page));
  if (n < 8) n = 8;
  places = permuted ? n : 2 * n;
  snprintf(c->shape, sizeof c->shape, "kv_move:layers=%d,row=1152,page=%d", layers, page);
  snprintf(c->lists, sizeof c->lists, "%s", permuted ? "permuted" : "gathered");
  dw_status status = plan_moves(b, n, places, permuted, &list, error);
  c->bytes = (double)list.moves * layers * 1152 * page;
  c->move = (dw_move_args){.size = sizeof c->move, .plane_kinds = 1, .page = page, .teams = list.teams};
  if (!status) status = make_planes(b, layers, (int64_t)places * page * 1152, &c->move.planes[0], &pool, error);
  if (!status) status = put(b, list.data, list.bytes, &device, error);
  dw_move_list_free(&list);
  if (!status) c->move.list = device;
  return status;
}

// ---- merges ---------------------------------------------------------------------------------------------------

static dw_status merge_call(const bench *b, const contest *c, int call, void *stream, dw_error *error) {
  dw_merge_args a = c->merge;
  a.states[0].out = (const char *)a.states[0].out + call * c->part * 2;
  a.states[0].lse += call * c->part_lse;
  a.out = (char *)a.out + call * c->result * 2;
  return dw_merge_states(b->companions, &a, stream, error);
}

static dw_status make_merge(bench *b, contest *c, int states, int heads, dw_error *error) {
  int rows = b->want->small ? 2 : 32 * WIDTH;
  void *out, *lse, *to;
  *c = (contest){.page = 0, .batch = b->want->small ? 1 : 32, .bar = 0, .launch = merge_call};
  c->result = (int64_t)rows * heads * 512;
  c->part = c->result * states;
  c->part_lse = (int64_t)rows * heads * states;
  c->bytes = (double)(c->part + c->result);  // 2 bytes an element, half of the traffic is the copy's reading
  c->calls = b->want->small ? 2 : (int)fmin(CALLS_MAX, fmax(6, ceil(COLD_BYTES / (2 * c->bytes))));
  c->merge = (dw_merge_args){.size = sizeof c->merge, .state_kinds = 1, .rows = rows, .heads = heads, .v = 512};
  c->merge.states[0].count = states;
  snprintf(c->shape, sizeof c->shape, "merge_states:rows=%d,heads=%d,v=512,bf16", rows, heads);
  snprintf(c->lists, sizeof c->lists, "%d states", states);
  dw_status status = reserve(b, (size_t)(c->calls * c->part * 2), &out, error);
  if (!status) status = reserve(b, (size_t)(c->calls * c->part_lse * 4), &lse, error);
  if (!status) status = reserve(b, (size_t)(c->calls * c->result * 2), &to, error);
  if (status) return status;
  c->merge.states[0].out = out;
  c->merge.states[0].lse = lse;
  c->merge.out = to;
  return DW_OK;
}

// ---- masks ----------------------------------------------------------------------------------------------------

enum { NODES = 64, WORDS = NODES / 32 };

static dw_status pack_call(const bench *b, const contest *c, int call, void *stream, dw_error *error) {
  dw_args a = c->pack;
  (void)b;
  a.mask = (const char *)a.mask + call * c->part;
  return dw_pack_mask(c->kernel, &a, c->bits + call * c->result, 0, stream, error);
}

static dw_shape pack_shape(int target) {
  dw_shape shape;
  dw_shape_parse("mla:h=8,t=64", &shape, NULL);
  shape.target = target;
  if (target < 120) shape.limits = 120;  // as in bench
  return shape;
}

// Trees whose nodes hang on one of the 16 before them, and the same as what each node sees.
static void fill_masks(bench *b, dw_mask kind, int requests, void *to) {
  for (int r = 0; r < requests; r++) {
    bool sees[NODES][NODES] = {{false}};
    for (int i = 0; i < NODES; i++) {
      int parent = i ? i - 1 - dw__random_below(&b->seed, i < 16 ? i : 16) : -1;
      if (i) memcpy(sees[i], sees[parent], sizeof sees[i]);
      sees[i][i] = true;
      if (kind == DW_MASK_PARENTS) ((int32_t *)to)[r * NODES + i] = parent;
    }
    for (int i = 0; i < NODES * NODES && kind != DW_MASK_PARENTS; i++) {
      bool seen = sees[i / NODES][i % NODES];
      if (kind == DW_MASK_BIAS_F32) ((float *)to)[(size_t)r * NODES * NODES + i] = seen ? 0 : -INFINITY;
      else ((uint8_t *)to)[(size_t)r * NODES * NODES + i] = seen;
    }
  }
}

static dw_status put_masks(bench *b, contest *c, dw_mask kind, size_t bytes, dw_error *error) {
  void *masks = malloc(bytes * (size_t)c->calls), *there = NULL;
  if (!masks) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  fill_masks(b, kind, c->calls * c->batch, masks);
  dw_status status = put(b, masks, bytes * (size_t)c->calls, &there, error);
  free(masks);
  c->pack.mask = there;
  return status;
}

static dw_status make_pack(bench *b, contest *c, dw_mask kind, dw_error *error) {
  static const char *const names[] = {
    [DW_MASK_PARENTS] = "parents", [DW_MASK_BYTES_QLEN] = "bytes_qlen", [DW_MASK_BIAS_F32] = "bias_f32"};
  const dw_shape shape = pack_shape(dw__gpu_device(b->gpu)->cc);
  const size_t element = kind == DW_MASK_BYTES_QLEN ? 1 : 4;
  void *lengths, *somewhere, *workspace, *bits;
  *c = (contest){.page = 0, .batch = b->want->small ? 2 : 64, .bar_us = 5, .launch = pack_call, .mask = names[kind]};
  c->calls = b->want->small ? 2 : CALLS_MAX;
  const size_t rows = (size_t)c->batch * NODES, bytes = rows * element * (kind == DW_MASK_PARENTS ? 1 : NODES);
  c->part = (int64_t)bytes;
  c->result = (int64_t)rows * WORDS;
  c->bytes = (double)(bytes + rows * WORDS * 4) / 2;
  if (kind == DW_MASK_PARENTS) c->l2 = "warm";  // all calls' trees together are few bytes
  snprintf(c->shape, sizeof c->shape, "pack_mask:%d x %d nodes", c->batch, NODES);
  snprintf(c->lists, sizeof c->lists, "%s", c->mask);
  const dw_bounds bounds = cli_bounds(&shape, c->batch, 4096);
  dw_status status = dw_kernel_get(b->ctx, &shape, NULL, &bounds, &c->kernel, error);
  if (!status) status = put_masks(b, c, kind, bytes, error);
  if (!status) status = reserve(b, (size_t)c->batch * 4, &lengths, error);
  if (!status) status = dw__gpu_fill_word(b->gpu, lengths, 1000, (size_t)c->batch * 4, error);
  if (!status) status = reserve(b, 4096, &somewhere, error);  // what packing does not look at
  if (!status) status = reserve(b, dw_workspace_size(c->kernel) + 16, &workspace, error);
  if (!status) status = reserve(b, (size_t)(c->calls * c->result) * 4, &bits, error);
  if (status) return status;
  c->pack = (dw_args){.size = sizeof c->pack,
                      .q = somewhere,
                      .out = somewhere,
                      .batch = c->batch,
                      .kv = somewhere,
                      .kv_len = lengths,
                      .kv_indptr = somewhere,
                      .kv_indices = somewhere,
                      .lengths_include_drafts = 1,
                      .mask_kind = kind,
                      .mask = c->pack.mask,
                      .softmax_scale = 1,
                      .workspace = workspace,
                      .workspace_size = dw_workspace_size(c->kernel)};
  c->bits = bits;
  return DW_OK;
}

// ---- graphs ---------------------------------------------------------------------------------------------------

static dw_status end_capture(const bench *b, dw_status status, dw__graph **graph, dw_error *error) {
  if (!status) return dw__gpu_capture_end(b->gpu, graph, error);
  dw__gpu_capture_drop(b->gpu);
  return status;
}

static dw_status capture(const bench *b, contest *c, dw_error *error) {
  void *side;
  dw_status status = dw__gpu_capture_begin(b->gpu, DW__CAPTURE_RELAXED, &side, error);
  if (status) return status;
  for (int i = 0; i < c->calls && !status; i++) status = c->launch(b, c, i, side, error);
  status = end_capture(b, status, &c->graphs[CALL], error);
  if (!status) c->nodes = (int)dw__graph_nodes(c->graphs[CALL]);
  return status;
}

// The n-th copy. Without `to` it is that of the rows.
static dw_tool_peak_params copy_params(const contest *c, int n, char *from, char *to) {
  int64_t bytes = (int64_t)c->bytes / 16 * 16;
  if (to) return (dw_tool_peak_params){.data = from + n * bytes, .to = to + n * bytes, .bytes = bytes};
  const long layers = c->compact.planes[0].count, start = c->row_starts[n] * layers;
  return (dw_tool_peak_params){
    .data = (uint64_t *)c->rows + 2 * start, .steps = c->row_starts[n + 1] * layers - start, .bytes = 1152};
}

static dw_status capture_copy(const bench *b, const contest *c, unsigned blocks, char *from, char *to, dw__graph **graph,
                              dw_error *error) {
  void *side;
  dw_status status = dw__gpu_capture_begin(b->gpu, DW__CAPTURE_RELAXED, &side, error);
  if (status) return status;
  for (int i = 0; i < c->calls && !status; i++) {
    dw_tool_peak_params params = copy_params(c, i, from, to);
    dw__launch launch = dw__gpu_tool_launch(b->tools, to ? DW__TOOL_COPY : DW__TOOL_COPY_ROWS, blocks, 1, 1);
    void *list[] = {&params};
    status = dw__driver_launch(dw__gpu_driver(b->gpu), &launch, list, side, error);
  }
  return end_capture(b, status, graph, error);
}

static dw_status time_best(const bench *b, dw__graph *graph, double *best, dw_error *error) {
  dw_status status = DW_OK;
  *best = INFINITY;
  for (int i = 0; i < 6 && !status; i++) {
    double us;
    status = dw__gpu_time(b->gpu, graph, &us, error);
    if (i && us < *best) *best = us;
  }
  return status;
}

// A copy at its best: the fastest of some grids.
static dw_status make_copy(bench *b, contest *c, timed which, dw_error *error) {
  void *from = NULL, *to = NULL;
  size_t bytes = (size_t)c->bytes * (size_t)c->calls + 16;
  unsigned sms = (unsigned)dw__gpu_device(b->gpu)->sm_count;
  double best = INFINITY;
  dw_status status = which == COPY ? reserve(b, bytes, &from, error) : DW_OK;
  if (!status && which == COPY) status = reserve(b, bytes, &to, error);
  for (unsigned k = 0; k < COPY_GRIDS && !status; k++) {
    dw__graph *graph = NULL;
    double us = INFINITY;
    status = capture_copy(b, c, sms << k, from, to, &graph, error);
    if (!status) status = time_best(b, graph, &us, error);
    if (!status && us < best) {
      dw__graph_free(b->gpu, c->graphs[which]);
      c->graphs[which] = graph;
      best = us;
    } else {
      dw__graph_free(b->gpu, graph);
    }
  }
  return status;
}

static dw_status measure(bench *b, contest *c, dw_error *error) {
  double all = 0, us = 0;
  const int graphs = c->rows ? 3 : 2;
  dw_status status = capture(b, c, error);
  for (int g = COPY; g < graphs && !status; g++) status = make_copy(b, c, (timed)g, error);
  for (int i = 0; (i < graphs || all < WARM_UP_US) && i < 1000 && !status; i++, all += us)
    status = dw__gpu_time(b->gpu, c->graphs[i % graphs], &us, error);
  for (int rep = 0; rep < b->want->reps && !status; rep++) {
    cli_progress("%s, round %d of %d", c->shape, rep + 1, b->want->reps);
    for (int g = 0; g < graphs && !status; g++) {
      status = dw__gpu_time(b->gpu, c->graphs[g], &c->us[g][rep], error);
      c->us[g][rep] /= c->calls;
    }
  }
  cli_progress("%s", "");
  return status;
}

// ---- results --------------------------------------------------------------------------------------------------

static json_t *result_json(const bench *b, const contest *c, const double us[3], double copy_us, double rows_us) {
  json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "date", b->want->noted.date, "board",
                          dw__gpu_device(b->gpu)->name, "driver", b->driver, "nvrtc", b->cubin->compiler, "commit",
                          b->want->commit, "command", b->want->noted.command, "impl", "draftwood", "shape", c->shape, "target",
                          b->cubin->target, "variant", c->lists);
  json_object_set_new(row, "batch", json_integer(c->batch));
  json_object_set_new(row, "prefix", json_null());
  json_object_set_new(row, "page", json_integer(c->page));
  json_object_set_new(row, "mask", c->mask ? json_string(c->mask) : json_null());
  json_object_set_new(row, "l2", json_string(c->l2 ? c->l2 : "cold"));
  json_object_set_new(row, "graph", json_integer(c->calls));
  json_object_set_new(row, "us", json_real(us[0]));
  json_object_set_new(row, "us_p10", json_real(us[1]));
  json_object_set_new(row, "us_p90", json_real(us[2]));
  json_object_set_new(row, "bytes", json_real(c->bytes));
  json_object_set_new(row, "copy_us", json_real(copy_us));
  if (c->rows) json_object_set_new(row, "copy_rows_us", json_real(rows_us));
  return row;
}

static void tell(bench *b, contest *c) {
  int n = b->want->reps;
  double *call = c->us[CALL];
  double us[3] = {cli_quantile(call, n, 0.5), cli_quantile(call, n, 0.1), cli_quantile(call, n, 0.9)};
  double copy_us = cli_quantile(c->us[COPY], n, 0.5), rows_us = c->rows ? cli_quantile(c->us[COPY_ROWS], n, 0.5) : 0;
  json_t *row = result_json(b, c, us, copy_us, rows_us);
  if (b->want->json) cli_write_line(stdout, row);
  if (b->record) cli_write_line(b->record, row);
  json_decref(row);
  if (b->want->json) return;
  char bar[32] = "-";
  const double held_against = c->rows ? rows_us : copy_us;
  if (c->bar > 0) snprintf(bar, sizeof bar, "%.2f %s", c->bar, us[0] <= c->bar * held_against ? "met" : "missed");
  if (c->bar_us > 0) snprintf(bar, sizeof bar, "%.2f us %s", c->bar_us, us[0] < c->bar_us ? "met" : "missed");
  char rows[32] = "        -      -";
  if (c->rows) snprintf(rows, sizeof rows, "%9.2f %6.2f", rows_us, us[0] / rows_us);
  printf("%-48s %-18s %9.2f %9.2f %9.2f %9.2f %9.2f %8.0f %6.2f %s  %s\n", c->shape, c->lists, c->bytes / 1e6, us[0], us[1],
         us[2], copy_us, 2 * c->bytes / us[0] * 1e-3, us[0] / copy_us, rows, bar);
  fflush(stdout);
}

// What a contest takes is given back before the next.
static dw_status run_one(bench *b, contest *c, dw_status made, dw_error *error) {
  dw_status status = made ? made : measure(b, c, error);
  if (!status && c->nodes && c->nodes != c->calls)
    status = dw__fail_int(error, DW_WRONG_RESULT, "graph", c->nodes, "a node a call", "a call is one launch");
  if (!status) tell(b, c);
  for (int g = 0; g <= COPY_ROWS; g++) dw__graph_free(b->gpu, c->graphs[g]);
  free_buffers(b);
  return status;
}

static dw_status run_all(bench *b, dw_error *error) {
  static contest c;
  dw_status status = DW_OK;
  static const int pages[] = {1, 64};
  if (!b->want->json)
    printf("%-48s %-18s %9s %9s %9s %9s %9s %8s %6s %9s %6s  %s\n", "what", "lists", "MB moved", "us", "p10", "p90", "copy us",
           "GB/s", "ratio", "rows us", "ratio", "bar");
  for (int i = 0; i < 4 * COMPACT_FORMS && !status; i++) {
    const int form = i % COMPACT_FORMS, lists = i / COMPACT_FORMS;
    status = run_one(b, &c, make_compact(b, &c, pages[lists / 2], lists % 2, (compact_form)form, error), error);
  }
  for (int i = 0; i < 4 && !status; i++) status = run_one(b, &c, make_move(b, &c, pages[i / 2], i % 2, error), error);
  if (!status) status = run_one(b, &c, make_merge(b, &c, 2, b->want->small ? 2 : 64, error), error);
  if (!status) status = run_one(b, &c, make_merge(b, &c, 8, b->want->small ? 2 : 8, error), error);
  static const dw_mask masks[] = {DW_MASK_PARENTS, DW_MASK_BYTES_QLEN, DW_MASK_BIAS_F32};
  for (int i = 0; i < 3 && !status; i++) status = run_one(b, &c, make_pack(b, &c, masks[i], error), error);
  return status;
}

// ---- the command ----------------------------------------------------------------------------------------------

static dw_status open_gpu(bench *b, dw_error *error) {
  dw_status status = cli_gpu_device(b->ctx, b->want->device, &b->gpu, error);
  if (!status) status = dw__gpu_tools_open(b->ctx, b->gpu, 576, 512, &b->tools, error);
  if (!status) status = dw_companions_build(b->ctx, dw__gpu_device(b->gpu)->cc, &b->cubin, error);
  if (!status) status = dw_companions_get(b->ctx, 0, &b->companions, error);
  if (!status) cli_read_driver(dw__gpu_device(b->gpu), b->driver, sizeof b->driver);
  return status;
}

static dw_status build_only(bench *b, dw_error *error) {
  dw_status status = dw__gpu_tools_build(b->ctx, 576, 512, b->want->target, error);
  if (!status) status = dw_companions_build(b->ctx, b->want->target, &b->cubin, error);
  const dw_shape shape = pack_shape(b->want->target);
  const dw_bounds bounds = cli_bounds(&shape, 64, 4096);
  dw_variant variant;
  dw_cubin *pack = NULL;
  if (!status) status = dw_variant_choose(&shape, &bounds, &variant, error);
  if (!status) status = dw_cubin_build(b->ctx, &shape, &variant, &pack, error);
  dw_cubin_free(pack);
  if (!status) cli_tell_builds(b->ctx);
  return status;
}

static int run(bench *b) {
  dw_error error = {0};
  dw_status status = b->want->build_only ? build_only(b, &error) : open_gpu(b, &error);
  if (!status && !b->want->build_only) status = run_all(b, &error);
  bool none = !b->gpu && (status == DW_NO_DRIVER || status == DW_DRIVER);
  int code = status ? cli_error(&error) : CLI_DONE;
  return none ? CLI_USAGE : code;
}

static int bench_main(const asked *want) {
  static bench b;
  b = (bench){.want = want, .seed = (uint64_t)want->seed};
  int code = cli_open(&b.ctx);
  if (code != CLI_GO_ON) return code;
  if (want->record && !(b.record = fopen(want->record, "a"))) {
    dw_ctx_destroy(b.ctx);
    return cli_usage("--record: %s cannot be written", want->record);
  }
  code = run(&b);
  if (b.record) fclose(b.record);
  dw_cubin_free(b.cubin);
  dw__gpu_tools_close(b.tools);
  dw_ctx_destroy(b.ctx);  // its kernels live in the GPU's CUDA context
  dw__gpu_close(b.gpu);
  return code;
}

int cli_companions_bench(const cli_command *self, int argc, char **argv) {
  const char *commit = getenv("DRAFTWOOD_COMMIT");
  asked want = {.commit = commit && *commit ? commit : "unknown", .reps = 21, .seed = 1, .target = 90};
  const cli_option options[] = {
    {"companions", NULL, CLI_FLAG, &want.companions, 0, 0, "this: compaction, moves, merges and masks beside a plain copy"},
    {"reps", "N", CLI_INT, &want.reps, 7, REPS_MAX, "timed replays (21)"},
    {"record", "FILE", CLI_TEXT, &want.record, 0, 0, "append JSON lines to this file"},
    {"commit", "ID", CLI_TEXT, &want.commit, 0, 0, "for the record (default: $DRAFTWOOD_COMMIT)"},
    {"device", "N", CLI_INT, &want.device, 0, 63, "GPU (0)"},
    {"seed", "S", CLI_INT, &want.seed, 0, 1 << 30, "of lists and places (1)"},
    {"small", NULL, CLI_FLAG, &want.small, 0, 0, "three layers, little to move: for an emulated GPU"},
    {"build-only", NULL, CLI_FLAG, &want.build_only, 0, 0, "compile what the run needs into the cache; needs no GPU"},
    {"target", "N", CLI_INT, &want.target, 80, 199, "with --build-only: for this device class (90)"},
    {"json", NULL, CLI_FLAG, &want.json, 0, 0, "JSON lines on stdout instead of the table"},
  };
  cli_note_command(&want.noted, argc, argv);  // cli_parse changes argv
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc > 1) return cli_usage("bench --companions takes no shape, found %s", argv[1]);
  return bench_main(&want);
}
