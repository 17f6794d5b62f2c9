// The companions' handle and launches. A launch is host arithmetic and one call of the driver.
#include "companions.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "flow.h"

struct dw_companions {
  dw_companions *next;
  dw__driver *driver;
  dw__module *module;  // NULL: the functions are somebody else's
  void *cu_context;
  int target;
  void *functions[DW__COMPANION_COUNT];
};

const char *const dw__companion_names[DW__COMPANION_COUNT] = {
  [DW__COMPACT] = "dw_kv_compact", [DW__MOVE] = "dw_kv_move",       [DW__MERGE] = "dw_merge_states",
  [DW__EXPAND] = "dw_tree_expand", [DW__ACCEPT] = "dw_tree_accept",
};

#define TRY(expression)             \
  do {                              \
    dw_status tried = (expression); \
    if (tried) return tried;        \
  } while (0)

// ---- handle ---------------------------------------------------------------------------------------------------

// Targets are those of any shape.
static dw_status check_target(int target, dw_error *error) {
  dw_shape shape;
  dw_status status = dw_shape_parse("mla:h=1,t=1", &shape, error);
  shape.target = target;
  return status ? status : dw_shape_check(&shape, error);
}

dw_status dw_companions_build(dw_ctx *ctx, int target, dw_cubin **cubin, dw_error *error) {
  if (cubin) *cubin = NULL;
  if (!ctx || !cubin) return dw__no_argument(error, ctx ? "cubin" : "ctx");
  TRY(check_target(target, error));
  return dw__companions_cubin(ctx, target, cubin, error);
}

dw_status dw__companions_of(dw__driver *driver, void *const functions[DW__COMPANION_COUNT], dw_companions **result,
                            dw_error *error) {
  *result = dw__calloc(1, sizeof **result);
  if (!*result) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  (*result)->driver = driver;
  (*result)->target = 90;  // the lowest with all that a launch may ask for
  memcpy((*result)->functions, functions, sizeof(*result)->functions);
  return DW_OK;
}

void dw__companions_free(dw_companions *list) {
  while (list) {
    dw_companions *next = list->next;
    dw__module_unload(list->module);
    dw__release(list);
    list = next;
  }
}

static dw_status load(dw__driver *driver, const dw_cubin *cubin, dw_companions **result, dw_error *error) {
  void *functions[DW__COMPANION_COUNT] = {0};
  dw__module *module = NULL;
  dw_status status = dw__module_load(driver, cubin->data, cubin->size, &module, error);
  for (int i = 0; i < DW__COMPANION_COUNT && !status; i++) {
    size_t shared = i == DW__ACCEPT ? DW_C_ACCEPT_NODES * sizeof(uint32_t) : 0;
    status = dw__module_function(module, dw__companion_names[i], shared, &functions[i], error);
  }
  if (!status) status = dw__companions_of(driver, functions, result, error);
  if (status) dw__module_unload(module);
  else (*result)->module = module;
  return status;
}

static dw_companions *find(dw_companions *list, int target, const void *cu_context) {
  while (list && (list->target != target || list->cu_context != cu_context)) list = list->next;
  return list;
}

// Another thread may have loaded them meanwhile: then those are taken.
static dw_status add(dw_ctx *ctx, dw__driver *driver, const dw_cubin *cubin, int target, void *cu_context,
                     dw_companions **result, dw_error *error) {
  dw__ctx_companions_lock(ctx);
  dw_companions *list = dw__ctx_companions(ctx);
  dw_status status = DW_OK;
  *result = find(list, target, cu_context);
  if (!*result) {
    status = load(driver, cubin, result, error);
    if (!status) {
      (*result)->target = target;
      (*result)->cu_context = cu_context;
      (*result)->next = list;
      dw__ctx_companions_add(ctx, *result);
    }
  }
  dw__ctx_companions_unlock(ctx);
  return status;
}

