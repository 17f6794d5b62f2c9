// The generator of random calls: cases that are valid and read back from their text, arguments with one wrong field, and the way
// a failing case becomes small. Nothing is run here.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "random_case.h"
#include "support.h"

enum { CASES = 3000, PER_GROUP = 20, SEED = 11 };

static char memory[256] __attribute__((aligned(256)));

static char *text_of(const dw__case *c) {
  dw__buf text = {0};
  dw__case_print(c, &text);
  assert_false(text.failed);
  return text.data;
}

// ---- cases ----------------------------------------------------------------------------------------------------

static void a_case_is_its_number_and_its_text(void **state) {
  (void)state;
  const dw__case_scale *scales[] = {&dw__case_large, &dw__case_small};
  for (int i = 0; i < 1000; i++) {
    dw__case c, again, read;
    dw__case_make(scales[i % 2], SEED, i, PER_GROUP, &c);
    dw__case_make(scales[i % 2], SEED, i, PER_GROUP, &again);
    assert_memory_equal(&c, &again, sizeof c);
    char *text = text_of(&c);
    dw_error error = {0};
    if (dw__case_parse(text, &read, &error)) fail_msg("%s: %s", text, error.message);
    if (memcmp(&c, &read, sizeof c) != 0) fail_msg("not read back: %s\n  but: %s", text, text_of(&read));
    dw__release(text);
  }
}

static void seeds_and_numbers_give_other_cases(void **state) {
  (void)state;
  dw__case a, b, c;
  dw__case_make(&dw__case_large, 1, 0, PER_GROUP, &a);
  dw__case_make(&dw__case_large, 2, 0, PER_GROUP, &b);
  dw__case_make(&dw__case_large, 1, 1, PER_GROUP, &c);
  assert_memory_not_equal(&a, &b, sizeof a);
  assert_memory_not_equal(&a, &c, sizeof a);
  assert_memory_equal(&a.shape, &c.shape, sizeof a.shape);
}

static void every_part_of_the_contract_is_drawn(void **state) {
  (void)state;
  int masks[DW_MASK_STATIC + 1] = {0}, families[DW_DIMSPLIT + 1] = {0}, calls[2] = {0}, wide = 0, padded = 0, empty = 0,
                             none = 0, longest = 0;
  dw__case all = {0}, c;
  for (int i = 0; i < CASES; i++) {
    dw__case_make(&dw__case_large, SEED, i, PER_GROUP, &c);
#define X(name, least, most, help) all.name += c.name > least;
    DW__CASE_FIELDS(X)
#undef X
    masks[c.mask]++;
    families[c.variant.family]++;
    calls[c.variant.call]++;
    wide += dw__case_width(&c) > 128;
    for (int b = 0; b < c.batch; b++) {
      padded += c.prefix[0][b] < 0;
      empty += c.rows[0][b] == 0;
      none += c.prefix[0][b] == 0;
      if (c.prefix[0][b] > longest) longest = c.prefix[0][b];
    }
  }
#define X(name, least, most, help) \
  if (all.name < CASES / 100) fail_msg(#name " was drawn %d times in %d cases", all.name, CASES);
  DW__CASE_FIELDS(X)
#undef X
  for (size_t i = 0; i < DW__COUNT(masks); i++) assert_true(masks[i] > CASES / 50);
  for (size_t i = 0; i < DW__COUNT(families); i++) assert_true(families[i] > CASES / 50);
  assert_true(calls[DW_CALL_TABLE] > CASES / 50 && calls[DW_CALL_ANY] > CASES / 2);
  assert_true(wide > CASES / 100 && padded > CASES / 50 && empty > CASES / 50 && none > CASES / 50 && longest > 5000);
}

static void bad_texts_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *field;
  } bad[] = {
    {"", "spec"},
    {"mla:h=8,t=9", "spec"},
    {"mla:h=8,t=9 family=split,combine=few", "spec"},
    {"mla:h=0,t=9 family=split batch=1", "heads"},
    {"mla:h=8,t=9 family=none batch=1", "family"},
    {"mla:h=8,t=9 family=split batch=0", "batch"},
    {"mla:h=8,t=9 family=split batch=65", "batch"},
    {"mla:h=8,t=9 family=split batch=1,mask=99", "mask"},
    {"mla:h=8,t=9 family=split batch=1,mask=x", "mask"},
    {"mla:h=8,t=9 family=split batch=1,odd=1", "spec"},
    {"mla:h=8,t=9 family=split batch=1,odd", "spec"},
    {"mla:h=8,t=9 family=split batch=1,prefix=1/x", "prefix"},
  };
  for (size_t i = 0; i < DW__COUNT(bad); i++) {
    dw_error error = {0};
    dw__case c;
    if (!dw__case_parse(bad[i].text, &c, &error)) fail_msg("accepted: %s", bad[i].text);
    if (!strstr(error.field, bad[i].field)) fail_msg("%s: found %s: %s", bad[i].text, error.field, error.message);
    dw_error_clear(&error);
  }
}

