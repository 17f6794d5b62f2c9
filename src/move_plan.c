// Moves -> the form that dw_kv_move takes. templates/kv_move.cuh says what the kernel needs: within a team every row is read before
// it is overwritten, if the moves of a chain stand in order and a cycle longer than a batch ends a segment.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../templates/companions.h"
#include "core.h"

enum {
  SEGMENT = 32,  // moves that make a warp worth its start; fewer where that leaves warps of the only team idle
  TEAMS_MAX = 65535,
};

// ---- lists that grow ------------------------------------------------------------------------------------------

typedef struct builder {
  dw__buf entries;   // int64: a move
  dw__buf segments;  // int32: where each ends
  int open;          // first entry of the segment that is being filled
  int segment;       // most entries of a segment of short chains
} builder;

static int entry_count(const builder *b) { return (int)(b->entries.size / sizeof(int64_t)); }
static int segment_count(const builder *b) { return (int)(b->segments.size / sizeof(int32_t)); }

static void put(builder *b, int32_t from, int32_t to) {
  int64_t entry = (int64_t)((uint64_t)(uint32_t)to << 32 | (uint32_t)from);
  dw__buf_append(&b->entries, &entry, sizeof entry);
}

static void end_segment(builder *b) {
  int32_t end = entry_count(b);
  if (end == b->open) return;
  dw__buf_append(&b->segments, &end, sizeof end);
  b->open = end;
}

static void end_team(builder *b) {
  int32_t end = entry_count(b);
  end_segment(b);
  while (!b->segments.failed && segment_count(b) % DW_C_SEGMENTS) dw__buf_append(&b->segments, &end, sizeof end);
}

// ---- chains ---------------------------------------------------------------------------------------------------

// By place: who moves in, and where its own row moves to; -1 nobody, nowhere; KNOWN as target: in a chain that was found.
enum { KNOWN = -2 };
typedef struct graph {
  int32_t *source, *target;
} graph;

// A chain is named by the place that its first move fills.
typedef struct chain {
  int32_t first;
  int length, cycle;
} chain;

static void find_chain(const graph *g, int32_t first, bool cycle, dw__buf *chains) {
  chain c = {first, 0, cycle};
  for (int32_t to = first; g->source[to] >= 0; to = g->source[to]) {
    g->target[to] = KNOWN;
    c.length++;
    if (g->source[to] == first) break;
  }
  dw__buf_append(chains, &c, sizeof c);
}

// Chains that start at a free place, then what is left: cycles.
static void find_chains(const graph *g, const dw_move *moves, int count, dw__buf *chains) {
  for (int i = 0; i < count; i++)
    if (g->source[moves[i].to] >= 0 && g->target[moves[i].to] == -1) find_chain(g, moves[i].to, false, chains);
  for (int i = 0; i < count; i++)
    if (g->target[moves[i].to] >= 0) find_chain(g, moves[i].to, true, chains);
}

static int by_length(const void *a, const void *b) {
  const chain *x = a, *y = b;
  if (x->length != y->length) return x->length < y->length ? 1 : -1;
  return (x->first > y->first) - (x->first < y->first);
}

// The next move of the chain at *to, which is then done with.
static void put_next(builder *b, const graph *g, int32_t *to) {
  int32_t from = g->source[*to];
  put(b, from, *to);
  g->source[*to] = -1;
  *to = from;
}

static void add_short(builder *b, const graph *g, int32_t first, int n) {
  if (entry_count(b) - b->open + n > b->segment) end_segment(b);
  for (int i = 0; i < n; i++) put_next(b, g, &first);
}

// Cut into segments of its own team, or of one that has room for all of them.
static void add_long(builder *b, const graph *g, int32_t first, int n) {
  int pieces = (n + b->segment - 1) / b->segment;
  if (pieces > DW_C_SEGMENTS) pieces = DW_C_SEGMENTS;
  end_segment(b);
  if (segment_count(b) % DW_C_SEGMENTS + pieces > DW_C_SEGMENTS) end_team(b);
  for (int k = 0; k < pieces; k++) {
    int end = (int)((int64_t)n * (k + 1) / pieces);
    for (int i = (int)((int64_t)n * k / pieces); i < end; i++) put_next(b, g, &first);
    end_segment(b);
  }
}

// The longest first: they take the longest, and the GPU starts teams in order.
static void add_all(builder *b, const graph *g, const chain *chains, size_t count) {
  for (const chain *c = chains; c < chains + count; c++) {
    if (c->length > (c->cycle ? DW_C_BATCH : b->segment)) add_long(b, g, c->first, c->length);
    else add_short(b, g, c->first, c->length);
  }
  end_team(b);
}

// ---- the list -------------------------------------------------------------------------------------------------