static dw_status check_device(const dw__device *device, int target, dw_error *error) {
  char text[16], allowed[64];
  snprintf(text, sizeof text, "sm_%d", target);
  if (dw__device_runs(text, device->cc)) return DW_OK;
  snprintf(allowed, sizeof allowed, "0 or %d", device->cc);
  return dw__fail_int(error, DW_UNSUPPORTED_TARGET, "target", target, allowed,
                      "the current device %d, %s (sm_%d), cannot run it", device->ordinal, device->name, device->cc);
}

dw_status dw_companions_get(dw_ctx *ctx, int target, dw_companions **companions, dw_error *error) {
  if (companions) *companions = NULL;
  if (!ctx || !companions) return dw__no_argument(error, ctx ? "companions" : "ctx");
  dw__driver *driver;
  dw__device device;
  void *cu_context = NULL;
  TRY(dw__ctx_driver(ctx, &driver, error));
  TRY(dw__driver_current(driver, &device, &cu_context, error));
  if (!target) target = device.cc;
  TRY(check_target(target, error));
  TRY(check_device(&device, target, error));
  *companions = find(dw__ctx_companions(ctx), target, cu_context);
  if (*companions) return DW_OK;
  if (dw__driver_capturing(driver, NULL))
    return dw__fail(error, DW_BAD_ARGUMENT, "stream", "a capture in progress", "dw_companions_get before the capture begins",
                    "kernels cannot be loaded during stream capture");
  dw_cubin *cubin = NULL;
  TRY(dw__companions_cubin(ctx, target, &cubin, error));
  dw_status status = add(ctx, driver, cubin, target, cu_context, companions, error);
  dw_cubin_free(cubin);
  return status;
}

static dw_status launch_after(const dw_companions *companions, dw__companion which, unsigned x, unsigned y, unsigned threads,
                              size_t shared, bool dependent, void *params, void *stream, dw_error *error) {
  const dw__launch launch = {.function = companions->functions[which],
                             .grid = {x, y, 1},
                             .block = {threads, 1, 1},
                             .cluster_x = 1,
                             .dynamic_shared = shared,
                             .dependent = dependent};
  void *list[] = {params};
  return dw__driver_launch(companions->driver, &launch, list, stream, error);
}
static dw_status launch(const dw_companions *companions, dw__companion which, unsigned x, unsigned y, unsigned threads,
                        size_t shared, void *params, void *stream, dw_error *error) {
  return launch_after(companions, which, x, y, threads, shared, false, params, stream, error);
}

// ---- checks ---------------------------------------------------------------------------------------------------

// Names of members of arrays: "planes[1].row_bytes".
typedef struct member {
  char text[48];
} member;
static member member_of(const char *array, int i, const char *name) {
  member m;
  snprintf(m.text, sizeof m.text, "%s[%d].%s", array, i, name);
  return m;
}

static dw_status need(const void *pointer, const char *field, unsigned align, dw_error *error) {
  if (!pointer) return dw__no_argument(error, field);
  if ((uintptr_t)pointer % align == 0) return DW_OK;
  char found[32], allowed[48];
  snprintf(found, sizeof found, "%p", pointer);
  snprintf(allowed, sizeof allowed, "a multiple of %u bytes", align);
  return dw__fail(error, DW_BAD_ARGUMENT, field, found, allowed, "the address is misaligned");
}
static dw_status maybe(const void *pointer, const char *field, unsigned align, dw_error *error) {
  return pointer ? need(pointer, field, align, error) : DW_OK;
}

static dw_status range(int64_t value, const char *field, int64_t least, int64_t most, const char *why, dw_error *error) {
  if (value >= least && value <= most) return DW_OK;
  char allowed[64];
  if (most >= INT64_MAX / 16) snprintf(allowed, sizeof allowed, "%lld or more", (long long)least);
  else snprintf(allowed, sizeof allowed, "%lld to %lld", (long long)least, (long long)most);
  return dw__fail_int(error, DW_BAD_ARGUMENT, field, value, allowed, "%s", why);
}
// A stride that may be left out.
static dw_status stride(int64_t value, const char *field, int64_t least, const char *why, dw_error *error) {
  return value ? range(value, field, least, INT64_MAX / 16, why, error) : DW_OK;
}

