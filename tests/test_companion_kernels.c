// The companion kernels by host execution, through the public launch functions: every check of src/companion_checks.c, named as
// there, and kernels broken on purpose, which those checks have to find.
// test_companion_kernels [PATTERN]
#include <dirent.h>
#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "companion_checks.h"
#include "host_run.h"
#include "list_tests.h"

#ifdef __SANITIZE_ADDRESS__
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

static uint64_t seed;
static dw__stage *stages[3];  // an order of warps each

static dw_status open_stage(const char *template_dir, dw_host_order order, dw__stage **stage, dw_error *error) {
  dw_options options = {.size = sizeof options, .cache_dir = "", .template_dir = template_dir};
  dw_ctx *ctx;
  dw_status status = dw_ctx_create(&options, &ctx, error);
  if (status) return status;
  status = dw__stage_host(ctx, sanitized, order, 1, stage, error);
  dw_ctx_destroy(ctx);
  return status;
}

static int open_stages(void **state) {
  (void)state;
  dw_error error = {0};
  const char *given = getenv("DRAFTWOOD_TEST_SEED");
  seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
  print_message("seed %llu (DRAFTWOOD_TEST_SEED)\n", (unsigned long long)seed);
  for (int i = 0; i < 3; i++)
    if (open_stage(NULL, (dw_host_order)i, &stages[i], &error)) {
      print_error("%s\n%s\n", error.message, error.log ? error.log : "");
      return -1;
    }
  return 0;
}

static int close_stages(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++) dw__stage_close(stages[i]);
  return 0;
}

// ---- checks ---------------------------------------------------------------------------------------------------

static void run_check(void **state) {
  const dw__companion_check *check = *state;
  dw_error error = {0};
  for (int variant = 0; variant < check->variants; variant++)
    if (dw__companion_check_run(check, variant, seed + (uint64_t)variant, stages[variant % 3], &error))
      fail_msg("%s", error.message);
}

// ---- kernels broken on purpose --------------------------------------------------------------------------------

typedef struct fault {
  const char *name, *check, *file, *text, *replacement;
} fault;