static dw_status fail_move(dw_error *error, int i, const char *end, int found, const char *allowed, const char *why) {
  char field[48];
  snprintf(field, sizeof field, "moves[%d].%s", i, end);
  return dw__fail_int(error, DW_BAD_ARGUMENT, field, found, allowed, "%s", why);
}

static dw_status take_moves(const dw_move *moves, int count, int places, graph *g, int *kept, dw_error *error) {
  char allowed[48];
  snprintf(allowed, sizeof allowed, "0 to %d", places - 1);
  *kept = 0;
  for (int i = 0; i < count; i++) {
    int32_t from = moves[i].from, to = moves[i].to;
    if (from < 0 || from >= places) return fail_move(error, i, "from", from, allowed, "a place of the pool");
    if (to < 0 || to >= places) return fail_move(error, i, "to", to, allowed, "a place of the pool");
    if (g->target[from] >= 0) return fail_move(error, i, "from", from, "another place", "a move before has this source");
    if (g->source[to] >= 0) return fail_move(error, i, "to", to, "another place", "a move before has this destination");
    g->target[from] = to;
    g->source[to] = from;
    *kept += from != to;
  }
  for (int i = 0; i < count; i++)
    if (moves[i].from == moves[i].to) g->target[moves[i].from] = g->source[moves[i].to] = -1;
  return DW_OK;
}

static dw_status no_memory(dw_error *error) { return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory"); }

static dw_status pack(const builder *b, int moves, dw_move_list *list, dw_error *error) {
  int teams = segment_count(b) / DW_C_SEGMENTS;
  if (teams > TEAMS_MAX) return dw__fail_int(error, DW_BAD_ARGUMENT, "count", moves, "fewer", "more teams than a grid has");
  size_t head = sizeof(dw_move_header) + ((size_t)teams * DW_C_SEGMENTS + 1) * sizeof(int32_t);
  size_t start = (head + 7) / 8 * 8;
  *list = (dw_move_list){.bytes = start + b->entries.size, .teams = teams, .moves = moves};
  list->data = dw__calloc(1, list->bytes);
  if (!list->data) return no_memory(error);
  dw_move_header header = {.teams = teams, .entries = entry_count(b)};
  memcpy(list->data, &header, sizeof header);
  memcpy((char *)list->data + sizeof header + sizeof(int32_t), b->segments.data, b->segments.size);
  memcpy((char *)list->data + start, b->entries.data, b->entries.size);
  return DW_OK;
}

static dw_status build(const dw_move *moves, int count, int kept, const graph *g, dw_move_list *list, dw_error *error) {
  int share = (kept / DW_C_SEGMENTS + DW_C_BATCH - 1) / DW_C_BATCH * DW_C_BATCH;
  builder b = {.segment = share < DW_C_BATCH ? DW_C_BATCH : share < SEGMENT ? share : SEGMENT};
  dw__buf chains = {0};
  find_chains(g, moves, count, &chains);
  size_t found = chains.failed ? 0 : chains.size / sizeof(chain);
  if (found) qsort(chains.data, found, sizeof(chain), by_length);
  add_all(&b, g, (const chain *)(const void *)chains.data, found);
  dw_status status = chains.failed || b.entries.failed || b.segments.failed ? no_memory(error) : pack(&b, kept, list, error);
  dw__buf_free(&chains);
  dw__buf_free(&b.entries);
  dw__buf_free(&b.segments);
  return status;
}

dw_status dw_move_plan(const dw_move *moves, int count, int places, dw_move_list *list, dw_error *error) {
  if (list) *list = (dw_move_list){.data = NULL};
  if (!list || (count && !moves)) return dw__no_argument(error, list ? "moves" : "list");
  if (count < 0) return dw__fail_int(error, DW_BAD_ARGUMENT, "count", count, "0 or more", "moves");
  if (places < 0) return dw__fail_int(error, DW_BAD_ARGUMENT, "places", places, "0 or more", "slots or pages of the pool");
  if (!count) return DW_OK;
  size_t bytes = (size_t)places * sizeof(int32_t);
  graph g = {dw__alloc(bytes + 1), dw__alloc(bytes + 1)};
  int kept = 0;
  dw_status status = g.source && g.target ? DW_OK : no_memory(error);
  if (!status) {
    memset(g.source, 0xFF, bytes);
    memset(g.target, 0xFF, bytes);
    status = take_moves(moves, count, places, &g, &kept, error);
  }
  if (!status && kept) status = build(moves, count, kept, &g, list, error);
  dw__release(g.source);
  dw__release(g.target);
  return status;
}

void dw_move_list_free(dw_move_list *list) {
  if (!list) return;
  dw__release(list->data);
  *list = (dw_move_list){.data = NULL};
}
