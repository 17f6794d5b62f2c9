// See companion_checks.h.
#include "companion_checks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "companions.h"
#include "guard.h"
#include "problem.h"
#include "random.h"

typedef struct trial {
  dw__stage *stage;
  uint64_t seed;
  int variant, step;
  void *state;  // the check's own
} trial;

struct dw__check_parts {
  size_t state_bytes;
  void (*make)(trial *t);   // arrays and arguments
  void (*fill)(trial *t);   // contents and answers, new in each step
  void (*judge)(trial *t);  // what is judged apart; may be NULL
  void (*drop)(trial *t);   // may be NULL
  dw__stage_launch launch;
};

static int below(trial *t, int n) { return n > 0 ? dw__random_below(&t->seed, n) : 0; }
static int between(trial *t, int least, int most) { return least + below(t, most - least + 1); }
static bool one_in(trial *t, int n) { return below(t, n) == 0; }

static void shuffle(trial *t, int *list, int n) {
  for (int i = n; i-- > 1;) {
    int k = below(t, i + 1), kept = list[i];
    list[i] = list[k];
    list[k] = kept;
  }
}

// 0 to n - 1 in random order; free with free().
static int *random_order(trial *t, int n) {
  int *list = malloc((size_t)n * sizeof *list + 1);
  if (!list) abort();
  for (int i = 0; i < n; i++) list[i] = i;
  shuffle(t, list, n);
  return list;
}

// Where a kernel may read nothing, an integer that would lead it far away.
enum { FAR_AWAY = 0x7FED7FED };

static int32_t *ints(const dw__array *a) { return (int32_t *)a->before; }
static int32_t *ints_after(const dw__array *a) { return (int32_t *)a->after; }
static size_t int_count(const dw__array *a) { return a->bytes / sizeof(int32_t); }

static dw__array *make_ints(trial *t, size_t n) { return dw__stage_array(t->stage, n * sizeof(int32_t)); }
static void *device(const dw__array *a) { return a ? a->device : NULL; }
static dw__array *written(dw__array *a, dw__companion kernel) {
  if (a) a->written_by |= 1u << kernel;
  return a;
}

// Poison all, or the input is left as it is: after = before.
static void poison(dw__array *a) {
  for (size_t i = 0; i < a->bytes; i++) a->before[i] = a->after[i] = i % 2 ? DW__POISON >> 8 : DW__POISON & 0xFF;
}
static void far_away(dw__array *a) {
  for (size_t i = 0; i < int_count(a); i++) ints(a)[i] = FAR_AWAY;
}
static void keeps(dw__array *a) { memcpy(a->after, a->before, a->bytes); }

// ---- pools ----------------------------------------------------------------------------------------------------

enum { LAYERS_MAX = 6, KINDS = DW_PLANES_MAX };

typedef struct pool {
  int page, pages, kinds, layers;
  dw_planes planes[KINDS];
  dw__array *data[KINDS][LAYERS_MAX], *bases[KINDS];
  dw__array *bystander;  // a plane that no call names
} pool;

static int64_t slot_at(const pool *p, int kind, int64_t slot) {
  const dw_planes *g = &p->planes[kind];
  int64_t token = g->token_stride ? g->token_stride : g->row_bytes, page = g->page_stride ? g->page_stride : p->page * token;
  return slot / p->page * page + slot % p->page * token;
}

// padded: rows with room between them.
static void pool_make(trial *t, pool *p, int page, int pages, int layers, const int *row_bytes, int kinds, bool padded) {
  *p = (pool){.page = page, .pages = pages, .kinds = kinds, .layers = layers};
  for (int k = 0; k < kinds; k++) {
    dw_planes *g = &p->planes[k];
    *g = (dw_planes){.count = layers, .row_bytes = row_bytes[k]};
    int unit = row_bytes[k] % 16 == 0 ? 16 : row_bytes[k] % 4 == 0 ? 4 : 1;
    if (padded) {
      g->token_stride = row_bytes[k] + unit * between(t, 0, 3);
      g->page_stride = page * g->token_stride + unit * between(t, 0, 5);
    }
    int64_t bytes = slot_at(p, k, (int64_t)page * pages);
    p->bases[k] = dw__stage_array(t->stage, (size_t)layers * sizeof(void *));
    for (int l = 0; l < layers; l++)
      p->data[k][l] = written(written(dw__stage_array(t->stage, (size_t)bytes), DW__COMPACT), DW__MOVE);
    g->bases = device(p->bases[k]);
  }
  p->bystander = dw__stage_array(t->stage, 4096);
}

static void pool_fill(trial *t, pool *p) {
  for (int k = 0; k < p->kinds; k++)
    for (int l = 0; l < p->layers; l++) {
      dw__array *a = p->data[k][l];
      for (size_t i = 0; i < a->bytes; i += 8) {
        uint64_t word = dw__random(&t->seed);
        memcpy(a->before + i, &word, a->bytes - i < 8 ? a->bytes - i : 8);
      }
      keeps(a);
      memcpy(p->bases[k]->before + (size_t)l * sizeof(void *), &a->device, sizeof(void *));
      keeps(p->bases[k]);
    }
}

// In all planes, one row of `before` into one of `after`.
static void pool_move(const pool *p, int64_t from, int64_t to) {
  for (int k = 0; k < p->kinds; k++)
    for (int l = 0; l < p->layers; l++)
      memcpy(p->data[k][l]->after + slot_at(p, k, to), p->data[k][l]->before + slot_at(p, k, from),
             (size_t)p->planes[k].row_bytes);
}

static void pool_move_page(const pool *p, int from, int to) {
  for (int i = 0; i < p->page; i++) pool_move(p, (int64_t)from * p->page + i, (int64_t)to * p->page + i);
}

// ---- dw_kv_compact --------------------------------------------------------------------------------------------

typedef struct compact {
  pool pool;
  int tokens_most;  // of a request
  int prefix[16], rows[16];
  bool ragged, draft_slots, wrong_lists;
  dw__array *kv_len, *indptr, *kv_indptr, *indices, *slots, *table, *accept, *new_len, *count;
  dw_compact_args args;
} compact;

static int64_t compact_stride(const compact *c) {
  return c->args.accept_stride ? c->args.accept_stride : c->args.accept_columns;
}
static int64_t table_stride(const compact *c) {
  return c->args.block_table_stride ? c->args.block_table_stride : c->args.table_columns;
}

// c->args says batch, width, columns, addressing and conventions; arrays follow.
static void compact_arrays(trial *t, compact *c) {
  dw_compact_args *a = &c->args;
  int batch = a->batch;
  a->size = sizeof *a;
  memcpy(a->planes, c->pool.planes, sizeof a->planes);
  a->plane_kinds = c->pool.kinds;
  a->page = c->pool.page;
  size_t index = a->index64 ? 2 : 1;  // in words
  c->kv_len = make_ints(t, (size_t)batch);
  a->kv_len = device(c->kv_len);
  if (c->ragged) c->indptr = make_ints(t, (size_t)batch + 1);
  a->qo_indptr = device(c->indptr);
  if (a->addressing == DW_BLOCK_TABLE) {
    a->table_columns = (c->tokens_most + c->pool.page - 1) / c->pool.page;
    a->block_table_stride = a->table_columns + t->variant % 3;
    c->table = make_ints(t, (size_t)(batch * a->block_table_stride));
    a->block_table = device(c->table);
  } else {
    c->kv_indptr = make_ints(t, (size_t)batch + 1);
    c->indices = make_ints(t, (size_t)batch * (size_t)c->tokens_most * index);
    a->kv_indptr = device(c->kv_indptr);
    a->kv_indices = device(c->indices);
    if (c->draft_slots) c->slots = make_ints(t, (size_t)batch * (size_t)a->width * index);
    a->draft_slots = device(c->slots);
  }
  a->accept_stride = a->accept_columns + t->variant % 2;
  c->accept = make_ints(t, (size_t)(batch * a->accept_stride));
  if (c->accept) c->accept->made_by_kernel_before = 1u << DW__COMPACT;
  a->overlap_prologue = t->variant / 3 % 2;
  a->accept_index = device(c->accept);
  c->new_len = written(make_ints(t, (size_t)batch), DW__COMPACT);
  c->count = written(make_ints(t, (size_t)batch), DW__COMPACT);
  a->new_len = device(c->new_len);
  a->accept_count = device(c->count);
}