static dw_status check_call(const dw_companions *companions, const void *args, dw_error *error) {
  if (!companions || !args) return dw__no_argument(error, companions ? "args" : "companions");
  return DW_OK;
}

static dw_status check_rows(const int32_t *qo_indptr, int batch, int width, int least_width, dw_error *error) {
  TRY(range(batch, "batch", 1, 65535, "requests of a call", error));
  TRY(maybe(qo_indptr, "qo_indptr", 4, error));
  TRY(range(width, "width", least_width, DW_C_ACCEPT_NODES, "rows of a request", error));
  return range((int64_t)batch * width, "width", 0, INT32_MAX, "batch x width rows in all", error);
}

// ---- planes ---------------------------------------------------------------------------------------------------

static dw_c_divisor divisor(int64_t value) {
  return (dw_c_divisor){(unsigned)value, value == 1 ? UINT32_MAX : (unsigned)((1ull << 32) / (uint64_t)value)};
}

static int unit_of(int64_t row_bytes, int64_t token_stride, int64_t page_stride) {
  const int64_t all = row_bytes | token_stride | page_stride;
  return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 1;
}

// tokens: of a plane's part that moves as one, 1 or a page's. *blocks goes on from kind to kind.
static dw_status read_planes(const dw_planes *given, int kinds, int page, int tokens, int threads, dw_c_planes *planes,
                             int64_t *blocks, dw_error *error) {
  TRY(range(kinds, "plane_kinds", 1, DW_PLANES_MAX, "kinds of planes", error));
  *blocks = 0;
  for (int i = 0; i < kinds; i++) {
    const dw_planes *g = &given[i];
    const int64_t token = dw__or_else(g->token_stride, g->row_bytes), whole = dw__or_else(g->page_stride, page * token);
    TRY(need(g->bases, member_of("planes", i, "bases").text, 8, error));
    TRY(range(g->count, member_of("planes", i, "count").text, 1, 1 << 20, "layers", error));
    TRY(range(g->row_bytes, member_of("planes", i, "row_bytes").text, 1, 1 << 24, "bytes of a token's row", error));
    TRY(range(token, member_of("planes", i, "token_stride").text, g->row_bytes, INT64_MAX / 16 / page, "rows would overlap",
              error));
    TRY(range(whole, member_of("planes", i, "page_stride").text, (page - 1) * token + g->row_bytes, INT64_MAX / 16,
              "pages would overlap", error));
    const int unit = unit_of(g->row_bytes, token, whole);
    const int64_t row_units = g->row_bytes / unit, plane_units = row_units * tokens, columns = plane_units * g->count;
    TRY(range(columns, member_of("planes", i, "count").text, 1, INT32_MAX - 1024, "parts of rows that move, in all layers",
              error));
    planes[i] = (dw_c_planes){.bases = g->bases,
                              .token_stride = token,
                              .page_stride = whole,
                              .unit = unit,
                              .row_units = divisor(row_units),
                              .plane_units = divisor(plane_units),
                              .columns = (int)columns,
                              .first_block = (int)*blocks};
    *blocks += (columns + threads - 1) / threads;
  }
  return range(*blocks, "planes", 1, INT32_MAX, "blocks of the grid", error);
}

// ---- dw_kv_compact --------------------------------------------------------------------------------------------

static dw_status check_addressing(const dw_compact_args *a, dw_error *error) {
  const unsigned align = a->index64 ? 8 : 4;
  if (a->addressing == DW_BLOCK_TABLE) {
    TRY(need(a->block_table, "block_table", 4, error));
    TRY(range(a->table_columns, "table_columns", 1, INT32_MAX, "pages a row of the table can name", error));
    TRY(stride(a->block_table_stride, "block_table_stride", a->table_columns, "rows would overlap", error));
    if (!a->draft_slots) return DW_OK;
    return dw__fail(error, DW_BAD_ARGUMENT, "draft_slots", "a pointer", "NULL", "a block table names the drafts' pages itself");
  }
  TRY(range((int)a->addressing, "addressing", 0, 1, "DW_CSR or DW_BLOCK_TABLE", error));
  if (a->draft_slots) {
    TRY(need(a->draft_slots, "draft_slots", align, error));
    if (!a->lengths_include_drafts) return DW_OK;
    return dw__fail(error, DW_BAD_ARGUMENT, "draft_slots", "a pointer", "NULL",
                    "lengths that include the drafts go with tables that include them");
  }
  TRY(need(a->kv_indptr, "kv_indptr", 4, error));
  return need(a->kv_indices, "kv_indices", align, error);
}

