// Kernels broken on purpose, one exact change of a template's text each: a small set of problems has to find every one of them. A
// text that is no longer there fails the test, so that the list keeps up with the templates.
// test_kernel_faults [NAME]
#include "kernel_tests.h"

#include <dirent.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rule.h"

#define ROWSPLIT "rowsplit.cuh"
#define DIMSPLIT "dimsplit.cuh"
#define ROLES "roles.cuh"
#define SOFTMAX "softmax.cuh"
#define SOFTMAX_TILE "softmax_tile.cuh"
#define GROUPED "grouped.cuh"
#define WARPSPLIT "warpsplit.cuh"
#define ROWS_GQA "rows_gqa.cuh"
#define REQUEST "request.cuh"
#define COMBINE "combine.cuh"
#define FRAGMENTS "fragments.cuh"
#define RECORD "record.cuh"

typedef struct fault {
  const char *name, *file, *text, *replacement;
} fault;

// Names that begin with gqa_: found by problems of GQA on grouped, with gqa_e4m3_ by those with KV in e4m3, with warp_: on warpsplit, with
// warp_e4m3_: there with KV in e4m3, with record_: of records, with pair_: by dimsplit.
static const fault faults[] = {
  // Barriers and waits.
  {"no_wait_for_the_tile", ROWSPLIT, "    ring.wait_full(c.shared + BAR_FULL);\n", ""},
  {"no_wait_for_scores", ROWSPLIT, "    scores.wait_full(c.shared + BAR_SCORES_FULL);\n    if (has_x) softmax_read(read, x);\n",
   "    if (has_x) softmax_read(read, x);\n"},
  {"no_wait_for_weights", ROWSPLIT, "  weights.wait_full(c.shared + BAR_WEIGHTS_FULL);\n", ""},
  {"no_wait_for_a_free_slot", ROWSPLIT, "  if (n >= SLOTS) ring.wait_empty(c.shared + BAR_EMPTY);\n", ""},
  {"no_wait_for_a_free_slot_wide", ROWSPLIT, "        if (tile || h) load.wait_empty(c.shared + BAR_EMPTY);\n", ""},
  {"no_wait_for_free_scores", ROWSPLIT, "    if (tile >= SCORE_BUFFERS) scores.wait_empty(c.shared + BAR_SCORES_EMPTY);\n", ""},
  {"no_wait_for_free_weights", ROWSPLIT, "    if (tile >= WEIGHT_BUFFERS) weights.wait_empty(c.shared + BAR_WEIGHTS_EMPTY);\n",
   ""},
  {"no_wait_for_half_a_tile", ROWSPLIT, "        ring.wait_full(c.shared + BAR_FULL);\n        ring.next();\n",
   "        ring.next();\n"},
  {"wrong_half_emptied", ROWSPLIT, "i == EACH - 1) ring.arrive(", "i == EACH - 1) second.arrive("},
  {"half_a_tile_cleaned", SOFTMAX, "if (i == TILE_SLOTS - 1) break;", "if (i == 0) break;"},
  {"cp_async_arrives_early", ROWSPLIT, "  cp_async_mbarrier_arrive(full);\n", "  mbarrier_arrive(full);\n"},
  {"cp_async_counts_warps", ROWSPLIT, "LOADERS * (CP_ASYNC ? 32 : 1)", "LOADERS"},
  {"cp_async_rope_as_a_whole", ROWSPLIT, "kv_apart(p) && chunk * 16 >= LATENT_BYTES", "false"},
  {"wrong_phase", ROLES, "{ mbarrier_wait(bars + at * 8, parity); }", "{ mbarrier_wait(bars + at * 8, parity ^ 1); }"},
  {"no_cta_barrier", ROWSPLIT, "  barrier_sync(0, THREADS);\n  if (EARLY_SLOTS", "  if (EARLY_SLOTS"},
  {"no_barrier_before_the_store", ROWSPLIT, "  mbarrier_wait(c.shared + BAR_FINAL, 0);\n", ""},
  {"no_barrier_between_poison_flags", SOFTMAX_TILE, "  barrier_sync(NAMED_POISON, SOFTMAX_WARPS * 32);\n", ""},
  {"poison_flags_without_turns", SOFTMAX_TILE, "  poison_turn ^= 8;\n", ""},
  {"poison_flags_by_tile", SOFTMAX_TILE, "  poison_turn ^= 8;\n", "  poison_turn = (tile & 1) * 8;\n"},
  {"no_warp_sync_in_the_store", ROLES, "    sync_warp();\n    const int end", "    const int end"},
  {"no_fence_after_cleaning", SOFTMAX, "  if (!CP_ASYNC) fence_proxy_async();  // the slot's next load comes",
   "  // the slot's next load comes"},
  {"wrong_byte_count", ROWSPLIT, "mbarrier_arrive_expect(full, OWN_TOKENS * RECORD_BYTES)",
   "mbarrier_arrive_expect(full, OWN_TOKENS * RECORD_BYTES - 16)"},
  {"flags_never_written", ROWSPLIT,
   "    if (lane_id() == 0) sts_u32(c.shared + RESCALE_FLAGS + (weights.at * SOFTMAX_WARPS + warp) * 4, grow_x | grow_y);\n",
   ""},
  {"merge_does_not_wait_for_the_grid", COMBINE,
   "  grid_dependents_launch();\n  grid_dependency_wait();\n  if (row >= r.rows()) return;\n"
   "  float max = MINUS_INF, sum = 0.f, out[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};\n"
   "#pragma unroll 1\n  for (int s0 = 0;;) {\n    float lse",
   "  float max = MINUS_INF, sum = 0.f, out[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};\n  if (row >= r.rows()) return;\n"
   "  for (int s0 = 0;;) {\n    float lse"},
  // The start of a CTA.
  {"plan_not_waited_for_by_loaders", ROWSPLIT, "    barrier_sync(NAMED_PLAN, 32 * (1 + LOADERS));  // all", "    // all"},
  {"loaders_do_not_meet", ROWSPLIT, "    barrier_sync(NAMED_LOADERS, 32 * LOADERS);  // the", "    // the"},
  {"first_slots_of_a_wrong_guess", ROLES, " || !guess_holds(p, guess, l.lengths, length)) return 0;", ") return 0;"},
  {"first_slots_of_no_rows", ROLES, "guess.request < 0 || !rows ||", "guess.request < 0 ||"},
  {"first_slots_past_the_end", ROLES, "n < EARLY_SLOTS && slot_token(c.tiles, n) < length; n++)", "n < EARLY_SLOTS; n++)"},
  {"first_slots_asked_for_twice", ROLES, "  Turn<SLOTS> ring{first};\n#pragma unroll 1\n  for (int n = first;",
   "  Turn<SLOTS> ring;\n#pragma unroll 1\n  for (int n = 0;"},
  {"entries_of_the_guess", ROLES, "|| !guessed) loader_start", ") loader_start"},
  {"query_of_the_guess", ROWSPLIT, "query_begin(p, c, asked && guessed, warp)", "query_begin(p, c, asked, warp)"},
  {"query_copied_twice_at_once", ROWSPLIT, "    cp_async_wait_all();\n    query_copy", "    query_copy"},
  {"query_not_waited_for", ROWSPLIT, "  mbarrier_wait(c.shared + BAR_QUERY_FULL, 0);\n", ""},
  {"query_overwritten_by_the_ring", ROWSPLIT, "  if (n == FIRST_QUERY_SLOT) wait_query_read(c);\n", ""},
  {"query_overwritten_by_scores", ROWSPLIT, "  query_read(c);\n  wait_query_read(c);\n", "  query_read(c);\n"},
  {"query_overwritten_by_results", ROWSPLIT, "if (c.tiles.count == 0) cp_async_wait_all();",
   "if (c.tiles.count == 0) sync_warp();"},
  {"query_rows_past_the_last", ROWSPLIT, "(own < c.rows ? own : c.rows - 1)", "own"},
  // A pair of CTAs.
  {"pair_does_not_meet", DIMSPLIT, "  cluster_wait();  // the mbarriers of both are ready\n", ""},
  {"pair_query_of_the_guess", DIMSPLIT, "!(asked && guessed)", "!asked"},
  {"pair_arrives_where_nobody_waits", DIMSPLIT, "if (lane_id() == 0 && !last)", "if (lane_id() == 0)"},
  {"pair_own_scores_not_waited_for", DIMSPLIT, "    own.wait_full(c.shared + BAR_OWN_FULL);\n", ""},
  {"pair_sent_scores_not_waited_for", DIMSPLIT, "    sent.wait_full(c.shared + BAR_SENT_FULL);\n", ""},
  {"pair_own_scores_overwritten", DIMSPLIT, "    if (tile) own.wait_empty(c.shared + BAR_OWN_EMPTY);\n", ""},
  {"pair_sent_scores_overwritten", DIMSPLIT, "      if (tile >= SENT_BUFFERS) sent.wait_empty(c.shared + BAR_SENT_EMPTY);\n",
   ""},
  {"pair_weights_not_waited_for", DIMSPLIT, "  weights.wait_full(c.shared + BAR_WEIGHTS_FULL);\n", ""},
  {"pair_weights_overwritten", DIMSPLIT, "    if (tile >= WEIGHT_BUFFERS) weights.wait_empty(c.shared + BAR_WEIGHTS_EMPTY);\n",
   ""},
  {"pair_weights_of_one_cta_alone_read", DIMSPLIT, ": at < BAR_FINAL         ? OUTPUT_THREADS + OUTPUT_WARPS",
   ": at < BAR_FINAL         ? OUTPUT_THREADS"},
  {"pair_bytes_not_announced", DIMSPLIT, "of_rank(c.rank, weight_bytes(1), weight_bytes(0))",
   "of_rank(c.rank, weight_bytes(1), 0)"},
  {"pair_sums_not_waited_for", DIMSPLIT, "  mbarrier_wait(c.shared + BAR_FINAL, 0);\n", ""},
  {"pair_range_ends_unmasked", SOFTMAX, "TILE > 16 && left < TILE ? (1u << left) - 1 : ~0u;", "~0u;"},
  {"pair_ninth_tile_half_summed", DIMSPLIT, "(lds_f32(own + a) + lds_f32(own + b))", "lds_f32(own + a)"},
  {"pair_ninth_tile_half_announced", DIMSPLIT, "(owned_rows(rank) + TAIL_ROWS) * 128", "owned_rows(rank) * 128"},
  {"pair_ninth_tile_not_rescaled", DIMSPLIT, "high.w & 1, any & 2};", "high.w & 1, 0};"},
  {"pair_rope_of_the_other", DIMSPLIT, "bulk_load(to + LATENT_BYTES, rope + rank * ROPE_BYTES",
   "bulk_load(to + LATENT_BYTES, rope + (1 - rank) * ROPE_BYTES"},
  // Addresses.
  {"wrong_page", REQUEST, "const int column = t / PAGE;", "const int column = (t + 1) / PAGE;"},
  {"wrong_token_in_page", REQUEST, "(table ? t : entry) % PAGE", "(table ? t + 1 : entry) % PAGE"},
  {"draft_slots_of_the_first_request", REQUEST, "draft ? r.first_row + (t - r.prefix)", "draft ? (t - r.prefix)"},
  {"page_address_of_32_bits", REQUEST, "(page * page_stride + in_page", "(page * (int)page_stride + in_page"},
  {"slot_address_of_32_bits", REQUEST, "entry * page_stride * KV_BYTES", "entry * (int)page_stride * KV_BYTES"},
  {"no_safe_token", ROWSPLIT, "  if (token >= c.tiles.end) entry = l.safe_entry, token = tile_token(c, 0);\n", ""},
  {"table_by_row", REQUEST, "p.block_table + r.index * p.block_table_stride",
   "p.block_table + r.first_row * p.block_table_stride"},
  {"rows_of_the_next_group_written", ROLES, "(t0 + TOGETHER) * 8 < c.rows ? (t0 + TOGETHER) * 8 : c.rows;",
   "(t0 + TOGETHER) * 8;"},
  // Masks.
  {"mask_off_by_one", REQUEST, "last >= 31 ? ~0u : (2u << last) - 1;", "last >= 31 ? ~0u : (1u << last) - 1;"},
  {"mask_one_too_many", REQUEST, "chain_bits(node - base)", "chain_bits(node - base + 1)"},
  {"prefix_edge_off_by_one", SOFTMAX, "(((1u << -column) - 1) & prefix)) & own;",
   "(((1u << -column) - 1) >> 1 & prefix)) & own;"},
  {"root_never_seen", REQUEST, "at = parent < at ? parent : -1;", "at = parent < at && parent ? parent : -1;"},
  {"dead_rows_ignored", REQUEST, "  if (p.mask_kind == DW_P_MASK_PARENTS) return ldg", "  if (false) return ldg"},
  {"absent_drafts_seen", REQUEST, "{ return r.total - r.prefix; }", "{ return r.nodes; }"},
  {"first_tile_of_drafts_not_masked", ROWSPLIT, "const bool edge = t0 + TILE > c.request.prefix ||",
   "const bool edge = t0 + 1 > c.request.prefix ||"},
  {"bytes_of_the_prefix", REQUEST, "(r.prefix + r.nodes) + r.prefix", "(r.prefix + r.nodes)"},
  {"matrix_of_the_first_request", REQUEST, "r.index * p.mask_request_stride + node", "node"},
  // Windows.
  {"window_off_by_one", SOFTMAX, ": node_position(p, c.request, node)) - window(p) + 1;",
   ": node_position(p, c.request, node)) - window(p);"},
  {"window_shows_the_prefix", SOFTMAX, "window(p) ? tokens_from(x.first, t0) : ~0u;", "~0u;"},
  {"window_of_another_row", ROWSPLIT, "TAIL && y.first > x.first ? y.first : x.first", "x.first"},
  {"window_shows_all_drafts", SOFTMAX, "first > c.request.prefix) mask = window_drafts", "false) mask = window_drafts"},
  {"window_counts_the_node_itself", REQUEST, "  drafts &= ~(1ull << node);\n", ""},
  {"window_without_positions", REQUEST, "u64 drafts) {\n  if (p.positions) return", "u64 drafts) {\n  if (false) return"},
  {"window_skips_a_tile_too_many", "schedule.cuh", "? first / TILE : 0", "? first / TILE + 1 : 0"},
  // Sinks, caps, parts, ranks.
  {"sink_of_another_head", REQUEST, "p.sinks + row_head(row)", "p.sinks + row_head(row + 1)"},
  {"sink_of_the_dead", REQUEST, "blind) || node_dead(p, r, row_node(row))) return 1.f;", "blind)) return 1.f;"},
  {"sink_in_base_2", REQUEST, " * 1.44269504088896340736f : MINUS_INF;", " : MINUS_INF;"},
  {"sink_does_not_shrink_the_output", COMBINE, "scale = keep * reciprocal_approx(sum) * stored;",
   "scale = reciprocal_approx(sum) * stored;"},
  {"cap_only_from_above", REQUEST, "p.cap_log2 - 2.f * p.cap_log2",
   "product < 0.f ? product * cap.scale : p.cap_log2 - 2.f * p.cap_log2"},
  {"cap_near_everywhere", SOFTMAX, "  if (!vote_any(any)) return;\n", "  return;\n"},
  {"cap_of_hidden_tokens", SOFTMAX, "const bool hidden = edge && x.s[i] == MINUS_INF;", "const bool hidden = false;"},
  {"cap_sums_never_rescaled", SOFTMAX, "i < T ? factor : 1.f, KV_RECORD", "1.f, KV_RECORD"},
  {"pair_cap_sums_never_rescaled", SOFTMAX, "add_capped(x.sum[i], factor,", "add_capped(x.sum[i], 1.f,"},
  {"pair_cap_rounded_never_rescaled", SOFTMAX, "add_capped(x.rounded[i], factor,", "add_capped(x.rounded[i], 1.f,"},
  {"q_rope_of_the_first_request", REQUEST, "(s64)(r.first_row + row_node(row)) * p.q_rope_row_stride",
   "(s64)row_node(row) * p.q_rope_row_stride"},
  {"kv_rope_with_strides_of_kv", REQUEST, "p.kv_rope, p.kv_rope_page_stride, p.kv_rope_token_stride",
   "p.kv_rope, p.kv_page_stride, p.kv_token_stride"},
  {"drafts_elsewhere_counted", REQUEST, "lengths_with_drafts(p) || drafts_elsewhere(p) ? len", "lengths_with_drafts(p) ? len"},
  // Numbers.
  {"output_never_rescaled", ROWSPLIT, "  if (!first && (flags.x", "  if (false && (flags.x"},
  {"sums_never_rescaled", SOFTMAX, "    x.sum[i] *= factor;\n", ""},
  {"lse_always_base_2", REQUEST, "lse_base2 * p.lse_factor", "lse_base2"},
  {"poison_not_cleaned", SOFTMAX_TILE, "  if (float_to_bits(f.x) | float_to_bits(f.y)) clean_tile(c, ring, thread);\n", ""},
  {"infinity_of_weight_0", SOFTMAX, "      x.s[i] = fabsf(product) < INF ? x.s[i] : bits_to_float(0x7fffffffu);\n", ""},
  {"infinity_capped", SOFTMAX,
   "      x.s[i] = fabsf(product) < INF ? x.s[i] :", "      x.s[i] = WITH_SOFT_CAP || fabsf(product) < INF ? x.s[i] :"},
  {"pair_infinity_of_weight_0", SOFTMAX, "      x.s[i] = fabsf(product) < INF ? x.s[i] : bits_to_float(0x7fffffffu);\n", ""},
  {"rounds_of_the_merge_not_rescaled", COMBINE, "    sum *= keep;\n", ""},
  {"merge_reads_past_the_last_range", COMBINE, "range < x.ranges ? range : x.ranges - 1", "range"},
  {"share_of_no_range", "schedule.cuh", "* each) + 1; }", "* each); }"},
  {"share_of_a_range_too_many", "schedule.cuh", "(int)warp_sum(ranges[i]) <= p.all_ranges",
   "(int)warp_sum(ranges[i]) <= p.all_ranges + 1"},
  // Records.
  {"record_scale_of_the_next_group", RECORD, "+ RECORD_SCALES + warp_id() * 4);", "+ RECORD_SCALES + (warp_id() ^ 1) * 4);"},
  {"record_scale_of_another_token", RECORD, "((lane_id() >> 2) + 8 * i) * TOKEN_STRIDE",
   "((lane_id() >> 2) + 8 * (i ^ 1)) * TOKEN_STRIDE"},
  {"record_scale_on_the_rope", RECORD,
   "    for (int i = 0; i < 4; i++) s[t][i] = s[t][i] * r.scale[i / 2] + nan[i / 2];\n"
   "    mma_m16n8k16_bf16(s[t], r.rope, q.b[K_STEPS - 1][t]);\n",
   "    mma_m16n8k16_bf16(s[t], r.rope, q.b[K_STEPS - 1][t]);\n"
   "    for (int i = 0; i < 4; i++) s[t][i] = s[t][i] * r.scale[i / 2] + nan[i / 2];\n"},
  {"record_rope_of_q_not_scaled", ROWSPLIT, "w = mul_bf16x2(w, 0x77807780 - base);", "w = w;"},
  {"record_rope_of_the_next_warp", RECORD, "RECORD_ROPE + warp_id() * 32", "RECORD_ROPE + (warp_id() ^ 1) * 32"},
  {"record_factors_of_the_next_group", RECORD, "V_EACH / RECORD_GROUP;", "V_EACH / RECORD_GROUP ^ 1;"},
  {"record_factors_of_the_first_half", RECORD, "(group * TILE + half * 16 + 2 *", "(group * TILE + 2 *"},
  {"record_factor_not_finite", RECORD, "fabsf(scale[g]) < SCALE_LIMIT ? scale[g] * unit : 0.f", "scale[g] * unit"},
  {"record_sum_of_scaled_weights", SOFTMAX, "KV_RECORD ? weights[i] * unit[i] : weights[i]", "weights[i]"},
  {"record_scores_without_exponents", SOFTMAX, "    if (KV_RECORD) x.s[i] += x.exponent[i];\n", ""},
  {"record_capped_without_exponents", SOFTMAX, "= KV_RECORD ? capped + x.exponent[i] : capped;", "= capped;"},
  {"record_exponents_of_other_tokens", ROWSPLIT, "(i / T * 16 + score_token(x.position + i % T)) * 8",
   "(i / T * 16 + x.position + i % T) * 8"},
  {"record_rows_of_the_next_group_written", RECORD, "if (row < c.rows) stg_cg_v2", "stg_cg_v2"},
  {"record_scales_never_split", ROWSPLIT, "    if (KV_RECORD && HALVES > 1) split_scales(c, ring.at);", ""},
  // GQA.
  {"gqa_no_wait_for_copies", GROUPED, "    cp_async_wait_group<V_SLOTS - 1>();\n    meet();\n    if (window(p)",
   "    meet();\n    if (window(p)"},
  {"gqa_no_wait_for_the_last_round", GROUPED, "    cp_async_wait_group<V_SLOTS - 1>();\n    meet();\n    if (window(p)",
   "    cp_async_wait_group<V_SLOTS>();\n    meet();\n    if (window(p)"},
  {"gqa_no_meeting_before_products", GROUPED, "    meet();\n    if (window(p)", "    if (window(p)"},
  {"gqa_no_meeting_after_scores", GROUPED, "token, next_entry);\n    meet();\n", "token, next_entry);\n"},
  {"gqa_no_wait_before_cleaning", GROUPED, "      cp_async_wait_group<V_SLOTS - 1>();\n      meet();\n      clean",
   "      meet();\n      clean"},
  {"gqa_no_meeting_before_sums", GROUPED, "x.max[i][1]});\n  }\n  meet();\n", "x.max[i][1]});\n  }\n"},
  {"gqa_no_warp_sync_in_the_store", GROUPED, "  sync_warp();\n  constexpr int LANES", "  constexpr int LANES"},
  {"gqa_values_not_cleaned", GROUPED, "      clean_values(c, next, x);\n", ""},
  {"gqa_entries_of_the_step_before", GROUPED, "step_entry(p, c, next + K_SLOTS + 1, token)",
   "step_entry(p, c, next + K_SLOTS, token)"},
  {"gqa_tokens_past_the_end", ROWS_GQA, "return t < c.request.total ? t : c.request.total - 1;", "return t;"},
  {"gqa_slots_taken_too_early", GROUPED, "value = i + V_SLOTS, key = i + 1 + K_SLOTS;",
   "value = i + V_SLOTS + 1, key = i + 2 + K_SLOTS;"},
  {"gqa_rows_of_the_next_group_written", GROUPED, "      if (row >= c.rows) continue;\n", ""},
  {"gqa_heads_of_another_kv_head", ROWS_GQA, "* HEADS + c.kv_head * GROUP + at % GROUP;", "* HEADS + c.kv_head + at % GROUP;"},
  {"gqa_output_never_rescaled", GROUPED, "      x.o[m][i][2] *= f.x;\n", ""},
  {"gqa_sums_never_rescaled", GROUPED, "x.sum[i][k] * factor[k] + (", "x.sum[i][k] + ("},
  {"gqa_edge_not_masked", ROWS_GQA, "{ return t0 + TILE > c.request.prefix ||", "{ return t0 + 1 > c.request.prefix ||"},
  {"gqa_prefix_edge_off_by_one", ROWS_GQA, "(((1u << -column) - 1) & prefix);", "(((1u << -column) - 1) >> 1 & prefix);"},
  {"gqa_window_off_by_one", ROWS_GQA, ": node_position(p, c.request, node)) - window(p) + 1;",
   ": node_position(p, c.request, node)) - window(p);"},
  {"gqa_window_shows_all_drafts", ROWS_GQA, "first > c.request.prefix) mask = window_drafts", "false) mask = window_drafts"},
  {"gqa_values_with_strides_of_keys", REQUEST, "p.v, p.v_page_stride, p.v_token_stride",
   "p.v, p.kv_page_stride, p.kv_token_stride"},
  {"gqa_values_of_the_first_head", REQUEST, "kv_head * p.v_head_stride", "0 * p.v_head_stride"},
  {"gqa_e4m3_values_with_scale_of_keys", COMBINE,
   "find_share(p, r, lengths), row, d);\n  const float stored = stored_scale(p.v_scale);",
   "find_share(p, r, lengths), row, d);\n  const float stored = stored_scale(p.k_scale);"},
  {"gqa_e4m3_scale_of_keys_squared", GROUPED, "stored_scale(p.k_scale);", "stored_scale(p.k_scale) * stored_scale(p.k_scale);"},
  {"gqa_e4m3_scale_of_keys_forgotten", GROUPED, " * stored_scale(p.k_scale);", ";"},
  {"gqa_e4m3_scale_of_another_row", GROUPED, "SCALES + score_row(i) * 4", "SCALES + (score_row(i) ^ 2) * 4"},
  {"gqa_e4m3_query_in_plain_order", GROUPED, "k * 32 + (lane_id() & 3) * 8);", "k * 32 + (lane_id() & 3 ^ 1) * 8);"},
  {"gqa_e4m3_keys_in_another_order", FRAGMENTS, "widen_e4m3x4(low, a[0], a[2]);", "widen_e4m3x4(low, a[2], a[0]);"},
  {"gqa_e4m3_tokens_of_values_swapped", FRAGMENTS, "permute_bytes(low, after, 0x3120)", "permute_bytes(low, after, 0x1302)"},
  {"gqa_e4m3_dimensions_of_values_swapped", FRAGMENTS, "pack_f16x2(o[0] * scale.x, o[2] * scale.x)",
   "pack_f16x2(o[2] * scale.x, o[0] * scale.x)"},
  {"gqa_e4m3_bits_in_another_order", FRAGMENTS, "0x3424", "0x2434"},
  {"gqa_e4m3_bias_of_bits", FRAGMENTS, "0x5c005c00", "0x58005800"},
  {"gqa_e4m3_query_shifted_too_far", FRAGMENTS, "(query_base(most) + 15) << 23", "(query_base(most) + 14) << 23"},
  {"gqa_e4m3_shift_stays_in_the_lse", GROUPED, "row * 4) - WEIGHT_SHIFT + log2", "row * 4) + log2"},
  {"gqa_e4m3_nan_stays", FRAGMENTS, "if ((w >> 8 * i & 0x7f) == 0x7f)", "if (false)"},
  {"gqa_e4m3_chunks_of_two_tokens_in_one_place", ROWS_GQA, "CHUNKS % 4 == 0 ? 4 : 2;", "4;"},
  {"gqa_e4m3_copies_past_the_slot", GROUPED, "    if (ALL % THREADS && at >= ALL) break;\n", ""},
  // The same, a warp by itself.
  {"warp_no_wait_for_keys", WARPSPLIT, "    wait_for_slot();\n    score_products", "    score_products"},
  {"warp_no_wait_for_values", WARPSPLIT, "    wait_for_slot();\n    output_products", "    output_products"},
  {"warp_no_wait_for_the_last_group", WARPSPLIT, "  cp_async_wait_group<SLOTS - 1>();", "  cp_async_wait_group<SLOTS>();"},
  {"warp_no_wait_before_cleaning", WARPSPLIT, "      wait_for_slot();\n      mask_tile", "      mask_tile"},
  {"warp_no_sync_after_a_wait", WARPSPLIT, "<SLOTS - 1>();\n  sync_warp();\n", "<SLOTS - 1>();\n"},
  {"warp_no_sync_after_products", WARPSPLIT, "    output_products(values, weights, x);\n    sync_warp();\n",
   "    output_products(values, weights, x);\n"},
  {"warp_slot_taken_too_early", WARPSPLIT,
   "    score_products(c, keys, x);\n    sync_warp();\n    ask<SLOTS % 2>(p, c, tile + SLOTS / 2, entries, keys);\n",
   "    sync_warp();\n    ask<SLOTS % 2>(p, c, tile + SLOTS / 2, entries, keys);\n    score_products(c, keys, x);\n"},
  {"warp_no_meeting_before_the_loop", WARPSPLIT, "  meet();\n  c.window_end", "  c.window_end"},
  {"warp_no_meeting_before_states", WARPSPLIT, "  meet();  // q and the slots are no longer needed\n", ""},
  {"warp_no_meeting_after_states", WARPSPLIT, "put_states(c, x);\n  meet();\n", "put_states(c, x);\n"},
  {"warp_no_meeting_before_parts", WARPSPLIT, "    meet();\n    if (mine) put_parts", "    if (mine) put_parts"},
  {"warp_no_meeting_after_parts", WARPSPLIT, "put_parts(c, first, x);\n    meet();\n", "put_parts(c, first, x);\n"},
  {"warp_parts_without_their_factor", WARPSPLIT, "state[w].x * scale);", "scale);"},
  {"warp_sums_without_their_factor", WARPSPLIT, "rounded += state[w].z * state[w].x;", "rounded += state[w].z;"},
  {"warp_output_never_rescaled", WARPSPLIT, "x.o[m][i][k] *= factor[k % 2];", "x.o[m][i][k] *= factor[0];"},
  {"warp_maximum_of_a_lane", WARPSPLIT, "max[k] = fmaxf(max[k], shuffle_xor(max[k], d));", "max[k] = fmaxf(max[k], max[k]);"},
  {"warp_entries_of_the_tile_before", WARPSPLIT, "unparked(c), tile + 1)}", "unparked(c), tile)}"},
  {"warp_tile_of_another_warp", WARPSPLIT, "all.first + warp * all.stride", "all.first + (warp ^ 1) * all.stride"},
  {"warp_chunks_not_swapped", WARPSPLIT, "(to ^ first / (8 / SPAN) % SPAN * 16)", "to"},
  {"warp_masks_in_one_place", WARPSPLIT, "SEES + (warp_id() * ROWS + row) * 2", "SEES + row * 2"},
  {"warp_values_not_cleaned", WARPSPLIT, "      if (found) sts_u32x4(at, clean);\n", ""},
  {"warp_mask_of_the_other_row", WARPSPLIT, "hide_scores(sees >> 16, 1, x.s[i]);", "hide_scores(sees, 1, x.s[i]);"},
  {"warp_rows_of_the_next_group_written", WARPSPLIT, "    if (row >= c.rows) break;\n", ""},
  {"warp_window_end_of_a_lane", ROWS_GQA, "    end = other > end ? other : end;\n", ""},
  {"warp_half_of_the_values_looked_at", WARPSPLIT, "for (int first = 0; first < TILE * V_CHUNKS; first += 32) bad",
   "for (int first = TILE * V_CHUNKS / 2; first < TILE * V_CHUNKS; first += 32) bad"},
  {"warp_not_finite_in_high_halves_alone", FRAGMENTS, "+ 0x00800080) & 0x80008000", "+ 0x00800000) & 0x80008000"},
  {"warp_no_sync_before_cleaning", WARPSPLIT, "  sync_warp();  // other lanes have read what this one cleans\n", ""},
  {"warp_rows_parked_as_tiles", WARPSPLIT, "(int)lds_u32(c.shared + PARKED + 20)", "(int)lds_u32(c.shared + PARKED + 16)"},
  {"warp_e4m3_not_finite_in_high_bytes_alone", FRAGMENTS, "0x01010101 & 0x80808080", "0x01010101 & 0x80808000"},
  {"warp_e4m3_scale_of_keys_forgotten", WARPSPLIT, " * stored_scale(p.k_scale);", ";"},
  {"warp_e4m3_scale_of_another_row", WARPSPLIT, "SCALES + (KV_E4M3 ? 2 * (lane_id_anew() & 3) * 4 : 0)",
   "SCALES + (KV_E4M3 ? 2 * (lane_id_anew() & 2) * 4 : 0)"},
  {"warp_e4m3_scales_by_one_warp", WARPSPLIT, "warp_id() == tile % WARPS && (lane_id() & 3) == 0",
   "tile == 0 && (lane_id() & 3) == 0"},
  {"warp_e4m3_query_in_plain_order", WARPSPLIT, "k * 32 + (lane_id() & 3) * 8);", "k * 32 + (lane_id() & 3 ^ 1) * 8);"},
  {"warp_e4m3_query_of_one_quad_lane", FRAGMENTS,
   "for (u32 d = 1; d < 4; d <<= 1) most = max_u16x2(most, shuffle_xor(most, d));\n  const u32 base",
   "for (u32 d = 1; d < 1; d <<= 1) most = max_u16x2(most, shuffle_xor(most, d));\n  const u32 base"},
  {"warp_e4m3_steps_of_keys_swapped", WARPSPLIT, "key_step(wide, r[2 * part], r[2 * part + 1]);",
   "key_step(wide, r[2 - 2 * part], r[3 - 2 * part]);"},
  {"warp_e4m3_tokens_of_values_swapped", WARPSPLIT, "value_step(wide, r[2 * part], r[2 * part + 1]);",
   "value_step(wide, r[2 * part + 1], r[2 * part]);"},
  {"warp_e4m3_shift_stays_in_the_lse", WARPSPLIT, "max - WEIGHT_SHIFT + log2_approx(sum)", "max + log2_approx(sum)"},
  {"warp_e4m3_weights_without_shift", WARPSPLIT, "s[k] - x.max[i][k % 2] + WEIGHT_SHIFT :", "s[k] - x.max[i][k % 2] :"},
  {"warp_e4m3_dimensions_in_the_order_of_halves", WARPSPLIT, "f32x2{x.o[m][i][0] * factor.x, x.o[m][i][2] * factor.x}",
   "f32x2{x.o[m][i][2] * factor.x, x.o[m][i][0] * factor.x}"},
  {"warp_e4m3_strides_of_halves", WARPSPLIT, "p.v_token_stride) * KV_BYTES\n", "p.v_token_stride) * 2\n"},
  {"warp_e4m3_nan_stays", FRAGMENTS, "if ((w >> 8 * i & 0x7f) == 0x7f)", "if (false)"},
};