// ---- arguments ------------------------------------------------------------------------------------------------

static dw_bounds bounds_of(const dw__case *c) {
  int batch = c->batch + 2 * c->spare;
  return (dw_bounds){.size = sizeof(dw_bounds),
                     .batch = batch,
                     .total_q = batch * c->shape.width,
                     .kv_len = dw__case_longest(c) + c->shape.width,
                     .sm_count = 132,
                     .call = (dw_call)c->variant.call,
                     .split_tokens = c->split};
}

// One address stands for every array: nobody looks behind it.
static dw_args args_of(const dw__case *c, const dw__plan *plan) {
  void *some = memory;
  bool csr = !c->table, read = c->mask != DW_MASK_NONE && c->mask != DW_MASK_STATIC;
  return (dw_args){.size = sizeof(dw_args),
                   .q = some,
                   .q_rope = c->q_rope ? some : NULL,
                   .out = some,
                   .lse = c->no_lse ? NULL : some,
                   .qo_indptr = c->ragged ? some : NULL,
                   .batch = c->batch,
                   .width = c->width,
                   .kv = some,
                   .v = c->shape.attention == DW_GQA ? some : NULL,
                   .kv_rope = c->kv_rope ? some : NULL,
                   .addressing = csr ? DW_CSR : DW_BLOCK_TABLE,
                   .kv_indptr = csr ? some : NULL,
                   .kv_indices = csr ? some : NULL,
                   .index64 = c->index64,
                   .draft_slots = c->slots ? some : NULL,
                   .block_table = csr ? NULL : some,
                   .table_columns = csr ? 0 : 1 + (dw__case_longest(c) + c->shape.width) / c->shape.page,
                   .kv_len = some,
                   .lengths_include_drafts = c->all,
                   .drafts_elsewhere = c->elsewhere,
                   .mask_kind = (dw_mask)c->mask,
                   .mask = read ? some : NULL,
                   .mask_shared = c->shared,
                   .mask_indptr = c->mask == DW_MASK_BYTES_FULL ? some : NULL,
                   .softmax_scale = 0.1f,
                   .soft_cap = (float)c->cap / 100,
                   .window = c->window,
                   .positions = c->positions ? some : NULL,
                   .sinks = c->sinks ? some : NULL,
                   .kv_scale = c->scale ? some : NULL,
                   .v_scale = dw__case_v_scale(c) != 0 ? some : NULL,
                   .overlap_prologue = c->overlap,
                   .workspace = plan->workspace_bytes ? some : NULL,
                   .workspace_size = plan->workspace_bytes};
}

static void one_wrong_field_is_refused(void **state) {
  (void)state;
  long *met = calloc(dw__args_break_count(), sizeof *met);
  uint64_t seed = SEED;
  for (int i = 0; i < CASES; i++) {
    dw__case c;
    dw__plan plan;
    dw_error error = {0};
    dw__case_make(&dw__case_large, SEED, i, PER_GROUP, &c);
    dw_bounds bounds = bounds_of(&c);
    dw_status status = dw__plan_make(&c.shape, &c.variant, &bounds, &plan, &error);
    if (status) fail_msg("case %d: %s: %s", i, text_of(&c), error.message);
    for (int k = 0; k < 10; k++) {
      dw_args args = args_of(&c, &plan);
      if (dw__args_check(&c.shape, &bounds, &plan, &args, &error)) fail_msg("case %d: %s: %s", i, text_of(&c), error.message);
      dw__broken broken = dw__args_break(&c.shape, &bounds, &plan, &seed, &args);
      met[broken.way]++;
      status = dw__args_check(&c.shape, &bounds, &plan, &args, &error);
      if (status != DW_BAD_ARGUMENT || !dw__broken_named(&broken, &error) || !error.found[0] || !error.allowed[0])
        fail_msg("case %d: %s: %s %s: %s", i, text_of(&c), broken.field, broken.what, error.message);
      dw_error_clear(&error);
    }
  }
  for (size_t i = 0; i < dw__args_break_count(); i++)
    if (met[i] < 5) fail_msg("way %zu was met %ld times", i, met[i]);
  free(met);
}

// ---- shrinking ------------------------------------------------------------------------------------------------

typedef struct fault {
  bool (*hits)(const dw__case *c);
  const char *smallest;  // what has to be left, but for the seed
} fault;

static bool any_case(const dw__case *c) { return c->batch > 0; }
static bool long_windowed(const dw__case *c) {
  for (int b = 0; b < c->batch; b++)
    if (c->window && c->prefix[0][b] >= 17) return true;
  return false;
}
static bool second_request_has_rows(const dw__case *c) { return c->batch > 1 && c->ragged && c->rows[0][1] >= 3; }
static bool replayed_bits(const dw__case *c) { return c->replay && c->mask == DW_MASK_BITS && c->prefix[1][0] > 0; }
static bool two_heads_of_64(const dw__case *c) { return c->shape.heads > 1 && c->shape.page == 64; }