// Other blocks read what it would overwrite.
static dw_status apart(const void *written, const char *field, const void *read, const char *other, int64_t bytes,
                       dw_error *error) {
  const uintptr_t w = (uintptr_t)written, r = (uintptr_t)read;
  if (!written || w + (uintptr_t)bytes <= r || r + (uintptr_t)bytes <= w) return DW_OK;
  char found[64], allowed[64];
  snprintf(found, sizeof found, "memory of %s", other);
  snprintf(allowed, sizeof allowed, "memory apart from %s", other);
  return dw__fail(error, DW_BAD_ARGUMENT, field, found, allowed, "it is read by other blocks of the launch");
}

static dw_status check_compact(const dw_compact_args *a, dw_error *error) {
  TRY(check_rows(a->qo_indptr, a->batch, a->width, a->qo_indptr ? 0 : 1, error));
  TRY(need(a->kv_len, "kv_len", 4, error));
  TRY(check_addressing(a, error));
  TRY(need(a->accept_index, "accept_index", 4, error));
  TRY(range(a->accept_columns, "accept_columns", 1, DW_C_ACCEPT_NODES, "most accepted drafts of a request", error));
  TRY(stride(a->accept_stride, "accept_stride", a->accept_columns, "rows would overlap", error));
  TRY(range(a->next_drafts, "next_drafts", 0, INT32_MAX / 2, "drafts of the next step", error));
  TRY(maybe(a->new_len, "new_len", 4, error));
  TRY(maybe(a->accept_count, "accept_count", 4, error));
  TRY(apart(a->new_len, "new_len", a->kv_len, "kv_len", a->batch * 4LL, error));
  TRY(apart(a->accept_count, "accept_count", a->kv_len, "kv_len", a->batch * 4LL, error));
  return apart(a->new_len, "new_len", a->accept_count, "accept_count", a->accept_count ? a->batch * 4LL : 0, error);
}

// A block for each part of a layer's row.
static dw_status part_rows(const dw_compact_args *a, dw_c_planes *planes, int64_t *blocks, dw_error *error) {
  *blocks = 0;
  for (int i = 0; i < a->plane_kinds; i++) {
    const int each = 32 * DW_C_COMPACT_COLUMNS, parts = ((int)planes[i].row_units.value + each - 1) / each;
    planes[i].plane_units = divisor(parts);
    planes[i].first_block = (int)*blocks;
    *blocks += (int64_t)parts * a->planes[i].count;
  }
  return range(*blocks, "planes", 1, INT32_MAX, "blocks of the grid", error);
}