static void put_slot(const compact *c, dw__array *list, int64_t at, int slot) {
  if (c->args.index64) ((int64_t *)list->before)[at] = slot;
  else ints(list)[at] = slot;
}
static int64_t slot_of(const compact *c, const dw__array *list, int64_t at) {
  return c->args.index64 ? ((int64_t *)list->before)[at] : ints(list)[at];
}

static int first_row(const compact *c, int b) { return c->ragged ? ints(c->indptr)[b] : b * c->args.width; }

// Lengths and rows as set, pages or slots at random, nothing else that could be read.
static void compact_tables(trial *t, compact *c) {
  const dw_compact_args *a = &c->args;
  int *order = random_order(t, c->pool.pages * (a->addressing == DW_BLOCK_TABLE ? 1 : c->pool.page)), used = 0, row = 0, at = 0;
  for (int b = 0; b < a->batch; b++) {
    int tokens = c->prefix[b] + c->rows[b];
    ints(c->kv_len)[b] = c->prefix[b] + (a->lengths_include_drafts ? c->rows[b] : 0);
    if (c->ragged) ints(c->indptr)[b] = row;
    if (c->table) {
      for (int i = 0; i < (tokens + c->pool.page - 1) / c->pool.page; i++)
        ints(c->table)[b * table_stride(c) + i] = order[used++];
    } else {
      ints(c->kv_indptr)[b] = at;
      for (int i = 0; i < tokens; i++) {
        bool apart = c->slots && i >= c->prefix[b];
        if (apart) put_slot(c, c->slots, row + i - c->prefix[b], order[used++]);
        else put_slot(c, c->indices, at++, order[used++]);
      }
    }
    row += c->rows[b];
  }
  if (c->ragged) ints(c->indptr)[a->batch] = row;
  if (c->kv_indptr) ints(c->kv_indptr)[a->batch] = at;
  free(order);
}

// Ids that ascend, any number of them; behind the end there may be anything.
static void random_list(trial *t, compact *c, int b) {
  const dw_compact_args *a = &c->args;
  int32_t *list = ints(c->accept) + b * compact_stride(c);
  int n = 0, chance = between(t, 1, 4);
  for (int id = 0; id < c->rows[b] && n < a->accept_columns; id++)
    if (one_in(t, chance) && !one_in(t, 100)) list[n++] = id;
  if (c->wrong_lists && n > 33) {
    list[32] = below(t, 32);  // does not ascend, where a warp begins anew
  } else if (c->wrong_lists && n && one_in(t, 2)) {
    int wrong[] = {-7, n > 1 ? list[n - 2] : 0, c->rows[b], FAR_AWAY, INT32_MIN};
    list[n - 1] = n > 1 || one_in(t, 2) ? wrong[below(t, 5)] : -1;
  } else if (n < a->accept_columns) {
    list[n] = -1;
  }
}

static int draft_slot(const compact *c, int b, int draft) {
  int token = c->prefix[b] + draft, page = c->pool.page;
  if (c->table) return ints(c->table)[b * table_stride(c) + token / page] * page + token % page;
  if (c->slots) return (int)slot_of(c, c->slots, first_row(c, b) + draft);
  return (int)slot_of(c, c->indices, ints(c->kv_indptr)[b] + token);
}

static void compact_answer(compact *c) {
  const dw_compact_args *a = &c->args;
  for (int b = 0; b < a->batch; b++) {
    const int32_t *list = ints(c->accept) + b * compact_stride(c);
    int n = 0;
    while (n < a->accept_columns && list[n] > (n ? list[n - 1] : -1) && list[n] < c->rows[b]) {
      pool_move(&c->pool, draft_slot(c, b, list[n]), draft_slot(c, b, n));
      n++;
    }
    bool padding = a->lengths_include_drafts && c->prefix[b] + c->rows[b] == 0;
    ints_after(c->new_len)[b] = padding ? 0 : c->prefix[b] + n + a->next_drafts;
    ints_after(c->count)[b] = n;
  }
}

static void compact_begin(trial *t, compact *c) {
  dw__array *inputs[] = {c->kv_len, c->indptr, c->kv_indptr, c->indices, c->slots, c->table, c->accept};
  pool_fill(t, &c->pool);
  for (size_t i = 0; i < DW__COUNT(inputs); i++)
    if (inputs[i]) far_away(inputs[i]);
}

static void compact_end(compact *c) {
  dw__array *inputs[] = {c->kv_len, c->indptr, c->kv_indptr, c->indices, c->slots, c->table, c->accept};
  for (size_t i = 0; i < DW__COUNT(inputs); i++)
    if (inputs[i]) keeps(inputs[i]);
  poison(c->new_len);
  poison(c->count);
  compact_answer(c);
}

static dw_status compact_launch(const dw_companions *companions, void *user, void *stream, dw_error *error) {
  return dw_kv_compact(companions, &((compact *)user)->args, stream, error);
}

static const int page_list[] = {1, 3, 16, 64};

static void compact_make(trial *t) {
  static const int rows[][3] = {{1152}, {2048}, {656}, {96, 2064, 12}, {40, 420, 2}, {107}};
  static const int kinds[] = {1, 1, 1, 3, 3, 1};
  compact *c = t->state;
  int page = page_list[t->variant % 4], which = t->variant % 6, form = t->variant / 2 % 4;
  c->args = (dw_compact_args){.batch = between(t, 1, 5), .width = t->variant % 5 == 4 ? 70 : between(t, 1, 17)};
  c->args.accept_columns = t->variant % 5 == 4 ? 67 : between(t, 1, c->args.width + 1);
  c->args.next_drafts = t->variant % 3 ? 0 : 9;
  c->args.addressing = form < 2 ? DW_BLOCK_TABLE : DW_CSR;
  c->args.lengths_include_drafts = t->variant % 2;
  c->args.index64 = t->variant % 3 == 1;
  c->ragged = one_in(t, 2);
  c->wrong_lists = t->variant % 7 == 6 || t->variant % 10 == 4;
  c->draft_slots = form == 3 && !c->args.lengths_include_drafts;
  c->tokens_most = c->args.width + 2 * page + 5;
  pool_make(t, &c->pool, page, c->args.batch * (c->tokens_most / page + 2), between(t, 1, 4), rows[which], kinds[which],
            t->variant % 2 == 0);
  compact_arrays(t, c);
}

static void compact_fill(trial *t) {
  compact *c = t->state;
  compact_begin(t, c);
  for (int b = 0; b < c->args.batch; b++) {
    bool padding = c->ragged && c->args.lengths_include_drafts && one_in(t, 5);
    c->rows[b] = padding ? 0 : c->ragged ? below(t, c->args.width + 1) : c->args.width;
    c->prefix[b] = padding ? 0 : below(t, c->tokens_most - c->args.width + 1);
  }
  compact_tables(t, c);
  for (int b = 0; b < c->args.batch; b++) random_list(t, c, b);
  compact_end(c);
}

// ---- cases of compaction --------------------------------------------------------------------------------------

// Three requests with depth + 1 entries each, of which 0, 5 and 2 are accepted.
static void d01_make(trial *t) {
  static const int rows[] = {1152};
  compact *c = t->state;
  int page = page_list[t->variant % 4];
  c->args = (dw_compact_args){.batch = 3,
                              .width = 16,
                              .accept_columns = 5,
                              .addressing = t->variant % 2 ? DW_CSR : DW_BLOCK_TABLE,
                              .lengths_include_drafts = 1};
  c->tokens_most = 60;
  pool_make(t, &c->pool, page, 3 * (60 / page + 2), 3, rows, 1, false);
  compact_arrays(t, c);
}