// ---- a broken copy of the templates ---------------------------------------------------------------------------

static char folder[64];

static char *read_text(const char *name) {
  static char *data;
  static size_t size;
  char path[512];
  snprintf(path, sizeof path, TEST_SOURCE_DIR "/templates/%s", name);
  if (dw__file_read(path, &data, &size, NULL)) fail_msg("%s cannot be read", path);
  return data;
}

static void write_text(const char *name, const char *text, const char *instead_of, const char *with) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  const char *at = instead_of ? strstr(text, instead_of) : NULL;
  if (at) fprintf(file, "%.*s%s%s", (int)(at - text), text, with, at + strlen(instead_of));
  else fputs(text, file);
  assert_int_equal(fclose(file), 0);
}

static void each_template(void (*act)(const char *name, const fault *f), const fault *f) {
  DIR *dir = opendir(TEST_SOURCE_DIR "/templates");
  assert_non_null(dir);
  for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
    if (entry->d_name[0] != '.') act(entry->d_name, f);
  closedir(dir);
}

static void check_text(const char *text, const fault *f) {
  const char *at = strstr(text, f->text);
  if (!at) fail_msg("%s, %s no longer has the text:\n%s", f->name, f->file, f->text);
  else if (strstr(at + 1, f->text)) fail_msg("%s, %s has more than once:\n%s", f->name, f->file, f->text);
}