dw_status dw_kv_compact(const dw_companions *companions, const dw_compact_args *given, void *stream, dw_error *error) {
  dw_compact_args a;
  int64_t blocks;
  TRY(check_call(companions, given, error));
  TRY(dw__read_sized("args", given, &a, sizeof a, error));
  if (!a.page) a.page = 1;
  TRY(range(a.page, "page", 1, 1 << 20, "tokens a page", error));
  TRY(check_compact(&a, error));
  dw_compact_params p = {
    .rows = {a.qo_indptr, a.width, a.batch},
    .kinds = a.plane_kinds,
    .page = divisor(a.page),
    .addressing = a.addressing == DW_BLOCK_TABLE,
    .index64 = a.index64 != 0,
    .lengths_include_drafts = a.lengths_include_drafts != 0,
    .kv_len = a.kv_len,
    .kv_indptr = a.kv_indptr,
    .kv_indices = a.kv_indices,
    .draft_slots = a.draft_slots,
    .block_table = a.block_table,
    .block_table_stride = dw__or_else(a.block_table_stride, a.table_columns),
    .table_columns = a.table_columns,
    .accept_index = a.accept_index,
    .accept_stride = dw__or_else(a.accept_stride, a.accept_columns),
    .accept_columns = a.accept_columns,
    .dependent = a.overlap_prologue && companions->target >= 90,
    .next_drafts = a.next_drafts,
    .new_len = a.new_len,
    .accept_count = a.accept_count,
  };
  TRY(read_planes(a.planes, a.plane_kinds, a.page, 1, 32, p.planes, &blocks, error));
  TRY(part_rows(&a, p.planes, &blocks, error));
  const int groups = (a.batch + DW_C_COMPACT_WARPS - 1) / DW_C_COMPACT_WARPS;
  return launch_after(companions, DW__COMPACT, (unsigned)blocks, (unsigned)groups, 32 * DW_C_COMPACT_WARPS, 0, p.dependent, &p,
                      stream, error);
}

// ---- dw_kv_move -----------------------------------------------------------------------------------------------

// Slots of pages that follow each other without a gap are as good as pages of one token, and no division finds them.
static bool flatten(dw_c_planes *planes, int kinds, int page) {
  for (int i = 0; i < kinds; i++)
    if (planes[i].page_stride != page * planes[i].token_stride) return false;
  for (int i = 0; i < kinds; i++) planes[i].page_stride = planes[i].token_stride;
  return true;
}

dw_status dw_kv_move(const dw_companions *companions, const dw_move_args *given, void *stream, dw_error *error) {
  dw_move_args a;
  int64_t blocks;
  TRY(check_call(companions, given, error));
  TRY(dw__read_sized("args", given, &a, sizeof a, error));
  if (!a.page) a.page = 1;
  TRY(range(a.page, "page", 1, 1 << 20, "tokens a page", error));
  TRY(range(a.teams, "teams", 0, 65535, "dw_move_list.teams, or more", error));
  dw_move_params p = {.kinds = a.plane_kinds, .page = divisor(1), .list = a.list};
  TRY(read_planes(a.planes, a.plane_kinds, a.page, a.by_slot ? 1 : a.page, 32, p.planes, &blocks, error));
  if (a.by_slot && !flatten(p.planes, a.plane_kinds, a.page)) p.page = divisor(a.page);
  if (!a.teams) return DW_OK;
  TRY(need(a.list, "list", 16, error));
  return launch(companions, DW__MOVE, (unsigned)blocks, (unsigned)a.teams, 32 * DW_C_SEGMENTS, 0, &p, stream, error);
}

// ---- dw_merge_states ------------------------------------------------------------------------------------------

static const float log2_e = 1.44269504088896340736f, ln_2 = 0.693147180559945309417f;

static int64_t dtype_bytes(dw_dtype type) { return type == DW_F32 ? 4 : 2; }

// Eight elements at a time need every address and stride fit for 16 bytes.
static bool is_wide(const void *out, dw_dtype type, int64_t a, int64_t b, int64_t c) {
  return ((uintptr_t)out | (uintptr_t)((a | b | c) * dtype_bytes(type))) % 16 == 0;
}

