// Draft trees on the host. Parents come first, so that every function is one pass over the nodes.
#include <stdio.h>
#include <string.h>

#include "../templates/companions.h"
#include "core.h"

enum { NODES_MAX = DW_C_ACCEPT_NODES, ROOT = -1, DEAD = -2 };

#define TRY(expression)             \
  do {                              \
    dw_status tried = (expression); \
    if (tried) return tried;        \
  } while (0)

static dw_status need(const void *pointer, const char *field, dw_error *error) {
  return pointer ? DW_OK : dw__no_argument(error, field);
}

static dw_status check_nodes(const void *array, const char *field, int nodes, dw_error *error) {
  if (nodes < 0 || nodes > NODES_MAX)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "nodes", nodes, "0 to 1025", "nodes of one tree");
  return nodes ? need(array, field, error) : DW_OK;
}

static dw_status check_columns(int columns, dw_error *error) {
  if (columns >= 1 && columns <= NODES_MAX) return DW_OK;
  return dw__fail_int(error, DW_BAD_ARGUMENT, "accept_columns", columns, "1 to 1025", "longest path that is kept");
}

static dw_status check_node(const int32_t *parents, int node, dw_error *error) {
  char field[48], allowed[64];
  int parent = parents[node];
  snprintf(field, sizeof field, "parents[%d]", node);
  if (parent < DEAD || parent >= node) {
    snprintf(allowed, sizeof allowed, "-2 (dead), -1 (root) or a node before %d", node);
    return dw__fail_int(error, DW_BAD_ARGUMENT, field, parent, allowed, "a parent comes before its children");
  }
  if (parent >= 0 && parents[parent] == DEAD)
    return dw__fail_int(error, DW_BAD_ARGUMENT, field, parent, "a node that is not dead", "a dead node has no children");
  return DW_OK;
}

dw_status dw_tree_check(const int32_t *parents, int nodes, dw_error *error) {
  TRY(check_nodes(parents, "parents", nodes, error));
  for (int i = 0; i < nodes; i++) TRY(check_node(parents, i, error));
  return DW_OK;
}

// ---- parents -> depths, positions, mask -----------------------------------------------------------------------

dw_status dw_tree_depths(const int32_t *parents, int nodes, int32_t *depths, dw_error *error) {
  TRY(dw_tree_check(parents, nodes, error));
  TRY(check_nodes(depths, "depths", nodes, error));
  for (int i = 0; i < nodes; i++) depths[i] = parents[i] == DEAD ? -1 : parents[i] == ROOT ? 0 : depths[parents[i]] + 1;
  return DW_OK;
}

dw_status dw_tree_positions(const int32_t *parents, int nodes, int32_t prefix, int32_t *positions, dw_error *error) {
  if (prefix < 0 || prefix > INT32_MAX - NODES_MAX)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "prefix", prefix, "0 to 2147482622", "committed tokens");
  TRY(check_nodes(positions, "positions", nodes, error));
  TRY(dw_tree_depths(parents, nodes, positions, error));
  for (int i = 0; i < nodes; i++) positions[i] = prefix + (positions[i] > 0 ? positions[i] : 0);
  return DW_OK;
}

dw_status dw_tree_mask(const int32_t *parents, int nodes, uint32_t *bits, int64_t row_stride, dw_error *error) {
  TRY(dw_tree_check(parents, nodes, error));
  TRY(check_nodes(bits, "bits", nodes, error));
  const int64_t least = (nodes + 31) / 32;
  if (!row_stride) row_stride = least;
  if (row_stride < least)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "row_stride", row_stride, "nodes / 32, rounded up, or more",
                        "a row has a bit a node");
  for (int i = 0; i < nodes; i++) {
    uint32_t *row = bits + i * row_stride;
    memset(row, 0, (size_t)row_stride * sizeof *row);
    if (parents[i] >= 0) memcpy(row, bits + parents[i] * row_stride, (size_t)row_stride * sizeof *row);
    if (parents[i] != DEAD) row[i / 32] |= 1u << (i % 32);
  }
  return DW_OK;
}

// ---- acceptance -----------------------------------------------------------------------------------------------

dw_status dw_tree_walk(const int32_t *parents, const int64_t *draft_tokens, const int64_t *target_tokens, int nodes,
                       const int64_t *root_token, int32_t *accept_index, int accept_columns, int *count, int64_t *bonus,
                       dw_error *error) {
  int matched[NODES_MAX];  // nodes on the matched path that ends here; 0: not matched
  int best = -1, first_root = -1, depth = 0;
  TRY(dw_tree_check(parents, nodes, error));
  TRY(check_nodes(draft_tokens, "draft_tokens", nodes, error));
  TRY(check_nodes(target_tokens, "target_tokens", nodes, error));
  TRY(need(accept_index, "accept_index", error));
  TRY(check_columns(accept_columns, error));
  for (int i = 0; i < nodes; i++) {
    int parent = parents[i];
    matched[i] = 0;
    if (parent == ROOT) {
      if (first_root < 0) first_root = i;
      matched[i] = root_token ? draft_tokens[i] == *root_token : i == first_root;
    } else if (parent >= 0 && matched[parent] && draft_tokens[i] == target_tokens[parent]) {
      matched[i] = matched[parent] + 1;
    }
    if (matched[i] > depth) depth = matched[i], best = i;
  }
  int kept = depth < accept_columns ? depth : accept_columns, last = best;
  for (int k = kept; k < accept_columns; k++) accept_index[k] = -1;
  for (int k = depth - 1, at = best; k >= 0; k--, at = parents[at]) {
    if (k < kept) accept_index[k] = at;
    if (k == kept - 1) last = at;
  }
  if (count) *count = kept;
  if (bonus) *bonus = kept ? target_tokens[last] : root_token ? *root_token : -1;
  return DW_OK;
}