// Of all faults, in no time: the rest of this program is too slow to be run after every change of a template.
static void texts_stand_once(void **state) {
  (void)state;
  for (size_t i = 0; i < DW__COUNT(faults); i++) {
    char *text = read_text(faults[i].file);
    check_text(text, &faults[i]);
    dw__release(text);
  }
}

static void copy_one(const char *name, const fault *f) {
  char *text = read_text(name);
  bool here = strcmp(name, f->file) == 0;
  if (here) check_text(text, f);
  write_text(name, text, here ? f->text : NULL, f->replacement);
  dw__release(text);
}

static void remove_one(const char *name, const fault *f) {
  (void)f;
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  unlink(path);
}

// ---- problems that find faults --------------------------------------------------------------------------------

#define SHAPE "mla:h=8,t=9,qk=320,v=256"
#define REC "mla:h=8,t=9,kv=record656"

// What is special.
enum {
  PREFIX_ONLY = 1,
  POISON = 2,
  FAR = 4,
  SHORT = 8,
  WINDOW = 16,
  POSITIONS = 32,
  SINKS = 64,
  CAP = 128,
  PARTS = 256,
  ELSEWHERE = 512,
  NARROW = 1024,
  INFINITE = 2048,
  ONE_ROW = 4096  // of each request, where the shape has more
};