static void d01_fill(trial *t) {
  static const int lists[3][3][5] = {
    {{-1, -1, -1, -1, -1}, {0, 3, 7, 9, 15}, {0, 2, -1, -1, -1}},
    {{0, 1, 2, 3, 4}, {-1, -1, -1, -1, -1}, {0, 15, -1, -1, -1}},
    {{0, 12, -1, -1, -1}, {1, 2, 3, -1, -1}, {0, 4, 8, 12, -1}},
  };
  compact *c = t->state;
  compact_begin(t, c);
  for (int b = 0; b < 3; b++) c->prefix[b] = below(t, 44), c->rows[b] = 16;
  compact_tables(t, c);
  for (int b = 0; b < 3; b++) memcpy(ints(c->accept) + b * compact_stride(c), lists[t->step][b], sizeof lists[0][0]);
  compact_end(c);
}

// Path 0, 2, 5, 9 of 16 behind 60 tokens in pages of 16: it crosses a page. Even variants MLA, odd K and V.
static void d02_make(trial *t) {
  static const int rows[] = {1152, 1152};
  compact *c = t->state;
  c->args = (dw_compact_args){
    .batch = 1, .width = 16, .accept_columns = 5, .addressing = DW_BLOCK_TABLE, .lengths_include_drafts = t->variant / 2};
  c->tokens_most = 96;
  pool_make(t, &c->pool, 16, 9, 4, rows, 1 + t->variant % 2, false);
  compact_arrays(t, c);
}

static void d02_fill(trial *t) {
  static const int lists[3][5] = {{0, 2, 5, 9, -1}, {0, 1, 14, 15, -1}, {0, -1, -1, -1, -1}};
  static const int prefixes[] = {60, 63, 16};
  compact *c = t->state;
  compact_begin(t, c);
  c->prefix[0] = prefixes[t->step];
  c->rows[0] = 16;
  compact_tables(t, c);
  memcpy(ints(c->accept), lists[t->step], sizeof lists[0]);
  compact_end(c);
}

// Records without V (bf16, fp8, fp8 with scales), K and V, K and V and their scales, K and V in fp8 with one scale for all (192 and 128
// elements of 8 heads).
static void e04_make(trial *t) {
  static const int rows[][4] = {{1152}, {576}, {656}, {1024, 1024}, {512, 512, 32, 32}, {1536, 1024}};
  static const int kinds[] = {1, 1, 1, 2, 4, 2};
  compact *c = t->state;
  int which = t->variant % 6, page = t->variant / 6 ? 64 : 1;
  c->args = (dw_compact_args){
    .batch = 2, .width = 9, .accept_columns = 9, .addressing = page == 1 ? DW_CSR : DW_BLOCK_TABLE, .lengths_include_drafts = 1};
  c->tokens_most = 80;
  pool_make(t, &c->pool, page, 2 * (80 / page + 2), 3, rows[which], kinds[which], false);
  compact_arrays(t, c);
}

// ---- dw_kv_move -----------------------------------------------------------------------------------------------

typedef struct move {
  pool pool;
  bool by_slot;
  int places, shape;
  dw_move *moves;
  int count;
  dw__array *list;
  dw_move_args args;
} move;

enum { ANY_MOVES, ONE_CYCLE, SWAPS, ONE_CHAIN, FEW_MOVES, ROTATIONS };

static void move_arrays(trial *t, move *m, int teams) {
  m->places = m->pool.pages * (m->by_slot ? m->pool.page : 1);
  m->moves = calloc((size_t)m->places + 1, sizeof *m->moves);
  if (!m->moves) abort();
  m->list = dw__stage_array(t->stage, ((size_t)m->places * 32 + (size_t)teams * 64 + 4096) / 16 * 16);
  m->args = (dw_move_args){.size = sizeof m->args,
                           .plane_kinds = m->pool.kinds,
                           .page = m->pool.page,
                           .by_slot = m->by_slot,
                           .list = device(m->list),
                           .teams = teams};
  memcpy(m->args.planes, m->pool.planes, sizeof m->args.planes);
}

static void move_make(trial *t) {
  static const int rows[][3] = {{1152}, {656}, {96, 96, 12}, {576}, {33}, {512, 512}, {96, 64}};
  static const int kinds[] = {1, 1, 3, 1, 1, 2, 2};
  move *m = t->state;
  int which = t->variant % 7, page = page_list[t->variant % 4];
  m->shape = t->variant % 6;
  m->by_slot = t->variant % 3 == 0;
  int places = m->shape == FEW_MOVES ? 20 : t->variant % 2 ? 700 : 60;
  if (page > 1 && !m->by_slot) places = places > 60 ? 40 : 12;
  pool_make(t, &m->pool, page, m->by_slot ? places / page + 1 : places, 2, rows[which], kinds[which], t->variant % 4 < 2);
  move_arrays(t, m, m->places / 8 + 4);
}

// A permutation of `used` of the places into others, or of that shape.
static void choose_moves(trial *t, move *m) {
  int n = m->places, *from = random_order(t, n), *to = random_order(t, n), count = m->count = 0;
  if (m->shape == ONE_CYCLE || m->shape == ONE_CHAIN) {
    int length = t->step == 1 ? n / 2 : n;
    for (int i = 0; i < length - (m->shape == ONE_CHAIN); i++) m->moves[count++] = (dw_move){from[(i + 1) % length], from[i]};
  } else if (m->shape == SWAPS || m->shape == ROTATIONS) {
    for (int i = 0, size; i < n; i += size) {
      size = m->shape == SWAPS ? 2 : between(t, 2, 12);
      if (i + size > n) break;
      for (int k = 0; k < size; k++) m->moves[count++] = (dw_move){from[i + (k + 1) % size], from[i + k]};
    }
  } else {
    int most = m->shape == FEW_MOVES ? 5 : n;
    for (int i = 0; i < below(t, most) + (t->step == 0); i++) m->moves[count++] = (dw_move){from[i], to[i]};
  }
  m->count = count;
  free(from);
  free(to);
}

static void send_list(trial *t, move *m, const dw_move_list *list) {
  poison(m->list);
  if (list->bytes > m->list->bytes || list->teams > m->args.teams) {
    dw__stage_fail(t->stage, "list", "%zu bytes and %d teams for %d moves", list->bytes, list->teams, list->moves);
  } else if (list->data) {
    memcpy(m->list->before, list->data, list->bytes);
  } else {
    memset(m->list->before, 0, 16);  // no teams
  }
  keeps(m->list);
}

static void move_fill(trial *t) {
  move *m = t->state;
  dw_error error = {0};
  dw_move_list list;
  pool_fill(t, &m->pool);
  choose_moves(t, m);
  if (dw_move_plan(m->moves, m->count, m->places, &list, &error)) dw__stage_fail(t->stage, "plan", "%s", error.message);
  send_list(t, m, &list);
  dw_move_list_free(&list);
  for (int i = 0; i < m->count; i++) {
    if (m->by_slot) pool_move(&m->pool, m->moves[i].from, m->moves[i].to);
    else pool_move_page(&m->pool, m->moves[i].from, m->moves[i].to);
  }
}

static void move_drop(trial *t) { free(((move *)t->state)->moves); }

static dw_status move_launch(const dw_companions *companions, void *user, void *stream, dw_error *error) {
  return dw_kv_move(companions, &((move *)user)->args, stream, error);
}

// Three interleaved requests: after plan and move each one's pages ascend without holes and hold what they held.
enum { E01_PAGES = 40, E01_COLUMNS = 12 };

static void e01_make(trial *t) {
  static const int rows[] = {144};
  move *m = t->state;
  pool_make(t, &m->pool, 16, E01_PAGES, 3, rows, 1, false);
  move_arrays(t, m, 8);
}

static void e01_same(trial *t, const pool *p, int from, int to) {
  const dw__array *a = p->data[0][0];
  if (memcmp(a->after + slot_at(p, 0, (int64_t)to * 16), a->before + slot_at(p, 0, (int64_t)from * 16), 16 * 144) != 0)
    dw__stage_fail(t->stage, "plan", "page %d is not what page %d was", to, from);
}