static dw_status fail_entry(dw_error *error, int b, int k, int found, const char *allowed, const char *why) {
  char field[48];
  snprintf(field, sizeof field, "accept_index[%d][%d]", b, k);
  return dw__fail_int(error, DW_BAD_ARGUMENT, field, found, allowed, "%s", why);
}

static dw_status check_list(const int32_t *list, int b, int columns, int rows, dw_error *error) {
  char allowed[64];
  for (int k = 0, last = -1; k < columns; k++) {
    if (k && list[k - 1] == -1 && list[k] != -1) return fail_entry(error, b, k, list[k], "-1", "the list has ended before it");
    if (list[k] == -1) continue;
    snprintf(allowed, sizeof allowed, "-1 or %d to %d", last + 1, rows - 1);
    if (last + 1 >= rows) snprintf(allowed, sizeof allowed, "-1");
    if (list[k] <= last || list[k] >= rows)
      return fail_entry(error, b, k, list[k], allowed, "ids of accepted drafts strictly ascend");
    last = list[k];
  }
  return DW_OK;
}

dw_status dw_accept_check(const int32_t *accept_index, int batch, int accept_columns, int64_t accept_stride,
                          const int32_t *rows, int width, dw_error *error) {
  TRY(need(accept_index, "accept_index", error));
  TRY(check_columns(accept_columns, error));
  if (batch < 0) return dw__fail_int(error, DW_BAD_ARGUMENT, "batch", batch, "0 or more", "requests");
  if (!accept_stride) accept_stride = accept_columns;
  if (accept_stride < accept_columns)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "accept_stride", accept_stride, "accept_columns or more", "rows would overlap");
  for (int b = 0; b < batch; b++)
    TRY(check_list(accept_index + b * accept_stride, b, accept_columns, rows ? rows[b] : width, error));
  return DW_OK;
}

// ---- paths -> parents -----------------------------------------------------------------------------------------

enum { UNKNOWN = -3 };

static dw_status fail_path(dw_error *error, int path, int k, int found, const char *allowed, const char *why) {
  char field[48];
  snprintf(field, sizeof field, "paths[%d][%d]", path, k);
  return dw__fail_int(error, DW_BAD_ARGUMENT, field, found, allowed, "%s", why);
}

static dw_status take_path(const int32_t *path, int index, int columns, int nodes, int32_t *parents, dw_error *error) {
  char text[64];
  for (int k = 0, last = ROOT; k < columns && path[k] != -1; last = path[k], k++) {
    int node = path[k];
    snprintf(text, sizeof text, "-1 or %d to %d", last + 1, nodes - 1);
    if (node <= last || node >= nodes) return fail_path(error, index, k, node, text, "ids ascend along a path");
    if (parents[node] == UNKNOWN) parents[node] = last;
    snprintf(text, sizeof text, "after node %d, as on a path before", parents[node]);
    if (parents[node] != last) return fail_path(error, index, k, node, text, "the node would have two parents");
  }
  return DW_OK;
}

dw_status dw_tree_from_paths(const int32_t *paths, int count, int columns, int nodes, int32_t *parents, dw_error *error) {
  TRY(check_nodes(parents, "parents", nodes, error));
  if (count < 0) return dw__fail_int(error, DW_BAD_ARGUMENT, "count", count, "0 or more", "paths");
  if (columns < 0) return dw__fail_int(error, DW_BAD_ARGUMENT, "columns", columns, "0 or more", "nodes of a path");
  if (count && columns) TRY(need(paths, "paths", error));
  for (int i = 0; i < nodes; i++) parents[i] = UNKNOWN;
  for (int p = 0; p < count; p++) TRY(take_path(paths + (size_t)p * (size_t)columns, p, columns, nodes, parents, error));
  for (int i = 0; i < nodes; i++)
    if (parents[i] == UNKNOWN) parents[i] = DEAD;
  return DW_OK;
}

// last[p]: the node of path p before this one. All paths of a node come from one node.
static dw_status take_set(const uint64_t *set, int words, int node, int32_t *last, int32_t *parent, dw_error *error) {
  *parent = UNKNOWN;
  for (int p = 0; p < words * 64; p++) {
    if (!(set[p / 64] >> (p % 64) & 1)) continue;
    if (*parent == UNKNOWN) *parent = last[p];
    if (*parent != last[p]) {
      char field[48], found[64];
      snprintf(field, sizeof field, "sets[%d]", node);
      snprintf(found, sizeof found, "paths that come from nodes %d and %d", *parent, last[p]);
      return dw__fail(error, DW_BAD_ARGUMENT, field, found, "paths that share the node before", "path %d has another parent",
                      p);
    }
    last[p] = node;
  }
  if (*parent == UNKNOWN) *parent = DEAD;
  return DW_OK;
}

dw_status dw_tree_from_sets(const uint64_t *sets, int nodes, int words, int32_t *parents, dw_error *error) {
  TRY(check_nodes(sets, "sets", nodes, error));
  TRY(check_nodes(parents, "parents", nodes, error));
  if (words < 1 || words > NODES_MAX)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "words", words, "1 to 1025", "words of a set, a bit a path");
  int32_t *last = dw__alloc((size_t)words * 64 * sizeof *last);
  if (!last) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  for (int p = 0; p < words * 64; p++) last[p] = ROOT;
  dw_status status = DW_OK;
  for (int i = 0; i < nodes && !status; i++)
    status = take_set(sets + (size_t)i * (size_t)words, words, i, last, &parents[i], error);
  dw__release(last);
  return status;
}