typedef struct trial {
  const char *shape, *variant;
  int prefix[3], rows[3];  // rows 0: the width each
  dw_mask mask;
  dw_addressing addressing;
  int sms, split_tokens, special;
} trial;

#define R1 "family=rowsplit,n_tiles=1,combine=few,combine_splits=2"
#define R2 "family=rowsplit,n_tiles=2,combine=few,combine_splits=2"
#define R3 "family=rowsplit,n_tiles=3,combine=few,combine_splits=8"
#define T3 "family=rowsplit,n_tiles=3,setmaxnreg=1,combine=few,combine_splits=8,call=table"
#define R5 "family=rowsplit,n_tiles=5,setmaxnreg=1,combine=few,combine_splits=2"
#define RW2 "family=rowsplit,n_tiles=2,wide_tile=1,combine=few,combine_splits=2"
#define RW "family=rowsplit,n_tiles=5,setmaxnreg=1,wide_tile=1,combine=few,combine_splits=2"
#define P5 "family=dimsplit,n_tiles=5,setmaxnreg=1,combine=few,combine_splits=2"
#define P9 "family=dimsplit,n_tiles=9,setmaxnreg=1,combine=few,combine_splits=2"
#define RA "family=rowsplit,n_tiles=3,cp_async=1,combine=few,combine_splits=2"
#define G1 "family=grouped,n_tiles=1,combine=few,combine_splits=2"
#define G2 "family=grouped,n_tiles=2,combine=few,combine_splits=4"
#define G4 "family=grouped,n_tiles=4,combine=few,combine_splits=4"
#define W2 "family=warpsplit,n_tiles=2,combine=few,combine_splits=2"
#define W3 "family=warpsplit,n_tiles=3,combine=few,combine_splits=2"
#define W5 "family=warpsplit,n_tiles=5,combine=few,combine_splits=4"
#define PARENTS DW_MASK_PARENTS, DW_BLOCK_TABLE
#define CHAIN DW_MASK_NONE, DW_BLOCK_TABLE
#define CHAIN_CSR DW_MASK_NONE, DW_CSR
static const trial trials[] = {
  {SHAPE ",page=16", R2, {250, 37, 64}, {9, 4, 7}, PARENTS, 9, 0, 0},
  {SHAPE, RA, {250, 37, 64}, {9, 4, 7}, PARENTS, 1, 0, PARTS},
  {SHAPE ",kv=e4m3", RW, {700, 37, 64}, {9, 5, 9}, PARENTS, 1, 0, 0},
  {SHAPE, R5, {250, 37, 16}, {9, 5, 9}, CHAIN_CSR, 1, 64, PREFIX_ONLY},
  {SHAPE, R3, {300, 250, 20}, {0}, CHAIN, 1, 0, SHORT},
  {"mla:h=2,t=64,qk=192,v=128", R2, {20, 5, 0}, {0}, DW_MASK_BITS, DW_CSR, 1, 0, POISON},
  {"mla:h=1,t=64,qk=192,v=128,kv=e4m3", RW2, {20, 5, 0}, {0}, DW_MASK_BITS, DW_CSR, 1, 0, POISON},
  {"mla:h=1,t=70,qk=192,v=128", R2, {20, 5, 33}, {0}, PARENTS, 1, 0, 0},
  {"mla:h=2,t=4", R1, {40, 9, 0}, {0}, CHAIN_CSR, 1, 0, FAR},
  {"mla:h=2,t=4,page=16", R1, {40, 9, 0}, {0}, CHAIN_CSR, 1, 0, FAR},
  {SHAPE ",page=16", R2, {250, 37, 64}, {9, 4, 7}, DW_MASK_BYTES_FULL, DW_BLOCK_TABLE, 9, 0, WINDOW | POSITIONS | CAP | PARTS},
  {SHAPE, R3, {100, 20, 3}, {0}, DW_MASK_BYTES_QLEN, DW_CSR, 1, 0, WINDOW | NARROW | SINKS | PREFIX_ONLY},
  {SHAPE, R5, {250, 0, 5}, {0}, PARENTS, 1, 0, SINKS | WINDOW | POSITIONS},
  {"mla:h=1,t=70,qk=192,v=128", R2, {20, 5, 33}, {0}, DW_MASK_BIAS_F32, DW_CSR, 1, 0, WINDOW},
  {SHAPE, R2, {70, 20, 0}, {9, 4, 7}, CHAIN_CSR, 1, 0, PREFIX_ONLY | ELSEWHERE | CAP},
  {"mla:h=8,t=2,qk=320,v=256", R2, {46, 37, 64}, {0}, DW_MASK_BITS, DW_CSR, 1, 0, WINDOW | POISON},
  {SHAPE, R2, {20, 37, 0}, {0}, CHAIN, 1, 0, INFINITE},
  {SHAPE, R3, {20, 37, 0}, {0}, CHAIN, 1, 0, INFINITE | CAP},
  {SHAPE, P9, {20, 37, 0}, {0}, CHAIN, 1, 0, INFINITE},
  {SHAPE, P5, {300, 37, 16}, {9, 5, 9}, CHAIN_CSR, 1, 208, PREFIX_ONLY},
  {SHAPE, P9, {250, 0, 5}, {0}, PARENTS, 1, 0, WINDOW | POSITIONS},
  {SHAPE, P5, {300, 70, 20}, {0}, CHAIN, 1, 0, 0},
  {"mla:h=2,t=64,qk=192,v=128", P9, {20, 5, 0}, {0}, DW_MASK_BITS, DW_CSR, 1, 0, POISON},
  {REC ",page=16", R2 ",wide_tile=1", {250, 37, 64}, {9, 4, 7}, PARENTS, 9, 0, CAP},
  {"mla:h=2,t=64,kv=record656", R5 ",wide_tile=1", {20, 5, 0}, {0}, DW_MASK_BITS, DW_CSR, 1, 0, POISON},
  {"gqa:h=6,hk=2,t=9,d=64,page=16", G2, {500, 37, 64}, {9, 4, 7}, PARENTS, 5, 0, 0},
  {"gqa:h=8,hk=2,t=9,qk=192,v=128", G4, {250, 37, 16}, {9, 5, 9}, CHAIN_CSR, 1, 192, PREFIX_ONLY},
  {"gqa:h=2,hk=1,t=64,d=128", G4, {20, 5, 0}, {0}, DW_MASK_BITS, DW_CSR, 1, 0, POISON},
  {"gqa:h=4,hk=2,t=9,d=128", G1, {250, 0, 5}, {0}, PARENTS, 1, 0, SINKS | WINDOW | POSITIONS},
  {"gqa:h=4,hk=2,t=9,d=64", G2, {100, 20, 3}, {0}, DW_MASK_BYTES_QLEN, DW_CSR, 1, 0, WINDOW | NARROW | PREFIX_ONLY},
  {"gqa:h=2,hk=1,t=64,d=128,kv=e4m3", G4, {20, 5, 0}, {0}, DW_MASK_BITS, DW_CSR, 1, 0, POISON},
  {"gqa:h=6,hk=2,t=9,d=96,page=16,target=sm_80,kv=e4m3", G2, {500, 37, 64}, {9, 4, 7}, PARENTS, 5, 0, 0},
  {"gqa:h=8,hk=2,t=9,d=128,page=16", W5, {500, 37, 64}, {9, 4, 7}, PARENTS, 1, 0, 0},
  {"gqa:h=2,hk=1,t=64,d=128", W3, {20, 5, 0}, {0}, DW_MASK_BITS, DW_CSR, 1, 0, POISON},
  {"gqa:h=6,hk=2,t=9,d=64", W2, {250, 0, 5}, {0}, CHAIN_CSR, 1, 0, SINKS | WINDOW | POSITIONS | PREFIX_ONLY},
  {"gqa:h=8,hk=2,t=9,d=128,page=16,kv=e4m3", W5, {500, 37, 64}, {9, 4, 7}, PARENTS, 1, 0, 0},
  {"gqa:h=2,hk=1,t=64,d=128,kv=e4m3", W3, {20, 5, 0}, {0}, DW_MASK_BITS, DW_CSR, 1, 0, POISON},
  {"gqa:h=6,hk=2,t=9,d=96,target=sm_80,kv=e4m3",
   W2,
   {250, 0, 5},
   {0},
   CHAIN_CSR,
   1,
   0,
   SINKS | WINDOW | POSITIONS | PREFIX_ONLY | CAP},
  {SHAPE, P9, {300, 37, 64}, {9, 5, 9}, CHAIN, 1, 0, CAP},
  // Lengths that the guess of a CTA's work is wrong for, and no token at all.
  {SHAPE, R3, {900, 37, 64}, {0}, CHAIN, 36, 0, 0},
  {"mla:h=8,t=9,kv=e4m3", R5, {0}, {0}, CHAIN, 9, 0, ELSEWHERE | PREFIX_ONLY},
  {SHAPE, P9, {900, 37, 64}, {0}, CHAIN, 36, 0, 0},
  // First slots asked for early: in vain, and of ranges of one to three tiles.
  {SHAPE, T3, {900, 37, 64}, {0}, CHAIN, 36, 0, 0},
  {SHAPE, T3, {120, 120, 120}, {0}, CHAIN, 72, 0, 0},
  {SHAPE, T3, {300, 300, 300}, {0}, CHAIN, 9, 0, ONE_ROW},
};