static const fault faults[] = {
  {"merge_reads_what_saw_nothing", "merge", "merge_states.cuh", "vote_ballot(state.lse != none);",
   "vote_ballot(s0 + lane < p.parts);"},
  {"merge_weighs_what_saw_nothing", "merge", "merge_states.cuh", "total += lse == none ? 0.f : exp2_approx(lse - max);",
   "total += exp2_approx(lse - max);"},
  {"merge_ignores_the_base_of_a_state", "a14", "merge_states.cuh", "* k.to_log2", ""},
  {"merge_ignores_the_base_asked_for", "a14", "merge_states.cuh", " * p.from_log2;", ";"},
  {"merge_looks_at_32_states_only", "merge", "merge_states.cuh",
   "      if (p.parts > 32 && d0 + s0) state = find_state(p, s0 + lane, row, head);\n", ""},
  {"merge_writes_lse_before_all_read", "merge", "merge_states.cuh", "  sync_warp();  // all lanes",
   "  if (p.lse && lane_id() == 0) p.lse[0] = 0.f;  // all lanes"},
  {"rows_move_backwards", "compact", "kv_compact.cuh", "id != k;", "id > k + 1;"},
  {"list_runs_past_its_end", "d01", "kv_compact.cuh", "id <= before || id >= drafts", "id < -1 || id >= drafts"},
  {"id_of_no_draft_is_taken", "compact", "kv_compact.cuh", "id <= before || id >= drafts", "id <= before"},
  {"order_across_32_ids_forgotten", "compact", "kv_compact.cuh", "    last = (int)shuffle((u32)id, 31);\n", ""},
  {"lengths_with_drafts_taken_as_prefix", "compact", "planes.cuh", "  if (!with_drafts) return", "  return"},
  {"token_in_page_of_the_wrong_page", "d02", "kv_compact.cuh", "divide(prefix + draft,", "divide(prefix,"},
  {"draft_slots_of_the_first_request", "compact", "kv_compact.cuh", "l.first = rows.first;", "l.first = 0;"},
  {"offset_of_32_bits", "large", "kv_compact.cuh", "entry * planes.page_stride + in_page",
   "(s64)((u32)entry * (u32)planes.page_stride) + in_page"},
  {"columns_of_one_layer_only", "d02", "kv_compact.cuh", "planes.bases + (int)layer);", "planes.bases);"},
  {"part_of_a_row_twice", "compact", "kv_compact.cuh", "(part * DW_C_COMPACT_COLUMNS + c)", "(c)"},
  {"requests_of_the_first_block", "compact", "kv_compact.cuh", "(int)blockIdx.y * DW_C_COMPACT_WARPS",
   "0 * DW_C_COMPACT_WARPS"},
  {"first_move_left_out", "compact", "kv_compact.cuh", "listed - (int)count_bits(vote_ballot(moves))",
   "listed + 1 - (int)count_bits(vote_ballot(moves))"},
  {"moves_of_one_layer_only", "move", "planes.cuh", "planes.bases + plane);", "planes.bases);"},
  {"kinds_confused", "e04", "planes.cuh", ">= planes[k].first_block) found", "> planes[k].first_block) found"},
  {"no_barrier_before_stores", "move", "kv_move.cuh", "  barrier_sync(0, 32 * DW_C_SEGMENTS);\n", ""},
  {"last_row_of_a_segment_read_late", "move", "kv_move.cuh", "  if (begin < end && owns)",
   "  if (begin < end) last = load_unit<T>(place((s32)ldg_nc_s64(moves + end - 1)));\n  if (begin < end && owns)"},
  {"moves_one_after_the_other", "move", "kv_move.cuh", "store_unit<T>(place(to), rows[j]);",
   "store_unit<T>(place(to), load_unit<T>(place((s32)ldg_nc_s64(moves + at - lane_id() + first + j))));"},
  {"tokens_of_a_page_left_behind", "move", "planes.cuh", "token * planes.token_stride + (s64)in_row", "(s64)in_row"},
  {"positions_are_indices", "d08", "tree.cuh", ".prefix + (dead ? 0 : depth)", ".prefix + node"},
  {"dead_below_the_dead_forgotten", "expand", "tree.cuh", "  if (dead) depth = -1;\n", ""},
  {"parents_after_their_children", "expand", "tree.cuh", "parent >= TREE_ROOT && parent < node ? parent : TREE_DEAD",
   "parent >= TREE_ROOT && parent <= node + 1 && parent != node ? (parent < node ? parent : TREE_ROOT) : TREE_DEAD"},
  {"words_past_the_first_32", "expand", "tree.cuh", "word += 32) {", "word += 64) {"},
  {"every_root_is_the_committed_token", "accept", "tree.cuh", "at == first_root", "true"},
  {"first_match_instead_of_deepest", "accept", "tree.cuh", "if (depth > best_depth) best_depth",
   "if (depth && !best_depth) best_depth"},
  {"last_of_equally_deep_ones", "accept", "tree.cuh", "if (depth > best_depth) best_depth",
   "if (depth >= best_depth) best_depth"},
  {"no_sync_after_32_nodes", "accept", "tree.cuh", "best = node;\n    sync_warp();\n", "best = node;\n"},
  {"bonus_of_the_first_request", "accept", "tree.cuh", "put_token(p.bonus_tokens, b,", "put_token(p.bonus_tokens, 0,"},
  {"bonus_past_what_was_kept", "accept", "tree.cuh", "    if (k == count - 1) end = at;\n", ""},
  {"tokens_cut_to_32_bits", "accept", "tree.cuh", "tokens64 ? ldg_nc_s64((const s64 *)tokens + at)",
   "tokens64 ? (s32)ldg_nc_s64((const s64 *)tokens + at)"},
};

static char folder[64];