static void e01_fill(trial *t) {
  move *m = t->state;
  dw_error error = {0};
  dw_defrag plan;
  int32_t table[3][E01_COLUMNS], moved[3][E01_COLUMNS], tokens[3];
  int *order = random_order(t, E01_PAGES), next = 0;
  pool_fill(t, &m->pool);
  for (int b = 0; b < 3; b++) tokens[b] = between(t, 1, 16 * E01_COLUMNS);
  for (int i = 0; i < E01_COLUMNS; i++)
    for (int b = 0; b < 3; b++) table[b][i] = t->step == 0 ? 3 * i + b : order[next++ % E01_PAGES];
  memcpy(moved, table, sizeof table);
  dw_pool given = {.size = sizeof given,
                   .pages = E01_PAGES,
                   .page = 16,
                   .requests = 3,
                   .table = &table[0][0],
                   .table_stride = E01_COLUMNS,
                   .tokens = tokens};
  if (dw_defrag_plan(&given, &plan, &error) || dw_defrag_apply(&plan, &given, &moved[0][0], &error))
    dw__stage_fail(t->stage, "plan", "%s", error.message);
  send_list(t, m, &plan.list);
  for (int i = 0; i < plan.count; i++) pool_move_page(&m->pool, plan.moves[i].from, plan.moves[i].to);
  for (int b = 0; b < 3; b++)
    for (int i = 0; i < (tokens[b] + 15) / 16; i++) {
      e01_same(t, &m->pool, table[b][i], moved[b][i]);
      if (i && moved[b][i] != moved[b][i - 1] + 1)
        dw__stage_fail(t->stage, "plan", "request %d: page %d after page %d", b, moved[b][i], moved[b][i - 1]);
    }
  dw_defrag_free(&plan);
  free(order);
}

// ---- pools above 4 GiB ----------------------------------------------------------------------------------------

enum { HUGE_ROW = 1152, HUGE_PAGE = 64, HUGE_PAGES = 75000 };  // 5.5 GB

typedef struct huge {
  unsigned char *pool;
  int pages[4];
  unsigned char rows[4][HUGE_PAGE * HUGE_ROW];  // what the four pages hold
  dw__array *bases, *kv_len, *table, *accept, *list;
  dw_compact_args compact;
  dw_move_args move;
} huge;

static void huge_make(trial *t) {
  huge *h = t->state;
  h->pool = dw__stage_sparse(t->stage, (size_t)HUGE_PAGES * HUGE_PAGE * HUGE_ROW);
  h->bases = dw__stage_array(t->stage, sizeof(void *));
  h->kv_len = make_ints(t, 1);
  h->table = make_ints(t, 2);
  h->accept = make_ints(t, 4);
  h->list = dw__stage_array(t->stage, 4096);
  h->compact = (dw_compact_args){.size = sizeof h->compact,
                                 .planes = {{.bases = device(h->bases), .count = 1, .row_bytes = HUGE_ROW}},
                                 .plane_kinds = 1,
                                 .page = HUGE_PAGE,
                                 .batch = 1,
                                 .width = 16,
                                 .kv_len = device(h->kv_len),
                                 .addressing = DW_BLOCK_TABLE,
                                 .block_table = device(h->table),
                                 .table_columns = 2,
                                 .accept_index = device(h->accept),
                                 .accept_columns = 4};
  h->move = (dw_move_args){.size = sizeof h->move, .plane_kinds = 1, .page = HUGE_PAGE, .list = device(h->list), .teams = 1};
  h->move.planes[0] = h->compact.planes[0];
}

static unsigned char *huge_page(const huge *h, int i) { return h->pool + (size_t)h->pages[i] * HUGE_PAGE * HUGE_ROW; }

// Pages 0 and 1 are the request's; page 2 then moves to 3, pages 0 and 1 change places.
static void huge_fill(trial *t) {
  huge *h = t->state;
  if (dw__stage_status(t->stage)) return;
  const int pages[] = {HUGE_PAGES - 1 - t->step, t->step, HUGE_PAGES - 5, 58254 + t->step};  // the last around 2^32 bytes
  const int list[] = {0, 2, 5, 9};
  dw_move_list made;
  dw_move moves[] = {{pages[0], pages[1]}, {pages[2], pages[3]}, {pages[1], pages[0]}};
  memcpy(h->pages, pages, sizeof pages);
  for (int i = 0; i < 4; i++) {
    for (size_t k = 0; k < sizeof h->rows[0]; k++) h->rows[i][k] = (unsigned char)dw__random(&t->seed);
    dw__stage_write(t->stage, huge_page(h, i), h->rows[i], sizeof h->rows[0]);
  }
  memcpy(h->bases->before, &h->pool, sizeof h->pool);
  *ints(h->kv_len) = 60;
  memcpy(ints(h->table), pages, 8);
  memcpy(ints(h->accept), list, sizeof list);
  if (dw_move_plan(moves, 3, HUGE_PAGES, &made, NULL)) dw__stage_fail(t->stage, "plan", "no plan");
  else memcpy(h->list->before, made.data, made.bytes);
  dw_move_list_free(&made);
  dw__array *all[] = {h->bases, h->kv_len, h->table, h->accept, h->list};
  for (int i = 0; i < 5; i++) keeps(all[i]);
}

static dw_status huge_launch(const dw_companions *companions, void *user, void *stream, dw_error *error) {
  huge *h = user;
  dw_status status = dw_kv_compact(companions, &h->compact, stream, error);
  return status ? status : dw_kv_move(companions, &h->move, stream, error);
}

static void huge_judge(trial *t) {
  huge *h = t->state;
  static const int sources[] = {1, 0, 2, 2};  // of page i's bytes at the end
  unsigned char *found = malloc(sizeof h->rows[0]);
  if (!found) abort();
  for (int k = 1; k < 4; k++) {
    int to = 60 + k, from = 60 + (int[]){0, 2, 5, 9}[k];
    memmove(h->rows[to / 64] + to % 64 * HUGE_ROW, h->rows[from / 64] + from % 64 * HUGE_ROW, HUGE_ROW);
  }
  for (int i = 0; i < 4; i++) {
    dw__stage_read(t->stage, found, huge_page(h, i), sizeof h->rows[0]);
    if (!dw__stage_status(t->stage) && memcmp(found, h->rows[sources[i]], sizeof h->rows[0]) != 0)
      dw__stage_fail(t->stage, "memory", "page %d of %d differs", h->pages[i], HUGE_PAGES);
  }
  free(found);
}

// ---- dw_merge_states ------------------------------------------------------------------------------------------

typedef struct merge {
  int parts;                                           // of all kinds
  dw__array *out[DW_STATES_MAX], *lse[DW_STATES_MAX];  // of the states; [0] may be the result's
  dw__array *to, *to_lse;
  unsigned char *inside;  // by byte of `to`: belongs to a vector
  double *want, *want_lse, *scale;
  dw_merge_args args;
} merge;

static int64_t state_at(const merge *m, int k, int part, int row, int head) {
  const dw_states *s = &m->args.states[k];
  int64_t head_stride = dw__or_else(s->out_head_stride, m->args.v),
          row_stride = dw__or_else(s->out_row_stride, m->args.heads * head_stride);
  return part * dw__or_else(s->out_part_stride, m->args.rows * row_stride) + row * row_stride + head * head_stride;
}
static int64_t state_lse_at(const merge *m, int k, int part, int row, int head) {
  const dw_states *s = &m->args.states[k];
  int64_t row_stride = dw__or_else(s->lse_row_stride, m->args.heads);
  return part * dw__or_else(s->lse_part_stride, m->args.rows * row_stride) + row * row_stride +
         head * dw__or_else(s->lse_head_stride, 1);
}
static int64_t out_at(const merge *m, int row, int head) {
  int64_t head_stride = dw__or_else(m->args.out_head_stride, m->args.v);
  return row * dw__or_else(m->args.out_row_stride, m->args.heads * head_stride) + head * head_stride;
}
static int64_t lse_at(const merge *m, int row, int head) {
  return row * dw__or_else(m->args.lse_row_stride, m->args.heads) + head * dw__or_else(m->args.lse_head_stride, 1);
}