// Faults that a trial finds and no earlier one of its kind: for them it is tried first, the others after it. A wrong line costs time
// alone; a trial before others moves their numbers.
static const char *const finds[DW__COUNT(trials)] = {
  [1] = "no_wait_for_a_free_slot_wide cp_async_arrives_early cp_async_counts_warps cp_async_rope_as_a_whole "
        "no_safe_token q_rope_of_the_first_request kv_rope_with_strides_of_kv",
  [2] = "no_wait_for_the_tile no_wait_for_half_a_tile wrong_half_emptied",
  [3] = "draft_slots_of_the_first_request mask_off_by_one mask_one_too_many rounds_of_the_merge_not_rescaled",
  [4] = "absent_drafts_seen",
  [5] = "no_barrier_between_poison_flags poison_flags_without_turns no_fence_after_cleaning poison_not_cleaned",
  [6] = "half_a_tile_cleaned",
  [8] = "slot_address_of_32_bits",
  [9] = "page_address_of_32_bits",
  [10] = "bytes_of_the_prefix window_off_by_one window_shows_the_prefix window_without_positions "
         "window_skips_a_tile_too_many cap_only_from_above cap_near_everywhere cap_of_hidden_tokens "
         "cap_sums_never_rescaled",
  [11] = "matrix_of_the_first_request window_shows_all_drafts window_counts_the_node_itself sink_of_another_head "
         "sink_in_base_2 sink_does_not_shrink_the_output",
  [12] = "window_of_another_row sink_of_the_dead",
  [14] = "drafts_elsewhere_counted",
  [24] = "record_factor_not_finite",
  [26] = "gqa_tokens_past_the_end gqa_values_with_strides_of_keys",
  [27] = "gqa_values_not_cleaned",
  [28] = "gqa_window_off_by_one",
  [29] = "gqa_window_shows_all_drafts",
  [31] = "gqa_e4m3_bits_in_another_order gqa_e4m3_bias_of_bits gqa_e4m3_chunks_of_two_tokens_in_one_place "
         "gqa_e4m3_copies_past_the_slot",
  [33] = "warp_masks_in_one_place warp_values_not_cleaned",
  [34] = "warp_mask_of_the_other_row",
  [38] = "pair_cap_sums_never_rescaled pair_cap_rounded_never_rescaled",
  [39] = "query_of_the_guess entries_of_the_guess",
  [40] = "query_overwritten_by_results",
  [41] = "pair_query_of_the_guess",
  [42] = "first_slots_of_a_wrong_guess plan_not_waited_for_by_loaders",
  [43] = "loaders_do_not_meet first_slots_past_the_end first_slots_asked_for_twice",
  [44] = "first_slots_of_no_rows",
};

