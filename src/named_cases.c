// See named_cases.h. Each case is launched twice, captured, and replayed over other contents of the same buffers and over the first
// ones again; what it asks for beyond that is in its line.
#include "named_cases.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "plan.h"
#include "random.h"
#include "rule.h"

// The contents of a case are dealt out from its lists: request b has entry b modulo their length. END ends a list.
#define END INT_MIN
#define LIST(...) ((const int[]){__VA_ARGS__, END})
#define NO_TOKENS (-1000)  // a padded request: no token, not even of its drafts. Lengths that include the drafts
#define ONE_TOKEN (-1001)

typedef struct named {
  const char *name, *shape;  // shape: of MLA, unless it begins with gqa:
  dw__gpu_spec spec;         // shape and longest are filled in
  const int *prefix;         // of the first contents
  const int *later;          // of the others; NULL: the first ones moved on by a request
  const int *rows;           // NULL: width each
  int split, declared;       // as in dw__gpu_check
  const char *variant;       // NULL: the rule table's
  int mode;                  // of the capture: dw__capture_mode + 1; 0: one after the other
  unsigned asks;
} named;

#define TABLE .addressing = DW_BLOCK_TABLE, .lengths_include_drafts = 1, .shuffle = 1
#define TABLE_PREFIX .addressing = DW_BLOCK_TABLE, .shuffle = 1
#define SLOTS .addressing = DW_CSR, .lengths_include_drafts = 1, .shuffle = 1, .scatter = 1
#define SLOTS_PREFIX .addressing = DW_CSR, .shuffle = 1, .scatter = 1
#define CHAIN .mask_kind = DW_MASK_NONE
#define PARENTS .mask_kind = DW_MASK_PARENTS, .tree = DW__TREE_RANDOM
#define BITS .mask_kind = DW_MASK_BITS, .tree = DW__TREE_RANDOM
#define QLEN .mask_kind = DW_MASK_BYTES_QLEN, .tree = DW__TREE_RANDOM
#define FULL .mask_kind = DW_MASK_BYTES_FULL, .tree = DW__TREE_RANDOM
#define BIAS .mask_kind = DW_MASK_BIAS_F32, .tree = DW__TREE_RANDOM
#define STAR .tree = DW__TREE_STAR

