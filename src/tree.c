// Draft trees: parents -> depth and packed ancestor mask.
#include <stdio.h>
#include <string.h>

#include "problem.h"
#include "random.h"

// Half of the nodes hang on one of the last four, which gives deep branches; the rest anywhere, which gives wide ones.
void dw__tree_random(uint64_t *seed, int nodes, int *parents) {
  for (int i = 0; i < nodes; i++) {
    int reach = i < 4 || dw__random_below(seed, 2) ? i : 4;
    bool root = i == 0 || dw__random_below(seed, 32) == 0;
    parents[i] = root ? -1 : i - 1 - dw__random_below(seed, reach);
  }
}

static dw_status check_node(const int *parents, int node, dw_error *error) {
  char field[48], allowed[64];
  int parent = parents[node];
  snprintf(field, sizeof field, "parents[%d]", node);
  if (parent < -2 || parent >= node) {
    snprintf(allowed, sizeof allowed, "-2 (dead), -1 (root) or a node before %d", node);
    return dw__fail_int(error, DW_BAD_ARGUMENT, field, parent, allowed, "a parent comes before its children");
  }
  if (parent >= 0 && parents[parent] == -2)
    return dw__fail_int(error, DW_BAD_ARGUMENT, field, parent, "a node that is not dead", "a dead node has no children");
  return DW_OK;
}

// A node sees what its parent sees, and itself. Parents come first, so one pass is enough.
dw_status dw__tree_masks(const int *parents, int nodes, int words, int *depth, uint32_t *mask, dw_error *error) {
  if (words < (nodes + 31) / 32)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "words", words, "at least nodes / 32, rounded up", "the mask is too narrow");
  for (int i = 0; i < nodes; i++) {
    dw_status status = check_node(parents, i, error);
    if (status) return status;
    int parent = parents[i];
    if (depth) depth[i] = parent == -2 ? -1 : parent == -1 ? 0 : depth[parent] + 1;
    if (!mask) continue;
    uint32_t *row = mask + (size_t)i * (size_t)words;
    memset(row, 0, (size_t)words * sizeof *row);
    if (parent >= 0) memcpy(row, mask + (size_t)parent * (size_t)words, (size_t)words * sizeof *row);
    if (parent != -2) row[i / 32] |= 1u << (i % 32);
  }
  return DW_OK;
}