static dw__array *vectors_of(trial *t, const merge *m, int k) {
  const dw_states *s = &m->args.states[k];
  int64_t last = state_at(m, k, s->count - 1, m->args.rows - 1, m->args.heads - 1) + m->args.v;
  return dw__stage_array(t->stage, (size_t)last * dw__dtype_size(s->dtype));
}

static void merge_arrays(trial *t, merge *m, bool in_place) {
  dw_merge_args *a = &m->args;
  int64_t vectors = (int64_t)a->rows * a->heads;
  a->size = sizeof *a;
  for (int k = 0; k < a->state_kinds; k++) {
    dw_states *s = &a->states[k];
    m->parts += s->count;
    m->out[k] = vectors_of(t, m, k);
    m->lse[k] = dw__stage_array(t->stage, (size_t)(state_lse_at(m, k, s->count - 1, a->rows - 1, a->heads - 1) + 1) * 4);
    s->out = device(m->out[k]);
    s->lse = device(m->lse[k]);
  }
  if (in_place) {
    const dw_states *s = &a->states[0];
    a->dtype = s->dtype;
    a->out_head_stride = s->out_head_stride, a->out_row_stride = s->out_row_stride;
    a->lse_head_stride = s->lse_head_stride, a->lse_row_stride = s->lse_row_stride;
  }
  int64_t last = out_at(m, a->rows - 1, a->heads - 1) + a->v, last_lse = lse_at(m, a->rows - 1, a->heads - 1) + 1;
  m->to = in_place ? m->out[0] : dw__stage_array(t->stage, (size_t)last * dw__dtype_size(a->dtype));
  m->to_lse = in_place ? m->lse[0] : dw__stage_array(t->stage, (size_t)last_lse * 4);
  a->out = device(m->to);
  a->lse = device(m->to_lse);
  m->want = calloc((size_t)(vectors * a->v), sizeof *m->want);
  m->want_lse = calloc((size_t)vectors, sizeof *m->want_lse);
  m->scale = calloc((size_t)vectors, sizeof *m->scale);
  if (!m->want || !m->want_lse || !m->scale) abort();
  if (written(m->to, DW__MERGE) && written(m->to_lse, DW__MERGE)) m->to->judged_apart = m->to_lse->judged_apart = true;
}

static void merge_drop(trial *t) {
  merge *m = t->state;
  free(m->want);
  free(m->want_lse);
  free(m->scale);
}

static void merge_make(trial *t) {
  static const int v_list[] = {512, 64, 40, 128, 7, 1};
  merge *m = t->state;
  dw_merge_args *a = &m->args;
  bool in_place = t->variant % 4 == 3;
  *a = (dw_merge_args){.state_kinds = 1 + t->variant % 3,
                       .rows = between(t, 1, 9),
                       .heads = between(t, 1, 9),
                       .v = v_list[t->variant % 6],
                       .dtype = (dw_dtype)(t->variant % 3),
                       .lse_base_e = t->variant / 2 % 2};
  if (one_in(t, 2))
    a->out_head_stride = a->v + 8 * below(t, 3), a->out_row_stride = a->heads * a->out_head_stride + 8 * below(t, 3);
  if (one_in(t, 3)) a->lse_row_stride = 1, a->lse_head_stride = a->rows;
  for (int k = 0; k < a->state_kinds; k++) {
    dw_states *s = &a->states[k];
    *s = (dw_states){.count = k == 0 && in_place    ? 1
                              : t->variant % 8 == 5 ? 37
                                                    : between(t, 1, 5),
                     .dtype = (dw_dtype)below(t, 3),
                     .lse_base_e = below(t, 2)};
    if (one_in(t, 2)) s->out_head_stride = a->v + below(t, 3) * 8;
    if (one_in(t, 2)) s->out_row_stride = a->heads * dw__or_else(s->out_head_stride, a->v) + 8;
    if (one_in(t, 3)) s->lse_row_stride = 1, s->lse_head_stride = a->rows, s->lse_part_stride = a->rows * a->heads + 3;
  }
  if (in_place) a->lse_base_e = a->states[0].lse_base_e;
  merge_arrays(t, m, in_place);
}

// Random states; one in four saw nothing and holds NaN. Some rows saw nothing at all.
static void merge_inputs(trial *t, merge *m) {
  for (int k = 0; k < m->args.state_kinds; k++) poison(m->out[k]), poison(m->lse[k]);
  for (int row = 0; row < m->args.rows; row++)
    for (int head = 0; head < m->args.heads; head++) {
      bool blind = one_in(t, 6);
      double spread = one_in(t, 4) ? 60 : 3;
      for (int k = 0; k < m->args.state_kinds; k++) {
        const dw_states *s = &m->args.states[k];
        for (int part = 0; part < s->count; part++) {
          bool nothing = blind || one_in(t, 4);
          float lse = nothing ? -INFINITY : (float)(dw__random_normal(&t->seed) * spread);
          memcpy(m->lse[k]->before + state_lse_at(m, k, part, row, head) * 4, &lse, 4);
          size_t size = dw__dtype_size(s->dtype);
          unsigned char *at = m->out[k]->before + (size_t)state_at(m, k, part, row, head) * size;
          for (int d = 0; d < m->args.v && !nothing; d++)
            dw__from_float(s->dtype, dw__random_normal(&t->seed), at + (size_t)d * size);
        }
      }
    }
  for (int k = 0; k < m->args.state_kinds; k++) keeps(m->out[k]), keeps(m->lse[k]);
}

// In fp64 and base 2, from the rounded inputs.
static void merge_answer(merge *m) {
  const dw_merge_args *a = &m->args;
  for (int row = 0; row < a->rows; row++)
    for (int head = 0; head < a->heads; head++) {
      int64_t vector = (int64_t)row * a->heads + head;
      double *want = m->want + vector * a->v, max = -INFINITY, sum = 0;
      memset(want, 0, (size_t)a->v * sizeof *want);
      m->scale[vector] = 0;
      for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < a->state_kinds; k++)
          for (int part = 0; part < a->states[k].count; part++) {
            const dw_states *s = &a->states[k];
            float raw;
            memcpy(&raw, m->lse[k]->before + state_lse_at(m, k, part, row, head) * 4, 4);
            double lse = s->lse_base_e ? (double)raw / log(2) : (double)raw;
            if (isinf(raw)) continue;
            if (pass == 0) {
              max = fmax(max, lse);
              continue;
            }
            double weight = exp2(lse - max);
            size_t size = dw__dtype_size(s->dtype);
            sum += weight;
            for (int d = 0; d < a->v; d++) {
              double x =
                (double)dw__to_float(s->dtype, m->out[k]->before + (size_t)(state_at(m, k, part, row, head) + d) * size);
              want[d] += weight * x;
              m->scale[vector] = fmax(m->scale[vector], fabs(x));
            }
          }
      for (int d = 0; d < a->v; d++) want[d] = sum > 0 ? want[d] / sum : 0;
      m->want_lse[vector] = sum > 0 ? (max + log2(sum)) * (a->lse_base_e ? log(2) : 1) : -INFINITY;
    }
}

static void merge_fill(trial *t) {
  merge *m = t->state;
  poison(m->to);
  poison(m->to_lse);
  merge_inputs(t, m);
  merge_answer(m);
}

// One unit in the last place of the type, and what fp32 loses on the way. Bytes between vectors stay.
static void judge_vector(trial *t, const merge *m, unsigned char *found, int row, int head) {
  static const double ulp[] = {1. / 256, 1. / 2048, 1. / (1 << 23)};
  const dw_merge_args *a = &m->args;
  int64_t vector = (int64_t)row * a->heads + head;
  size_t size = dw__dtype_size(a->dtype);
  for (int d = 0; d < a->v; d++) {
    unsigned char *at = found + (size_t)(out_at(m, row, head) + d) * size;
    double is = (double)dw__to_float(a->dtype, at), want = m->want[vector * a->v + d];
    double allowed = isinf(m->want_lse[vector]) ? 0 : ulp[a->dtype] * fabs(want) + 2e-5 * m->scale[vector] + 1e-7;
    if (!(fabs(is - want) <= allowed))
      dw__stage_fail(t->stage, "out", "row %d head %d element %d: found %g, wanted %g", row, head, d, is, want);
    memcpy(at, m->to->before + (size_t)(out_at(m, row, head) + d) * size, size);
  }
}