static char *read_template(const char *name, size_t *size) {
  char path[512], *data = NULL;
  snprintf(path, sizeof path, TEST_SOURCE_DIR "/templates/%s", name);
  if (dw__file_read(path, &data, size, NULL)) fail_msg("%s cannot be read", path);
  return data;
}

static void write_template(const char *name, const fault *f) {
  char path[512];
  size_t size;
  char *text = read_template(name, &size), *at = strcmp(name, f->file) ? NULL : strstr(text, f->text);
  if (!strcmp(name, f->file) && !at) fail_msg("%s no longer has the text:\n%s", name, f->text);
  if (at && strstr(at + 1, f->text)) fail_msg("%s has more than once:\n%s", name, f->text);
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  if (at) fprintf(file, "%.*s%s%s", (int)(at - text), text, f->replacement, at + strlen(f->text));
  else fwrite(text, 1, size, file);
  assert_int_equal(fclose(file), 0);
  dw__release(text);
}

static void each_template(const fault *f, bool write) {
  char path[512];
  DIR *dir = opendir(TEST_SOURCE_DIR "/templates");
  assert_non_null(dir);
  for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
    if (entry->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    if (write) write_template(entry->d_name, f);
    else unlink(path);
  }
  closedir(dir);
}

static const dw__companion_check *find_check(const char *name) {
  for (size_t i = 0; i < dw__companion_check_count; i++)
    if (strcmp(dw__companion_checks[i].name, name) == 0) return &dw__companion_checks[i];
  fail_msg("there is no check %s", name);
  return NULL;
}

// Fixed seeds: whether a fault is found is no matter of luck.
static bool is_found(dw__stage *stage, const dw__companion_check *check) {
  dw_error error = {0};
  bool found = false;
  for (int variant = 0; variant < check->variants && !found; variant++)
    found = dw__companion_check_run(check, variant, 7 + (uint64_t)variant, stage, &error) != DW_OK;
  dw_error_clear(&error);
  return found;
}

static void fault_is_found(void **state) {
  const fault *f = *state;
  dw_error error = {0};
  bool found = false;
  strcpy(folder, "/tmp/test_companions.XXXXXX");
  assert_non_null(mkdtemp(folder));
  each_template(f, true);
  for (int order = 0; order < 3 && !found; order++) {
    dw__stage *stage;
    dw_status status = open_stage(folder, (dw_host_order)order, &stage, &error);
    if (status) fail_msg("%s\n%s", error.message, error.log ? error.log : "");
    found = is_found(stage, find_check(f->check));
    dw__stage_close(stage);
  }
  each_template(f, false);
  rmdir(folder);
  if (!found) fail_msg("%s was not found by check %s", f->name, f->check);
}

// ---- all of them ----------------------------------------------------------------------------------------------

static struct CMUnitTest tests[256];
static char names[256][96];
static size_t count;

static void add(const char *pattern, const char *before, const char *name, CMUnitTestFunction function, const void *what) {
  snprintf(names[count], sizeof names[0], "%s%s", before, name);
  if (fnmatch(pattern, names[count], 0) != 0) return;
  tests[count] = (struct CMUnitTest){names[count], function, NULL, NULL, (void *)(uintptr_t)what};
  count++;
}

int main(int argc, char **argv) {
  const bool list = argc > 1 && strcmp(argv[1], "--list") == 0;
  const char *pattern = argc > 1 && !list ? argv[1] : "*";
  if (!list && !dw__host_compiler()) {
    print_message("skipped: host execution needs a C++ compiler\n");
    return 77;
  }
  for (size_t i = 0; i < dw__companion_check_count; i++)
    add(pattern, "", dw__companion_checks[i].name, run_check, &dw__companion_checks[i]);
  for (size_t i = 0; i < DW__COUNT(faults); i++) add(pattern, "fault_", faults[i].name, fault_is_found, &faults[i]);
  if (list_tests(argc, argv, tests, count)) return 0;
  if (!count) print_error("no test is named %s\n", pattern);
  return count ? _cmocka_run_group_tests("companion kernels", tests, count, open_stages, close_stages) : 1;
}