// The trial to begin with; -1: none in particular.
static int finder(const char *fault_name) {
  const size_t size = strlen(fault_name);
  for (int i = 0; i < (int)DW__COUNT(trials); i++)
    for (const char *at = finds[i]; at && *at; at += strcspn(at, " "), at += *at == ' ')
      if (strcspn(at, " ") == size && memcmp(at, fault_name, size) == 0) return i;
  return -1;
}

static int features_of(const trial *t) {
  return (t->special & WINDOW ? DW_WITH_WINDOW : 0) | (t->special & CAP ? DW_WITH_SOFT_CAP : 0) |
         (t->special & PARTS ? DW_WITH_Q_ROPE | DW_WITH_KV_ROPE : 0);
}

// The pool moved up by so many slots that products of 32 bits do not reach it.
enum { FAR_SLOTS = 1 << 22 };
typedef struct far_pool {
  char *memory;
  size_t size;
} far_pool;
static far_pool move_far(dw__problem *problem) {
  size_t before = (size_t)FAR_SLOTS * (size_t)problem->spec.shape.head_dim_qk * 2;
  far_pool far = {.size = before + problem->kv_bytes};
  far.memory = mmap(NULL, far.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  assert_true(far.memory != MAP_FAILED);
  memcpy(far.memory + before, problem->args.kv, problem->kv_bytes);
  problem->args.kv = far.memory;
  problem->kv_bytes = far.size;
  int32_t *slots = (int32_t *)(uintptr_t)problem->args.kv_indices;
  for (int i = 0; i < problem->args.kv_indptr[problem->args.batch]; i++) slots[i] += FAR_SLOTS;
  return far;
}

// Two drafts of the first request that none of its nodes sees; of narrow trees one.
static void hide_poison(dw__problem *problem) {
  const dw_shape *shape = &problem->spec.shape;
  const int drafts[] = {shape->width > 30 ? 3 : 1, 30}, count = shape->width > 30 ? 2 : 1;
  for (int i = 0; i < count; i++)
    for (int node = 0; node < problem->rows[0]; node++) kt_see(problem, 0, node, drafts[i], false);
  kt_solve(problem);
  for (int i = 0; i < count; i++) {
    const int token = problem->prefix[0] + drafts[i];
    if (shape->attention == DW_MLA) kt_fill_token(problem, 0, token, i ? NAN : INFINITY);
    else
      dw__from_float(shape->kv, i ? (double)NAN : (double)INFINITY,
                     (uint16_t *)(uintptr_t)dw__oracle_value(shape, &problem->args, 0, token, 0));
  }
}

static dw__problem *trial_problem(const trial *t, far_pool *far) {
  dw_shape shape = kt_shape(t->shape);
  dw__problem_spec spec = kt_spec(&shape, 3, t->prefix, t->rows[0] ? t->rows : NULL);
  if (t->special & ONE_ROW) spec.width = 1;
  spec.mask_kind = t->mask;
  spec.addressing = t->addressing;
  spec.lengths_include_drafts = !(t->special & PREFIX_ONLY);
  spec.drafts_elsewhere = !!(t->special & ELSEWHERE);
  spec.draft_slots = t->addressing == DW_CSR && !spec.lengths_include_drafts && !spec.drafts_elsewhere;
  spec.window = !(t->special & WINDOW) ? 0 : t->special & NARROW ? 3 : t->special & POISON ? 40 : 60;
  spec.positions = t->special & POSITIONS ? 2 : 0;
  spec.sinks = !!(t->special & SINKS);
  spec.soft_cap = t->special & CAP ? 2 : 0;
  spec.q_rope = spec.kv_rope = spec.strided = !!(t->special & PARTS);
  if (shape.kv == DW_E4M3) spec.kv_scale = 0.5f, spec.v_scale = shape.attention == DW_GQA ? 3 : 0;
  spec.dead_nodes = 1;
  spec.lse_base_e = 1;
  dw__problem *problem = kt_problem(&spec);
  // Scores that rise, so that maxima move.
  for (int b = 0; b < 3; b++)
    for (int token = 0; token < t->prefix[b]; token++) kt_scale_token(problem, b, token, 0.1 + token * 0.004);
  // Node 4, which is the fifth tile of rows, stands well behind the others.
  if (spec.positions) kt_positions(problem)[4] += 30;
  if (t->special & SHORT) kt_lengths(problem)[2] = 5;
  kt_solve(problem);
  if (t->special & POISON) hide_poison(problem);
  if (t->special & INFINITE) {  // in draft 1, which node 0 does not see
    dw__from_float(shape.kv, (double)INFINITY, kt_token_element(problem, 0, t->prefix[0] + 1, 0));
    kt_solve(problem);
  }
  if (t->special & FAR) *far = move_far(problem);
  return problem;
}

static bool is_wrong(const trial *t, dw__problem *problem, dw_error *error) {
  if (!(t->special & INFINITE)) return kt_judge(problem, error);
  const int count = kt_wrongly_finite(problem, 0);
  return count &&
         dw__fail_int(error, DW_WRONG_RESULT, "vectors that see infinity and are finite", count, "0", "of an infinite V");
}

// In each order of warps: a fault of the run, a wrong row, or other bits.
static bool trial_finds(const trial *t, const kt_kernel *kernel, dw_error *error) {
  far_pool far = {0};
  dw__problem *problem = trial_problem(t, &far);
  dw_bounds bounds = kt_bounds(problem);
  bounds.sm_count = t->sms;
  bounds.split_tokens = t->split_tokens;
  bool found = false;
  for (int run = 0; run < 5 && !found; run++) {
    dw_host_order order = run == 0 ? DW_HOST_FORWARD : run == 1 ? DW_HOST_REVERSE : DW_HOST_RANDOM;
    found = dw__host_kernel_run(kernel->host, &bounds, problem, order, (uint64_t)run, error) || is_wrong(t, problem, error);
  }
  if (far.memory) munmap(far.memory, far.size);
  dw__problem_free(problem);
  return found;
}

// What problems are of, and what finds a fault.
typedef enum kind { MLA, GQA, GQA_E4M3, GQA_WARPSPLIT, WARPSPLIT_E4M3, RECORDS, PAIRS, KINDS } kind;
static bool begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }
static kind kind_of_trial(const trial *t) {
  const bool bytes = strstr(t->shape, "kv=e4m3"), warp = begins(t->variant, "family=warpsplit");
  if (begins(t->shape, "gqa:")) return bytes ? warp ? WARPSPLIT_E4M3 : GQA_E4M3 : warp ? GQA_WARPSPLIT : GQA;
  return begins(t->variant, "family=dimsplit") ? PAIRS : strstr(t->shape, "record656") ? RECORDS : MLA;
}
static kind kind_of_fault(const char *name) {
  if (begins(name, "pair_")) return PAIRS;
  if (begins(name, "gqa_e4m3_")) return GQA_E4M3;
  if (begins(name, "warp_e4m3_")) return WARPSPLIT_E4M3;
  return begins(name, "gqa_") ? GQA : begins(name, "warp_") ? GQA_WARPSPLIT : begins(name, "record_") ? RECORDS : MLA;
}

