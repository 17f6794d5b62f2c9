// Arguments, bounds and variants that are refused, each with field, found and allowed; and what holds of every plan the rule table
// makes.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core.h"
#include "plan.h"
#include "random.h"
#include "rule.h"
#include "list_tests.h"
#include "support.h"

#define SHAPE "mla:h=8,t=9,page=16"
#define GQA "gqa:h=8,hk=2,t=9,d=128,page=16"
#define GROUPED "family=grouped,n_tiles=5,combine=few,combine_splits=8"
#define FEW "family=rowsplit,n_tiles=3,setmaxnreg=1,combine=few,combine_splits=8"
#define PAIR "family=dimsplit,n_tiles=9,setmaxnreg=1,combine=few,combine_splits=8"

static void expect(const char *what, dw_status status, dw_status wanted, const dw_error *error, const char *field,
                   const char *found, const char *allowed) {
  if (status != wanted || strcmp(error->field, field) || strcmp(error->found, found) || strcmp(error->allowed, allowed))
    fail_msg("%s: status %s, field '%s', found '%s', allowed '%s'", what, dw_status_name(status), error->field, error->found,
             error->allowed);
  assert_true(strstr(error->message, field) && strstr(error->message, found) && strstr(error->message, allowed));
  assert_true(strlen(error->message) > strlen(field) + strlen(found) + strlen(allowed) + 20);  // and says why
}

// ---- bounds ---------------------------------------------------------------------------------------------------

static void bounds_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *field, *found, *allowed;
    dw_bounds bounds;
  } cases[] = {
    {"bounds.batch", "0", "1 to 65535", {.batch = 0, .kv_len = 100, .sm_count = 1}},
    {"bounds.batch", "-1", "1 to 65535", {.batch = -1, .kv_len = 100, .sm_count = 1}},
    {"bounds.batch", "65536", "1 to 65535", {.batch = 65536, .kv_len = 100, .sm_count = 1}},
    {"bounds.total_q", "-1", "0 to batch x width", {.batch = 2, .total_q = -1, .kv_len = 100, .sm_count = 1}},
    {"bounds.total_q", "19", "0 to batch x width", {.batch = 2, .total_q = 19, .kv_len = 100, .sm_count = 1}},
    {"bounds.kv_len", "0", "1 to 16777216", {.batch = 2, .kv_len = 0, .sm_count = 1}},
    {"bounds.kv_len", "16777217", "1 to 16777216", {.batch = 2, .kv_len = 16777217, .sm_count = 1}},
    {"bounds.sm_count", "0", "1 to 4096", {.batch = 2, .kv_len = 100, .sm_count = 0}},
    {"bounds.sm_count", "4097", "1 to 4096", {.batch = 2, .kv_len = 100, .sm_count = 4097}},
    {"bounds.split_tokens",
     "-16",
     "0 or a multiple of 16, up to 16777216",
     {.batch = 2, .kv_len = 100, .sm_count = 1, .split_tokens = -16}},
    {"bounds.split_tokens",
     "16777232",
     "0 or a multiple of 16, up to 16777216",
     {.batch = 2, .kv_len = 100, .sm_count = 1, .split_tokens = 16777232}},
    {"bounds.split_tokens",
     "24",
     "0 or a multiple of 16, up to 16777216",
     {.batch = 2, .kv_len = 100, .sm_count = 1, .split_tokens = 24}},
    {"bounds.split_tokens", "16", "at least kv_len / 65535", {.batch = 2, .kv_len = 1 << 24, .sm_count = 1, .split_tokens = 16}},
    {"bounds.split_tokens",
     "272",
     "at most 2147483647 ranges in all",
     {.batch = 65535, .kv_len = 1 << 24, .sm_count = 1, .split_tokens = 272}},
  };
  dw_shape shape = shape_of(SHAPE);
  dw_variant variant = variant_of(FEW);
  for (size_t i = 0; i < DW__COUNT(cases); i++) {
    dw__plan plan;
    dw_error error = {0};
    dw_bounds bounds = cases[i].bounds;
    bounds.size = sizeof bounds;
    dw_status status = dw__plan_make(&shape, &variant, &bounds, &plan, &error);
    expect(cases[i].field, status, DW_BAD_ARGUMENT, &error, cases[i].field, cases[i].found, cases[i].allowed);
    if (bounds.sm_count == 0) continue;  // means the target's own
    dw_variant chosen;
    error = (dw_error){0};
    status = dw_variant_choose(&shape, &bounds, &chosen, &error);
    expect(cases[i].field, status, DW_BAD_ARGUMENT, &error, cases[i].field, cases[i].found, cases[i].allowed);
  }
}

static void table_kernels_split_by_auto(void **state) {
  (void)state;
  dw_shape shape = shape_of(SHAPE);
  dw_variant variant = variant_of(FEW ",call=table");
  dw_bounds bounds = {.size = sizeof bounds, .batch = 1, .kv_len = 100, .sm_count = 1, .split_tokens = 32};
  dw__plan plan;
  dw_error error = {0};
  dw_status status = dw__plan_make(&shape, &variant, &bounds, &plan, &error);
  expect("call", status, DW_NOT_APPLICABLE, &error, "bounds.split_tokens", "32", "0 with call=table");
  variant = variant_of(PAIR);
  status = dw__plan_make(&shape, &variant, &bounds, &plan, &error);
  expect("pair", status, DW_NOT_APPLICABLE, &error, "bounds.split_tokens", "32", "0 with nine row tiles of dimsplit");
}

// ---- variants -------------------------------------------------------------------------------------------------

