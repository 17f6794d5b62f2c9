// dw_pack_mask of every kind of mask by host execution: each bit of each row against what draftwood.h says of the kind, rows of
// requests of all lengths, matrices with strides, guards around what is written.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "core.h"
#include "host_run.h"
#include "plan.h"
#include "random.h"

enum { BATCH = 7, WIDTH = 70, WORDS = (WIDTH + 31) / 32, STRIDE = WORDS + 2, ROWS = BATCH * WIDTH, POISON = 0x5A5A5A5A };

static uint64_t seed;
static dw_ctx *ctx;
static dw_host_module *module;
static dw_shape shape;

static int open_kernel(void **state) {
  (void)state;
  const char *given = getenv("DRAFTWOOD_TEST_SEED");
  dw_options options = {.size = sizeof options, .cache_dir = ""};
  dw_error error = {0};
  dw_variant variant;
  char *source = NULL;
  size_t size;
  seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
  print_message("seed %llu (DRAFTWOOD_TEST_SEED)\n", (unsigned long long)seed);
  dw_status status = dw_ctx_create(&options, &ctx, &error);
  if (!status) status = dw_shape_parse("mla:h=8,t=70", &shape, &error);
  const dw_bounds bounds = {.size = sizeof bounds, .batch = BATCH, .kv_len = 1000};
  if (!status) status = dw_variant_choose(&shape, &bounds, &variant, &error);
  if (!status) status = dw_source_generate(ctx, &shape, &variant, &source, &size, &error);
  if (!status) status = dw__host_build(source, size, false, &module, &error);
  dw_free(source);
  if (status) print_error("%s\n%s\n", error.message, error.log ? error.log : "");
  return status ? -1 : 0;
}

static int close_kernel(void **state) {
  (void)state;
  dw_host_module_close(module);
  dw_ctx_destroy(ctx);
  return 0;
}

// A batch: request b has rows[b] rows from first[b] on, and prefix[b] tokens before them.
typedef struct batch {
  int ragged, total, first[BATCH + 1], rows[BATCH], kv_len[BATCH], prefix[BATCH];
} batch;

static batch make_batch(int ragged) {
  batch made = {.ragged = ragged};
  for (int b = 0; b < BATCH; b++) {
    made.rows[b] = !ragged ? WIDTH : b == 2 ? 0 : b == 3 ? 1 : 1 + dw__random_below(&seed, WIDTH);
    made.prefix[b] = dw__random_below(&seed, 40);
    made.kv_len[b] = made.prefix[b] + made.rows[b];
    made.first[b + 1] = made.first[b] + made.rows[b];
  }
  made.total = made.first[BATCH];
  return made;
}

// What a row sees, in the layout of the kind; *bytes of memory, which the caller frees.
typedef struct mask {
  int kind, shared;
  int64_t row_stride, request_stride, indptr[BATCH + 1];
  void *data;
  size_t bytes;
} mask;

static int parent_of(const int *parents, int node) { return parents[node] < node ? parents[node] : -1; }

static mask make_mask(const batch *q, int kind, int shared, uint8_t sees[ROWS][WIDTH]) {
  mask m = {.kind = kind, .shared = shared, .row_stride = WIDTH + 3};
  m.request_stride = shared ? 0 : WIDTH * m.row_stride + 5;
  for (int b = 0; b < BATCH; b++) m.indptr[b + 1] = m.indptr[b] + (int64_t)q->rows[b] * (q->prefix[b] + q->rows[b]);
  int64_t elements = kind == DW_P_MASK_PARENTS      ? q->total
                     : kind == DW_P_MASK_BITS       ? (int64_t)q->total * STRIDE
                     : kind == DW_P_MASK_BYTES_FULL ? m.indptr[BATCH]
                                                    : (BATCH - 1) * m.request_stride + WIDTH * m.row_stride;
  size_t each = kind == DW_P_MASK_BYTES_QLEN || kind == DW_P_MASK_BYTES_FULL ? 1 : 4;
  m.bytes = (size_t)elements * each;
  m.data = malloc(m.bytes);
  if (kind == DW_P_MASK_BITS) m.row_stride = STRIDE;
  for (size_t i = 0; i < m.bytes / 4; i++) {
    uint32_t x = (uint32_t)dw__random_below(&seed, 1 << 30) << 2 | (uint32_t)dw__random_below(&seed, 4);
    if (kind == DW_P_MASK_BIAS_F32) ((float *)m.data)[i] = x & 1 ? 0.f : -INFINITY;
    else ((uint32_t *)m.data)[i] = each == 1 ? x & 0x03000101u : x;  // bytes other than 0 and 1 too
  }
  for (int b = 0; b < BATCH; b++) {
    int *parents = (int *)m.data + q->first[b];
    for (int i = 0; i < q->rows[b] && kind == DW_P_MASK_PARENTS; i++)
      parents[i] = dw__random_below(&seed, 8) ? dw__random_below(&seed, i + 1) - 1 : -2;
    for (int i = 0; i < q->rows[b]; i++)
      for (int j = 0; j < q->rows[b]; j++) {
        const int64_t matrix = (shared ? 0 : b * m.request_stride) + i * m.row_stride + j, row = q->first[b] + i;
        int seen = j <= i;
        if (kind == DW_P_MASK_PARENTS) {
          int at = parents[i] == -2 ? -1 : i;
          while (at > j) at = parent_of(parents, at);
          seen = at == j;
        }
        if (kind == DW_P_MASK_BITS) seen = ((uint32_t *)m.data)[row * STRIDE + j / 32] >> j % 32 & 1;
        if (kind == DW_P_MASK_BYTES_QLEN) seen = ((uint8_t *)m.data)[matrix] != 0;
        if (kind == DW_P_MASK_BIAS_F32) seen = ((float *)m.data)[matrix] == 0.f;
        if (kind == DW_P_MASK_BYTES_FULL)
          seen = ((uint8_t *)m.data)[m.indptr[b] + (int64_t)i * (q->prefix[b] + q->rows[b]) + q->prefix[b] + j] != 0;
        sees[row][j] = (uint8_t)seen;
      }
  }
  return m;
}