static const fault faults[] = {
  {any_case, "mla:h=1,t=1,page=1 batch=1 prefix=0"},
  {long_windowed, "mla:h=1,t=1,page=1 batch=1 window=1 prefix<34"},
  {second_request_has_rows, "mla:h=1,t<6,page=1 batch=2 ragged=1 rows<6"},
  {replayed_bits, "mla:h=1,t=1,page=1 batch=1 mask=2 replay=1 prefix2=1"},
  {two_heads_of_64, "mla:h=2,t=1,page=64 batch=1 prefix=0"},
};

static dw_status run_fault(void *user, const dw__case *c, dw_error *error) {
  const fault *f = user;
  dw__plan plan;
  dw_bounds bounds = bounds_of(c);
  dw_status status = dw__plan_make(&c->shape, &c->variant, &bounds, &plan, error);
  dw_args args = args_of(c, &plan);
  if (!status) status = dw__args_check(&c->shape, &bounds, &plan, &args, error);
  if (status) return status;  // not a smaller case of this fault
  return f->hits(c) ? dw__fail(error, DW_WRONG_RESULT, "fault", "", "", "the planted one") : DW_OK;
}

// Sum of everything that makes a case large; what the fault does not need has to be gone.
static void check_small(const fault *f, const dw__case *c, const char *text) {
  int odd = 0;
#define X(name, least, most, help) odd += c->name > least;
  DW__CASE_FIELDS(X)
#undef X
  int allowed = c->seed > 0;
  allowed += f->hits == long_windowed ? 1 : f->hits == second_request_has_rows ? 2 : f->hits == replayed_bits ? 2 : 0;
  if (odd > allowed) fail_msg("%d fields are left, allowed %d (%s): %s", odd, allowed, f->smallest, text);
  if (c->shape.width >= 6 || c->shape.heads > 1 + (f->hits == two_heads_of_64)) fail_msg("(%s): %s", f->smallest, text);
  if (c->shape.page != 1 && f->hits != two_heads_of_64) fail_msg("(%s): %s", f->smallest, text);
  if (c->shape.tree_nodes || c->shape.out != DW_BF16 || c->shape.q != DW_BF16) fail_msg("(%s): %s", f->smallest, text);
  if (dw__case_longest(c) > (f->hits == long_windowed ? 33 : 1)) fail_msg("(%s): %s", f->smallest, text);
}

static void failures_become_small(void **state) {
  (void)state;
  for (size_t k = 0; k < DW__COUNT(faults); k++) {
    int found = 0;
    for (int i = 0; i < CASES && found < 10; i++) {
      dw__case c;
      dw_error error = {0};
      dw__case_make(&dw__case_large, SEED, i, PER_GROUP, &c);
      if (run_fault((void *)(uintptr_t)&faults[k], &c, &error) != DW_WRONG_RESULT) continue;
      found++;
      int tried = dw__case_shrink(&c, DW_WRONG_RESULT, 1000, run_fault, (void *)(uintptr_t)&faults[k], &error);
      char *text = text_of(&c);
      assert_true(faults[k].hits(&c));
      assert_string_equal(error.field, "fault");
      check_small(&faults[k], &c, text);
      if (tried >= 1000) fail_msg("%d tries for %s", tried, text);
      dw__release(text);
      dw_error_clear(&error);
    }
    assert_int_equal(found, 10);
  }
}

// Another failure on the way is not this one.
static dw_status other_below_four(void *user, const dw__case *c, dw_error *error) {
  (void)user;
  if (c->batch < 4) return dw__fail(error, DW_INTERNAL, "other", "", "", "not the one that was found");
  return dw__fail(error, DW_WRONG_RESULT, "fault", "", "", "the planted one");
}

static void a_failure_stays_what_it_was(void **state) {
  (void)state;
  dw__case c;
  dw_error error = {0};
  for (int i = 0; i == 0 || c.batch < 8; i++) dw__case_make(&dw__case_large, SEED, i, PER_GROUP, &c);
  other_below_four(NULL, &c, &error);
  dw__case_shrink(&c, DW_WRONG_RESULT, 1000, other_below_four, NULL, &error);
  assert_int_equal(c.batch, 4);
  assert_int_equal(error.status, DW_WRONG_RESULT);
  dw_error_clear(&error);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_case_is_its_number_and_its_text),   cmocka_unit_test(seeds_and_numbers_give_other_cases),
    cmocka_unit_test(every_part_of_the_contract_is_drawn), cmocka_unit_test(bad_texts_are_refused),
    cmocka_unit_test(one_wrong_field_is_refused),          cmocka_unit_test(failures_become_small),
    cmocka_unit_test(a_failure_stays_what_it_was),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