static void variants_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *shape, *variant, *field, *found, *allowed;
  } cases[] = {
    {"gqa:h=8,hk=2,t=4,qk=128,v=128", FEW, "attention", "gqa", "mla"},
    {SHAPE, GROUPED, "attention", "mla", "gqa"},
    {GQA, "family=grouped", "combine", "none", "few or many"},
    {GQA, "family=dimsplit", "attention", "gqa", "mla"},  // before what else it would need
    {SHAPE, "family=warpsplit", "attention", "mla", "gqa"},
    {"gqa:h=8,hk=2,t=4,d=64", "family=grouped,combine=many", "v", "64", "a multiple of 128 with combine=many"},
    {"gqa:h=8,hk=2,t=4,d=80", "family=grouped,combine=few", "qk", "80", "a multiple of 32"},
    {"gqa:h=8,hk=2,t=4,d=288", "family=grouped,combine=few", "qk", "288", "up to 256"},
    {"gqa:h=8,hk=2,t=4,qk=128,v=288", "family=grouped,combine=few", "v", "288", "up to 256"},
    {"gqa:h=8,hk=2,t=4,d=256", "family=grouped,combine=few,n_tiles=5", "n_tiles", "5", "1 to 4"},
    {"gqa:h=8,hk=2,t=4,qk=192,v=128", "family=grouped,combine=few,n_tiles=7", "n_tiles", "7", "1 to 6"},
    {GQA ",kv=e4m3", "family=grouped,combine=few,e4m3_mma=1", "e4m3_mma", "1", "0"},
    {GQA, "family=grouped,combine=few,setmaxnreg=1", "setmaxnreg", "1", "0"},
    {SHAPE, "family=warpsplit,combine=few", "attention", "mla", "gqa"},
    {GQA, "family=warpsplit", "combine", "none", "few or many"},
    {"gqa:h=8,hk=2,t=4,d=288", "family=warpsplit,combine=few", "qk", "288", "up to 256"},
    {"gqa:h=8,hk=2,t=4,qk=128,v=1024", "family=warpsplit,combine=few", "v", "1024", "up to 256"},
    {"gqa:h=8,hk=2,t=4,d=128", "family=warpsplit,combine=few,n_tiles=6", "n_tiles", "6", "1 to 5"},
    {"gqa:h=8,hk=2,t=4,d=192", "family=warpsplit,combine=few,n_tiles=4", "n_tiles", "4", "1 to 3"},
    {"gqa:h=8,hk=2,t=4,d=256", "family=warpsplit,combine=few,n_tiles=3", "n_tiles", "3", "1 to 2"},
    {GQA, "family=warpsplit,combine=few,setmaxnreg=1", "setmaxnreg", "1", "0"},
    {GQA, "family=warpsplit,combine=few,wide_tile=1", "wide_tile", "1", "0"},
    {GQA, "family=grouped,combine=few,q_rope=1", "q_rope", "1", "0 for GQA"},
    {"gqa:h=8,hk=2,t=4,qk=192,v=128", "family=grouped,combine=few,kv_rope=1", "kv_rope", "1", "0 for GQA"},
    {SHAPE, "family=rowsplit,combine=few,n_tiles=6", "n_tiles", "6", "1 to 5"},
    {"mla:h=8,t=9", FEW ",wide_tile=1", "wide_tile", "1", "0"},
    {"mla:h=8,t=9,kv=e4m3", FEW ",wide_tile=1,call=table", "call", "table", "any with wide_tile=1 and three or four row tiles"},
    {"mla:h=8,t=9,kv=e4m3", "family=reference,wide_tile=1", "wide_tile", "1", "0"},
    {"mla:h=8,t=9,kv=e4m3", "family=reference,e4m3_mma=1", "e4m3_mma", "1", "0"},
    {"mla:h=8,t=9,kv=e4m3", FEW ",e4m3_mma=1", "e4m3_mma", "1", "0, or wide_tile=1"},
    {"mla:h=8,t=9", FEW ",wide_tile=1,e4m3_mma=1", "wide_tile", "1", "0"},
    {"mla:h=8,t=9,kv=e4m3", "family=split,combine=few,accumulate=fp16", "accumulate", "fp16", "fp32"},
    {GQA ",kv=e4m3", "family=grouped,combine=few,accumulate=fp16_output", "accumulate", "fp16_output", "fp32"},
    {"mla:h=8,t=9,q=fp16,kv=fp16", FEW ",accumulate=fp16_output", "accumulate", "fp16_output", "fp32, or kv=e4m3"},
    {"mla:h=8,t=9,kv=record656", FEW ",wide_tile=1,accumulate=fp16", "accumulate", "fp16", "fp32, or kv=e4m3"},
    {"mla:h=8,t=9,kv=e4m3", FEW ",wide_tile=1,e4m3_mma=1,accumulate=fp16", "accumulate", "fp16", "fp32 with e4m3_mma=1"},
    {"mla:h=8,t=9,kv=e4m3", FEW ",accumulate=fp16", "wide_tile", "0", "1 with accumulate"},
    {"mla:h=8,t=9,kv=e4m3", "family=rowsplit,n_tiles=4,combine=few,wide_tile=1,accumulate=fp16", "setmaxnreg", "0",
     "1 with accumulate"},
    {"mla:h=8,t=9,kv=e4m3", "family=rowsplit,n_tiles=2,setmaxnreg=1,combine=few,wide_tile=1,accumulate=fp16", "n_tiles", "2",
     "3 to 5 with accumulate"},
    {"mla:h=8,t=9,kv=fp16,q=fp16,limits=sm_120", "family=rowsplit,combine=few,wide_tile=1", "wide_tile", "1", "0"},
    {"mla:h=8,t=9,kv=record656", FEW ",kv_rope=1", "kv_rope", "1", "0"},
    {"mla:h=8,t=9,kv=record656", FEW ",wide_tile=1,e4m3_mma=1", "e4m3_mma", "1", "0"},
    {"mla:h=8,t=9,kv=record656,limits=sm_120", "family=rowsplit,combine=few,n_tiles=6", "n_tiles", "6", "1 to 5"},
    {"mla:h=8,t=9,q=bf16,kv=fp16", FEW, "kv", "fp16", "the type of q, or e4m3"},
    {"mla:h=8,t=9,qk=80,v=64", "family=reference", "qk", "80", "a multiple of 32"},
    {"mla:h=8,t=9,qk=96,v=48", "family=reference", "v", "48", "a multiple of 32"},
    {SHAPE, "family=reference,combine=few", "combine", "few", "none"},
    {SHAPE, "family=split", "combine", "none", "few or many"},
    {SHAPE, "family=rowsplit", "combine", "none", "few or many"},
    {"mla:h=8,t=9,qk=96,v=64", "family=split,combine=many", "v", "64", "a multiple of 128 with combine=many"},
    {SHAPE, "family=split,combine=few,combine_splits=17", "combine_splits", "17", "1 to 16 with combine=few"},
    {SHAPE, "family=split,combine=few,n_tiles=2", "n_tiles", "2", "1"},
    {SHAPE, "family=split,combine=few,setmaxnreg=1", "setmaxnreg", "1", "0"},
    {SHAPE, "family=reference,n_tiles=2", "n_tiles", "2", "1"},
    {SHAPE, "family=rowsplit,combine=few,n_tiles=6", "n_tiles", "6", "1 to 5"},
    {SHAPE, "family=dimsplit,combine=few,n_tiles=9", "setmaxnreg", "0", "1"},
    {SHAPE, "family=dimsplit,combine=few,setmaxnreg=1", "n_tiles", "1", "2 to 9"},
    {"mla:h=8,t=9,target=sm_100", PAIR, "target", "100", "sm_90, or sm_120 and later"},
    {"mla:h=8,t=9,qk=448,v=384", PAIR, "v", "384", "128, 256 or 512"},
    {"mla:h=8,t=9,qk=288,v=256", PAIR, "qk", "288", "a multiple of 64, up to 576"},
    {"mla:h=8,t=9,kv=e4m3", PAIR, "kv", "e4m3", "the type of q"},
    {"mla:h=8,t=9,kv=record656", PAIR, "kv", "record656", "the type of q"},
    {"gqa:h=32,hk=8,t=9,d=128", PAIR, "attention", "gqa", "mla"},
    {SHAPE, PAIR ",cp_async=1", "cp_async", "1", "0"},
    {"mla:h=8,t=9,target=sm_89", FEW, "cp_async", "0", "1 before sm_90"},
    {"mla:h=8,t=9", FEW ",cp_async=1", "setmaxnreg", "1", "0 with cp_async=1"},
    {"mla:h=8,t=9,kv=e4m3,target=sm_86", "family=rowsplit,n_tiles=5,combine=few,cp_async=1", "n_tiles", "5",
     "1 to 4 before sm_89 for KV in e4m3"},
    {"mla:h=8,t=2,kv=e4m3,target=sm_80", "family=rowsplit,n_tiles=2,wide_tile=1,e4m3_mma=1,cp_async=1,combine=few", "e4m3_mma",
     "1", "0 before sm_89"},
    {"mla:h=8,t=9,kv=record656,target=sm_86", "family=rowsplit,combine=few,cp_async=1", "target", "86",
     "sm_89 or later for records"},
    {"mla:h=8,t=9", "family=reference,cp_async=1", "cp_async", "1", "0"},
    {"mla:h=8,t=9,qk=288,v=256", FEW, "qk", "288", "a multiple of 64"},
    {"mla:h=8,t=9,qk=192,v=64", "family=rowsplit,combine=few", "v", "64", "a multiple of 128"},
    {"mla:h=8,t=9,qk=192,v=128", "family=rowsplit,combine=few,n_tiles=3", "v", "128", "a multiple of 256 without setmaxnreg"},
    {"mla:h=8,t=9,qk=640,v=512", FEW, "qk", "640", "up to 576"},
    {"mla:h=8,t=9,target=sm_100", FEW, "setmaxnreg", "1", "0"},
  };
  for (size_t i = 0; i < DW__COUNT(cases); i++) {
    dw_shape shape = shape_of(cases[i].shape);
    dw_variant variant = variant_of(cases[i].variant);
    dw_error error = {0};
    dw_status status = dw_variant_applicable(&shape, &variant, &error);
    expect(cases[i].variant, status, DW_NOT_APPLICABLE, &error, cases[i].field, cases[i].found, cases[i].allowed);
  }
}