static void judge_lse(trial *t, const merge *m, unsigned char *found, int row, int head) {
  float is;
  unsigned char *at = found + lse_at(m, row, head) * 4;
  double want = m->want_lse[(int64_t)row * m->args.heads + head];
  memcpy(&is, at, 4);
  bool right = isinf(want) ? isinf(is) && is < 0 : fabs((double)is - want) <= 1e-5 + 1e-6 * fabs(want);
  if (!right) dw__stage_fail(t->stage, "lse", "row %d head %d: found %g, wanted %g", row, head, (double)is, want);
  memcpy(at, m->to_lse->before + lse_at(m, row, head) * 4, 4);
}

static void merge_judge(trial *t) {
  merge *m = t->state;
  unsigned char *out = malloc(m->to->bytes + 1), *lse = malloc(m->to_lse->bytes + 1);
  if (!out || !lse) abort();
  dw__stage_fetch(t->stage, m->to, out);
  dw__stage_fetch(t->stage, m->to_lse, lse);
  for (int row = 0; row < m->args.rows && !dw__stage_status(t->stage); row++)
    for (int head = 0; head < m->args.heads; head++) {
      judge_vector(t, m, out, row, head);
      judge_lse(t, m, lse, row, head);
    }
  if (memcmp(out, m->to->before, m->to->bytes) != 0 || memcmp(lse, m->to_lse->before, m->to_lse->bytes) != 0)
    dw__stage_fail(t->stage, "memory", "a write between the vectors of the result");
  free(out);
  free(lse);
}

static dw_status merge_launch(const dw_companions *companions, void *user, void *stream, dw_error *error) {
  return dw_merge_states(companions, &((merge *)user)->args, stream, error);
}

// Two passes of one attention, a prefix of 4,096 tokens and a tree of 16, with a log-sum-exp in base 2 and one in base e: the
// merged result is that of one pass.
enum { A14_HEADS = 16, A14_NODES = 16, A14_PREFIX = 4096, A14_QK = 32, A14_V = 24 };

static void a14_make(trial *t) {
  merge *m = t->state;
  m->args = (dw_merge_args){.state_kinds = 2, .rows = A14_NODES, .heads = A14_HEADS, .v = A14_V, .dtype = DW_F32};
  m->args.lse_base_e = t->variant / 4 % 2;
  for (int k = 0; k < 2; k++) m->args.states[k] = (dw_states){.count = 1, .dtype = DW_F32, .lse_base_e = t->variant >> k & 1};
  merge_arrays(t, m, false);
}

// Attention of one query over tokens [from, to) in fp64; keys' first A14_V elements are V. visible: by tree node, or NULL.
static double attend(const double *q, const double *kv, int from, int to, const bool *visible, double *out) {
  double scores[A14_PREFIX + A14_NODES], max = -INFINITY, sum = 0;
  for (int d = 0; d < A14_V; d++) out[d] = 0;
  for (int i = from; i < to; i++) {
    scores[i] = -INFINITY;
    if (i >= A14_PREFIX && !visible[i - A14_PREFIX]) continue;
    scores[i] = 0;
    for (int d = 0; d < A14_QK; d++) scores[i] += q[d] * kv[i * A14_QK + d] / 4;
    max = fmax(max, scores[i]);
  }
  for (int i = from; i < to; i++) {
    double weight = exp(scores[i] - max);
    sum += weight;
    for (int d = 0; d < A14_V && weight > 0; d++) out[d] += weight * kv[i * A14_QK + d];
  }
  for (int d = 0; d < A14_V; d++) out[d] /= sum;
  return max + log(sum);
}

static void a14_state(merge *m, int k, int row, int head, double lse, const double *out) {
  float rounded = (float)(m->args.states[k].lse_base_e ? lse : lse / log(2));
  memcpy(m->lse[k]->before + state_lse_at(m, k, 0, row, head) * 4, &rounded, 4);
  for (int d = 0; d < A14_V; d++)
    dw__from_float(DW_F32, out[d], m->out[k]->before + (size_t)(state_at(m, k, 0, row, head) + d) * 4);
}

static void a14_fill(trial *t) {
  merge *m = t->state;
  enum { TOKENS = A14_PREFIX + A14_NODES };
  double *kv = malloc(TOKENS * A14_QK * sizeof *kv), q[A14_QK], out[A14_V];
  int parents[A14_NODES];
  if (!kv) abort();
  for (int i = 0; i < TOKENS * A14_QK; i++) kv[i] = dw__random_normal(&t->seed);
  dw__tree_random(&t->seed, A14_NODES, parents);
  poison(m->to);
  poison(m->to_lse);
  for (int row = 0; row < A14_NODES; row++) {
    bool visible[A14_NODES] = {0};
    for (int at = row; at >= 0; at = parents[at]) visible[at] = true;
    for (int head = 0; head < A14_HEADS; head++) {
      int64_t vector = (int64_t)row * A14_HEADS + head;
      for (int d = 0; d < A14_QK; d++) q[d] = dw__random_normal(&t->seed);
      a14_state(m, 0, row, head, attend(q, kv, 0, A14_PREFIX, visible, out), out);
      a14_state(m, 1, row, head, attend(q, kv, A14_PREFIX, TOKENS, visible, out), out);
      double lse = attend(q, kv, 0, TOKENS, visible, m->want + vector * A14_V);
      m->want_lse[vector] = m->args.lse_base_e ? lse : lse / log(2);
      m->scale[vector] = 1;
    }
  }
  for (int k = 0; k < 2; k++) keeps(m->out[k]), keeps(m->lse[k]);
  free(kv);
}

// ---- trees ----------------------------------------------------------------------------------------------------

typedef struct tree {
  int batch, width, first[17];
  bool ragged;
  dw__array *indptr, *parents, *kv_len, *depths, *positions, *mask;
  dw__array *draft, *target, *root, *accept, *count, *bonus;
  dw_expand_args expand;
  dw_accept_args args;
  compact moved;  // of check "step"
} tree;

static void tree_rows(trial *t, tree *r) {
  r->batch = between(t, 1, 5);
  r->ragged = t->variant % 2;
  r->parents = make_ints(t, (size_t)(r->batch * r->width));
  r->indptr = r->ragged ? make_ints(t, (size_t)r->batch + 1) : NULL;
}

static void tree_fill_rows(trial *t, tree *r) {
  far_away(r->parents);
  for (int b = 0; b <= r->batch; b++) {
    int rows = b == 0 ? 0 : r->ragged ? below(t, r->width + 1) : r->width;
    r->first[b] = b ? r->first[b - 1] + rows : 0;
    if (r->ragged) ints(r->indptr)[b] = r->first[b];
  }
  if (r->ragged) keeps(r->indptr);
}
static int tree_nodes(const tree *r, int b) { return r->first[b + 1] - r->first[b]; }
static int32_t *tree_parents(const tree *r, int b) { return ints(r->parents) + r->first[b]; }

// Random, with dead nodes; wrong: also with parents that are none.
static void random_tree(trial *t, int32_t *parents, int nodes, bool dead, bool wrong) {
  dw__tree_random(&t->seed, nodes, parents);
  for (int i = 0; i < nodes; i++) {
    int bad[] = {i, i + 1, -3, FAR_AWAY, INT32_MIN};
    if (dead && one_in(t, 8)) parents[i] = -2;
    if (wrong && one_in(t, 6)) parents[i] = bad[below(t, 5)];
  }
  // Of a tree that is to be right, the children of the dead are dead.
  for (int i = 0; i < nodes && !wrong; i++)
    if (parents[i] >= 0 && parents[parents[i]] == -2) parents[i] = -2;
}

// The ancestors of a node, itself first; 0 where it or one of them is dead or no node.
static int ancestors(const int32_t *parents, int node, int *list) {
  int n = 0;
  for (;;) {
    list[n++] = node;
    int parent = parents[node];
    if (parent == -1) return n;
    if (parent < 0 || parent >= node) return 0;
    node = parent;
  }
}