static dw_status read_states(const dw_merge_args *a, int i, dw_c_states *s, bool *wide, dw_error *error) {
  const dw_states *g = &a->states[i];
  TRY(need(g->out, member_of("states", i, "out").text, (unsigned)dtype_bytes(g->dtype), error));
  TRY(need(g->lse, member_of("states", i, "lse").text, 4, error));
  TRY(range(g->count, member_of("states", i, "count").text, 1, 1 << 20, "partial results", error));
  TRY(range((int)g->dtype, member_of("states", i, "dtype").text, 0, 2, "DW_BF16, DW_F16 or DW_F32", error));
  TRY(stride(g->out_head_stride, member_of("states", i, "out_head_stride").text, a->v, "heads would overlap", error));
  TRY(stride(g->out_row_stride, member_of("states", i, "out_row_stride").text, a->v, "rows would overlap", error));
  TRY(stride(g->out_part_stride, member_of("states", i, "out_part_stride").text, a->v, "parts would overlap", error));
  TRY(stride(g->lse_head_stride, member_of("states", i, "lse_head_stride").text, 1, "a stride goes up", error));
  TRY(stride(g->lse_row_stride, member_of("states", i, "lse_row_stride").text, 1, "a stride goes up", error));
  TRY(stride(g->lse_part_stride, member_of("states", i, "lse_part_stride").text, 1, "a stride goes up", error));
  *s = (dw_c_states){.out = g->out, .lse = g->lse, .count = g->count, .dtype = (int)g->dtype};
  s->out_head_stride = dw__or_else(g->out_head_stride, a->v);
  s->out_row_stride = dw__or_else(g->out_row_stride, a->heads * s->out_head_stride);
  s->out_part_stride = dw__or_else(g->out_part_stride, a->rows * s->out_row_stride);
  s->lse_head_stride = dw__or_else(g->lse_head_stride, 1);
  s->lse_row_stride = dw__or_else(g->lse_row_stride, a->heads);
  s->lse_part_stride = dw__or_else(g->lse_part_stride, a->rows * s->lse_row_stride);
  s->to_log2 = g->lse_base_e ? log2_e : 1.f;
  *wide &= is_wide(g->out, g->dtype, s->out_head_stride, s->out_row_stride, s->out_part_stride);
  return DW_OK;
}

static dw_status check_merge(const dw_merge_args *a, dw_error *error) {
  TRY(range(a->state_kinds, "state_kinds", 1, DW_STATES_MAX, "entries of states", error));
  TRY(range(a->rows, "rows", 0, INT32_MAX, "rows of the result", error));
  TRY(range(a->heads, "heads", 1, 65536, "heads of a row", error));
  TRY(range(a->v, "v", 1, 1 << 20, "elements of a vector", error));
  TRY(range((int)a->dtype, "dtype", 0, 2, "DW_BF16, DW_F16 or DW_F32", error));
  TRY(need(a->out, "out", (unsigned)dtype_bytes(a->dtype), error));
  TRY(maybe(a->lse, "lse", 4, error));
  TRY(stride(a->out_head_stride, "out_head_stride", a->v, "heads would overlap", error));
  TRY(stride(a->out_row_stride, "out_row_stride", a->v, "rows would overlap", error));
  TRY(stride(a->lse_head_stride, "lse_head_stride", 1, "a stride goes up", error));
  return stride(a->lse_row_stride, "lse_row_stride", 1, "a stride goes up", error);
}

dw_status dw_merge_states(const dw_companions *companions, const dw_merge_args *given, void *stream, dw_error *error) {
  dw_merge_args a;
  TRY(check_call(companions, given, error));
  TRY(dw__read_sized("args", given, &a, sizeof a, error));
  TRY(check_merge(&a, error));
  dw_merge_params p = {.rows = a.rows,
                       .heads = divisor(a.heads),
                       .v = a.v,
                       .out = a.out,
                       .lse = a.lse,
                       .dtype = (int)a.dtype,
                       .from_log2 = a.lse_base_e ? ln_2 : 1.f};
  p.out_head_stride = dw__or_else(a.out_head_stride, a.v);
  p.out_row_stride = dw__or_else(a.out_row_stride, a.heads * p.out_head_stride);
  p.lse_head_stride = dw__or_else(a.lse_head_stride, 1);
  p.lse_row_stride = dw__or_else(a.lse_row_stride, a.heads);
  bool wide = a.v % 8 == 0 && is_wide(a.out, a.dtype, p.out_head_stride, p.out_row_stride, 0);
  for (int i = 0; i < a.state_kinds; i++) {
    TRY(read_states(&a, i, &p.states[i], &wide, error));
    p.parts += p.states[i].count;
  }
  p.wide = wide;
  p.halves = 1;
  for (int i = 0; i < a.state_kinds; i++) p.halves &= a.states[i].dtype != DW_F32;
  TRY(range((int64_t)a.rows * a.heads, "rows", 0, INT32_MAX, "rows x heads", error));
  const int64_t blocks = ((int64_t)a.rows * a.heads + DW_C_MERGE_WARPS - 1) / DW_C_MERGE_WARPS;
  if (!blocks) return DW_OK;
  return launch(companions, DW__MERGE, (unsigned)blocks, 1, 32 * DW_C_MERGE_WARPS, 0, &p, stream, error);
}

