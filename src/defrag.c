// A pool's tables -> the fewest moves that make each request's own pages one run.
//
// A run of n pages may start anywhere; started at s, it keeps the pages that are where they would be. So only starts that keep
// something are worth a look, and everything else is room: the runs that keep most are tried first, what is left over goes into
// the gaps, and a bounded search looks for something better.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { FREE = -1, STARTS_MAX = 64, SEARCH_BLOCKS = 2000, BUDGET = 20000000 };

#define TRY(expression)             \
  do {                              \
    dw_status tried = (expression); \
    if (tried) return tried;        \
  } while (0)

static dw_status no_memory(dw_error *error) { return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory"); }

// ---- the pool -------------------------------------------------------------------------------------------------

static int used_pages(const dw_pool *pool, int b) { return (int)(((int64_t)pool->tokens[b] + pool->page - 1) / pool->page); }
static int64_t row_start(const dw_pool *pool, int b) { return pool->indptr ? pool->indptr[b] : b * pool->table_stride; }
static int page_at(const dw_pool *pool, int b, int i) { return pool->table[row_start(pool, b) + i]; }
static bool is_pinned(const dw_pool *pool, int page) { return pool->pinned && pool->pinned[page]; }

static dw_status at_least(int64_t value, int64_t least, const char *field, const char *allowed, dw_error *error) {
  if (value >= least) return DW_OK;
  return dw__fail_int(error, DW_BAD_ARGUMENT, field, value, allowed, "%s of the pool", field);
}

static dw_status fail_row(dw_error *error, const char *array, int b, long long found, const char *allowed, const char *why) {
  char field[48];
  snprintf(field, sizeof field, "%s[%d]", array, b);
  return dw__fail_int(error, DW_BAD_ARGUMENT, field, found, allowed, "%s", why);
}

static dw_status fail_entry(dw_error *error, int b, int i, int page, const char *allowed, const char *why) {
  char field[48];
  snprintf(field, sizeof field, "table[%d][%d]", b, i);
  return dw__fail_int(error, DW_BAD_ARGUMENT, field, page, allowed, "%s", why);
}

// Sizes, and every page named is there.
static dw_status check_rows(const dw_pool *pool, dw_error *error) {
  char allowed[48];
  snprintf(allowed, sizeof allowed, "0 to %d", pool->pages - 1);
  for (int b = 0; b < pool->requests; b++) {
    if (pool->tokens[b] < 0) return fail_row(error, "tokens", b, pool->tokens[b], "0 or more", "tokens in use");
    int64_t room = pool->indptr ? (int64_t)pool->indptr[b + 1] - pool->indptr[b] : pool->table_stride;
    if (used_pages(pool, b) > room)
      return fail_row(error, "tokens", b, pool->tokens[b], "what the row of the table holds", "tokens in use");
    for (int i = 0; i < used_pages(pool, b); i++) {
      int page = page_at(pool, b, i);
      if (page < 0 || page >= pool->pages) return fail_entry(error, b, i, page, allowed, "a page of the pool");
    }
  }
  return DW_OK;
}

static dw_status read_pool(const dw_pool *given, dw_pool *pool, dw_error *error) {
  if (!given) return dw__no_argument(error, "pool");
  TRY(dw__read_sized("pool", given, pool, sizeof *pool, error));
  if (!pool->page) pool->page = 1;
  TRY(at_least(pool->pages, 0, "pages", "0 or more", error));
  TRY(at_least(pool->page, 1, "page", "1 or more", error));
  TRY(at_least(pool->requests, 0, "requests", "0 or more", error));
  TRY(at_least(pool->table_stride, 0, "table_stride", "0 or more", error));
  if (!pool->requests) return DW_OK;
  if (!pool->tokens) return dw__no_argument(error, "tokens");
  if (!pool->table) return dw__no_argument(error, "table");
  return check_rows(pool, error);
}

// Who has a page: the first request that names it, and as which entry.
typedef struct owner {
  int32_t request, entry;
  int32_t last;  // request that named it last
} owner;

static bool is_full(const dw_pool *pool, int b, int i) { return (int64_t)(i + 1) * pool->page <= pool->tokens[b]; }

// A request's own entry, or one that it may share.
static dw_status take_entry(const dw_pool *pool, owner *o, int b, int i, dw_error *error) {
  char allowed[96];
  int page = page_at(pool, b, i);
  if (o->request == FREE) {
    *o = (owner){b, i, b};
    return DW_OK;
  }
  if (o->last == b) return fail_entry(error, b, i, page, "each page once", "the request names it twice");
  o->last = b;
  snprintf(allowed, sizeof allowed, "a page of its own; this one is entry %d of request %d", o->entry, o->request);
  if (o->entry != i) return fail_entry(error, b, i, page, allowed, "a shared page is at the same place of each request");
  if (!is_full(pool, b, i) || !is_full(pool, o->request, i))
    return fail_entry(error, b, i, page, allowed, "a shared page is full: shared prefixes end at a page's border");
  return DW_OK;
}

static dw_status find_owners(const dw_pool *pool, owner *owners, dw_error *error) {
  for (int i = 0; i < pool->pages; i++) owners[i] = (owner){FREE, 0, FREE};
  for (int b = 0; b < pool->requests; b++)
    for (int i = 0; i < used_pages(pool, b); i++) {
      int page = page_at(pool, b, i);
      if (!is_pinned(pool, page)) TRY(take_entry(pool, &owners[page], b, i, error));
    }
  return DW_OK;
}

dw_status dw_pool_check(const dw_pool *given, dw_error *error) {
  dw_pool pool;
  TRY(read_pool(given, &pool, error));
  owner *owners = dw__alloc((size_t)pool.pages * sizeof *owners + 1);
  if (!owners) return no_memory(error);
  dw_status status = find_owners(&pool, owners, error);
  dw__release(owners);
  return status;
}

static bool all_runs(const dw_pool *pool) {
  for (int b = 0; b < pool->requests; b++)
    for (int i = 1; i < used_pages(pool, b); i++)
      if (page_at(pool, b, i) != page_at(pool, b, i - 1) + 1) return false;
  return true;
}

// ---- blocks: what a request owns ------------------------------------------------------------------------------

typedef struct start {
  int at, kept;  // pages that a run from `at` leaves where they are
} start;

typedef struct block {
  const int32_t *pages;  // in the order of the table
  int count;
  start *starts;  // most kept first
  int start_count;
  int at;  // where the run starts; FREE: not placed
} block;

typedef struct planner {
  const dw_pool *pool;
  int32_t *pages;  // of all blocks
  start *starts;
  block *blocks;
  int count;
  unsigned char *taken;  // by pinned pages and placed runs
  int *best, *order;     // by block: starts of the best plan; blocks by size, largest first
  int kept, best_kept;
  long long budget;
  bool cut_short;
} planner;

static int by_number(const void *a, const void *b) {
  int x = *(const int *)a, y = *(const int *)b;
  return x < y ? -1 : x > y;
}

static int by_kept(const void *a, const void *b) {
  const start *x = a, *y = b;
  return x->kept != y->kept ? (x->kept > y->kept ? -1 : 1) : by_number(&x->at, &y->at);
}

static bool is_free(const planner *p, int at, int count) {
  return at >= 0 && at + count <= p->pool->pages && !memchr(p->taken + at, 1, (size_t)count);
}

// The starts that keep something, from the pages themselves: page x at entry i speaks for start x - i.
static void find_starts(planner *p, block *b, int *room) {
  for (int i = 0; i < b->count; i++) room[i] = b->pages[i] - i;
  qsort(room, (size_t)b->count, sizeof *room, by_number);
  for (int i = 0, n; i < b->count; i += n) {
    for (n = 1; i + n < b->count && room[i + n] == room[i]; n++) continue;
    if (is_free(p, room[i], b->count)) b->starts[b->start_count++] = (start){room[i], n};
  }
  qsort(b->starts, (size_t)b->start_count, sizeof *b->starts, by_kept);
  if (b->start_count > STARTS_MAX) b->start_count = STARTS_MAX, p->cut_short = true;
}

static void make_blocks(planner *p, const owner *owners) {
  int32_t *next = p->pages;
  for (int b = 0; b < p->pool->requests; b++) {
    block *made = &p->blocks[p->count];
    *made = (block){.pages = next, .starts = p->starts + (next - p->pages), .at = FREE};
    for (int i = 0; i < used_pages(p->pool, b); i++) {
      int page = page_at(p->pool, b, i);
      if (!is_pinned(p->pool, page) && owners[page].request == b) *next++ = page;
    }
    made->count = (int)(next - made->pages);
    p->count += made->count > 0;
  }
}

static bool blocks_are_runs(const planner *p) {
  for (int b = 0; b < p->count; b++)
    for (int i = 1; i < p->blocks[b].count; i++)
      if (p->blocks[b].pages[i] != p->blocks[b].pages[0] + i) return false;
  return true;
}

static void place(planner *p, block *b, int at, int kept) {
  memset(p->taken + at, 1, (size_t)b->count);
  b->at = at;
  p->kept += kept;
}

static void lift(planner *p, block *b, int kept) {
  memset(p->taken + b->at, 0, (size_t)b->count);
  b->at = FREE;
  p->kept -= kept;
}

// ---- gaps -----------------------------------------------------------------------------------------------------

// The first page of the smallest gap that holds so many, or FREE.
static int smallest_gap(planner *p, int count) {
  int found = FREE, size = 0, pages = p->pool->pages;
  p->budget -= pages / 16;
  for (int i = 0; i < pages;) {
    const unsigned char *end = memchr(p->taken + i, 1, (size_t)(pages - i));
    int gap = end ? (int)(end - (p->taken + i)) : pages - i;
    if (gap >= count && (found == FREE || gap < size)) found = i, size = gap;
    i += gap;
    while (i < pages && p->taken[i]) i++;
  }
  return found;
}

static void lift_gap_blocks(planner *p, const unsigned char *in_gap, int until) {
  for (int k = 0; k < until; k++)
    if (in_gap[p->order[k]]) lift(p, &p->blocks[p->order[k]], 0);
}

// Every block that has no place, the largest first, into the smallest gap that holds it. With an order given by size that is all
// or nothing: a failure leaves them unplaced.
static bool fill_gaps(planner *p, unsigned char *in_gap) {
  memset(in_gap, 0, (size_t)p->count);
  for (int k = 0; k < p->count; k++) {
    block *b = &p->blocks[p->order[k]];
    if (b->at != FREE) continue;
    int at = smallest_gap(p, b->count);
    if (at == FREE) {
      lift_gap_blocks(p, in_gap, k);
      return false;
    }
    in_gap[p->order[k]] = 1;
    place(p, b, at, 0);
  }
  return true;
}

static void remember(planner *p) {
  for (int b = 0; b < p->count; b++) p->best[b] = p->blocks[b].at;
  p->best_kept = p->kept;
}

// ---- a plan, then a better one --------------------------------------------------------------------------------

typedef struct choice {
  int block;
  start start;
} choice;

static int by_choice(const void *a, const void *b) {
  const choice *x = a, *y = b;
  int order = by_kept(&x->start, &y->start);
  return order ? order : by_number(&x->block, &y->block);
}

// The starts that keep most, as far as they do not get in each other's way. Where the rest then does not fit, those that keep
// least give way.
static bool plan_greedily(planner *p, choice *choices, unsigned char *in_gap) {
  int n = 0, placed = 0;
  for (int b = 0; b < p->count; b++)
    for (int i = 0; i < p->blocks[b].start_count; i++) choices[n++] = (choice){b, p->blocks[b].starts[i]};
  qsort(choices, (size_t)n, sizeof *choices, by_choice);
  for (int i = 0; i < n; i++) {
    block *b = &p->blocks[choices[i].block];
    if (b->at != FREE || !is_free(p, choices[i].start.at, b->count)) continue;
    place(p, b, choices[i].start.at, choices[i].start.kept);
    choices[placed++] = choices[i];
  }
  for (int give_way = 1; !fill_gaps(p, in_gap); give_way *= 2) {  // doubled, so that a large pool is soon done
    if (!placed) return false;
    for (int i = 0; i < give_way && placed; i++)
      placed--, lift(p, &p->blocks[choices[placed].block], choices[placed].start.kept);
  }
  remember(p);
  lift_gap_blocks(p, in_gap, p->count);
  while (placed) placed--, lift(p, &p->blocks[choices[placed].block], choices[placed].start.kept);
  return true;
}

static int most_kept(const planner *p, int first) {
  int sum = 0;
  for (int k = first; k < p->count; k++) {
    const block *b = &p->blocks[p->order[k]];
    sum += b->start_count ? b->starts[0].kept : 0;
  }
  return sum;
}

// All of the rest into gaps, every way there is. A block at a gap's start stands for the block anywhere in it.
static bool fit_rest(planner *p, int k) {
  while (k < p->count && p->blocks[p->order[k]].at != FREE) k++;
  if (k == p->count) {
    remember(p);
    return true;
  }
  block *b = &p->blocks[p->order[k]];
  for (int i = 0; i + b->count <= p->pool->pages; i++) {
    if (i && !p->taken[i - 1]) continue;
    if (--p->budget < 0) return false;
    if (!is_free(p, i, b->count)) continue;
    place(p, b, i, 0);
    bool fits = fit_rest(p, k + 1);
    lift(p, b, 0);
    if (fits) return true;
  }
  return false;
}

static void search(planner *p, int k, int bound) {
  if (p->budget < 0 || p->kept + bound <= p->best_kept) return;
  if (k == p->count) {
    fit_rest(p, 0);
    return;
  }
  block *b = &p->blocks[p->order[k]];
  int rest = bound - (b->start_count ? b->starts[0].kept : 0);
  for (int i = 0; i < b->start_count; i++) {
    p->budget -= 1 + b->count / 64;
    if (!is_free(p, b->starts[i].at, b->count)) continue;
    int kept = b->starts[i].kept;
    place(p, b, b->starts[i].at, kept);
    search(p, k + 1, rest);
    lift(p, b, kept);
  }
  search(p, k + 1, rest);  // anywhere
}

// search() prunes where nothing better is left, so a leaf with no more than the best is never tried; one whose rest does not fit
// is no plan.
static void improve(planner *p) {
  int bound = most_kept(p, 0);
  if (p->best_kept == bound) {
    p->cut_short = false;  // nothing can keep more
    return;
  }
  if (p->count > SEARCH_BLOCKS) p->cut_short = true;
  else search(p, 0, bound);
  if (p->budget < 0) p->cut_short = true;
}

// ---- the result -----------------------------------------------------------------------------------------------

static dw_status write_moves(const planner *p, const owner *owners, dw_defrag *defrag, dw_error *error) {
  int pages = p->pool->pages, total = 0;
  for (int b = 0; b < p->count; b++) total += p->blocks[b].count;
  defrag->moves = dw__alloc((size_t)total * sizeof *defrag->moves + 1);
  defrag->new_place = dw__alloc((size_t)pages * sizeof *defrag->new_place + 1);
  if (!defrag->moves || !defrag->new_place) return no_memory(error);
  for (int i = 0; i < pages; i++) defrag->new_place[i] = is_pinned(p->pool, i) || owners[i].request != FREE ? i : FREE;
  for (int b = 0; b < p->count; b++)
    for (int i = 0; i < p->blocks[b].count; i++) {
      int from = p->blocks[b].pages[i], to = p->best[b] + i;
      defrag->new_place[from] = to;
      if (from != to) defrag->moves[defrag->count++] = (dw_move){from, to};
    }
  defrag->least = !p->cut_short;
  return dw_move_plan(defrag->moves, defrag->count, pages, &defrag->list, error);
}

// Room for all of it, of which pages is the number owned.
typedef struct room {
  owner *owners;
  choice *choices;
  unsigned char *in_gap;
  int *numbers;
} room;

static bool make_room(planner *p, room *r, int pages) {
  size_t blocks = (size_t)p->pool->requests, n = (size_t)pages;
  p->pages = dw__alloc(n * sizeof *p->pages + 1);
  p->starts = dw__alloc(n * sizeof *p->starts + 1);
  p->blocks = dw__alloc((blocks + 1) * sizeof *p->blocks);
  p->taken = dw__calloc((size_t)p->pool->pages + 1, 1);
  p->best = dw__alloc(blocks * sizeof *p->best + 1);
  p->order = dw__alloc(blocks * sizeof *p->order + 1);
  r->choices = dw__alloc((n + blocks) * sizeof *r->choices + 1);
  r->in_gap = dw__alloc(blocks + 1);
  r->numbers = dw__alloc(n * sizeof *r->numbers + 1);
  return p->pages && p->starts && p->blocks && p->taken && p->best && p->order && r->choices && r->in_gap && r->numbers;
}

static void free_room(planner *p, room *r) {
  void *all[] = {p->pages, p->starts, p->blocks, p->taken, p->best, p->order, r->owners, r->choices, r->in_gap, r->numbers};
  for (size_t i = 0; i < DW__COUNT(all); i++) dw__release(all[i]);
}

static void order_by_size(planner *p, choice *choices) {
  for (int b = 0; b < p->count; b++) choices[b] = (choice){b, {0, p->blocks[b].count}};
  qsort(choices, (size_t)p->count, sizeof *choices, by_choice);
  for (int k = 0; k < p->count; k++) p->order[k] = choices[k].block;
}

static dw_status plan(planner *p, room *r, dw_defrag *defrag, dw_error *error) {
  for (int i = 0; i < p->pool->pages; i++) p->taken[i] = is_pinned(p->pool, i);
  make_blocks(p, r->owners);
  if (blocks_are_runs(p)) return DW_OK;
  for (int b = 0; b < p->count; b++) find_starts(p, &p->blocks[b], r->numbers);
  order_by_size(p, r->choices);
  p->best_kept = FREE;
  plan_greedily(p, r->choices, r->in_gap);
  improve(p);
  if (p->best_kept == FREE)
    return dw__fail(error, DW_BAD_ARGUMENT, "pinned", "pages that leave no room",
                    "gaps that hold a run of each request's pages", "the largest run is of %d pages",
                    p->blocks[p->order[0]].count);
  return write_moves(p, r->owners, defrag, error);
}

dw_status dw_defrag_plan(const dw_pool *given, dw_defrag *defrag, dw_error *error) {
  dw_pool pool;
  if (!defrag) return dw__no_argument(error, "defrag");
  *defrag = (dw_defrag){.least = 1};
  TRY(read_pool(given, &pool, error));
  if (all_runs(&pool)) return DW_OK;
  room r = {.owners = dw__alloc((size_t)pool.pages * sizeof *r.owners + 1)};
  planner p = {.pool = &pool, .budget = BUDGET};
  dw_status status = r.owners ? find_owners(&pool, r.owners, error) : no_memory(error);
  int owned = 0;
  for (int i = 0; i < pool.pages && !status; i++) owned += r.owners[i].request != FREE;
  if (!status && !make_room(&p, &r, owned)) status = no_memory(error);
  if (!status) status = plan(&p, &r, defrag, error);
  free_room(&p, &r);
  if (status) dw_defrag_free(defrag);
  return status;
}

dw_status dw_defrag_apply(const dw_defrag *defrag, const dw_pool *given, int32_t *table, dw_error *error) {
  dw_pool pool;
  if (!defrag) return dw__no_argument(error, "defrag");
  TRY(read_pool(given, &pool, error));
  if (!defrag->count) return DW_OK;
  if (!table) return dw__no_argument(error, "table");
  for (int b = 0; b < pool.requests; b++)
    for (int i = 0; i < used_pages(&pool, b); i++) {
      int64_t at = row_start(&pool, b) + i;
      table[at] = defrag->new_place[pool.table[at]];
    }
  return DW_OK;
}

void dw_defrag_free(dw_defrag *defrag) {
  if (!defrag) return;
  dw__release(defrag->moves);
  dw__release(defrag->new_place);
  dw_move_list_free(&defrag->list);
  *defrag = (dw_defrag){.count = 0};
}