static bool is_fault_of(const char *name, size_t size, kind of) {
  for (size_t i = 0; i < DW__COUNT(faults); i++)
    if (strlen(faults[i].name) == size && memcmp(faults[i].name, name, size) == 0) return kind_of_fault(faults[i].name) == of;
  return false;
}

// A trial is named for faults that exist and that it is a problem for.
static void texts_of_finders(void **state) {
  (void)state;
  for (size_t i = 0; i < DW__COUNT(trials); i++)
    for (const char *at = finds[i]; at && *at; at += strcspn(at, " "), at += *at == ' ') {
      const int size = (int)strcspn(at, " ");
      if (!is_fault_of(at, (size_t)size, kind_of_trial(&trials[i])))
        fail_msg("trial %zu: no fault of its kind: %.*s", i, size, at);
    }
}

static bool find_by(const char *templates, const trial *t, dw_error *error) {
  dw_shape shape = kt_shape(t->shape);
  dw_variant variant = kt_variant(t->variant);
  dw__variant_add_features(&variant, features_of(t));
  kt_kernel *kernel = kt_kernel_from(templates, &shape, &variant, error);
  if (!kernel) kt_fail("build", error);
  bool found = trial_finds(t, kernel, error);
  kt_kernel_free(kernel);
  return found;
}