// ---- dw_tree_expand, dw_tree_accept ---------------------------------------------------------------------------

dw_status dw_tree_expand(const dw_companions *companions, const dw_expand_args *given, void *stream, dw_error *error) {
  dw_expand_args a;
  TRY(check_call(companions, given, error));
  TRY(dw__read_sized("args", given, &a, sizeof a, error));
  TRY(check_rows(a.qo_indptr, a.batch, a.width, 1, error));
  TRY(need(a.parents, "parents", 4, error));
  TRY(maybe(a.depths, "depths", 4, error));
  TRY(maybe(a.positions, "positions", a.positions64 ? 8 : 4, error));
  if (a.positions) TRY(need(a.kv_len, "kv_len", 4, error));
  TRY(maybe(a.mask, "mask", 4, error));
  const int words = (a.width + 31) / 32;
  TRY(stride(a.mask_row_stride, "mask_row_stride", words, "a row of the mask has a bit a draft", error));
  dw_expand_params p = {.rows = {a.qo_indptr, a.width, a.batch},
                        .parents = a.parents,
                        .kv_len = a.kv_len,
                        .lengths_include_drafts = a.lengths_include_drafts != 0,
                        .words = words,
                        .positions64 = a.positions64 != 0,
                        .depths = a.depths,
                        .positions = a.positions,
                        .mask = a.mask,
                        .mask_row_stride = dw__or_else(a.mask_row_stride, words)};
  const unsigned blocks = ((unsigned)a.width + DW_C_EXPAND_WARPS - 1) / DW_C_EXPAND_WARPS;
  return launch(companions, DW__EXPAND, blocks, (unsigned)a.batch, 32 * DW_C_EXPAND_WARPS, 0, &p, stream, error);
}

dw_status dw_tree_accept(const dw_companions *companions, const dw_accept_args *given, void *stream, dw_error *error) {
  dw_accept_args a;
  TRY(check_call(companions, given, error));
  TRY(dw__read_sized("args", given, &a, sizeof a, error));
  const unsigned align = a.tokens64 ? 8 : 4;
  TRY(check_rows(a.qo_indptr, a.batch, a.width, 1, error));
  TRY(need(a.parents, "parents", 4, error));
  TRY(need(a.draft_tokens, "draft_tokens", align, error));
  TRY(need(a.target_tokens, "target_tokens", align, error));
  TRY(maybe(a.root_tokens, "root_tokens", align, error));
  TRY(need(a.accept_index, "accept_index", 4, error));
  TRY(range(a.accept_columns, "accept_columns", 1, DW_C_ACCEPT_NODES, "longest path that is kept", error));
  TRY(stride(a.accept_stride, "accept_stride", a.accept_columns, "rows would overlap", error));
  TRY(maybe(a.accept_count, "accept_count", 4, error));
  TRY(maybe(a.bonus_tokens, "bonus_tokens", align, error));
  dw_accept_params p = {.rows = {a.qo_indptr, a.width, a.batch},
                        .parents = a.parents,
                        .draft_tokens = a.draft_tokens,
                        .target_tokens = a.target_tokens,
                        .root_tokens = a.root_tokens,
                        .tokens64 = a.tokens64 != 0,
                        .accept_index = a.accept_index,
                        .accept_stride = dw__or_else(a.accept_stride, a.accept_columns),
                        .accept_columns = a.accept_columns,
                        .most_nodes = a.width,
                        .accept_count = a.accept_count,
                        .bonus_tokens = a.bonus_tokens};
  return launch(companions, DW__ACCEPT, (unsigned)a.batch, 1, 32, (size_t)a.width * sizeof(uint32_t), &p, stream, error);
}