static void expand_make(trial *t) {
  static const int widths[] = {9, 16, 33, 64, 1, 130, 1025};
  tree *r = t->state;
  r->width = widths[t->variant % 7];
  tree_rows(t, r);
  size_t rows = (size_t)(r->batch * r->width), words = (size_t)(r->width + 31) / 32 + (t->variant % 3 == 1);
  r->kv_len = make_ints(t, (size_t)r->batch);
  if (t->variant % 4 != 1) r->depths = written(make_ints(t, rows), DW__EXPAND);
  if (t->variant % 4 != 2) r->positions = written(make_ints(t, rows * (t->variant % 3 == 2 ? 2 : 1)), DW__EXPAND);
  if (t->variant % 4 != 3) r->mask = written(make_ints(t, rows * words), DW__EXPAND);
  r->expand = (dw_expand_args){.size = sizeof r->expand,
                               .parents = device(r->parents),
                               .qo_indptr = device(r->indptr),
                               .batch = r->batch,
                               .width = r->width,
                               .kv_len = device(r->kv_len),
                               .lengths_include_drafts = t->variant / 2 % 2,
                               .depths = device(r->depths),
                               .positions = device(r->positions),
                               .positions64 = t->variant % 3 == 2,
                               .mask = device(r->mask),
                               .mask_row_stride = t->variant % 3 == 1 ? (int64_t)words : 0};
}

static void expand_node(const tree *r, int b, int node, int prefix) {
  int list[1100], n = ancestors(tree_parents(r, b), node, list), row = r->first[b] + node, words = (r->width + 31) / 32;
  if (r->depths) ints_after(r->depths)[row] = n - 1;
  if (r->positions && r->expand.positions64) ((int64_t *)r->positions->after)[row] = prefix + (n ? n - 1 : 0);
  else if (r->positions) ints_after(r->positions)[row] = prefix + (n ? n - 1 : 0);
  if (!r->mask) return;
  uint32_t *bits = (uint32_t *)r->mask->after + row * dw__or_else(r->expand.mask_row_stride, words);
  memset(bits, 0, (size_t)words * 4);
  for (int i = 0; i < n; i++) bits[list[i] / 32] |= 1u << (list[i] % 32);
}

static void expand_answer(trial *t, tree *r) {
  dw__array *outputs[] = {r->depths, r->positions, r->mask};
  for (int i = 0; i < 3; i++)
    if (outputs[i]) poison(outputs[i]);
  for (int b = 0; b < r->batch; b++) {
    int prefix = below(t, 100000), rows = tree_nodes(r, b);
    ints(r->kv_len)[b] = prefix + (r->expand.lengths_include_drafts ? rows : 0);
    for (int i = 0; i < rows; i++) expand_node(r, b, i, prefix);
  }
  keeps(r->kv_len);
  keeps(r->parents);
}

static void expand_fill(trial *t) {
  tree *r = t->state;
  tree_fill_rows(t, r);
  for (int b = 0; b < r->batch; b++) {
    random_tree(t, tree_parents(r, b), tree_nodes(r, b), t->variant % 2, t->variant % 5 == 4);
    if (t->variant % 7 == 6 && b == 0)  // a chain as long as can be
      for (int i = 0; i < tree_nodes(r, b); i++) tree_parents(r, b)[i] = i - 1;
  }
  expand_answer(t, r);
}

static dw_status expand_launch(const dw_companions *companions, void *user, void *stream, dw_error *error) {
  return dw_tree_expand(companions, &((tree *)user)->expand, stream, error);
}

// Positions are depths: [-1, 0, 0, 1, 2, 2] behind L tokens is at L + [0, 1, 1, 2, 2, 2].
static void d08_make(trial *t) {
  tree *r = t->state;
  r->width = 6;
  r->batch = 2;
  r->parents = make_ints(t, 12);
  r->kv_len = make_ints(t, 2);
  r->positions = written(make_ints(t, 12), DW__EXPAND);
  r->expand = (dw_expand_args){.size = sizeof r->expand,
                               .parents = device(r->parents),
                               .batch = 2,
                               .width = 6,
                               .kv_len = device(r->kv_len),
                               .positions = device(r->positions)};
}

static void d08_fill(trial *t) {
  static const int parents[] = {-1, 0, 0, 1, 2, 2}, depths[] = {0, 1, 1, 2, 2, 2};
  tree *r = t->state;
  poison(r->positions);
  for (int b = 0; b < 2; b++) {
    ints(r->kv_len)[b] = below(t, 100000);
    for (int i = 0; i < 6; i++) {
      ints(r->parents)[6 * b + i] = parents[i];
      ints_after(r->positions)[6 * b + i] = ints(r->kv_len)[b] + depths[i];
    }
  }
  keeps(r->kv_len);
  keeps(r->parents);
}

// ---- dw_tree_accept -------------------------------------------------------------------------------------------

static void accept_arrays(trial *t, tree *r, int columns, bool roots) {
  size_t rows = (size_t)(r->batch * r->width), word = t->variant % 2 ? 2 : 1, batch = (size_t)r->batch;
  r->draft = make_ints(t, rows * word);
  r->target = make_ints(t, rows * word);
  r->root = roots ? make_ints(t, batch * word) : NULL;
  r->bonus = written(make_ints(t, batch * word), DW__ACCEPT);
  r->count = written(make_ints(t, batch), DW__ACCEPT);
  r->args = (dw_accept_args){.size = sizeof r->args,
                             .parents = device(r->parents),
                             .draft_tokens = device(r->draft),
                             .target_tokens = device(r->target),
                             .root_tokens = device(r->root),
                             .tokens64 = word == 2,
                             .qo_indptr = device(r->indptr),
                             .batch = r->batch,
                             .width = r->width,
                             .accept_columns = columns,
                             .accept_stride = columns + t->variant % 2,
                             .accept_count = device(r->count),
                             .bonus_tokens = device(r->bonus)};
  r->accept = written(make_ints(t, batch * (size_t)r->args.accept_stride), DW__ACCEPT);
  r->args.accept_index = device(r->accept);
}

static void put_token(const tree *r, unsigned char *tokens, int at, int64_t token) {
  if (r->args.tokens64) ((int64_t *)tokens)[at] = token;
  else ((int32_t *)tokens)[at] = (int32_t)token;
}
static int64_t token_at(const tree *r, const dw__array *tokens, int at) {
  return r->args.tokens64 ? ((const int64_t *)tokens->before)[at] : ints(tokens)[at];
}

// Few different tokens, so that much is accepted and siblings often have the same; in 64 bits their low words are equal.
static int64_t random_token(trial *t, const tree *r, int vocabulary) {
  int64_t token = below(t, vocabulary);
  return r->args.tokens64 ? token << 32 | 5 : token;
}

// The nodes of the path down to `node`, root last, if the target model agrees with all of it; else 0.
static int agreed_path(const tree *r, int b, int node, int first_root, int *list) {
  int n = ancestors(tree_parents(r, b), node, list), at = r->first[b];
  for (int i = 0; i + 1 < n; i++)
    if (token_at(r, r->draft, at + list[i]) != token_at(r, r->target, at + list[i + 1])) return 0;
  if (!n) return 0;
  bool root = r->root ? token_at(r, r->draft, at + list[n - 1]) == token_at(r, r->root, b) : list[n - 1] == first_root;
  return root ? n : 0;
}

static void accept_request(const tree *r, int b) {
  int list[1100], best[1100], n = 0, first_root = -1, columns = r->args.accept_columns;
  for (int i = tree_nodes(r, b); i-- > 0;)
    if (tree_parents(r, b)[i] == -1) first_root = i;
  for (int i = 0; i < tree_nodes(r, b); i++) {
    int length = agreed_path(r, b, i, first_root, list);
    if (length > n) memcpy(best, list, sizeof best), n = length;
  }
  int kept = n < columns ? n : columns;
  int32_t *row = ints_after(r->accept) + b * r->args.accept_stride;
  for (int k = 0; k < columns; k++) row[k] = k < kept ? best[n - 1 - k] : -1;
  ints_after(r->count)[b] = kept;
  int64_t none = r->root ? token_at(r, r->root, b) : -1;
  put_token(r, r->bonus->after, b, kept ? token_at(r, r->target, r->first[b] + best[n - kept]) : none);
}