#define A19(t)                                                                                                        \
  {.name = "a19_parents_of_" #t, .shape = "h=8,t=" #t, .spec = {.batch = 2, TABLE, PARENTS}, .prefix = LIST(9, 700)}, \
    {.name = "a19_bits_of_" #t, .shape = "h=8,t=" #t, .spec = {.batch = 2, TABLE, BITS}, .prefix = LIST(9, 700)}, {   \
    .name = "a19_bytes_of_" #t, .shape = "h=8,t=" #t, .spec = {.batch = 2, TABLE, QLEN}, .prefix = LIST(9, 700)       \
  }
#define A21(t, mask_name, ...)                                                                                         \
  {                                                                                                                    \
    .name = "a21_siblings_of_" #t "_" mask_name, .shape = "h=4,t=" #t, .spec = {.batch = 4, TABLE, __VA_ARGS__, STAR}, \
    .prefix = LIST(0, 1, 63, 64)                                                                                       \
  }
#define A45(later_tokens)                                                                                     \
  {                                                                                                           \
    .name = "a45_512_then_" #later_tokens, .shape = "h=16,t=4,page=64", .spec = {.batch = 1, TABLE, PARENTS}, \
    .prefix = LIST(512), .later = LIST(later_tokens - 4), .declared = 131072                                  \
  }
#define CHECKED "checked"  // the rule table's, checked

static const named cases[] = {
  {.name = "a01_page_addresses",
   .shape = "h=16,t=8,page=480",
   .spec = {.batch = 1, TABLE, PARENTS, .pool_tokens = 480 * 8000},
   .prefix = LIST(4000)},
  {.name = "a01_page_addresses_in_parts",
   .shape = "h=16,t=8,page=480",
   .spec = {.batch = 3, TABLE, PARENTS, .kv_rope = 1, .pool_tokens = 480 * 9000},
   .prefix = LIST(4000, 23000, 0)},
  // 32,768 elements a page: pages past 65,536 lie beyond 2^31.
  {.name = "a02_interleaved_in_tokens",
   .shape = "gqa:h=32,hk=8,t=4,d=128,page=16",
   .spec = {.batch = 2, TABLE, PARENTS, .planes = DW__PLANES_IN_TOKEN, .pool_tokens = 16 * 90000},
   .prefix = LIST(4000, 23000)},
  {.name = "a02_interleaved_in_pages",
   .shape = "gqa:h=32,hk=8,t=4,d=128,page=16",
   .spec = {.batch = 2, TABLE, PARENTS, .planes = DW__PLANES_IN_PAGE, .pool_tokens = 16 * 90000},
   .prefix = LIST(4000, 23000)},
  {.name = "a03_gqa_slots_far_apart",
   .shape = "gqa:h=32,hk=8,t=4,d=64",
   .spec = {.batch = 3, SLOTS, CHAIN, .pool_tokens = 6300000},
   .prefix = LIST(1000, 23000, 5)},
  {.name = "a03_slots_far_apart",
   .shape = "h=16,t=4",
   .spec = {.batch = 3, SLOTS, CHAIN, .pool_tokens = 6300000},
   .prefix = LIST(1000, 23000, 5)},
  {.name = "a03_slots_far_apart_64",
   .shape = "h=16,t=4",
   .spec = {.batch = 3, SLOTS, CHAIN, .index64 = 1, .pool_tokens = 6300000},
   .prefix = LIST(1000, 23000, 5)},
  {.name = "a04_padded_request",
   .shape = "h=16,t=4",
   .spec = {.batch = 4, TABLE, CHAIN},
   .prefix = LIST(5700, 5700, 5700, NO_TOKENS)},
  {.name = "a04_padded_request_fixed",
   .shape = "h=16,t=4",
   .spec = {.batch = 4, TABLE, CHAIN},
   .prefix = LIST(5700, 5700, 5700, NO_TOKENS),
   .split = 1024,
   .asks = DW__ASK_OWN_RUNS},
  {.name = "a04_padded_request_unsplit",
   .shape = "h=16,t=4",
   .spec = {.batch = 4, TABLE, CHAIN},
   .prefix = LIST(5700, 5700, 5700, NO_TOKENS),
   .split = 8192,
   .asks = DW__ASK_OWN_RUNS},
#define A05(most)                                                                                              \
  {                                                                                                            \
    .name = "a05_declared_" #most, .shape = "h=8,t=4", .spec = {.batch = 8, TABLE, PARENTS},                   \
    .prefix = LIST(70, 3, 0, 3300, 16, NO_TOKENS, NO_TOKENS, NO_TOKENS), .later = LIST(1, 3000, NO_TOKENS, 9), \
    .declared = most                                                                                           \
  }
  A05(4096),
  A05(131072),
  A05(1048576),
  {.name = "a06_repeated_offsets",
   .shape = "h=8,t=3",
   .spec = {.batch = 112, SLOTS, PARENTS, .ragged = 1},
   .prefix = LIST(300, 0, 17, 65, 1000, 7, 16, 0),
   .rows = LIST(3, 1, 2, 3, 3, 1, 3, 0)},
  {.name = "a06_padded_to_112",
   .shape = "h=8,t=2,page=16",
   .spec = {.batch = 112, TABLE, CHAIN},
   .prefix = LIST(300, 5, ONE_TOKEN, 65, 1000, 7, 16, NO_TOKENS)},
  {.name = "a06_faults_in_offsets",
   .shape = "h=4,t=10,page=16",
   .spec = {.batch = 3, SLOTS, CHAIN, .ragged = 1},
   .prefix = LIST(70, 90, 20),
   .split = 64,
   .declared = 10000,
   .variant = CHECKED,
   .asks = DW__ASK_FAULTS},
  {.name = "a07_rows_that_see_nothing",
   .shape = "h=16,t=8",
   .spec = {.batch = 4, TABLE, BITS, .any_mask = 1},
   .prefix = LIST(0, 0, 100, 0)},
  {.name = "a07_window_that_shows_nothing",
   .shape = "h=16,t=8",
   .spec = {.batch = 4, TABLE, QLEN, .any_mask = 1, .window = 1, .positions = 1},
   .prefix = LIST(100, 0, 100, 3)},
#define A08(pages)                                                                                                           \
  {                                                                                                                          \
    .name = "a08_poison_around_pages_of_" #pages, .shape = "h=8,t=9,page=" #pages, .spec = {.batch = 3, TABLE_PREFIX, BITS}, \
    .prefix = LIST(pages - 1, pages, pages + 1), .asks = DW__ASK_LAST_HIDDEN                                                 \
  }
  A08(16),
  A08(64),
  {.name = "a08_gqa_poison_around_pages",
   .shape = "gqa:h=32,hk=8,t=9,d=128,page=16",
   .spec = {.batch = 3, TABLE_PREFIX, BITS},
   .prefix = LIST(15, 16, 17),
   .asks = DW__ASK_LAST_HIDDEN},
  {.name = "a09_window_misses_first_tiles",
   .shape = "h=16,t=8",
   .spec = {.batch = 3, TABLE, BITS, .window = 16, .positions = 1},
   .prefix = LIST(1000, 900, 17)},
#define A10(t)                                                                                      \
  {                                                                                                 \
    .name = "a10_64_ranges_" #t "_rows", .shape = "h=16,t=" #t, .spec = {.batch = 4, TABLE, CHAIN}, \
    .prefix = LIST(0, 1, 3, 17), .split = 16, .declared = 1024                                      \
  }
  A10(1),
  A10(8),
  {.name = "a11_lengths_1_to_5",
   .shape = "h=32,t=1",
   .spec = {.batch = 5, TABLE, CHAIN},
   .prefix = LIST(0, 1, 2, 3, 4),
   .declared = 1048576},
  {.name = "a11_gqa_lengths_1_to_5",
   .shape = "gqa:h=32,hk=8,t=1,d=128",
   .spec = {.batch = 5, TABLE, CHAIN},
   .prefix = LIST(0, 1, 2, 3, 4),
   .declared = 1048576},
  {.name = "a12_short_beside_long",
   .shape = "h=16,t=2",
   .spec = {.batch = 2, TABLE_PREFIX, CHAIN, .q_scale = 0.01f, .kv_scale = 100},
   .prefix = LIST(64, 65536),
   .split = 4096,
   .asks = DW__ASK_OWN_RUNS},
  {.name = "a12_short_beside_long_auto",
   .shape = "h=16,t=2",
   .spec = {.batch = 2, TABLE, CHAIN, .q_scale = 0.01f, .kv_scale = 100},
   .prefix = LIST(64, 65536)},
  {.name = "a13_batches_in_the_merge",
   .shape = "h=24,t=8",
   .spec = {.batch = 5, SLOTS, PARENTS, .ragged = 1},
   .prefix = LIST(1000, 370, 0, 5260, 16),
   .rows = LIST(8, 8, 3, 1, 5),
   .split = 704,
   .asks = DW__ASK_OWN_RUNS},
  {.name = "a13_gqa_batches_in_the_merge",
   .shape = "gqa:h=24,hk=4,t=8,d=256",
   .spec = {.batch = 5, SLOTS, PARENTS, .ragged = 1},
   .prefix = LIST(1000, 370, 0, 5260, 16),
   .rows = LIST(8, 8, 3, 1, 5),
   .split = 704,
   .asks = DW__ASK_OWN_RUNS},
  {.name = "a14_prefix_and_tree_base_2", .shape = "h=16,t=16", .spec = {.batch = 3, TABLE, PARENTS}, .prefix = LIST(4096, 0, 7)},
  {.name = "a14_prefix_and_tree_base_e",
   .shape = "h=16,t=16",
   .spec = {.batch = 3, TABLE, PARENTS, .lse_base_e = 1},
   .prefix = LIST(4096, 0, 7)},
  {.name = "a14_prefix_of_another_rank",
   .shape = "h=16,t=16",
   .spec = {.batch = 3, TABLE_PREFIX, PARENTS, .drafts_elsewhere = 1, .lse_base_e = 1},
   .prefix = LIST(4096, 0, 7)},
  {.name = "a15_offsets_of_bits",
   .shape = "h=16,t=11",
   .spec = {.batch = 3, SLOTS, BITS, .ragged = 1, .strided = 1},
   .prefix = LIST(56, 54, 16),
   .rows = LIST(7, 10, 3)},
  {.name = "a15_offsets_of_bytes",
   .shape = "h=16,t=11",
   .spec = {.batch = 3, SLOTS, FULL, .ragged = 1, .strided = 1},
   .prefix = LIST(56, 54, 16),
   .rows = LIST(7, 10, 3)},
  {.name = "a16_faults_in_mask_size",
   .shape = "h=4,t=10,page=16",
   .spec = {.batch = 3, TABLE, FULL},
   .prefix = LIST(33, 0, 10),
   .split = 64,
   .declared = 10000,
   .variant = CHECKED,
   .asks = DW__ASK_FAULTS},
  {.name = "a16_faults_in_bias",
   .shape = "h=4,t=10,page=16",
   .spec = {.batch = 3, TABLE_PREFIX, BIAS},
   .prefix = LIST(33, 5, 10),
   .split = 64,
   .declared = 10000,
   .variant = CHECKED,
   .asks = DW__ASK_FAULTS},
  {.name = "a17_tree", .shape = "h=8,t=16", .spec = {.batch = 1, TABLE, PARENTS}, .prefix = LIST(330), .declared = 1000},
  {.name = "a17_no_drafts_after_tree",
   .shape = "h=8,t=16",
   .spec = {.batch = 1, TABLE, CHAIN, .width = 1},
   .prefix = LIST(330),
   .declared = 1000},
  {.name = "a17_other_tree",
   .shape = "h=8,t=16",
   .spec = {.batch = 1, TABLE, PARENTS, .width = 5},
   .prefix = LIST(331),
   .declared = 1000},
#define A18(n)                                                                                                           \
  {.name = "a18_bits_of_96_for_" #n,                                                                                     \
   .shape = "h=4,t=96",                                                                                                  \
   .spec = {.batch = 3, TABLE, BITS, .width = n, .strided = 1},                                                          \
   .prefix = LIST(5, 0, 400)},                                                                                           \
  {                                                                                                                      \
    .name = "a18_bytes_of_96_for_" #n, .shape = "h=4,t=96", .spec = {.batch = 3, TABLE, QLEN, .width = n, .strided = 1}, \
    .prefix = LIST(5, 0, 400)                                                                                            \
  }
  A18(33),
  A18(31),
  A19(31),
  A19(32),
  A19(33),
  A19(63),
  A19(64),
  A19(65),
  A19(128),
  {.name = "a19_bits_of_1025", .shape = "h=1,t=1025", .spec = {.batch = 2, TABLE, BITS}, .prefix = LIST(30, 3)},
  {.name = "a19_gqa_bits_of_1025",
   .shape = "gqa:h=4,hk=2,t=1025,d=64",
   .spec = {.batch = 2, TABLE, BITS},
   .prefix = LIST(30, 3)},
  {.name = "a20_ragged_trees",
   .shape = "h=16,t=16",
   .spec = {.batch = 3, SLOTS, QLEN, .ragged = 1},
   .prefix = LIST(300, 0, 47),
   .rows = LIST(5, 9, 16)},
  {.name = "a20_trees_padded_with_dead_nodes",
   .shape = "h=16,t=16",
   .spec = {.batch = 3, TABLE, PARENTS, .dead_nodes = 1},
   .prefix = LIST(300, 0, 47)},
  A21(64, "parents", .mask_kind = DW_MASK_PARENTS),
  A21(64, "bits", .mask_kind = DW_MASK_BITS),
  A21(128, "parents", .mask_kind = DW_MASK_PARENTS),
  A21(128, "bits", .mask_kind = DW_MASK_BITS),
  {.name = "a22_a_tree_for_each_request",
   .shape = "h=8,t=16",
   .spec = {.batch = 4, TABLE_PREFIX, PARENTS},
   .prefix = LIST(0, 17, 4000, 65000),
   .split = 4096,
   .asks = DW__ASK_OWN_RUNS},
  {.name = "a22_a_matrix_for_each_request",
   .shape = "h=8,t=16",
   .spec = {.batch = 4, TABLE_PREFIX, QLEN, .any_mask = 1},
   .prefix = LIST(0, 17, 4000, 65000),
   .split = 4096,
   .asks = DW__ASK_OWN_RUNS},
  {.name = "a23_unequal_widths", .shape = "h=4,t=37,qk=192,v=128", .spec = {.batch = 12, TABLE, BITS}, .prefix = LIST(17)},
  {.name = "a23_gqa_unequal_widths",
   .shape = "gqa:h=4,hk=4,t=37,qk=192,v=128",
   .spec = {.batch = 12, TABLE, BITS},
   .prefix = LIST(17)},
  {.name = "a24_chain_without_a_mask",
   .shape = "h=16,t=8",
   .spec = {.batch = 3, TABLE, CHAIN},
   .prefix = LIST(2000, 0, 7),
   .asks = DW__ASK_LAST_HIDDEN},
  {.name = "a24_chain_as_parents",
   .shape = "h=16,t=8",
   .spec = {.batch = 3, TABLE, .mask_kind = DW_MASK_PARENTS, .tree = DW__TREE_CHAIN},
   .prefix = LIST(2000, 0, 7),
   .asks = DW__ASK_LAST_HIDDEN},
  {.name = "a25_window_and_tree",
   .shape = "h=64,t=16",
   .spec = {.batch = 2, TABLE, QLEN, .window = 128},
   .prefix = LIST(1000, 90)},
  {.name = "a25_small_window_and_tree",
   .shape = "h=64,t=16",
   .spec = {.batch = 2, TABLE, PARENTS, .window = 2, .positions = 1},
   .prefix = LIST(1000, 90)},
  {.name = "a25_gqa_window_and_tree",
   .shape = "gqa:h=64,hk=8,t=4,d=64",
   .spec = {.batch = 2, TABLE, PARENTS, .window = 128},
   .prefix = LIST(1000, 90)},
  {.name = "a25_gqa_window_and_star",
   .shape = "gqa:h=64,hk=8,t=16,d=64,page=16",
   .spec = {.batch = 2, SLOTS, .mask_kind = DW_MASK_BYTES_FULL, STAR, .window = 128},
   .prefix = LIST(1000, 90)},
  {.name = "a26_window_edge",
   .shape = "h=16,t=2",
   .spec = {.batch = 2, TABLE, CHAIN, .window = 4096},
   .prefix = LIST(4999, 4095)},
#define A27(t, n)                                                                                                       \
  {                                                                                                                     \
    .name = "a27_sinks_" #t "_rows_batch_" #n, .shape = "h=64,t=" #t, .spec = {.batch = n, TABLE, PARENTS, .sinks = 1}, \
    .prefix = LIST(400, 0, 2000, 7)                                                                                     \
  }
  A27(2, 1),
  A27(2, 4),
  A27(4, 1),
  A27(4, 4),
#define A27_GQA(t, n)                                                                      \
  {                                                                                        \
    .name = "a27_gqa_sinks_" #t "_rows_batch_" #n, .shape = "gqa:h=64,hk=8,t=" #t ",d=64", \
    .spec = {.batch = n, TABLE, PARENTS, .sinks = 1}, .prefix = LIST(400, 0, 2000, 7)      \
  }
  A27_GQA(2, 1),
  A27_GQA(2, 4),
  A27_GQA(4, 1),
  A27_GQA(4, 4),
#define HEADS(id, heads, t, n)                                                                             \
  {                                                                                                        \
    .name = id "_" #heads "_heads_" #t "_rows_batch_" #n, .shape = "h=" #heads ",t=" #t ",page=64",        \
    .spec = {.batch = n, TABLE, PARENTS}, .prefix = LIST(131072 - t, 1000, 23000, 5700, 91000, 0, 17, 300) \
  }
  HEADS("a28", 12, 1, 1),
  HEADS("a28", 12, 4, 3),
  HEADS("a28", 12, 8, 1),
  HEADS("a28", 12, 1, 64),
  HEADS("a28", 12, 8, 64),
  HEADS("a29", 4, 1, 1),
  HEADS("a29", 4, 4, 64),
  HEADS("a29", 8, 4, 3),
  HEADS("a29", 8, 1, 64),
#define A30(t)                                                                                   \
  {                                                                                              \
    .name = "a30_16_heads_a_group_" #t "_rows", .shape = "gqa:h=64,hk=4,t=" #t ",d=128,page=16", \
    .spec = {.batch = 3, TABLE, PARENTS}, .prefix = LIST(5700, 17, 131072)                       \
  }
  A30(1),
  A30(2),
  A30(8),
  {.name = "a03_slots_far_apart_e4m3",
   .shape = "h=16,t=4,kv=e4m3",
   .spec = {.batch = 3, SLOTS, CHAIN, .index64 = 1, .pool_tokens = 9000000, .stored_scale = 0.25f},
   .prefix = LIST(1000, 23000, 5)},
  {.name = "a11_lengths_1_to_5_e4m3",
   .shape = "h=32,t=1,kv=e4m3",
   .spec = {.batch = 5, TABLE, CHAIN},
   .prefix = LIST(0, 1, 2, 3, 4),
   .declared = 1048576},
  {.name = "a13_batches_in_the_merge_e4m3",
   .shape = "h=24,t=8,kv=e4m3",
   .spec = {.batch = 5, SLOTS, PARENTS, .ragged = 1, .stored_scale = 2},
   .prefix = LIST(1000, 370, 0, 5260, 16),
   .rows = LIST(8, 8, 3, 1, 5),
   .split = 720,
   .asks = DW__ASK_OWN_RUNS},
  {.name = "a23_unequal_widths_e4m3",
   .shape = "h=4,t=37,qk=192,v=128,kv=e4m3",
   .spec = {.batch = 12, TABLE, QLEN, .stored_scale = 0.5f},
   .prefix = LIST(17, 5, 300)},
  {.name = "a25_window_and_tree_e4m3",
   .shape = "h=64,t=4,kv=e4m3",
   .spec = {.batch = 2, TABLE, .mask_kind = DW_MASK_BITS, STAR, .window = 128},
   .prefix = LIST(1000, 90)},
  {.name = "a27_sinks_e4m3",
   .shape = "h=64,t=4,kv=e4m3",
   .spec = {.batch = 4, TABLE, PARENTS, .sinks = 1, .stored_scale = 0.01f},
   .prefix = LIST(400, 0, 2000, 7)},
#define FP8_HEADS(id, heads, t, n)                                                                                  \
  {                                                                                                                 \
    .name = id "_" #heads "_heads_" #t "_rows_batch_" #n "_e4m3", .shape = "h=" #heads ",t=" #t ",page=64,kv=e4m3", \
    .spec = {.batch = n, TABLE, PARENTS, .stored_scale = 0.25f},                                                    \
    .prefix = LIST(131072 - t, 1000, 23000, 5700, 91000, 0, 17, 300)                                                \
  }
  FP8_HEADS("a28", 12, 1, 64),
  FP8_HEADS("a28", 12, 8, 3),
  FP8_HEADS("a29", 4, 1, 1),
  FP8_HEADS("a29", 4, 4, 64),
  FP8_HEADS("a29", 8, 4, 3),
  FP8_HEADS("a29", 8, 9, 1),
#define A34(t, mask_name, mask)                                                          \
  {                                                                                      \
    .name = "a34_" #t "_rows_" mask_name, .shape = "h=16,t=" #t ",page=64,kv=e4m3",      \
    .spec = {.batch = 3, TABLE, mask, .stored_scale = 0.5f}, .prefix = LIST(5700, 33, 0) \
  }
  A34(1, "chain", CHAIN),
  A34(2, "tree", PARENTS),
  A34(3, "chain", CHAIN),
  A34(3, "tree", PARENTS),
  A34(4, "tree", PARENTS),
  A34(5, "chain", CHAIN),
  A34(5, "tree", PARENTS),
  A34(6, "tree", PARENTS),
  A34(7, "tree", PARENTS),
  A34(8, "chain", CHAIN),
  A34(9, "tree", PARENTS),
  {.name = "a38_scaled_prefix_of_another_rank",
   .shape = "h=16,t=16,kv=e4m3",
   .spec = {.batch = 3, TABLE_PREFIX, PARENTS, .drafts_elsewhere = 1, .lse_base_e = 1, .stored_scale = 0.5f},
   .prefix = LIST(4096, 0, 7)},
  {.name = "a39_saturated",
   .shape = "h=16,t=9,kv=e4m3",
   .spec = {.batch = 2, TABLE, PARENTS, .stored_scale = 0.002f},
   .prefix = LIST(5700, 17)},
  {.name = "a40_no_scale_in_a_capture",
   .shape = "h=16,t=4,kv=e4m3",
   .spec = {.batch = 2, TABLE, PARENTS},
   .prefix = LIST(5700, 17),
   .mode = DW__CAPTURE_GLOBAL + 1},
#define GQA_FP8(case_name, of, n, ...)                          \
  .name = case_name "_gqa_e4m3", .shape = "gqa:" of ",kv=e4m3", \
  .spec = {.batch = n, __VA_ARGS__, .stored_scale = 0.5f, .v_stored_scale = 2}
  {GQA_FP8("a02_interleaved_in_pages", "h=32,hk=8,t=4,d=128,page=16", 2, TABLE, PARENTS, .planes = DW__PLANES_IN_PAGE,
           .pool_tokens = 16 * 140000),
   .prefix = LIST(4000, 23000)},
  {GQA_FP8("a03_slots_far_apart", "h=32,hk=8,t=4,d=64", 3, SLOTS, CHAIN, .pool_tokens = 9000000),
   .prefix = LIST(1000, 23000, 5)},
  {GQA_FP8("a11_lengths_1_to_5", "h=32,hk=8,t=1,d=128", 5, TABLE, CHAIN), .prefix = LIST(0, 1, 2, 3, 4), .declared = 1048576},
  {GQA_FP8("a13_batches_in_the_merge", "h=24,hk=4,t=8,d=256", 5, SLOTS, PARENTS, .ragged = 1),
   .prefix = LIST(1000, 370, 0, 5260, 16), .rows = LIST(8, 8, 3, 1, 5), .split = 720, .asks = DW__ASK_OWN_RUNS},
  {GQA_FP8("a23_unequal_widths", "h=4,hk=4,t=37,qk=192,v=128", 12, TABLE, QLEN), .prefix = LIST(17, 5, 300)},
  {GQA_FP8("a25_window_and_tree", "h=64,hk=8,t=4,d=64", 2, TABLE, .mask_kind = DW_MASK_BITS, STAR, .window = 128),
   .prefix = LIST(1000, 90)},
  {GQA_FP8("a27_sinks", "h=64,hk=8,t=4,d=64", 4, TABLE, PARENTS, .sinks = 1, .soft_cap = 30), .prefix = LIST(400, 0, 2000, 7)},
  {GQA_FP8("a30_16_heads_a_group", "h=64,hk=4,t=8,d=128,page=16", 3, TABLE, PARENTS), .prefix = LIST(5700, 17, 131072)},
  {GQA_FP8("a34_5_rows", "h=16,hk=4,t=5,d=96,page=64", 3, TABLE, PARENTS), .prefix = LIST(5700, 33, 0)},
  {GQA_FP8("a34_9_rows", "h=32,hk=8,t=9,d=128,page=64", 3, TABLE, PARENTS), .prefix = LIST(5700, 33, 0)},
  {GQA_FP8("a38_scaled_prefix_of_another_rank", "h=16,hk=4,t=16,d=128", 3, TABLE_PREFIX, PARENTS, .drafts_elsewhere = 1,
           .lse_base_e = 1),
   .prefix = LIST(4096, 0, 7)},
  {GQA_FP8("a38_all_in_the_pool", "h=16,hk=4,t=16,d=128", 3, TABLE, PARENTS), .prefix = LIST(4096, 0, 7)},
  {.name = "a39_saturated_gqa_e4m3",
   .shape = "gqa:h=16,hk=4,t=9,d=128,kv=e4m3",
   .spec = {.batch = 2, TABLE, PARENTS, .stored_scale = 0.002f, .v_stored_scale = 100},
   .prefix = LIST(5700, 17)},
  {.name = "a40_no_scale_in_a_capture_gqa_e4m3",
   .shape = "gqa:h=16,hk=4,t=4,d=128,kv=e4m3",
   .spec = {.batch = 2, TABLE, PARENTS},
   .prefix = LIST(5700, 17),
   .mode = DW__CAPTURE_GLOBAL + 1},
  {GQA_FP8("a41_strides", "h=32,hk=4,t=3,d=128", 4, TABLE, PARENTS, .strided = 1), .prefix = LIST(500, 0, 16, 7000)},
  {GQA_FP8("a42_pages_of_16_hold_both", "h=32,hk=8,t=4,d=128,page=16", 3, TABLE, PARENTS, .planes = DW__PLANES_IN_PAGE,
           .strided = 1),
   .prefix = LIST(70, 3000, 130)},
  {GQA_FP8("b04_four_rows", "h=24,hk=4,t=4,d=256", 1, TABLE, PARENTS), .prefix = LIST(65536)},
  {GQA_FP8("b05_five_rows", "h=32,hk=8,t=5,d=128", 1, TABLE, CHAIN), .prefix = LIST(30000)},
  {GQA_FP8("b08_one_row", "h=32,hk=8,t=1,d=128,page=16", 1, TABLE, CHAIN), .prefix = LIST(8400)},
  {GQA_FP8("b08_four_rows", "h=32,hk=8,t=4,d=128,page=64", 1, TABLE, PARENTS), .prefix = LIST(8400)},
  {GQA_FP8("d05_bytes", "h=64,hk=8,t=7,d=128", 3, SLOTS, FULL, .strided = 1), .prefix = LIST(1020, 2048, 333)},
  {.name = "a32_latent_256_rope_64",
   .shape = "h=16,t=5,qk=320,v=256",
   .spec = {.batch = 3, TABLE, PARENTS},
   .prefix = LIST(1000, 40)},
  {.name = "a32_latent_256_rope_32",
   .shape = "h=16,t=5,qk=288,v=256",
   .spec = {.batch = 3, TABLE, PARENTS},
   .prefix = LIST(1000, 40)},
  {.name = "a32_latent_512_rope_64", .shape = "h=16,t=5", .spec = {.batch = 3, TABLE, PARENTS}, .prefix = LIST(1000, 40)},
  {.name = "a33_table_rows_are_requests",
   .shape = "h=8,t=3,page=64",
   .spec = {.batch = 256, TABLE, CHAIN},
   .prefix = LIST(500, 3, 64, 190, 0, 17)},
  {.name = "a35_a_boundary_for_each_row",
   .shape = "h=16,t=4",
   .spec = {.batch = 8, TABLE, CHAIN},
   .prefix = LIST(0, 1, 15, 64, 1000, 3333, NO_TOKENS, ONE_TOKEN)},
  {.name = "a36_verify_equals_decode",
   .shape = "h=16,t=2",
   .spec = {.batch = 3, TABLE_PREFIX, CHAIN},
   .prefix = LIST(1000, 0, 13),
   .split = 256,
   .asks = DW__ASK_OWN_RUNS},
  {.name = "a41_strides_of_q",
   .shape = "h=32,t=3",
   .spec = {.batch = 4, TABLE, PARENTS, .strided = 1},
   .prefix = LIST(333, 0, 700, 5)},
  {.name = "a41_q_in_two_parts",
   .shape = "h=32,t=3",
   .spec = {.batch = 4, TABLE, PARENTS, .strided = 1, .q_rope = 1, .kv_rope = 1},
   .prefix = LIST(333, 0, 700, 5)},
  {.name = "a42_stride_of_pages_of_16",
   .shape = "h=16,t=3,page=16",
   .spec = {.batch = 3, TABLE, PARENTS, .strided = 1},
   .prefix = LIST(1000, 37, 3)},
  {.name = "a42_stride_of_pages_of_64",
   .shape = "h=16,t=3,page=64",
   .spec = {.batch = 3, SLOTS, PARENTS, .strided = 1},
   .prefix = LIST(1000, 37, 3)},
  {.name = "a43_shared_pages_of_a_large_pool",
   .shape = "h=16,t=9,page=16",
   .spec = {.batch = 4, TABLE, PARENTS, .share = 1, .pool_tokens = 50000 * 16},
   .prefix = LIST(630, 600, 620, 20)},
  {.name = "a44_soft_cap_saturates",
   .shape = "h=16,t=4",
   .spec = {.batch = 2, TABLE, PARENTS, .soft_cap = 50, .q_scale = 30, .kv_scale = 100},
   .prefix = LIST(1000, 5)},
  {.name = "a44_small_soft_cap",
   .shape = "h=16,t=4",
   .spec = {.batch = 2, TABLE, PARENTS, .soft_cap = 1.5f, .q_scale = 30, .kv_scale = 100, .sinks = 1},
   .prefix = LIST(1000, 5)},
  A45(513),
  A45(1024),
  A45(8192),
  A45(131072),
  {.name = "a46_other_trees_and_pages",
   .shape = "h=16,t=16,page=64",
   .spec = {.batch = 4, TABLE, BITS, .ragged = 1},
   .prefix = LIST(3000, 0, 90, 700),
   .rows = LIST(16, 3, 0, 9)},
  {.name = "a46_other_slots",
   .shape = "h=16,t=16",
   .spec = {.batch = 4, SLOTS, FULL, .ragged = 1, .index64 = 1},
   .prefix = LIST(3000, 0, 90, 700),
   .rows = LIST(16, 3, 0, 9)},
  {.name = "a47_graphs_of_1_to_64_in_one_workspace",
   .shape = "h=8,t=4,page=64",
   .spec = {.batch = 64, TABLE_PREFIX, PARENTS},
   .prefix = LIST(1000, 17, 300, 5700, 0, 64),
   .split = 512,
   .asks = DW__ASK_ASCENDING | DW__ASK_OWN_RUNS},
#define CAPTURED(t, n, mask_name, ...)                                                             \
  {                                                                                                \
    .name = "b10_captured_" #t "_rows_batch_" #n "_" mask_name, .shape = "h=8,t=" #t ",page=64",   \
    .spec = {.batch = n, TABLE, __VA_ARGS__}, .prefix = LIST(2000, 17, 300, NO_TOKENS, 0, 64, 999) \
  }
  CAPTURED(1, 64, "chain", CHAIN),
  CAPTURED(4, 64, "parents", PARENTS),
  CAPTURED(9, 64, "bits", BITS),
  CAPTURED(17, 64, "bytes", QLEN),
  CAPTURED(64, 64, "custom_mask", FULL),
  CAPTURED(64, 1, "bias", BIAS),
  CAPTURED(65, 8, "parents", PARENTS),
#define C30(heads, mode_name, capture_mode)                                                                       \
  {                                                                                                               \
    .name = "c30_kernel_asked_for_in_a_" mode_name "_capture", .shape = "h=" #heads ",t=3",                       \
    .spec = {.batch = 2, TABLE, PARENTS}, .prefix = LIST(300, 17), .mode = capture_mode + 1, .asks = DW__ASK_COLD \
  }
  C30(5, "global", DW__CAPTURE_GLOBAL),
  C30(6, "thread", DW__CAPTURE_THREAD),
  C30(7, "relaxed", DW__CAPTURE_RELAXED),
  {.name = "a41_gqa_strides",
   .shape = "gqa:h=32,hk=4,t=3,d=128",
   .spec = {.batch = 4, TABLE, PARENTS, .strided = 1},
   .prefix = LIST(500, 0, 16, 7000)},
#define A42_GQA(pages)                                                                                              \
  {                                                                                                                 \
    .name = "a42_gqa_pages_of_" #pages "_hold_both", .shape = "gqa:h=32,hk=8,t=4,d=128,page=" #pages,               \
    .spec = {.batch = 3, TABLE, PARENTS, .planes = DW__PLANES_IN_PAGE, .strided = 1}, .prefix = LIST(70, 3000, 130) \
  }
  A42_GQA(16),
  A42_GQA(64),
  {.name = "range_of_fp16",
   .shape = "h=16,t=4,q=fp16,kv=fp16",
   .spec = {.batch = 2, TABLE, PARENTS, .q_scale = 0.0001f, .kv_scale = 10000},
   .prefix = LIST(5700, 17)},
  {.name = "range_of_bf16",
   .shape = "h=16,t=4",
   .spec = {.batch = 2, TABLE, PARENTS, .q_scale = 0.0001f, .kv_scale = 10000},
   .prefix = LIST(5700, 17)},
  {.name = "range_of_small_bf16",
   .shape = "h=16,t=4",
   .spec = {.batch = 2, TABLE, PARENTS, .q_scale = 1000, .kv_scale = 0.001f},
   .prefix = LIST(5700, 17)},
  {.name = "range_of_e4m3_large",
   .shape = "h=16,t=4,kv=e4m3",
   .spec = {.batch = 2, TABLE, PARENTS, .q_scale = 0.00001f, .kv_scale = 100000, .stored_scale = 3000},
   .prefix = LIST(5700, 17)},
  {.name = "range_of_e4m3_small",
   .shape = "h=16,t=4,kv=e4m3",
   .spec = {.batch = 2, TABLE, PARENTS, .q_scale = 100000, .kv_scale = 0.00001f, .stored_scale = 0.0000005f},
   .prefix = LIST(5700, 17)},
  {.name = "c31_nothing_allocated", .shape = "h=16,t=65", .spec = {.batch = 3, TABLE, PARENTS}, .prefix = LIST(300, 17, 0)},
  {.name = "c32_first_in_the_graph_early",
   .shape = "h=16,t=4",
   .spec = {.batch = 2, TABLE, PARENTS, .overlap_prologue = 1},
   .prefix = LIST(2300, 17)},
  {.name = "c32_first_in_the_graph_in_order",
   .shape = "h=16,t=4",
   .spec = {.batch = 2, TABLE, PARENTS},
   .prefix = LIST(2300, 17)},
#define D05(heads, batch_size)                                                                                      \
  {                                                                                                                 \
    .name = "d05_bytes_" #heads "_heads_batch_" #batch_size, .shape = "h=" #heads ",t=7,kv=e4m3",                   \
    .spec = {.batch = batch_size, SLOTS, FULL, .strided = 1, .stored_scale = 0.3f}, .prefix = LIST(1020, 2048, 333) \
  }
  D05(64, 3),
  D05(64, 1),
  D05(8, 3),
#define D03(pages)                                                                                                        \
  {                                                                                                                       \
    .name = "d03_slots_of_pages_of_" #pages, .shape = "h=16,t=9,page=" #pages,                                            \
    .spec = {.batch = 3, SLOTS_PREFIX, BITS, .draft_slots = 1, .ragged = 1}, .prefix = LIST(5 * pages + 5, 5, pages + 5), \
    .rows = LIST(9, 4, 7)                                                                                                 \
  }
  D03(16),
  D03(64),
#define D04(n)                                                                                                   \
  {                                                                                                              \
    .name = "d04_tree_and_prefix_batch_" #n, .shape = "h=16,t=16,page=64", .spec = {.batch = n, TABLE, PARENTS}, \
    .prefix = LIST(100000, 0, 1, 64)                                                                             \
  }
  D04(1),
  D04(4),
#define D06(pages)                                                                                                      \
  {                                                                                                                     \
    .name = "d06_parents_at_pages_of_" #pages, .shape = "h=16,t=32,page=" #pages, .spec = {.batch = 3, TABLE, PARENTS}, \
    .prefix = LIST(3000, 70, 0)                                                                                         \
  }
  D06(1),
  D06(16),
  D06(64),
  {.name = "d08_depths_in_a_window",
   .shape = "h=16,t=33",
   .spec = {.batch = 3, TABLE, PARENTS, .window = 5},
   .prefix = LIST(300, 0, 3)},
  {.name = "d09_faults_in_trees",
   .shape = "h=4,t=10,page=16",
   .spec = {.batch = 3, TABLE, PARENTS},
   .prefix = LIST(33, 0, 90),
   .split = 64,
   .declared = 10000,
   .variant = CHECKED,
   .asks = DW__ASK_FAULTS},
  {.name = "d09_faults_in_trees_in_a_window",
   .shape = "h=4,t=10,page=16",
   .spec = {.batch = 3, TABLE_PREFIX, PARENTS, .window = 40, .positions = 1},
   .prefix = LIST(33, 50, 90),
   .split = 64,
   .declared = 10000,
   .variant = CHECKED,
   .asks = DW__ASK_FAULTS},
  {.name = "d09_faults_in_packed_trees",
   .shape = "h=4,t=70",
   .spec = {.batch = 3, SLOTS_PREFIX, PARENTS, .draft_slots = 1, .index64 = 1},
   .prefix = LIST(33, 50, 90),
   .split = 64,
   .declared = 10000,
   .variant = CHECKED,
   .asks = DW__ASK_FAULTS},
  {.name = "d09_faults_told_by_the_plain_kernel",
   .shape = "h=4,t=10,page=16",
   .spec = {.batch = 3, SLOTS, BITS, .ragged = 1},
   .prefix = LIST(33, 50, 90),
   .split = 64,
   .declared = 10000,
   .variant = "family=split,combine=many,combine_splits=8,checked=1",
   .asks = DW__ASK_FAULTS},
  {.name = "d09_faults_told_at_batch_64",
   .shape = "h=8,t=9,page=64",
   .spec = {.batch = 64, TABLE, PARENTS},
   .prefix = LIST(1000, 17, 5000),
   .split = 1024,
   .declared = 10000,
   .variant = CHECKED,
   .asks = DW__ASK_FAULTS},
  {.name = "d09_sound_and_checked_auto",
   .shape = "h=16,t=17,page=64",
   .spec = {.batch = 8, TABLE, PARENTS, .dead_nodes = 1, .window = 500, .positions = 1},
   .prefix = LIST(1000, 17, NO_TOKENS, ONE_TOKEN, 5700, 0),
   .variant = CHECKED},
  {.name = "d09_gqa_faults_in_trees",
   .shape = "gqa:h=8,hk=2,t=10,d=128,page=16",
   .spec = {.batch = 3, TABLE, PARENTS},
   .prefix = LIST(33, 0, 90),
   .split = 64,
   .declared = 10000,
   .variant = CHECKED,
   .asks = DW__ASK_FAULTS},
  {.name = "d10_two_prompts",
   .shape = "h=8,t=60",
   .spec = {.batch = 2, SLOTS, PARENTS, .ragged = 1},
   .prefix = LIST(3, 900),
   .rows = LIST(60, 26),
   .split = 128,
   .asks = DW__ASK_OWN_RUNS},
  {.name = "d11_as_exact_as_plain_bf16",
   .shape = "h=16,t=4",
   .spec = {.batch = 3, TABLE, PARENTS},
   .prefix = LIST(2000, 8000, 32000)},
#define D12(t)                                                                                                        \
  {                                                                                                                   \
    .name = "d12_one_among_63_others_" #t "_rows", .shape = "h=16,t=" #t, .spec = {.batch = 64, TABLE_PREFIX, CHAIN}, \
    .prefix = LIST(20000, 12, 40, 20000, 700), .split = 1024, .asks = DW__ASK_OWN_RUNS                                \
  }
  D12(1),
  D12(4),
  {.name = "d13_rows_and_batches_do_not_count",
   .shape = "h=16,t=8",
   .spec = {.batch = 8, TABLE_PREFIX, PARENTS},
   .prefix = LIST(2003, 40, 0, 997, 16, 5, 300, 64),
   .split = 256,
   .asks = DW__ASK_OWN_RUNS},
  {.name = "d13_rows_of_a_wide_tree",
   .shape = "h=8,t=40",
   .spec = {.batch = 3, TABLE_PREFIX, BITS},
   .prefix = LIST(2003, 40, 0),
   .split = 256,
   .asks = DW__ASK_OWN_RUNS},
  {.name = "d13_gqa_rows_and_batches_do_not_count",
   .shape = "gqa:h=32,hk=8,t=9,d=128,page=16",
   .spec = {.batch = 8, TABLE_PREFIX, PARENTS},
   .prefix = LIST(2003, 40, 0, 997, 16, 5, 300, 64),
   .split = 256,
   .asks = DW__ASK_OWN_RUNS},
  {.name = "e03_shared_pages",
   .shape = "h=16,t=9,page=16",
   .spec = {.batch = 3, SLOTS, PARENTS, .share = 1},
   .prefix = LIST(50, 40, 34)},
#define E05(pages)                                                                                                       \
  {.name = "e05_pages_of_" #pages "_in_order",                                                                           \
   .shape = "h=16,t=4,page=" #pages,                                                                                     \
   .spec = {.batch = 1, .addressing = DW_BLOCK_TABLE, .lengths_include_drafts = 1, PARENTS},                             \
   .prefix = LIST(100000)},                                                                                              \
  {                                                                                                                      \
    .name = "e05_pages_of_" #pages "_at_random", .shape = "h=16,t=4,page=" #pages, .spec = {.batch = 1, TABLE, PARENTS}, \
    .prefix = LIST(100000)                                                                                               \
  }
  E05(1),
  E05(16),
  E05(64),
};

size_t dw__named_count(void) { return DW__COUNT(cases); }
const char *dw__named_name(size_t i) { return i < DW__COUNT(cases) ? cases[i].name : NULL; }

// ---- from a line to a check -----------------------------------------------------------------------------------

static int length_of(const int *list) {
  int n = 0;
  while (list[n] != END) n++;
  return n;
}

// For an emulated GPU: what is large becomes small, and edges stay edges.
static int shorten(int tokens, bool small) { return small && tokens > 200 ? 100 + tokens % 61 : tokens; }

static dw_status make_shape(const named *of, int target, bool small, dw_shape *shape, dw_error *error) {
  char text[128];
  snprintf(text, sizeof text, "%s%s", strncmp(of->shape, "gqa:", 4) == 0 ? "" : "mla:", of->shape);
  dw_status status = dw_shape_parse(text, shape, error);
  shape->target = target;
  shape->limits = target < 120 ? 120 : 0;
  if (!small) return status;
  if (shape->attention == DW_MLA && shape->heads > 4) shape->heads = 4;
  if (shape->kv_heads > 2) shape->heads = shape->heads / shape->kv_heads * 2, shape->kv_heads = 2;
  if (shape->width > 40) shape->width = 40;
  return status;
}

static int dealt(const int *list, int b, int shift) { return list[(b + shift) % length_of(list)]; }

static void deal(const named *of, int which, bool small, dw__named_check *made) {
  const dw__gpu_spec *spec = &made->check.spec;
  const int width = spec->width ? spec->width : spec->shape.width, shift = which && !of->later;
  const int *list = which && of->later ? of->later : of->prefix;
  for (int b = 0; b < spec->batch; b++) {
    const int rows = of->rows ? dealt(of->rows, b, which) : width, tokens = dealt(list, b, shift);
    made->rows[which][b] = rows < width ? rows : width;
    made->prefix[which][b] = tokens == NO_TOKENS ? -rows : tokens == ONE_TOKEN ? 1 - rows : shorten(tokens, small);
  }
}

static dw_status choose_variant(const named *of, int sm_count, dw__gpu_check *check, dw_error *error) {
  const dw__gpu_spec *spec = &check->spec;
  const int features = dw__features(spec->window, spec->soft_cap > 0, spec->q_rope, spec->kv_rope);
  const bool promised = spec->addressing == DW_BLOCK_TABLE && spec->lengths_include_drafts && !spec->ragged && !of->split;
  dw_bounds bounds = {.size = sizeof bounds,
                      .batch = spec->batch,
                      .kv_len = spec->longest + check->shape.width,
                      .sm_count = sm_count,
                      .call = promised ? DW_CALL_TABLE : DW_CALL_ANY,
                      .features = features,
                      .split_tokens = of->split};
  if (of->declared > bounds.kv_len) bounds.kv_len = of->declared;
  const bool chosen = !of->variant || strcmp(of->variant, CHECKED) == 0;
  dw_status status = chosen ? dw_variant_choose(&check->shape, &bounds, &check->variant, error)
                            : dw_variant_parse(of->variant, &check->variant, error);
  if (!chosen) dw__variant_add_features(&check->variant, features);
  if (chosen && of->variant) check->variant.checked = 1;
  return status;
}

dw_status dw__named_make(size_t i, int target, int sm_count, bool small, dw__named_check *made, dw_error *error) {
  const named *of = &cases[i];
  memset(made, 0, sizeof *made);
  snprintf(made->name, sizeof made->name, "%s", of->name);
  dw__gpu_check *check = &made->check;
  dw_status status = make_shape(of, target, small, &check->shape, error);
  if (status) return status;
  check->spec = of->spec;
  check->spec.shape = check->shape;
  check->spec.sets = check->spec.poison = 1;
  if (!(check->spec.q_scale > 0)) check->spec.q_scale = 1;
  if (small) {
    check->spec.pool_tokens = 0;
    if (check->spec.batch > 4) check->spec.batch = 4;
    if (check->spec.width > check->shape.width) check->spec.width = check->shape.width;
  }
  for (int which = 0; which < 2; which++) {
    deal(of, which, small, made);
    for (int b = 0; b < check->spec.batch; b++)
      if (made->prefix[which][b] > check->spec.longest) check->spec.longest = made->prefix[which][b];
  }
  check->first = (dw__gpu_contents){made->prefix[0], check->spec.ragged ? made->rows[0] : NULL, 2 * i + 1};
  check->other = (dw__gpu_contents){made->prefix[1], check->spec.ragged ? made->rows[1] : NULL, 2 * i + 2};
  check->split_tokens = of->split;
  check->declared = of->declared;
  check->capture = (dw__capture_mode)(of->mode ? of->mode - 1 : (int)(i % 3));
  check->asks = of->asks;
  return choose_variant(of, sm_count, check, error);
}