// A variant filled in by hand: every value of every parameter is looked at, by plan_make too.
static void variants_out_of_range_are_refused(void **state) {
  (void)state;
  dw_shape shape = shape_of(SHAPE);
  dw_bounds bounds = {.size = sizeof bounds, .batch = 1, .kv_len = 100, .sm_count = 1};
#define DW_PARAM(name, kind, least, most, normal, help)                                         \
  for (int high = 0; high < 2; high++) {                                                        \
    dw_variant variant = variant_of(FEW);                                                       \
    dw_error error = {0};                                                                       \
    dw__plan plan;                                                                              \
    char found[16];                                                                             \
    variant.name = high ? most + 1 : least - 1;                                                 \
    snprintf(found, sizeof found, "%d", variant.name);                                          \
    dw_status status = dw_variant_applicable(&shape, &variant, &error);                         \
    expect(#name, status, DW_NOT_APPLICABLE, &error, #name, found, #least " to " #most);        \
    assert_int_equal(dw__plan_make(&shape, &variant, &bounds, &plan, NULL), DW_NOT_APPLICABLE); \
  }
#include "draftwood_variant.def"
#undef DW_PARAM
}

// ---- arguments ------------------------------------------------------------------------------------------------

static _Alignas(256) char memory[4096];
#define AT(bytes) ((void *)(memory + (bytes)))

static dw_args good_args(const dw__plan *plan) {
  return (dw_args){.size = sizeof(dw_args),
                   .q = memory,
                   .out = memory,
                   .lse = AT(0),
                   .batch = 2,
                   .kv = memory,
                   .addressing = DW_BLOCK_TABLE,
                   .block_table = AT(0),
                   .table_columns = 7,
                   .kv_len = AT(0),
                   .lengths_include_drafts = 1,
                   .softmax_scale = 0.1f,
                   .workspace = memory,
                   .workspace_size = plan->workspace_bytes};
}

static dw_args csr_args(const dw__plan *plan) {
  dw_args a = good_args(plan);
  a.addressing = DW_CSR;
  a.block_table = NULL;
  a.kv_indptr = AT(0);
  a.kv_indices = memory;
  return a;
}

typedef struct rig {
  dw_shape shape;
  dw_bounds bounds;
  dw__plan plan;
} rig;

static rig make_rig(const char *shape, const char *variant) {
  rig r = {.shape = shape_of(shape), .bounds = {.size = sizeof(dw_bounds), .batch = 2, .kv_len = 1000, .sm_count = 132}};
  dw_variant v = variant_of(variant);
  assert_int_equal(dw__plan_make(&r.shape, &v, &r.bounds, &r.plan, NULL), DW_OK);
  return r;
}

static void refuse(const rig *r, const dw_args *args, const char *what, const char *field, const char *found,
                   const char *allowed) {
  dw_error error = {0};
  dw_status status = dw__args_check(&r->shape, &r->bounds, &r->plan, args, &error);
  expect(what, status, DW_BAD_ARGUMENT, &error, field, found, allowed);
}
static void accept(const rig *r, const dw_args *args, const char *what) {
  dw_error error = {0};
  if (dw__args_check(&r->shape, &r->bounds, &r->plan, args, &error)) fail_msg("%s: %s", what, error.message);
}

// REFUSE(base, change, field, found, allowed): `change` made to good arguments `a`.
#define REFUSE(base, change, field, found, allowed) \
  do {                                              \
    dw_args a = base(&r.plan);                      \
    change;                                         \
    refuse(&r, &a, #change, field, found, allowed); \
  } while (0)
#define ACCEPT(base, change)   \
  do {                         \
    dw_args a = base(&r.plan); \
    change;                    \
    accept(&r, &a, #change);   \
  } while (0)

static void null_is_refused_or_nothing(void **state) {
  (void)state;
  const dw_shape shape = shape_of(SHAPE);
  const dw_variant variant = variant_of(FEW);
  dw_variant chosen;
  dw_error error = {0};
  char text[DW_TEXT_MAX] = "before";
  assert_int_equal(dw_variant_applicable(NULL, &variant, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw_variant_applicable(&shape, NULL, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw_variant_choose(NULL, NULL, &chosen, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw_variant_choose(&shape, NULL, NULL, &error), DW_BAD_ARGUMENT);
  assert_string_equal(error.field, "variant");
  assert_int_equal(dw_variant_enumerate(&shape, 0, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw_compile_target(NULL, &variant, text, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw_compile_target(&shape, NULL, text, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw_compile_target(&shape, &variant, NULL, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw_shared_bytes(NULL, &variant), 0);
  assert_int_equal(dw_shared_bytes(&shape, NULL), 0);
  assert_int_equal(dw_variant_print(NULL, text, sizeof text), 0);
  assert_string_equal(text, "");
  strcpy(text, "before");
  assert_int_equal(dw_shape_print(NULL, text, sizeof text), 0);
  assert_string_equal(text, "");
  assert_true(dw_shape_print(&shape, NULL, 100) > 20);  // the length alone
  assert_true(dw_variant_print(&variant, NULL, 100) > 20);
  assert_int_equal(dw_workspace_size(NULL), 0);
  dw_kernel_variant(NULL, &chosen);
  assert_int_equal(chosen.n_tiles, 0);
  dw_error_clear(&error);
}

static void impossible_shapes_have_no_variant(void **state) {
  (void)state;
  const dw_variant variant = variant_of("family=reference");
  dw_shape shape = shape_of(SHAPE);
  dw_error error = {0};
  shape.heads = 0;
  assert_int_equal(dw_variant_applicable(&shape, &variant, &error), DW_BAD_SHAPE);
  assert_string_equal(error.found, "0");
  shape = shape_of(SHAPE);
  shape.width = -3;
  assert_int_equal(dw_variant_applicable(&shape, &variant, &error), DW_BAD_SHAPE);
  assert_string_equal(error.found, "-3");
  shape = shape_of(SHAPE);
  shape.target = 110;
  char text[16];
  assert_int_equal(dw_compile_target(&shape, &variant, text, &error), DW_BAD_SHAPE);
  assert_string_equal(error.found, "110");
  dw_error_clear(&error);
}

// A caller built against another version: what it lacks is 0, what it adds has to be 0.
static void bounds_are_read_by_their_size(void **state) {
  (void)state;
  const dw_shape shape = shape_of(SHAPE);
  struct {
    dw_bounds bounds;
    int newer[4];
  } call = {.bounds = {.batch = 8, .kv_len = 1000, .sm_count = 132}};
  dw_variant whole, part;
  dw_error error = {0};
  static const size_t wrong[] = {0, 1, 12, (size_t)1 << 40};
  for (size_t i = 0; i < DW__COUNT(wrong); i++) {
    call.bounds.size = wrong[i];
    assert_int_equal(dw_variant_choose(&shape, &call.bounds, &whole, &error), DW_BAD_ARGUMENT);
    assert_string_equal(error.field, "bounds");
  }
  call.bounds.size = sizeof call;
  assert_int_equal(dw_variant_choose(&shape, &call.bounds, &whole, &error), DW_OK);
  call.newer[2] = 1;
  assert_int_equal(dw_variant_choose(&shape, &call.bounds, &part, &error), DW_BAD_ARGUMENT);
  call.bounds.size = offsetof(dw_bounds, call);
  call.bounds.call = DW_CALL_TABLE;  // past its end: not read
  assert_int_equal(dw_variant_choose(&shape, &call.bounds, &part, &error), DW_OK);
  assert_memory_equal(&whole, &part, sizeof whole);
  dw_error_clear(&error);
}

// O-a06: a graph of 112 requests whose arrays were made for 100.
static void a06_arrays_have_their_size(void **state) {
  (void)state;
  rig r = make_rig(SHAPE, FEW);
  ACCEPT(good_args, (a.kv_len_count = 2, a.block_table_count = 14));
  ACCEPT(good_args, (a.block_table_stride = 10, a.block_table_count = 17));
  REFUSE(good_args, a.kv_len_count = 1, "kv_len_count", "1", "0 (not known) or at least 2");
  REFUSE(good_args, a.kv_len_count = -1, "kv_len_count", "-1", "0 (not known) or at least 2");
  REFUSE(good_args, (a.qo_indptr = AT(0), a.qo_indptr_count = 2), "qo_indptr_count", "2", "0 (not known) or at least 3");
  REFUSE(good_args, a.block_table_count = 13, "block_table_count", "13", "0 (not known) or at least 14");
  REFUSE(good_args, (a.block_table_stride = 10, a.block_table_count = 16), "block_table_count", "16",
         "0 (not known) or at least 17");
  ACCEPT(csr_args, (a.kv_indptr_count = 3, a.kv_indices_count = 1));
  REFUSE(csr_args, a.kv_indptr_count = 2, "kv_indptr_count", "2", "0 (not known) or at least 3");
  REFUSE(csr_args, a.kv_indices_count = -1, "kv_indices_count", "-1", "0 (not known) or at least 0");
  ACCEPT(csr_args, (a.lengths_include_drafts = 0, a.draft_slots = memory, a.draft_slots_count = 18));
  REFUSE(csr_args, (a.lengths_include_drafts = 0, a.draft_slots = memory, a.draft_slots_count = 17), "draft_slots_count", "17",
         "0 (not known) or at least 18");
  // Of arrays that the call does not have nothing is asked.
  ACCEPT(good_args, (a.qo_indptr_count = 1, a.kv_indptr_count = 1, a.draft_slots_count = 1));
  ACCEPT(csr_args, a.block_table_count = 1);
  // The graph's own sizes, as a kernel for it has them.
  r.bounds.batch = 112;
  r.bounds.total_q = 112 * 9;
  REFUSE(good_args, (a.batch = 112, a.kv_len_count = 100), "kv_len_count", "100", "0 (not known) or at least 112");
  REFUSE(csr_args, (a.batch = 112, a.kv_indptr_count = 101), "kv_indptr_count", "101", "0 (not known) or at least 113");
  REFUSE(good_args, (a.batch = 112, a.block_table_count = 700), "block_table_count", "700", "0 (not known) or at least 784");
}

static dw_args gqa_args(const dw__plan *plan) {
  dw_args a = good_args(plan);
  a.v = AT(1024);
  return a;
}

// K and V: bases, and strides by page, token and head.
static void planes_are_checked(void **state) {
  (void)state;
  rig r = make_rig(GQA, GROUPED);
  ACCEPT(gqa_args, a.v = AT(16));
  REFUSE(gqa_args, a.v = NULL, "v", "NULL", "a device pointer");
  REFUSE(gqa_args, a.v = AT(8), "v", "8", "0 modulo 16");
  REFUSE(gqa_args, a.kv = AT(4), "kv", "4", "0 modulo 16");
  REFUSE(gqa_args, a.q_rope = memory, "q_rope", "set", "NULL");
  REFUSE(gqa_args, a.kv_rope = memory, "kv_rope", "set", "NULL");
  REFUSE(gqa_args, a.kv_head_stride = INT64_MAX - 15, "kv_head_stride", "9223372036854775792", "128 to 1099511627776");
  REFUSE(gqa_args, a.kv_head_stride = 120, "kv_head_stride", "120", "128 to 1099511627776");
  REFUSE(gqa_args, a.v_head_stride = 132, "v_head_stride", "132", "a multiple of 16 bytes");
  // Heads of 128 elements, two of them: tokens of 256 in the usual order.
  ACCEPT(gqa_args, a.kv_token_stride = 256);
  REFUSE(gqa_args, a.kv_token_stride = 248, "kv_token_stride", "248", "256 or more");
  REFUSE(gqa_args, (a.v_head_stride = 136, a.v_token_stride = 256), "v_token_stride", "256", "264 or more");
  ACCEPT(gqa_args, a.kv_page_stride = 16 * 256);
  REFUSE(gqa_args, a.kv_page_stride = 16 * 256 - 8, "kv_page_stride", "4088", "4096 to 1099511627776");
  REFUSE(gqa_args, (a.v_token_stride = 512, a.v_page_stride = 4096), "v_page_stride", "4096", "8192 to 1099511627776");
  // Heads before tokens; K and V of a token, of a page.
  ACCEPT(gqa_args, (a.kv_token_stride = a.v_token_stride = 128, a.kv_head_stride = a.v_head_stride = 2048,
                    a.kv_page_stride = a.v_page_stride = 4096));
  REFUSE(gqa_args, (a.kv_token_stride = 128, a.kv_head_stride = 2040), "kv_token_stride", "128", "2168 or more");
  ACCEPT(gqa_args, (a.kv_token_stride = a.v_token_stride = 512, a.v = AT(512)));
  ACCEPT(gqa_args, a.kv_page_stride = a.v_page_stride = 8192);
  r = make_rig(SHAPE, FEW);
  REFUSE(good_args, a.v = memory, "v", "a pointer", "NULL");
}

static void rows_are_checked(void **state) {
  (void)state;
  rig r = make_rig(SHAPE, FEW);
  char size[32];
  snprintf(size, sizeof size, "%zu", sizeof(dw_args) - 8);
  REFUSE(good_args, a.size -= 8, "size", size, "sizeof(dw_args)");
  REFUSE(good_args, a.batch = 0, "batch", "0", "1 to 2");
  REFUSE(good_args, a.batch = 3, "batch", "3", "1 to 2");
  REFUSE(good_args, a.width = -1, "width", "-1", "0 to 9");
  REFUSE(good_args, a.width = 10, "width", "10", "0 to 9");
  REFUSE(good_args, a.total_q = 17, "total_q", "17", "batch x width");
  REFUSE(good_args, a.total_q = 19, "total_q", "19", "0 to 18");
  REFUSE(good_args, a.total_q = -1, "total_q", "-1", "0 to 18");
  REFUSE(good_args, (a.qo_indptr = AT(0), a.total_q = 19), "total_q", "19", "0 to 18");
  REFUSE(good_args, a.qo_indptr = AT(2), "qo_indptr", "2", "its type's alignment");
  ACCEPT(good_args, a.width = 0);
  ACCEPT(good_args, (a.width = 5, a.total_q = 10));
  ACCEPT(good_args, (a.qo_indptr = AT(4), a.total_q = 7));
  r.bounds.total_q = 10;
  REFUSE(good_args, a.width = 9, "total_q", "18", "0 to 10");
}

static void vectors_are_checked(void **state) {
  (void)state;
  rig r = make_rig(SHAPE, FEW);
  REFUSE(good_args, a.q = NULL, "q", "NULL", "a device pointer");
  REFUSE(good_args, a.q = AT(8), "q", "8", "0 modulo 16");
  REFUSE(good_args, a.q_head_stride = 575, "q_head_stride", "575", "576 to 1099511627776");
  REFUSE(good_args, a.q_head_stride = 577, "q_head_stride", "577", "a multiple of 16 bytes");
  REFUSE(good_args, a.q_row_stride = 575, "q_row_stride", "575", "576 to 1099511627776");
  REFUSE(good_args, a.q_row_stride = 8 * 576 + 4, "q_row_stride", "4612", "a multiple of 16 bytes");
  REFUSE(good_args, a.out = NULL, "out", "NULL", "a device pointer");
  REFUSE(good_args, a.out = AT(2), "out", "2", "0 modulo 16");
  REFUSE(good_args, a.out_head_stride = 511, "out_head_stride", "511", "512 to 1099511627776");
  REFUSE(good_args, a.out_head_stride = 516, "out_head_stride", "516", "a multiple of 16 bytes");
  REFUSE(good_args, a.out_row_stride = -512, "out_row_stride", "-512", "512 to 1099511627776");
  REFUSE(good_args, a.out_row_stride = 8 * 512 + 2, "out_row_stride", "4098", "a multiple of 16 bytes");
  REFUSE(good_args, a.lse = AT(2), "lse", "2", "its type's alignment");
  REFUSE(good_args, a.lse_row_stride = 7, "lse_row_stride", "7", "8 to 1099511627776");
  ACCEPT(good_args, (a.lse = NULL, a.lse_row_stride = 7));
  ACCEPT(good_args, (a.q_row_stride = 8 * 576 + 8, a.out_row_stride = 8 * 512 + 8, a.lse_row_stride = 9));
  rig wide = make_rig("mla:h=8,t=9,o=fp32", FEW);
  r = wide;  // fp32: four elements are 16 bytes
  ACCEPT(good_args, a.out_head_stride = 516);
  REFUSE(good_args, a.out_head_stride = 514, "out_head_stride", "514", "a multiple of 16 bytes");
}

static void kv_is_checked(void **state) {
  (void)state;
  rig r = make_rig(SHAPE, FEW);
  REFUSE(good_args, a.kv = NULL, "kv", "NULL", "a device pointer");
  REFUSE(good_args, a.kv = AT(4), "kv", "4", "0 modulo 16");
  REFUSE(good_args, a.kv_token_stride = 568, "kv_token_stride", "568", "576 to 1099511627776");
  REFUSE(good_args, a.kv_token_stride = 580, "kv_token_stride", "580", "a multiple of 16 bytes");
  REFUSE(good_args, a.kv_page_stride = 16 * 576 - 8, "kv_page_stride", "9208", "9216 to 1099511627776");
  REFUSE(good_args, (a.kv_token_stride = 600, a.kv_page_stride = 16 * 576), "kv_page_stride", "9216", "9600 to 1099511627776");
  REFUSE(good_args, a.kv_page_stride = 16 * 576 + 1, "kv_page_stride", "9217", "a multiple of 16 bytes");
  REFUSE(good_args, a.kv_len = NULL, "kv_len", "NULL", "a device pointer");
  REFUSE(good_args, a.kv_len = AT(1), "kv_len", "1", "its type's alignment");
  REFUSE(good_args, a.addressing = (dw_addressing)2, "addressing", "2", "0 to 1");
  REFUSE(good_args, a.block_table = NULL, "block_table", "NULL", "a device pointer");
  REFUSE(good_args, a.block_table = AT(2), "block_table", "2", "its type's alignment");
  REFUSE(good_args, a.table_columns = 0, "table_columns", "0", "1 to 2147483647");
  REFUSE(good_args, a.block_table_stride = 6, "block_table_stride", "6", "7 to 1099511627776");
  REFUSE(good_args, (a.lengths_include_drafts = 0, a.draft_slots = memory), "draft_slots", "a pointer", "NULL");
  REFUSE(csr_args, a.kv_indptr = NULL, "kv_indptr", "NULL", "a device pointer");
  REFUSE(csr_args, a.kv_indptr = AT(2), "kv_indptr", "2", "its type's alignment");
  REFUSE(csr_args, a.kv_indices = NULL, "kv_indices", "NULL", "a device pointer");
  REFUSE(csr_args, (a.kv_indices = AT(4), a.index64 = 1), "kv_indices", "4", "its type's alignment");
  REFUSE(csr_args, a.draft_slots = memory, "draft_slots", "a pointer", "NULL");
  REFUSE(csr_args, (a.lengths_include_drafts = 0, a.draft_slots = AT(2)), "draft_slots", "2", "its type's alignment");
  ACCEPT(csr_args, a.kv_indices = AT(4));
  ACCEPT(csr_args, (a.lengths_include_drafts = 0, a.draft_slots = AT(8), a.index64 = 1));
  ACCEPT(csr_args, (a.kv_token_stride = 640, a.kv_page_stride = 2 * 16 * 640));
}

static void masks_and_scalars_are_checked(void **state) {
  (void)state;
  rig r = make_rig("mla:h=8,t=96", FEW);
  r.bounds.batch = 2;
  REFUSE(good_args, a.mask_kind = (dw_mask)7, "mask_kind", "7", "0 to 6");
  REFUSE(good_args, a.mask_kind = DW_MASK_STATIC, "mask_kind", "DW_MASK_STATIC", "another, or a shape with a tree");
  REFUSE(good_args, a.mask_kind = (dw_mask)-1, "mask_kind", "-1", "0 to 6");
  REFUSE(good_args, a.mask_kind = DW_MASK_PARENTS, "mask", "NULL", "a device pointer");
  REFUSE(good_args, (a.mask_kind = DW_MASK_BITS, a.mask = AT(2)), "mask", "2", "its type's alignment");
  REFUSE(good_args, (a.mask_kind = DW_MASK_BITS, a.mask = memory, a.mask_row_stride = 2), "mask_row_stride", "2",
         "3 to 1099511627776");
  ACCEPT(good_args, (a.mask_kind = DW_MASK_BITS, a.mask = memory, a.mask_row_stride = 3));
  ACCEPT(good_args, (a.mask_kind = DW_MASK_BITS, a.mask = memory, a.mask_row_stride = 1, a.width = 32));
  for (int kind = DW_MASK_BYTES_QLEN; kind <= DW_MASK_BIAS_F32; kind++)
    REFUSE(good_args, a.mask_kind = (dw_mask)kind, "mask", "NULL", "a device pointer");
  ACCEPT(good_args, (a.mask_kind = DW_MASK_BYTES_QLEN, a.mask = AT(1)));
  REFUSE(good_args, (a.mask_kind = DW_MASK_BIAS_F32, a.mask = AT(1)), "mask", "1", "its type's alignment");
  REFUSE(good_args, (a.mask_kind = DW_MASK_BYTES_QLEN, a.mask = memory, a.mask_row_stride = 95), "mask_row_stride", "95",
         "96 to 1099511627776");
  ACCEPT(good_args, (a.mask_kind = DW_MASK_BYTES_QLEN, a.mask = memory, a.mask_row_stride = 96));
  REFUSE(good_args, (a.mask_kind = DW_MASK_BIAS_F32, a.mask = memory, a.mask_row_stride = 100, a.mask_request_stride = 9595),
         "mask_request_stride", "9595", "9596 to 1099511627776");
  ACCEPT(good_args, (a.mask_kind = DW_MASK_BIAS_F32, a.mask = memory, a.mask_request_stride = 1, a.mask_shared = 1));
  REFUSE(good_args, (a.mask_kind = DW_MASK_BYTES_FULL, a.mask = memory), "mask_indptr", "NULL", "a device pointer");
  REFUSE(good_args, (a.mask_kind = DW_MASK_BYTES_FULL, a.mask = memory, a.mask_indptr = AT(4)), "mask_indptr", "4",
         "its type's alignment");
  ACCEPT(good_args, (a.mask_kind = DW_MASK_BYTES_FULL, a.mask = memory, a.mask_indptr = AT(8)));
  REFUSE(good_args, (a.mask_kind = DW_MASK_BITS, a.mask = memory, a.mask_row_stride = 1, a.width = 33), "mask_row_stride", "1",
         "2 to 1099511627776");
  REFUSE(good_args, a.softmax_scale = 0, "softmax_scale", "0", "a positive number");
  REFUSE(good_args, a.softmax_scale = -1, "softmax_scale", "-1", "a positive number");
  REFUSE(good_args, a.softmax_scale = __builtin_nanf(""), "softmax_scale", "nan", "a positive number");
  REFUSE(good_args, a.softmax_scale = __builtin_inff(), "softmax_scale", "inf", "a positive number");
}

// O-a16: the mask's buffer is too small for its rows. Expected and given sizes are both said.
static void a16_masks_have_their_size(void **state) {
  (void)state;
  rig r = make_rig("mla:h=8,t=10", FEW);
  REFUSE(good_args, (a.mask_kind = DW_MASK_BITS, a.mask = memory, a.mask_size = -1), "mask_size", "-1",
         "0 to 9223372036854775807");
  REFUSE(good_args, (a.mask_kind = DW_MASK_PARENTS, a.mask = memory, a.mask_size = 79), "mask_size", "79", "80 or more");
  ACCEPT(good_args, (a.mask_kind = DW_MASK_PARENTS, a.mask = memory, a.mask_size = 80));
  REFUSE(good_args, (a.mask_kind = DW_MASK_PARENTS, a.mask = memory, a.qo_indptr = AT(0), a.total_q = 7, a.mask_size = 27),
         "mask_size", "27", "28 or more");
  REFUSE(good_args, (a.mask_kind = DW_MASK_BITS, a.mask = memory, a.mask_size = 79), "mask_size", "79", "80 or more");
  REFUSE(good_args, (a.mask_kind = DW_MASK_BITS, a.mask = memory, a.mask_row_stride = 3, a.mask_size = 231), "mask_size", "231",
         "232 or more");
  ACCEPT(good_args, (a.mask_kind = DW_MASK_BITS, a.mask = memory, a.mask_row_stride = 3, a.mask_size = 232));
  ACCEPT(good_args,
         (a.mask_kind = DW_MASK_BITS, a.mask = memory, a.width = 1, a.qo_indptr = AT(0), a.total_q = 1, a.mask_size = 4));
  REFUSE(good_args, (a.mask_kind = DW_MASK_BYTES_QLEN, a.mask = memory, a.mask_size = 199), "mask_size", "199", "200 or more");
  ACCEPT(good_args, (a.mask_kind = DW_MASK_BYTES_QLEN, a.mask = memory, a.mask_size = 200));
  ACCEPT(good_args, (a.mask_kind = DW_MASK_BYTES_QLEN, a.mask = memory, a.mask_shared = 1, a.mask_size = 100));
  REFUSE(good_args, (a.mask_kind = DW_MASK_BYTES_QLEN, a.mask = memory, a.mask_shared = 1, a.mask_size = 99), "mask_size", "99",
         "100 or more");
  REFUSE(good_args, (a.mask_kind = DW_MASK_BYTES_QLEN, a.mask = memory, a.width = 6, a.mask_size = 71), "mask_size", "71",
         "72 or more");
  REFUSE(
    good_args,
    (a.mask_kind = DW_MASK_BIAS_F32, a.mask = memory, a.mask_row_stride = 12, a.mask_request_stride = 130, a.mask_size = 991),
    "mask_size", "991", "992 or more");
  ACCEPT(good_args, (a.mask_kind = DW_MASK_BIAS_F32, a.mask = memory, a.mask_row_stride = 12, a.mask_request_stride = 130,
                     a.mask_size = 992));
  // With a prefix more is needed, which the device knows.
  REFUSE(good_args, (a.mask_kind = DW_MASK_BYTES_FULL, a.mask = memory, a.mask_indptr = AT(0), a.mask_size = 199), "mask_size",
         "199", "200 or more");
  ACCEPT(good_args, (a.mask_kind = DW_MASK_BYTES_FULL, a.mask = memory, a.mask_indptr = AT(0), a.mask_size = 200));
  ACCEPT(good_args, (a.mask_kind = DW_MASK_BYTES_FULL, a.mask = memory, a.mask_indptr = AT(0), a.qo_indptr = AT(0),
                     a.total_q = 7, a.mask_size = 7));
  // Not read: not looked at.
  ACCEPT(good_args, a.mask_size = 1);
  ACCEPT(good_args, (a.mask_kind = DW_MASK_PARENTS, a.mask = memory, a.mask_size = 1, a.drafts_elsewhere = 1,
                     a.lengths_include_drafts = 0));
  // A stride whose products no integer holds.
  REFUSE(good_args, (a.mask_kind = DW_MASK_BITS, a.mask = memory, a.mask_row_stride = INT64_MAX / 4, a.mask_size = INT64_MAX),
         "mask_row_stride", "2305843009213693951", "1 to 1099511627776");
}

// A checkpoint's scale with a pool of another type: refused, not left out or multiplied in.
static void a37_only_e4m3_has_a_scale(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    rig r = make_rig(i ? SHAPE ",q=fp16,kv=fp16" : SHAPE, FEW);
    REFUSE(good_args, a.kv_scale = (const float *)AT(0), "kv_scale", "a pointer", "NULL");
    REFUSE(good_args, a.v_scale = (const float *)AT(0), "v_scale", "a pointer", "NULL");
  }
}

// A byte an element, and a scale.
static void kv_in_e4m3_is_checked(void **state) {
  (void)state;
  rig r = make_rig(SHAPE ",kv=e4m3", FEW ",kv_rope=1");
  ACCEPT(good_args, (a.kv_scale = (const float *)AT(4), a.kv_token_stride = 592));
  REFUSE(good_args, a.kv_scale = (const float *)AT(2), "kv_scale", "2", "its type's alignment");
  REFUSE(good_args, a.v_scale = (const float *)AT(4), "v_scale", "a pointer", "NULL");
  REFUSE(good_args, a.kv_token_stride = 584, "kv_token_stride", "584", "a multiple of 16 bytes");
  REFUSE(good_args, a.kv_token_stride = 560, "kv_token_stride", "560", "576 to 1099511627776");
  REFUSE(good_args, (a.kv_rope = memory, a.kv_rope_token_stride = 72), "kv_rope_token_stride", "72", "a multiple of 16 bytes");
  ACCEPT(good_args, (a.kv_rope = memory, a.kv_rope_token_stride = 80, a.kv_token_stride = 512));
  r = make_rig(GQA ",kv=e4m3", GROUPED);
  ACCEPT(gqa_args, (a.kv_scale = (const float *)AT(4), a.v_scale = (const float *)AT(8)));
  ACCEPT(gqa_args, (a.v_scale = (const float *)AT(8), a.kv_head_stride = 144, a.v_head_stride = 144));
  REFUSE(gqa_args, a.v_scale = (const float *)AT(2), "v_scale", "2", "its type's alignment");
  REFUSE(gqa_args, a.kv_scale = (const float *)AT(6), "kv_scale", "2", "its type's alignment");
  REFUSE(gqa_args, a.v_head_stride = 136, "v_head_stride", "136", "a multiple of 16 bytes");
}

// Strides in bytes, no scale of the call's own, and partial results in fp32.
static void records_are_checked(void **state) {
  (void)state;
  rig r = make_rig(SHAPE ",kv=record656", FEW ",q_rope=1");
  ACCEPT(good_args, a.kv_token_stride = 672);
  REFUSE(good_args, a.kv_token_stride = 640, "kv_token_stride", "640", "656 to 1099511627776");
  REFUSE(good_args, a.kv_token_stride = 664, "kv_token_stride", "664", "a multiple of 16 bytes");
  REFUSE(good_args, a.kv_page_stride = 10480, "kv_page_stride", "10480", "10496 to 1099511627776");
  REFUSE(good_args, a.kv_scale = (const float *)AT(0), "kv_scale", "a pointer", "NULL");
  REFUSE(good_args, a.v_scale = (const float *)AT(0), "v_scale", "a pointer", "NULL");
  REFUSE(good_args, a.kv_rope = memory, "kv_rope", "set", "NULL");
  REFUSE(good_args, a.kv = AT(8), "kv", "8", "0 modulo 16");
  rig other = make_rig(SHAPE, FEW);
  assert_int_equal(r.plan.partial_bytes, 2 * other.plan.partial_bytes);
  dw_args args = good_args(&r.plan);
  const dw_variant variant = variant_of(FEW);
  dw_params p;
  dw__plan_params(&r.shape, &variant, &r.bounds, &r.plan, &args, &p, NULL);
  assert_int_equal(p.kv_token_stride, 656);
  assert_int_equal(p.kv_page_stride, 656 * r.shape.page);
  assert_null(p.k_scale);
  assert_null(p.v_scale);
}

static void parts_and_scalars_are_checked(void **state) {
  (void)state;
  rig r = make_rig(SHAPE, FEW ",window=1,soft_cap=1,q_rope=1,kv_rope=1");
  REFUSE(good_args, a.q_rope = AT(8), "q_rope", "8", "0 modulo 16");
  REFUSE(good_args, (a.q_rope = memory, a.q_rope_head_stride = 56), "q_rope_head_stride", "56", "64 to 1099511627776");
  REFUSE(good_args, (a.q_rope = memory, a.q_rope_row_stride = 516), "q_rope_row_stride", "516", "a multiple of 16 bytes");
  REFUSE(good_args, (a.q_rope = memory, a.q_rope_row_stride = 448), "q_rope_row_stride", "448", "512 or more");
  REFUSE(good_args, (a.q_rope = memory, a.q_head_stride = 504), "q_head_stride", "504", "512 to 1099511627776");
  ACCEPT(good_args, (a.q_rope = memory, a.q_head_stride = 512, a.q_rope_row_stride = 512));
  REFUSE(good_args, a.kv_rope = AT(2), "kv_rope", "2", "0 modulo 16");
  REFUSE(good_args, (a.kv_rope = memory, a.kv_rope_token_stride = 8), "kv_rope_token_stride", "8", "64 to 1099511627776");
  REFUSE(good_args, (a.kv_rope = memory, a.kv_token_stride = 504), "kv_token_stride", "504", "512 to 1099511627776");
  ACCEPT(good_args, (a.kv_rope = memory, a.kv_token_stride = 512, a.kv_rope_page_stride = 2048));
  REFUSE(good_args, a.kv_pages = -1, "kv_pages", "-1", "0 to 2147483647");
  REFUSE(good_args, a.report = AT(2), "report", "2", "its type's alignment");
  ACCEPT(good_args, (a.kv_pages = 7, a.report = AT(4)));
  REFUSE(good_args, a.soft_cap = -1, "soft_cap", "-1", "0 (none), or 0.001 and more");
  REFUSE(good_args, a.soft_cap = __builtin_inff(), "soft_cap", "inf", "0 (none), or 0.001 and more");
  REFUSE(good_args, a.window = -1, "window", "-1", "0 to 2147483647");
  REFUSE(good_args, a.positions = AT(2), "positions", "2", "its type's alignment");
  REFUSE(good_args, a.sinks = AT(1), "sinks", "1", "its type's alignment");
  REFUSE(good_args, a.drafts_elsewhere = 1, "lengths_include_drafts", "1", "0 with drafts_elsewhere");
  REFUSE(good_args, (a.drafts_elsewhere = 1, a.lengths_include_drafts = 0, a.window = 5), "window", "5",
         "0 with drafts_elsewhere");
  REFUSE(csr_args, (a.drafts_elsewhere = 1, a.lengths_include_drafts = 0, a.draft_slots = memory), "draft_slots", "a pointer",
         "NULL with drafts_elsewhere");
}

// Heads within rows, or rows within heads; never both at once.
static void vectors_lie_apart(void **state) {
  (void)state;
  rig r = make_rig(SHAPE, FEW);  // up to 18 rows of 8 heads
  REFUSE(good_args, a.out_row_stride = 8 * 512 - 8, "out_row_stride", "4088", "4096 or more");
  REFUSE(good_args, (a.out_head_stride = 520, a.out_row_stride = 8 * 512), "out_row_stride", "4096", "4152 or more");
  REFUSE(good_args, (a.q_row_stride = 7 * 576), "q_row_stride", "4032", "4608 or more");
  REFUSE(good_args, (a.out_head_stride = 17 * 512, a.out_row_stride = 512), "out_row_stride", "512", "61440 or more");
  ACCEPT(good_args, (a.out_head_stride = 18 * 512, a.out_row_stride = 512));
  ACCEPT(good_args, (a.q_head_stride = 18 * 576, a.q_row_stride = 576));
  ACCEPT(good_args, (a.out_head_stride = 520, a.out_row_stride = 7 * 520 + 512));  // the last head's spare elements are shared
  ACCEPT(good_args, (a.batch = 1, a.width = 1, a.out_row_stride = 512));           // one row has nothing to overlap
}

static void workspace_is_checked(void **state) {
  (void)state;
  rig r = make_rig(SHAPE, FEW);
  char size[32];
  snprintf(size, sizeof size, "%zu", r.plan.workspace_bytes - 1);
  REFUSE(good_args, a.workspace = NULL, "workspace", "NULL", "a device pointer");
  REFUSE(good_args, a.workspace = AT(16), "workspace", "16", "its type's alignment");
  REFUSE(good_args, a.workspace_size--, "workspace_size", size, "dw_workspace_size() bytes or more");
  rig none = make_rig(SHAPE, "family=reference");
  r = none;
  assert_int_equal(r.plan.workspace_bytes, 0);
  ACCEPT(good_args, a.workspace = NULL);
}

static void promises_are_checked(void **state) {
  (void)state;
  rig r = make_rig(SHAPE, FEW ",call=table");
  ACCEPT(good_args, a.width = 3);
  REFUSE(csr_args, a.index64 = 0, "addressing", "DW_CSR", "DW_BLOCK_TABLE");
  REFUSE(good_args, a.lengths_include_drafts = 0, "lengths_include_drafts", "0", "1");
  REFUSE(good_args, a.qo_indptr = AT(0), "qo_indptr", "a pointer", "NULL");
}

// ---- checked variants -----------------------------------------------------------------------------------------

// One more kernel and the requests' verdicts; all else as without.
static void checked_plans_have_one_kernel_more(void **state) {
  (void)state;
  static const char *const variants[] = {"family=reference", "family=split,combine=few", FEW, FEW ",call=table"};
  for (size_t i = 0; i < DW__COUNT(variants); i++) {
    char text[256];
    snprintf(text, sizeof text, "%s,checked=1", variants[i]);
    const rig plain = make_rig("mla:h=8,t=90,page=16", variants[i]), checked = make_rig("mla:h=8,t=90,page=16", text);
    assert_null(plain.plan.check.entry);
    assert_string_equal(checked.plan.check.entry, "dw_check");
    assert_int_equal(checked.plan.check.grid[0], 2);
    assert_int_equal(checked.plan.workspace_bytes, plain.plan.workspace_bytes + 256);
    dw__plan same = checked.plan;
    same.check = plain.plan.check;
    same.faults_bytes = 0;
    same.workspace_bytes = plain.plan.workspace_bytes;
    assert_memory_equal(&same, &plain.plan, sizeof same);
  }
}

// A report in words: the first kind of fault, where it was, and how many requests were masked.
static void reports_are_told(void **state) {
  (void)state;
  static const char *const fields[] = {
#define X(name, array, sound) array,
    DW_FAULT_MAP(X)
#undef X
  };
  uint32_t report[DW_REPORT_WORDS] = {0};
  dw_error error = {0};
  assert_int_equal(dw_report_check(NULL, &error), DW_BAD_ARGUMENT);
  assert_int_equal(dw_report_check(report, &error), DW_OK);
  for (int kind = DW_FAULTS; kind-- > 0;) {
    uint32_t *words = report + kind * DW_FAULT_WORDS;
    words[0] = 2, words[1] = 3, words[2] = 17, words[3] = (uint32_t)-4711;
    if (!kind) memset(report + DW_FAULT_WORDS, 0, sizeof report - DW_FAULT_WORDS * sizeof *report);
    assert_int_equal(dw_report_check(report, &error), DW_BAD_ARGUMENT);
    assert_string_equal(error.field, fields[kind]);
    assert_non_null(strstr(error.found, "request 3"));
    if (kind) assert_non_null(strstr(error.found, "-4711"));
    if (kind) assert_non_null(strstr(error.found, "17"));
    assert_non_null(strstr(error.message, "2 such"));
  }
}

// ---- the rule table -------------------------------------------------------------------------------------------

static int pick(uint64_t *seed, const int *list, size_t n) { return list[dw__random_below(seed, (int)n)]; }
#define PICK(list) pick(seed, list, DW__COUNT(list))

static dw_shape random_shape(uint64_t *seed) {
  static const int pages[] = {1, 16, 32, 48, 64, 256},
                   records[] = {576, 512, 320, 256, 192, 128, 288, 256, 96, 64, 640, 512, 64, 32};
  static const int targets[] = {80, 86, 89, 90, 100, 103, 120, 121};
  int record = 2 * dw__random_below(seed, (int)DW__COUNT(records) / 2);
  dw_shape s = {
    .attention = DW_MLA, .kv_heads = 1, .heads = 1 + dw__random_below(seed, 128), .width = 1 + dw__random_below(seed, 40)};
  if (dw__random_below(seed, 8) == 0) s.width = 1 + dw__random_below(seed, 1025);
  s.head_dim_qk = records[record];
  s.head_dim_v = records[record + 1];
  if (dw__random_below(seed, 3) == 0) {
    static const int dims[] = {64, 64, 96, 96, 128, 128, 192, 128, 256, 256, 64, 96, 512, 512};
    const int pair = 2 * dw__random_below(seed, (int)DW__COUNT(dims) / 2);
    s.attention = DW_GQA;
    s.kv_heads = 1 + dw__random_below(seed, 16);
    s.heads = s.kv_heads * (1 + dw__random_below(seed, 128 / s.kv_heads));
    s.head_dim_qk = dims[pair];
    s.head_dim_v = dims[pair + 1];
  }
  s.page = PICK(pages);
  s.q = s.kv = (dw_dtype)dw__random_below(seed, 2);
  s.out = (dw_dtype)dw__random_below(seed, 3);
  s.target = PICK(targets);
  s.limits = dw__random_below(seed, 2) ? 120 : 0;
  return s;
}

static dw_bounds random_bounds(uint64_t *seed, const dw_shape *shape) {
  dw_bounds b = {.size = sizeof b};
  b.batch = 1 + dw__random_below(seed, 1 << dw__random_below(seed, 9));
  b.kv_len = 1 + dw__random_below(seed, 1 << (4 + dw__random_below(seed, 21)));
  b.sm_count = dw__random_below(seed, 4) ? dw__target_sm_count(shape->target) : 1 + dw__random_below(seed, 400);
  b.call = (dw_call)dw__random_below(seed, 2);
  if (dw__random_below(seed, 3) == 0) b.split_tokens = 16 << dw__random_below(seed, 12);
  if (b.split_tokens && b.kv_len / b.split_tokens >= 65535) b.split_tokens *= 256;
  return b;
}

static size_t up(size_t n) { return (n + 255) / 256 * 256; }

static void check_plan(const dw_shape *s, const dw_variant *v, const dw_bounds *b, const dw__plan *plan) {
  size_t rows = (size_t)s->width * (size_t)s->heads,
         limit = s->limits == 120 || s->target / 10 == 12 || s->target < 90 ? 101376 : 232448;
  const dw__plan_kernel *main_kernel = &plan->kernels[0], *combine = &plan->kernels[1];
  if (s->target == 80 && !s->limits) limit = 166912;
  assert_true(main_kernel->dynamic_shared <= limit && combine->dynamic_shared <= limit);
  assert_int_equal(main_kernel->dynamic_shared, dw_shared_bytes(s, v));
  assert_int_equal(plan->count, 2);
  assert_true(plan->groups >= 1 && plan->ranges >= 1);
  const bool fast = v->family >= DW_ROWSPLIT, gqa = v->family == DW_GROUPED || v->family == DW_WARPSPLIT;
  const unsigned cluster = v->family == DW_DIMSPLIT ? 2 : 1;
  if (fast) {  // of a KV head
    assert_true((size_t)plan->groups * (size_t)v->n_tiles * 8 >= rows / (size_t)s->kv_heads);
    assert_true((size_t)(plan->groups - 1) * (size_t)v->n_tiles * 8 < rows / (size_t)s->kv_heads);
  } else {
    assert_true((size_t)plan->groups * 4 >= rows);
  }
  assert_true(plan->all_ranges >= b->batch);
  assert_int_equal(plan->all_ranges, plan->ranges * b->batch);
  if (b->split_tokens) assert_true((long long)plan->ranges * b->split_tokens >= b->kv_len);
  assert_int_equal(main_kernel->cluster, cluster);
  assert_int_equal(main_kernel->grid[0], (unsigned)plan->groups * cluster * (gqa ? (unsigned)s->kv_heads : 1));
  assert_int_equal(main_kernel->grid[1], plan->ranges);
  assert_int_equal(main_kernel->grid[2], b->batch);
  assert_true(main_kernel->grid[1] <= 65535 && main_kernel->grid[2] <= 65535);
  size_t elements = (size_t)combine->grid[0] * combine->block * (v->combine == DW_COMBINE_MANY ? 1 : 8);
  assert_true(elements >= rows * (size_t)s->head_dim_v && combine->grid[1] == (unsigned)b->batch);
  size_t partial_rows = (size_t)plan->all_ranges * rows;
  assert_int_equal(plan->partial_bytes, up(partial_rows * (size_t)s->head_dim_v * (fast ? 2 : 4)));
  assert_int_equal(plan->lse_bytes, up(partial_rows * 4));
  size_t words = (size_t)b->batch * (size_t)s->width * (size_t)((s->width + 31) / 32);
  assert_int_equal(plan->workspace_bytes, plan->partial_bytes + plan->lse_bytes + (s->width > 64 ? up(words * 4) : 0));
  assert_true((size_t)plan->pack.grid[0] * plan->pack.block >= words);
}

static void every_choice_makes_a_plan(void **state) {
  (void)state;
  uint64_t seed_value = 7, *seed = &seed_value;
  for (int i = 0; i < 20000; i++) {
    dw_shape shape = random_shape(seed);
    dw_bounds bounds = random_bounds(seed, &shape);
    dw_variant variant, again;
    dw__plan plan;
    dw_error error = {0};
    char text[DW_TEXT_MAX];
    dw_shape_print(&shape, text, sizeof text);
    if (dw_variant_choose(&shape, &bounds, &variant, &error)) fail_msg("%s: %s", text, error.message);
    assert_int_equal(dw_variant_choose(&shape, &bounds, &again, NULL), DW_OK);
    assert_memory_equal(&variant, &again, sizeof variant);
    if (dw_variant_applicable(&shape, &variant, &error)) fail_msg("%s: %s", text, error.message);
    const bool spills = variant.cp_async && variant.n_tiles == 5;  // for tables alone
    assert_int_equal(variant.call, bounds.split_tokens || spills ? DW_CALL_ANY : bounds.call);
    if (dw__plan_make(&shape, &variant, &bounds, &plan, &error)) fail_msg("%s: %s", text, error.message);
    check_plan(&shape, &variant, &bounds, &plan);
  }
}

// Each variant of the list, in any bounds.
static void every_listed_variant_makes_a_plan(void **state) {
  (void)state;
  uint64_t seed_value = 13, *seed = &seed_value;
  int pairs = 0;
  for (int i = 0; i < 300; i++) {
    const dw_shape shape = random_shape(seed);
    dw_variant variant;
    for (size_t k = 0; dw_variant_enumerate(&shape, k, &variant) == DW_OK; k++) {
      dw_bounds bounds = random_bounds(seed, &shape);
      if (!dw__variant_fixed_ok(&variant, bounds.split_tokens, NULL)) bounds.split_tokens = 0;
      dw__plan plan;
      dw_error error = {0};
      if (dw__plan_make(&shape, &variant, &bounds, &plan, &error)) fail_msg("%s", error.message);
      check_plan(&shape, &variant, &bounds, &plan);
      pairs += variant.family == DW_DIMSPLIT;
    }
  }
  assert_in_range(pairs, 100, 1 << 20);
}

// Where it was measured to be faster, and nowhere else.
static void pairs_where_they_pay(void **state) {
  (void)state;
  static const struct {
    const char *shape;
    int batch, kv_len, split_tokens;
    dw_family family;
  } cases[] = {
    {"mla:h=8,t=9,target=sm_90", 1, 23009, 0, DW_DIMSPLIT},   {"mla:h=8,t=9,target=sm_90", 1, 185009, 0, DW_DIMSPLIT},
    {"mla:h=8,t=9,target=sm_90", 8, 23009, 0, DW_DIMSPLIT},   {"mla:h=16,t=9,target=sm_90", 1, 185009, 0, DW_DIMSPLIT},
    {"mla:h=8,t=9,target=sm_120", 8, 23009, 0, DW_DIMSPLIT},  {"mla:h=8,t=9,target=sm_90", 1, 11009, 0, DW_ROWSPLIT},
    {"mla:h=8,t=9,target=sm_90", 8, 1009, 0, DW_ROWSPLIT},    {"mla:h=8,t=9,target=sm_90", 8, 2009, 0, DW_DIMSPLIT},
    {"mla:h=8,t=9,target=sm_90", 1, 16009, 0, DW_DIMSPLIT},   {"mla:h=8,t=9,target=sm_90", 32, 1009, 0, DW_DIMSPLIT},
    {"mla:h=8,t=6,target=sm_90", 1, 23006, 0, DW_DIMSPLIT},   {"mla:h=8,t=17,target=sm_90", 1, 5717, 0, DW_DIMSPLIT},
    {"mla:h=8,t=12,target=sm_90", 1, 185012, 0, DW_ROWSPLIT}, {"mla:h=8,t=16,target=sm_90", 1, 185016, 0, DW_DIMSPLIT},
    {"mla:h=8,t=20,target=sm_90", 1, 185020, 0, DW_ROWSPLIT}, {"mla:h=8,t=5,target=sm_90", 1, 12005, 0, DW_ROWSPLIT},
    {"mla:h=8,t=4,target=sm_90", 1, 12004, 0, DW_ROWSPLIT},   {"mla:h=8,t=9,target=sm_90", 1, 185009, 512, DW_ROWSPLIT},
    {"mla:h=8,t=9,target=sm_100", 1, 185009, 0, DW_ROWSPLIT}, {"mla:h=8,t=9,kv=e4m3,target=sm_90", 1, 185009, 0, DW_ROWSPLIT},
    {"mla:h=8,t=1,target=sm_90", 1, 185009, 0, DW_ROWSPLIT},  {"mla:h=8,t=5,target=sm_90", 1, 185009, 0, DW_ROWSPLIT},
    {"mla:h=8,t=64,target=sm_90", 1, 185064, 0, DW_DIMSPLIT},
  };
  for (size_t i = 0; i < DW__COUNT(cases); i++) {
    const dw_shape shape = shape_of(cases[i].shape);
    const dw_bounds bounds = {
      .size = sizeof bounds, .batch = cases[i].batch, .kv_len = cases[i].kv_len, .split_tokens = cases[i].split_tokens};
    dw_variant variant;
    assert_int_equal(dw_variant_choose(&shape, &bounds, &variant, NULL), DW_OK);
    if (variant.family != (int)cases[i].family)
      fail_msg("%s, %d x %d: family %d", cases[i].shape, cases[i].batch, cases[i].kv_len, variant.family);
  }
}

// KV ranges on the 132 multiprocessors of an H200: what was measured fastest, or as fast with fewer ranges.
static void waves_are_filled(void **state) {
  (void)state;
  static const struct {
    const char *shape;
    int batch, kv_len, ranges;
  } cases[] = {
    // 66 pairs at once: 2, 3, 4 or 5 ranges where one wave leaves many idle.
    {"mla:h=8,t=9", 24, 5709, 5},
    {"mla:h=8,t=9", 32, 5709, 2},
    {"mla:h=8,t=9", 40, 1009, 3},
    {"mla:h=8,t=9", 40, 5709, 3},
    {"mla:h=8,t=9", 40, 23009, 3},
    {"mla:h=8,t=9", 48, 5709, 4},
    {"mla:h=8,t=9", 66, 5709, 1},
    {"mla:h=8,t=9", 57, 16384, 1},
    {"mla:h=8,t=9", 80, 5709, 4},
    {"mla:h=8,t=5", 100, 5705, 5},
    {"mla:h=8,t=9", 1000, 5709, 1},
    {"mla:h=8,t=9", 8, 1009, 5},
    {"mla:h=8,t=9", 8, 23009, 8},
    {"mla:h=8,t=9", 4, 185009, 16},
    {"mla:h=8,t=9", 1, 185009, 66},
    // As few as have the same longest range: 357 tiles are nine for 40 ranges as for 44.
    {"mla:h=8,t=9", 1, 5709, 40},
    {"mla:h=8,t=9", 1, 1009, 32},
    // One row tile waits for memory: a wave that is not full is faster for it.
    {"mla:h=8,t=1", 100, 5701, 1},
    {"gqa:h=32,hk=8,t=9,d=128", 24, 5709, 1},
    {"gqa:h=32,hk=8,t=9,d=128", 40, 5709, 3},
  };
  for (size_t i = 0; i < DW__COUNT(cases); i++) {
    dw_shape shape = shape_of(cases[i].shape);
    shape.target = 90;
    const dw_bounds bounds = {
      .size = sizeof bounds, .batch = cases[i].batch, .kv_len = cases[i].kv_len, .sm_count = 132, .call = DW_CALL_TABLE};
    dw_variant variant;
    dw__plan plan;
    assert_int_equal(dw_variant_choose(&shape, &bounds, &variant, NULL), DW_OK);
    assert_int_equal(dw__plan_make(&shape, &variant, &bounds, &plan, NULL), DW_OK);
    if (plan.ranges != cases[i].ranges)
      fail_msg("%s, %d x %d: %d ranges, not %d", cases[i].shape, cases[i].batch, cases[i].kv_len, plan.ranges, cases[i].ranges);
  }
}

// For GQA: as few row groups as fit the registers, two where there are multiprocessors to spare. On the 132 of an H200.
static void gqa_takes_warpsplit(void **state) {
  (void)state;
  static const struct {
    const char *shape;
    int batch, kv_len, split_tokens, n_tiles, groups;
  } cases[] = {{"gqa:h=32,hk=8,t=9,d=128", 1, 1009, 0, 3, 2},
               {"gqa:h=32,hk=8,t=4,d=128", 1, 1004, 0, 1, 2},
               {"gqa:h=32,hk=8,t=1,d=128", 1, 1001, 0, 1, 1},
               {"gqa:h=32,hk=8,t=9,d=128", 1, 1009, 512, 5, 1},
               {"gqa:h=32,hk=8,t=9,d=128", 8, 1009, 0, 5, 1},
               {"gqa:h=32,hk=8,t=9,d=128", 1, 23009, 0, 5, 1},
               {"gqa:h=8,hk=1,t=9,d=128", 1, 185009, 0, 5, 2},
               {"gqa:h=24,hk=4,t=4,d=256", 1, 32004, 0, 2, 2},
               {"gqa:h=32,hk=8,t=64,d=128", 1, 23064, 0, 5, 7},
               {"gqa:h=16,hk=16,t=9,qk=192,v=128", 1, 23009, 0, 2, 1},
               {"gqa:h=32,hk=8,t=9,d=128,kv=e4m3", 1, 185009, 0, 5, 1},
               {"gqa:h=32,hk=8,t=9,d=128,kv=e4m3,target=sm_80", 8, 1009, 0, 5, 1}};
  for (size_t i = 0; i < DW__COUNT(cases); i++) {
    const dw_shape shape = shape_of(cases[i].shape);
    const dw_bounds bounds = {.size = sizeof bounds,
                              .sm_count = 132,
                              .batch = cases[i].batch,
                              .kv_len = cases[i].kv_len,
                              .split_tokens = cases[i].split_tokens};
    dw_variant variant;
    assert_int_equal(dw_variant_choose(&shape, &bounds, &variant, NULL), DW_OK);
    const dw_split split = dw__rule_split(&shape, &variant, &bounds);
    if (variant.family != DW_WARPSPLIT || variant.n_tiles != cases[i].n_tiles || split.groups != cases[i].groups)
      fail_msg("case %zu: family %d, %d tiles, %d groups", i, variant.family, variant.n_tiles, split.groups);
  }
}

static bool is_listed(const dw_variant *list, size_t count, const dw_variant *variant) {
  for (size_t i = 0; i < count; i++)
    if (memcmp(&list[i], variant, sizeof *variant) == 0) return true;
  return false;
}

static size_t list_variants(const dw_shape *shape, dw_variant list[256]) {
  size_t count = 0;
  dw_variant variant;
  while (count < 256 && dw_variant_enumerate(shape, count, &variant) == DW_OK) {
    assert_int_equal(dw_variant_applicable(shape, &variant, NULL), DW_OK);
    assert_false(is_listed(list, count, &variant));
    list[count++] = variant;
  }
  assert_in_range(count, 1, 255);
  return count;
}

// Any board, batch, length, form of call and split: the choice is in the list.
static void every_choice_is_listed(void **state) {
  (void)state;
  static const int batches[] = {1, 2, 3, 5, 8, 9, 17, 64, 300, 65535}, splits[] = {0, 0, 0, 256, 4096};
  uint64_t seed_value = 11, *seed = &seed_value;
  for (int i = 0; i < 60; i++) {
    const dw_shape shape = random_shape(seed);
    dw_variant list[256], variant;
    const size_t count = list_variants(&shape, list);
    for (int k = 0; k < 300; k++) {
      dw_bounds bounds = {.size = sizeof bounds, .sm_count = 1 + dw__random_below(seed, 256), .batch = PICK(batches)};
      bounds.kv_len = 1 + dw__random_below(seed, 16 << dw__random_below(seed, 17));
      bounds.call = (dw_call)dw__random_below(seed, 2);
      bounds.split_tokens = PICK(splits);
      if (dw__random_below(seed, 8) == 0) bounds.sm_count = 4096;
      assert_int_equal(dw_variant_choose(&shape, &bounds, &variant, NULL), DW_OK);
      assert_true(is_listed(list, count, &variant));
    }
  }
}

// And nothing else is: some problem asks for each main kernel and some for each merge, but for grouped, which only a tuner takes, and pairs
// of other row counts. (A tuner may join them in other ways.)
static bool same_main(const dw_variant *a, const dw_variant *b) {
  dw_variant other = *b;
  other.combine = a->combine, other.combine_splits = a->combine_splits;
  return !memcmp(a, &other, sizeof other);
}
static bool same_merge(const dw_variant *a, const dw_variant *b) {
  return a->call == b->call && a->combine == b->combine && a->combine_splits == b->combine_splits;
}
static void everything_listed_is_chosen(void **state) {
  (void)state;
  static const char *const shapes[] = {"mla:h=8,t=1",
                                       "mla:h=8,t=9",
                                       "mla:h=8,t=4",
                                       "mla:h=16,t=17",
                                       "mla:h=8,t=9,kv=e4m3",
                                       "mla:h=8,t=9,kv=record656",
                                       "mla:h=8,t=9,qk=96,v=64",
                                       "gqa:h=32,hk=8,t=9,d=128",
                                       "gqa:h=64,hk=8,t=1,d=64",
                                       "gqa:h=32,hk=8,t=9,d=128,kv=e4m3"};
  static const int boards[] = {8, 16, 24, 48, 84, 132, 170, 188, 512, 1024, 1400, 4096};
  for (size_t s = 0; s < DW__COUNT(shapes); s++) {
    const dw_shape shape = shape_of(shapes[s]);
    dw_variant list[256], variant;
    const size_t count = list_variants(&shape, list);
    size_t missing = 0;
    bool met[256], merged[256];
    for (size_t i = 0; i < count; i++) {
      met[i] = merged[i] = list[i].family == DW_GROUPED;
      missing += 2 * !met[i];
    }
    assert_true(missing > 0 && (missing < 2 * count) == (shape.attention == DW_GQA));
    for (size_t board = 0; board < DW__COUNT(boards); board++) {
      for (int batch = 1; batch < 300; batch += 1 + batch / 6) {
        for (int tiles = 1; tiles < 70000 && missing; tiles += 1 + tiles / 12) {
          for (int call = 0; call < 2; call++) {
            const dw_bounds bounds = {
              .size = sizeof bounds, .sm_count = boards[board], .batch = batch, .kv_len = tiles * 16, .call = (dw_call)call};
            assert_int_equal(dw_variant_choose(&shape, &bounds, &variant, NULL), DW_OK);
            for (size_t i = 0; i < count; i++) {
              if (!met[i] && same_main(&list[i], &variant)) met[i] = true, missing--;
              if (!merged[i] && same_merge(&list[i], &variant)) merged[i] = true, missing--;
            }
          }
        }
      }
    }
    for (size_t i = 0; i < count; i++) {
      char text[DW_TEXT_MAX];
      dw_variant_print(&list[i], text, sizeof text);
      if ((!met[i] || !merged[i]) && list[i].family != DW_DIMSPLIT) fail_msg("nothing asks for %s of %s", text, shapes[s]);
    }
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(bounds_are_refused),
    cmocka_unit_test(table_kernels_split_by_auto),
    cmocka_unit_test(variants_are_refused),
    cmocka_unit_test(variants_out_of_range_are_refused),
    cmocka_unit_test(null_is_refused_or_nothing),
    cmocka_unit_test(impossible_shapes_have_no_variant),
    cmocka_unit_test(bounds_are_read_by_their_size),
    cmocka_unit_test(a06_arrays_have_their_size),
    cmocka_unit_test(planes_are_checked),
    cmocka_unit_test(rows_are_checked),
    cmocka_unit_test(vectors_are_checked),
    cmocka_unit_test(kv_is_checked),
    cmocka_unit_test(masks_and_scalars_are_checked),
    cmocka_unit_test(a16_masks_have_their_size),
    cmocka_unit_test(a37_only_e4m3_has_a_scale),
    cmocka_unit_test(kv_in_e4m3_is_checked),
    cmocka_unit_test(records_are_checked),
    cmocka_unit_test(parts_and_scalars_are_checked),
    cmocka_unit_test(vectors_lie_apart),
    cmocka_unit_test(workspace_is_checked),
    cmocka_unit_test(promises_are_checked),
    cmocka_unit_test(checked_plans_have_one_kernel_more),
    cmocka_unit_test(reports_are_told),
    cmocka_unit_test(every_choice_makes_a_plan),
    cmocka_unit_test(every_listed_variant_makes_a_plan),
    cmocka_unit_test(pairs_where_they_pay),
    cmocka_unit_test(waves_are_filled),
    cmocka_unit_test(every_choice_is_listed),
    cmocka_unit_test(gqa_takes_warpsplit),
    cmocka_unit_test(everything_listed_is_chosen),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