static void accept_fill_tokens(trial *t, tree *r) {
  int vocabulary = between(t, 1, 3);
  far_away(r->draft);
  far_away(r->target);
  for (int i = 0; i < r->first[r->batch]; i++) {
    put_token(r, r->draft->before, i, random_token(t, r, vocabulary));
    put_token(r, r->target->before, i, random_token(t, r, vocabulary));
  }
  for (int b = 0; r->root && b < r->batch; b++) put_token(r, r->root->before, b, random_token(t, r, vocabulary));
  keeps(r->draft);
  keeps(r->target);
  if (r->root) keeps(r->root);
  keeps(r->parents);
  poison(r->accept);
  poison(r->count);
  poison(r->bonus);
  for (int b = 0; b < r->batch; b++) accept_request(r, b);
}

static void accept_make(trial *t) {
  static const int widths[] = {9, 16, 33, 64, 1, 130, 1025};
  tree *r = t->state;
  r->width = widths[t->variant % 7];
  tree_rows(t, r);
  accept_arrays(t, r, t->variant % 3 ? r->width : between(t, 1, 4), t->variant % 4 > 1);
}

static void accept_fill(trial *t) {
  tree *r = t->state;
  tree_fill_rows(t, r);
  for (int b = 0; b < r->batch; b++) {
    random_tree(t, tree_parents(r, b), tree_nodes(r, b), t->variant % 2, t->variant % 5 == 4);
    if (t->variant % 7 == 6 && b == 0)
      for (int i = 0; i < tree_nodes(r, b); i++) tree_parents(r, b)[i] = i - 1;
  }
  accept_fill_tokens(t, r);
}

static dw_status accept_launch(const dw_companions *companions, void *user, void *stream, dw_error *error) {
  return dw_tree_accept(companions, &((tree *)user)->args, stream, error);
}

// ---- acceptance, then compaction, with nothing in between -----------------------------------------------------

static void step_make(trial *t) {
  static const int rows[] = {1152};
  tree *r = t->state;
  compact *c = &r->moved;
  int page = t->variant % 2 ? 64 : 1;
  r->width = t->variant % 3 ? 9 : 40;
  tree_rows(t, r);
  accept_arrays(t, r, 6, false);
  c->args = (dw_compact_args){.batch = r->batch,
                              .width = r->width,
                              .accept_columns = 6,
                              .addressing = page == 1 ? DW_CSR : DW_BLOCK_TABLE,
                              .lengths_include_drafts = 1,
                              .next_drafts = r->width};
  c->ragged = r->ragged;
  c->tokens_most = r->width + 150;
  pool_make(t, &c->pool, page, c->args.batch * (c->tokens_most / page + 2), 2, rows, 1, false);
  compact_arrays(t, c);
  c->args.accept_index = r->args.accept_index;
  c->args.accept_stride = r->args.accept_stride;
}

static void step_fill(trial *t) {
  tree *r = t->state;
  compact *c = &r->moved;
  accept_fill(t);
  compact_begin(t, c);
  for (int b = 0; b < r->batch; b++) c->rows[b] = tree_nodes(r, b), c->prefix[b] = between(t, 1, 140);
  compact_tables(t, c);
  // The answer is made from the list that acceptance has to give.
  dw__array *unused = c->accept;
  dw__array given = {.before = r->accept->after};
  c->accept = &given;
  dw__array *inputs[] = {c->kv_len, c->indptr, c->kv_indptr, c->indices, c->table};
  for (size_t i = 0; i < DW__COUNT(inputs); i++)
    if (inputs[i]) keeps(inputs[i]);
  poison(c->new_len);
  poison(c->count);
  compact_answer(c);
  c->accept = unused;
  keeps(unused);
}

static dw_status step_launch(const dw_companions *companions, void *user, void *stream, dw_error *error) {
  tree *r = user;
  dw_status status = dw_tree_accept(companions, &r->args, stream, error);
  return status ? status : dw_kv_compact(companions, &r->moved.args, stream, error);
}

// ---- all of them ----------------------------------------------------------------------------------------------

#define PARTS(name, type, make, fill, judge, drop, launch) \
  static const struct dw__check_parts name##_parts = {sizeof(type), make, fill, judge, drop, launch}
PARTS(a14, merge, a14_make, a14_fill, merge_judge, merge_drop, merge_launch);
PARTS(merge, merge, merge_make, merge_fill, merge_judge, merge_drop, merge_launch);
PARTS(d01, compact, d01_make, d01_fill, NULL, NULL, compact_launch);
PARTS(d02, compact, d02_make, d02_fill, NULL, NULL, compact_launch);
PARTS(e04, compact, e04_make, compact_fill, NULL, NULL, compact_launch);
PARTS(compact, compact, compact_make, compact_fill, NULL, NULL, compact_launch);
PARTS(huge, huge, huge_make, huge_fill, huge_judge, NULL, huge_launch);
PARTS(move, move, move_make, move_fill, NULL, move_drop, move_launch);
PARTS(e01, move, e01_make, e01_fill, NULL, move_drop, move_launch);
PARTS(d08, tree, d08_make, d08_fill, NULL, NULL, expand_launch);
PARTS(expand, tree, expand_make, expand_fill, NULL, NULL, expand_launch);
PARTS(accept, tree, accept_make, accept_fill, NULL, NULL, accept_launch);
PARTS(step, tree, step_make, step_fill, NULL, NULL, step_launch);

const dw__companion_check dw__companion_checks[] = {
  {"a14", "prefix and tree in two passes, merged by log-sum-exps in both bases", 8, false, &a14_parts},
  {"merge", "partial results of all types, strides and bases", 24, false, &merge_parts},
  {"d01", "accepted counts 0, 5 and 2 of three requests", 4, false, &d01_parts},
  {"d02", "an accepted path across a page, in place", 4, false, &d02_parts},
  {"e04", "pools with no V, with V, with scales", 12, false, &e04_parts},
  {"compact", "compaction with every addressing, page, length and list", 48, false, &compact_parts},
  {"large", "compaction and moves in a pool above 4 GiB", 1, true, &huge_parts},
  {"move", "moves of slots and pages: chains, cycles, swaps", 60, false, &move_parts},
  {"e01", "three interleaved requests, planned and moved", 4, false, &e01_parts},
  {"d08", "positions are depths", 1, false, &d08_parts},
  {"expand", "depths, positions and masks of random trees", 28, false, &expand_parts},
  {"accept", "acceptance in random trees", 28, false, &accept_parts},
  {"step", "acceptance, then compaction, with no host in between", 6, false, &step_parts},
};
const size_t dw__companion_check_count = DW__COUNT(dw__companion_checks);

static void run_step(trial *t, const struct dw__check_parts *parts) {
  if (!dw__stage_status(t->stage)) parts->fill(t);
  dw__stage_send(t->stage);
  dw__stage_run(t->stage, t->step, parts->launch, t->state);
  dw__stage_judge(t->stage);
  if (parts->judge && !dw__stage_status(t->stage)) parts->judge(t);
}

dw_status dw__companion_check_run(const dw__companion_check *check, int variant, uint64_t seed, dw__stage *stage,
                                  dw_error *error) {
  const struct dw__check_parts *parts = check->parts;
  trial t = {.stage = stage, .seed = seed, .variant = variant, .state = calloc(1, parts->state_bytes)};
  if (!t.state) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  parts->make(&t);
  for (; t.step < 3 && !dw__stage_status(stage); t.step++) run_step(&t, parts);
  if (parts->drop) parts->drop(&t);
  free(t.state);
  dw__stage_clear(stage);
  dw_error found = {0};
  dw_status status = dw__stage_take(stage, &found);
  if (status) {
    dw__fail(error, status, found.field, "", "", "%s variant %d seed %llu, run %d: %.400s", check->name, variant,
             (unsigned long long)seed, t.step, found.message);
    dw_error_clear(&found);
  }
  return status;
}