// By trial `first` (-1: none in particular), then by the others of the kind in order.
static bool find(const char *templates, kind of, int first, dw_error *error) {
  if (first >= 0 && find_by(templates, &trials[first], error)) return true;
  for (int i = 0; i < (int)DW__COUNT(trials); i++) {
    if (kind_of_trial(&trials[i]) != of || i == first || !find_by(templates, &trials[i], error)) continue;
    if (first >= 0) print_message("  by trial %d, not %d\n", i, first);
    return true;
  }
  return false;
}

static void check_fault(void **state) {
  const fault *f = *state;
  dw_error error = {0};
  strcpy(folder, "/tmp/draftwood-faults-XXXXXX");
  assert_non_null(mkdtemp(folder));
  each_template(copy_one, f);
  kt_note("%s", f->name);
  bool found = find(folder, kind_of_fault(f->name), finder(f->name), &error);
  each_template(remove_one, f);
  rmdir(folder);
  if (!found) fail_msg("nothing finds it");
  print_message("  %.160s\n", error.message);
  dw_error_clear(&error);
}

// The same problems on the templates as they are find nothing.
static void no_fault(void **state) {
  (void)state;
  dw_error error = {0};
  kt_note("templates as they are");
  for (kind of = MLA; of < KINDS; of++)
    if (find(TEST_SOURCE_DIR "/templates", of, -1, &error)) kt_fail("found", &error);
}

int main(int argc, char **argv) {
  static struct CMUnitTest tests[DW__COUNT(faults) + 3];
  for (size_t i = 0; i < DW__COUNT(faults); i++)
    tests[i] =
      (struct CMUnitTest){.name = faults[i].name, .test_func = check_fault, .initial_state = (void *)(uintptr_t)&faults[i]};
  tests[DW__COUNT(faults)] = (struct CMUnitTest)cmocka_unit_test(no_fault);
  tests[DW__COUNT(faults) + 1] = (struct CMUnitTest)cmocka_unit_test(texts_stand_once);
  tests[DW__COUNT(faults) + 2] = (struct CMUnitTest)cmocka_unit_test(texts_of_finders);
  if (kt_skip()) return 77;
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