static void pack(const batch *q, const mask *m, dw_host_order order, uint32_t *bits, size_t bytes) {
  const dw_params p = {.kv_len = q->kv_len,
                       .batch = BATCH,
                       .width = WIDTH,
                       .qo_indptr = q->ragged ? q->first : NULL,
                       .addressing = DW_P_CSR,
                       .lengths_include_drafts = 1,
                       .mask_kind = m->kind,
                       .mask = m->data,
                       .mask_row_stride = m->row_stride,
                       .mask_request_stride = m->request_stride,
                       .mask_indptr = (const long long *)m->indptr,
                       .out = bits,
                       .out_row_stride = STRIDE,
                       .total_q = q->total};
  const dw_host_buffer buffers[] = {{q->kv_len, sizeof q->kv_len, 0},
                                    {q->first, sizeof q->first, 0},
                                    {m->data, m->bytes, 0},
                                    {m->indptr, sizeof m->indptr, 0},
                                    {bits, bytes, DW_HOST_BUFFER_WRITE}};
  dw_host_launch launch = {.size = sizeof launch,
                           .entry = dw_host_module_entry(module, "dw_pack_mask"),
                           .params = &p,
                           .grid = {(ROWS * WORDS + 127) / 128, 1, 1},
                           .block = {128, 1, 1},
                           .cluster = {1, 1, 1},
                           .order = order,
                           .seed = seed,
                           .buffers = buffers,
                           .n_buffers = 5};
  dw_host_report report = {.size = sizeof report};
  assert_non_null(launch.entry);
  if (dw_host_run(&launch, &report)) fail_msg("mask kind %d: %s", m->kind, report.message);
}

static void check(const batch *q, const mask *m, uint8_t sees[ROWS][WIDTH], dw_host_order order) {
  uint32_t *bits = malloc((ROWS + 1) * STRIDE * 4);
  assert_non_null(bits);
  for (int i = 0; i < (ROWS + 1) * STRIDE; i++) bits[i] = POISON;
  pack(q, m, order, bits, (size_t)q->total * STRIDE * 4);
  for (int b = 0; b < BATCH; b++)
    for (int row = q->first[b]; row < q->first[b + 1]; row++) {
      for (int j = 0; j < q->rows[b]; j++)
        if ((bits[row * STRIDE + j / 32] >> j % 32 & 1) != sees[row][j])
          fail_msg("mask kind %d, request %d of %d rows, row %d, draft %d: expected %d", m->kind, b, q->rows[b],
                   row - q->first[b], j, sees[row][j]);
      for (int k = WORDS; k < STRIDE; k++) assert_int_equal(bits[row * STRIDE + k], POISON);
    }
  for (int i = q->total * STRIDE; i < (ROWS + 1) * STRIDE; i++) assert_int_equal(bits[i], POISON);
  free(bits);
}

static void every_kind_of_mask(void **state) {
  static uint8_t sees[ROWS][WIDTH];
  (void)state;
  for (int kind = DW_P_MASK_NONE; kind <= DW_P_MASK_BIAS_F32; kind++)
    for (int ragged = 0; ragged < 2; ragged++)
      for (int shared = 0; shared <= (kind == DW_P_MASK_BYTES_QLEN || kind == DW_P_MASK_BIAS_F32); shared++) {
        const batch q = make_batch(ragged);
        mask m = make_mask(&q, kind, shared, sees);
        check(&q, &m, sees, (dw_host_order)((kind + ragged + shared) % 3));
        free(m.data);
      }
}

int main(void) {
  static const struct CMUnitTest tests[] = {cmocka_unit_test(every_kind_of_mask)};
  if (!dw__host_compiler()) {
    print_message("skipped: host execution needs a C++ compiler\n");
    return 77;
  }
  return cmocka_run_group_tests_name("packed masks", tests, open_kernel, close_kernel);
}
