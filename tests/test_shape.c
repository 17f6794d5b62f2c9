// Shapes, presets and variants as text and as values.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core.h"
#include "random.h"
#include "support.h"

#define FIELDS_MLA "h, t, qk, v, page, q, kv, o, target, limits, tree"
#define FIELDS_GQA "h, hk, t, d, qk, v, page, q, kv, o, target, limits, tree"
#define TARGETS "sm_80, sm_86, sm_89, sm_90, sm_100, sm_103, sm_120, sm_121"
#define STARTS                                                                                                     \
  "mla:, gqa:, kimi-k2.6-tp4, kimi-k2.6-tp8, kimi-k2.6-tp16, deepseek-v3-tp4, deepseek-v3-tp8, deepseek-v3-tp16, " \
  "qwen3-8b, qwen3-coder-30b-a3b, llama-70b-tp4, llama-70b-tp8, glm-4.5-tp4, glm-4.5-tp8, gpt-oss-120b"

static void assert_prints(const char *text, const char *canonical) {
  dw_shape shape = shape_of(text);
  char printed[DW_TEXT_MAX];
  assert_int_equal(dw_shape_print(&shape, printed, sizeof printed), strlen(canonical));
  assert_string_equal(printed, canonical);
}

// ---- texts that are right -------------------------------------------------------------------------------------

static void shape_has_one_canonical_text(void **state) {
  (void)state;
  const char *canonical = "mla:h=8,t=9,qk=576,v=512,page=1,q=bf16,kv=bf16,target=sm_120,limits=native";
  assert_prints("mla:h=8,t=9", canonical);
  assert_prints("mla:t=9,h=8", canonical);
  assert_prints("mla:limits=native,target=sm_120,kv=bf16,q=bf16,page=1,v=512,qk=576,t=9,h=8,o=bf16", canonical);
  assert_prints("kimi-k2.6-tp8", canonical);
  assert_prints(canonical, canonical);
  assert_prints("gqa:h=32,hk=8,t=16,d=128,page=64",
                "gqa:h=32,hk=8,t=16,d=128,page=64,q=bf16,kv=bf16,target=sm_120,limits=native");
  assert_prints("gqa:h=32,hk=8,t=16,qk=128,v=128",
                "gqa:h=32,hk=8,t=16,d=128,page=1,q=bf16,kv=bf16,target=sm_120,limits=native");
  assert_prints("gqa:h=32,hk=8,t=16,qk=192,v=128",
                "gqa:h=32,hk=8,t=16,qk=192,v=128,page=1,q=bf16,kv=bf16,target=sm_120,limits=native");
}

static void shape_out_follows_q_unless_given(void **state) {
  (void)state;
  assert_int_equal(shape_of("mla:h=8,t=9,q=f16").out, DW_F16);
  assert_int_equal(shape_of("mla:h=8,t=9,q=fp16,o=bf16").out, DW_BF16);
  assert_int_equal(shape_of("mla:h=8,t=9,o=fp32,q=fp16").out, DW_F32);
  assert_int_equal(shape_of("kimi-k2.6-tp8,q=fp16").out, DW_F16);
  assert_int_equal(shape_of("mla:h=8,t=9,q=fp16,kv=fp8").kv, DW_E4M3);
  assert_prints("kimi-k2.6-tp8,kv=fp8", "mla:h=8,t=9,qk=576,v=512,page=1,q=bf16,kv=e4m3,target=sm_120,limits=native");
  assert_int_equal(shape_of("mla:h=8,t=9,kv=fp8_ds_mla").kv, DW_RECORD656);
  assert_prints("kimi-k2.6-tp8,kv=fp8_ds_mla",
                "mla:h=8,t=9,qk=576,v=512,page=1,q=bf16,kv=record656,target=sm_120,limits=native");
  assert_prints("mla:h=8,t=9,q=f16,o=f32", "mla:h=8,t=9,qk=576,v=512,page=1,q=fp16,kv=bf16,o=fp32,target=sm_120,limits=native");
}

static void preset_takes_other_fields(void **state) {
  (void)state;
  assert_prints("kimi-k2.6-tp8,t=17", "mla:h=8,t=17,qk=576,v=512,page=1,q=bf16,kv=bf16,target=sm_120,limits=native");
  assert_prints("qwen3-8b,d=64,limits=sm_120,target=sm_90",
                "gqa:h=32,hk=8,t=9,d=64,page=1,q=bf16,kv=bf16,target=sm_90,limits=sm_120");
}

static void presets_are_what_their_names_say(void **state) {
  (void)state;
  const struct {
    const char *name;
    dw_attention attention;
    int heads, kv_heads, qk, v;
  } expected[] = {
    {"kimi-k2.6-tp4", DW_MLA, 16, 1, 576, 512},   {"kimi-k2.6-tp8", DW_MLA, 8, 1, 576, 512},
    {"kimi-k2.6-tp16", DW_MLA, 4, 1, 576, 512},   {"deepseek-v3-tp4", DW_MLA, 32, 1, 576, 512},
    {"deepseek-v3-tp8", DW_MLA, 16, 1, 576, 512}, {"deepseek-v3-tp16", DW_MLA, 8, 1, 576, 512},
    {"qwen3-8b", DW_GQA, 32, 8, 128, 128},        {"qwen3-coder-30b-a3b", DW_GQA, 32, 4, 128, 128},
    {"llama-70b-tp4", DW_GQA, 16, 2, 128, 128},   {"llama-70b-tp8", DW_GQA, 8, 1, 128, 128},
    {"glm-4.5-tp4", DW_GQA, 24, 2, 128, 128},     {"glm-4.5-tp8", DW_GQA, 12, 1, 128, 128},
    {"gpt-oss-120b", DW_GQA, 64, 8, 64, 64},
  };
  assert_int_equal(dw_preset_count(), DW__COUNT(expected));
  assert_null(dw_preset_name(dw_preset_count()));
  for (size_t i = 0; i < DW__COUNT(expected); i++) {
    dw_shape shape;
    assert_string_equal(dw_preset_name(i), expected[i].name);
    assert_int_equal(dw_preset_shape(expected[i].name, &shape, NULL), DW_OK);
    assert_int_equal(shape.attention, expected[i].attention);
    assert_int_equal(shape.heads, expected[i].heads);
    assert_int_equal(shape.kv_heads, expected[i].kv_heads);
    assert_int_equal(shape.width, 9);
    assert_int_equal(shape.head_dim_qk, expected[i].qk);
    assert_int_equal(shape.head_dim_v, expected[i].v);
    assert_int_equal(dw_shape_check(&shape, NULL), DW_OK);
  }
}

static dw_shape random_shape(uint64_t *seed) {
  const int targets[] = {80, 86, 89, 90, 100, 103, 120, 121}, kv_heads[] = {1, 2, 4, 8};
  dw_shape shape = {.attention = dw__random_below(seed, 2) ? DW_GQA : DW_MLA, .kv_heads = 1};
  shape.heads = 1 + dw__random_below(seed, 128);
  if (shape.attention == DW_GQA) {
    shape.kv_heads = kv_heads[dw__random_below(seed, 4)];
    shape.heads = shape.kv_heads * (1 + dw__random_below(seed, 16));
  }
  shape.width = 1 + dw__random_below(seed, 1025);
  shape.head_dim_v = 16 * (1 + dw__random_below(seed, 64));
  shape.head_dim_qk = dw__random_below(seed, 2) ? shape.head_dim_v : 16 * (1 + dw__random_below(seed, 64));
  if (shape.attention == DW_MLA && shape.head_dim_v > shape.head_dim_qk) shape.head_dim_v = shape.head_dim_qk;
  shape.page = dw__random_below(seed, 4) ? 16 * (1 + dw__random_below(seed, 64)) : 1;
  shape.q = (dw_dtype)dw__random_below(seed, 2);
  shape.kv = (dw_dtype)dw__random_below(seed, 2);
  shape.out = (dw_dtype)dw__random_below(seed, 3);
  shape.target = targets[dw__random_below(seed, (int)DW__COUNT(targets))];
  shape.limits = dw__random_below(seed, 2) ? 120 : 0;
  return shape;
}

static void shape_survives_print_and_parse(void **state) {
  (void)state;
  uint64_t seed = 1;
  for (int i = 0; i < 5000; i++) {
    dw_shape shape = random_shape(&seed), again;
    char text[DW_TEXT_MAX], second[DW_TEXT_MAX];
    assert_int_equal(dw_shape_check(&shape, NULL), DW_OK);
    assert_true(dw_shape_print(&shape, text, sizeof text) < 128);
    again = shape_of(text);
    assert_memory_equal(&again, &shape, sizeof shape);
    dw_shape_print(&again, second, sizeof second);
    assert_string_equal(text, second);
  }
}

static void shape_print_says_how_long_it_is(void **state) {
  (void)state;
  dw_shape shape = shape_of("kimi-k2.6-tp8,o=fp32");
  char whole[DW_TEXT_MAX], part[DW_TEXT_MAX];
  size_t size = dw_shape_print(&shape, whole, sizeof whole);
  assert_int_equal(dw_shape_print(&shape, NULL, 0), size);
  for (size_t n = 1; n <= size + 1; n++) {
    memset(part, '#', sizeof part);
    assert_int_equal(dw_shape_print(&shape, part, n), size);
    assert_int_equal(strlen(part), n - 1);
    assert_memory_equal(part, whole, n - 1);
    assert_int_equal(part[n], '#');
  }
}

// ---- texts that are wrong -------------------------------------------------------------------------------------

static const struct {
  const char *text, *field, *found, *allowed, *message;
} mistakes[] = {
  {"", "shape", "", STARTS, NULL},
  {"gqa", "shape", "gqa", STARTS, NULL},
  {"foo:h=3", "shape", "foo", STARTS, NULL},
  {"kimi-k3", "shape", "kimi-k3", STARTS,
   "shape: found kimi-k3, allowed " STARTS ": a shape starts with its kind of attention or with a preset's name"},
  {"MLA:h=8,t=9", "shape", "MLA", STARTS, NULL},
  {"mla:", "text", "an empty field", FIELDS_MLA, NULL},
  {"mla:h=8,,t=9", "text", "an empty field", FIELDS_MLA, NULL},
  {"mla:h=8,t=9,", "text", "an empty field", FIELDS_MLA, NULL},
  {"kimi-k2.6-tp8,", "text", "an empty field", FIELDS_MLA, NULL},
  {"mla:h=8,t=9,foo=3", "text", "foo", FIELDS_MLA, "text: found foo, allowed " FIELDS_MLA ": unknown field"},
  {"mla:h=8, t=9", "text", " t", FIELDS_MLA, NULL},
  {"mla:h=8,t=9,hk=1", "text", "hk", FIELDS_MLA, NULL},
  {"mla:h=8,t=9,d=128", "text", "d", FIELDS_MLA, NULL},
  {"gqa:heads=8", "text", "heads", FIELDS_GQA, NULL},
  {"kimi-k2.6-tp8,d=128", "text", "d", FIELDS_MLA, NULL},
  {"mla:t=9", "h", "nothing", "a value", "h: found nothing, allowed a value: this field has no default"},
  {"mla:h=8", "t", "nothing", "a value", NULL},
  {"gqa:h=32,t=9,d=128", "hk", "nothing", "a value", NULL},
  {"gqa:h=32,hk=8,t=9", "d", "nothing", "a value", NULL},
  {"gqa:h=32,hk=8,t=9,qk=128", "v", "nothing", "a value", NULL},
  {"mla:h=8,t=9,t=8", "t", "t=8", "once", "t: found t=8, allowed once: given twice"},
  {"kimi-k2.6-tp8,t=9,t=9", "t", "t=9", "once", NULL},
  {"gqa:h=32,hk=8,t=9,d=128,qk=64", "qk", "qk=64", "once", NULL},
  {"mla:h=8,t=", "t", "", "1 to 1025", "t: allowed 1 to 1025: the value is missing"},
  {"mla:h=8,t", "t", "", "1 to 1025", NULL},
  {"mla:h=8,t=9,q=", "q", "", "bf16, fp16", NULL},
  {"mla:h=8,t=x", "t", "x", "1 to 1025", "t: found x, allowed 1 to 1025: not a whole number"},
  {"mla:h=8,t=9.5", "t", "9.5", "1 to 1025", NULL},
  {"mla:h=8,t=+9", "t", "+9", "1 to 1025", NULL},
  {"mla:h=8,t=-", "t", "-", "1 to 1025", NULL},
  {"mla:h=8,t=9 ", "t", "9 ", "1 to 1025", NULL},
  {"mla:h=8,t=2147483648", "t", "2147483648", "1 to 1025", "t: found 2147483648, allowed 1 to 1025: the number is too large"},
  {"mla:h=8,t=99999999999999999999999", "t", "99999999999999999999999", "1 to 1025", NULL},
  {"mla:h=0,t=9", "heads", "0", "1 to 128", "heads: found 0, allowed 1 to 128: out of range"},
  {"mla:h=129,t=9", "heads", "129", "1 to 128", NULL},
  {"mla:h=8,t=0", "width", "0", "1 to 1025", NULL},
  {"mla:h=8,t=1026", "width", "1026", "1 to 1025", NULL},
  {"mla:h=8,t=-3", "width", "-3", "1 to 1025", NULL},
  {"mla:h=8,t=-2147483647", "width", "-2147483647", "1 to 1025", NULL},
  {"mla:h=8,t=9,page=24", "page", "24", "1 or a multiple of 16 up to 1024",
   "page: found 24, allowed 1 or a multiple of 16 up to 1024: out of range"},
  {"mla:h=8,t=9,page=0", "page", "0", "1 or a multiple of 16 up to 1024", NULL},
  {"mla:h=8,t=9,page=1040", "page", "1040", "1 or a multiple of 16 up to 1024", NULL},
  {"mla:h=8,t=9,qk=512,v=576", "head_dim_v", "576", "at most head_dim_qk, 512",
   "head_dim_v: found 576, allowed at most head_dim_qk, 512: V is the first part of a token's record"},
  {"mla:h=8,t=9,qk=577", "head_dim_qk", "577", "a multiple of 16 from 16 to 1024", NULL},
  {"mla:h=8,t=9,v=500", "head_dim_v", "500", "a multiple of 16 from 16 to 1024", NULL},
  {"mla:h=8,t=9,v=0", "head_dim_v", "0", "a multiple of 16 from 16 to 1024", NULL},
  {"gqa:h=32,hk=8,t=9,d=100", "head_dim_qk", "100", "a multiple of 16 from 16 to 1024", NULL},
  {"gqa:h=32,hk=5,t=9,d=128", "kv_heads", "5", "a divisor of heads, 32",
   "kv_heads: found 5, allowed a divisor of heads, 32: each KV head serves as many query heads"},
  {"gqa:h=32,hk=0,t=9,d=128", "kv_heads", "0", "1 to 128", NULL},
  {"gqa:h=32,hk=64,t=9,d=128", "kv_heads", "64", "a divisor of heads, 32", NULL},
  {"mla:h=8,t=9,q=int8", "q", "int8", "bf16, fp16", "q: found int8, allowed bf16, fp16: not a value of this field"},
  {"mla:h=8,t=9,q=fp32", "q", "fp32", "bf16, fp16", NULL},
  {"mla:h=8,t=9,kv=f32", "kv", "f32", "bf16, fp16, e4m3, record656", NULL},
  {"gqa:h=8,hk=2,t=9,d=128,kv=record656", "kv", "record656", "another type with gqa", NULL},
  {"mla:h=8,t=9,v=256,kv=record656", "head_dim_v", "256", "512 with kv=record656",
   "head_dim_v: found 256, allowed 512 with kv=record656: a record has 512 latents in e4m3, their 4 scales and 64 of the rope in bf16"},
  {"mla:h=8,t=9,qk=640,kv=record656", "head_dim_qk", "640", "576 with kv=record656", NULL},
  {"mla:h=8,t=9,q=fp16,kv=record656", "q", "fp16", "bf16 with kv=record656", NULL},
  {"mla:h=8,t=9,q=record656", "q", "record656", "bf16, fp16", NULL},
  {"mla:h=8,t=9,q=e4m3", "q", "e4m3", "bf16, fp16", NULL},
  {"mla:h=8,t=9,o=e4m3", "o", "e4m3", "bf16, fp16, fp32", NULL},
  {"mla:h=8,t=9,target=sm_120f", "target", "sm_120f", TARGETS,
   "target: found sm_120f, allowed " TARGETS
   ": a target is a device class; the variant picks the feature level (the letter a or f)"},
  {"mla:h=8,t=9,target=sm_90a", "target", "sm_90a", TARGETS, NULL},
  {"mla:h=8,t=9,target=120", "target", "120", TARGETS, NULL},
  {"mla:h=8,t=9,limits=sm_90", "limits", "sm_90", "native, sm_120", NULL},
};

static void shape_mistakes_are_told_with_evidence(void **state) {
  (void)state;
  for (size_t i = 0; i < DW__COUNT(mistakes); i++) {
    dw_error e = {0};
    dw_shape shape, before;
    memset(&shape, 0x55, sizeof shape);
    before = shape;
    if (dw_shape_parse(mistakes[i].text, &shape, &e) != DW_BAD_SHAPE) fail_msg("accepted: %s", mistakes[i].text);
    if (strcmp(e.field, mistakes[i].field)) fail_msg("%s: field %s, expected %s", mistakes[i].text, e.field, mistakes[i].field);
    assert_int_equal(e.status, DW_BAD_SHAPE);
    assert_string_equal(e.found, mistakes[i].found);
    assert_string_equal(e.allowed, mistakes[i].allowed);
    if (mistakes[i].message) assert_string_equal(e.message, mistakes[i].message);
    assert_memory_equal(&shape, &before, sizeof shape);
    assert_int_equal(dw_shape_parse(mistakes[i].text, &shape, NULL), DW_BAD_SHAPE);
  }
}

static void shape_needs_text_and_place(void **state) {
  (void)state;
  dw_shape shape;
  dw_error e = {0};
  assert_int_equal(dw_shape_parse(NULL, &shape, &e), DW_BAD_ARGUMENT);
  assert_string_equal(e.field, "text");
  assert_int_equal(dw_shape_parse("kimi-k2.6-tp8", NULL, &e), DW_BAD_ARGUMENT);
  assert_string_equal(e.field, "shape");
  assert_int_equal(dw_shape_check(NULL, &e), DW_BAD_ARGUMENT);
  assert_int_equal(dw_preset_shape(NULL, &shape, &e), DW_BAD_ARGUMENT);
  assert_int_equal(dw_preset_shape("kimi-k2.6-tp8", NULL, &e), DW_BAD_ARGUMENT);
  assert_int_equal(dw_preset_shape("kimi", &shape, &e), DW_NOT_FOUND);
  assert_string_equal(e.allowed, STARTS);
}

// The check stands alone: a shape may be filled in by a program, with numbers no text can say.
static void shape_check_finds_each_bad_member(void **state) {
  (void)state;
  const struct {
    const char *member;
    size_t offset;
    int value;
  } bad[] = {
    {"attention", offsetof(dw_shape, attention), 7},
    {"heads", offsetof(dw_shape, heads), -1},
    {"kv_heads", offsetof(dw_shape, kv_heads), 2},
    {"width", offsetof(dw_shape, width), 1026},
    {"head_dim_qk", offsetof(dw_shape, head_dim_qk), 8},
    {"head_dim_v", offsetof(dw_shape, head_dim_v), 592},
    {"page", offsetof(dw_shape, page), 8},
    {"q", offsetof(dw_shape, q), DW_F32},
    {"kv", offsetof(dw_shape, kv), 9},
    {"out", offsetof(dw_shape, out), 3},
    {"target", offsetof(dw_shape, target), 70},
    {"limits", offsetof(dw_shape, limits), 90},
  };
  for (size_t i = 0; i < DW__COUNT(bad); i++) {
    dw_shape shape = shape_of("kimi-k2.6-tp8");
    dw_error e = {0};
    char text[DW_TEXT_MAX];
    memcpy((char *)&shape + bad[i].offset, &bad[i].value, sizeof(int));
    assert_int_equal(dw_shape_check(&shape, &e), DW_BAD_SHAPE);
    assert_string_equal(e.field, bad[i].member);
    assert_true(dw_shape_print(&shape, text, sizeof text) < sizeof text);  // a bad shape can still be shown
  }
}

// Whatever the bytes, the parser ends, and what it accepts it prints and reads again.
static void shape_parser_stands_any_text(void **state) {
  (void)state;
  const char alphabet[] = "mlagqhtkvdpeobf163280=,:-sm_n\xC3\xA9 ";
  uint64_t seed = 5;
  int accepted = 0;
  for (int i = 0; i < 20000; i++) {
    char text[DW_TEXT_MAX] = "gqa:h=32,hk=8,t=9,d=128,page=16,q=bf16,kv=fp16,o=fp32,target=sm_90,limits=sm_120";
    char printed[DW_TEXT_MAX];
    for (int n = dw__random_below(&seed, 4); n >= 0; n--)
      text[dw__random_below(&seed, 84)] = alphabet[dw__random_below(&seed, (int)sizeof alphabet)];
    dw_shape shape, again;
    if (dw_shape_parse(text, &shape, NULL)) continue;
    accepted++;
    dw_shape_print(&shape, printed, sizeof printed);
    again = shape_of(printed);
    assert_memory_equal(&shape, &again, sizeof shape);
  }
  assert_true(accepted > 100);
}

static void long_texts_are_cut_in_messages(void **state) {
  (void)state;
  char text[4096] = "mla:h=8,t=";
  memset(text + 10, '9', sizeof text - 11);
  dw_shape shape;
  dw_error e = {0};
  assert_int_equal(dw_shape_parse(text, &shape, &e), DW_BAD_SHAPE);
  assert_string_equal(e.field, "t");
  assert_true(strlen(e.found) > 50);
  memset(text, 'x', 4095);
  assert_int_equal(dw_shape_parse(text, &shape, &e), DW_BAD_SHAPE);
  assert_string_equal(e.allowed, STARTS);
}

// Nothing here needs memory, so nothing here can run out of it.
static void parsing_allocates_nothing(void **state) {
  (void)state;
  dw_shape shape;
  dw_variant variant;
  dw_error e = {0};
  dw__alloc_fail_after(1);
  dw_status status = dw_shape_parse("kimi-k2.6-tp8,t=17", &shape, &e);
  dw_status bad = dw_shape_parse("kimi-k2.6-tp8,t=0", &shape, &e);
  dw_status variant_status = dw_variant_parse("family=split", &variant, &e);
  long made = dw__alloc_fail_after(0);
  assert_int_equal(status, DW_OK);
  assert_int_equal(bad, DW_BAD_SHAPE);
  assert_int_equal(variant_status, DW_OK);
  assert_int_equal(made, 0);
}

// ---- variants -------------------------------------------------------------------------------------------------

// What draftwood_variant.def says, to walk over it.
static const struct {
  const char *name;
  size_t offset;
  int least, most, normal;
} params[] = {
#define DW_PARAM(name, kind, least, most, normal, help) {#name, offsetof(dw_variant, name), least, most, normal},
#include "draftwood_variant.def"
#undef DW_PARAM
};

static int get(const dw_variant *variant, size_t param) {
  int value;
  memcpy(&value, (const char *)variant + params[param].offset, sizeof value);
  return value;
}

static void set(dw_variant *variant, size_t param, int value) {
  memcpy((char *)variant + params[param].offset, &value, sizeof value);
}

static void variant_text_is_as_documented(void **state) {
  (void)state;
  dw_variant variant;
  char text[DW_TEXT_MAX];
  const char *example = "family=rowsplit,n_tiles=5,setmaxnreg=1,combine=many,combine_splits=72,call=any,checked=0";
  const char *other_order = "checked=0,combine_splits=72,combine=many,setmaxnreg=1,n_tiles=5,family=rowsplit";
  assert_int_equal(dw_variant_parse(other_order, &variant, NULL), DW_OK);
  assert_int_equal(variant.family, DW_ROWSPLIT);
  assert_int_equal(variant.combine, DW_COMBINE_MANY);
  assert_int_equal(variant.combine_splits, 72);
  assert_int_equal(dw_variant_print(&variant, text, sizeof text), strlen(example));
  assert_string_equal(text, example);
  variant.accumulate = DW_ACCUMULATE_FP16_OUTPUT;  // in the text, and so in keys, only where it is not fp32
  dw_variant_print(&variant, text, sizeof text);
  assert_int_equal(strncmp(text, example, strlen(example)), 0);
  assert_string_equal(text + strlen(example), ",accumulate=fp16_output");
  assert_int_equal(dw_variant_parse("accumulate=fp16", &variant, NULL), DW_OK);
  assert_int_equal(variant.accumulate, DW_ACCUMULATE_FP16);
  assert_int_equal(dw_variant_parse("family=reference,combine=few", &variant, NULL), DW_OK);
  assert_int_equal(variant.family, DW_REFERENCE);
  assert_int_equal(variant.combine, DW_COMBINE_FEW);
  assert_int_equal(dw_variant_parse("family=split,combine=none", &variant, NULL), DW_OK);
  assert_int_equal(variant.family, DW_SPLIT);
}

static void variant_left_out_is_normal(void **state) {
  (void)state;
  dw_variant variant;
  assert_int_equal(dw_variant_parse("", &variant, NULL), DW_OK);
  for (size_t i = 0; i < DW__COUNT(params); i++) assert_int_equal(get(&variant, i), params[i].normal);
}

static void variant_survives_print_and_parse(void **state) {
  (void)state;
  uint64_t seed = 2;
  for (int n = 0; n < 2000; n++) {
    dw_variant variant, again;
    char text[DW_TEXT_MAX];
    for (size_t i = 0; i < DW__COUNT(params); i++)
      set(&variant, i, params[i].least + dw__random_below(&seed, params[i].most - params[i].least + 1));
    assert_true(dw_variant_print(&variant, text, sizeof text) < sizeof text);
    assert_int_equal(dw_variant_parse(text, &again, NULL), DW_OK);
    assert_memory_equal(&variant, &again, sizeof variant);
  }
}

static void variant_ranges_are_checked(void **state) {
  (void)state;
  for (size_t i = 0; i < DW__COUNT(params); i++)
    for (int over = 0; over < 2; over++) {
      dw_variant variant;
      dw_error e = {0};
      char text[DW_TEXT_MAX];
      snprintf(text, sizeof text, "%s=%d", params[i].name, over ? params[i].most + 1 : params[i].least - 1);
      assert_int_equal(dw_variant_parse(text, &variant, &e), DW_BAD_ARGUMENT);
      assert_string_equal(e.field, params[i].name);
    }
}

static void variant_mistakes_are_told(void **state) {
  (void)state;
  dw_variant variant;
  dw_error e = {0};
  assert_int_equal(dw_variant_parse("family=fast", &variant, &e), DW_BAD_ARGUMENT);
  assert_string_equal(
    e.message,
    "family: found fast, allowed reference, split, rowsplit, grouped, warpsplit, dimsplit: not a value of this field");
  assert_int_equal(dw_variant_parse("combine=all", &variant, &e), DW_BAD_ARGUMENT);
  assert_string_equal(e.allowed, "none, few, many");
  assert_int_equal(dw_variant_parse("stages=3", &variant, &e), DW_BAD_ARGUMENT);
  for (size_t i = 0; i < DW__COUNT(params); i++) assert_non_null(strstr(e.allowed, params[i].name));
  assert_int_equal(dw_variant_parse("checked=1,checked=1", &variant, &e), DW_BAD_ARGUMENT);
  assert_int_equal(dw_variant_parse(NULL, &variant, &e), DW_BAD_ARGUMENT);
  assert_int_equal(dw_variant_parse("", NULL, &e), DW_BAD_ARGUMENT);
}

// ---- a tree in the code ---------------------------------------------------------------------------------------

static void trees_are_part_of_a_shape(void **state) {
  (void)state;
  char text[DW_TEXT_MAX];
  dw_shape shape, again;
  assert_int_equal(dw_shape_parse("mla:h=8,tree=r.0.0.1,t=4,page=16", &shape, NULL), DW_OK);
  assert_int_equal(shape.tree_nodes, 4);
  assert_memory_equal(shape.tree, ((signed char[]){-1, 0, 0, 1}), 4);
  dw_shape_print(&shape, text, sizeof text);
  assert_non_null(strstr(text, ",tree=r.0.0.1"));
  assert_int_equal(dw_shape_parse(text, &again, NULL), DW_OK);
  assert_memory_equal(&shape, &again, sizeof shape);
  // First in the text, and on top of a preset.
  assert_int_equal(dw_shape_parse("mla:tree=r.0.0.1,h=8,t=4,page=16", &again, NULL), DW_OK);
  assert_memory_equal(&shape, &again, sizeof shape);
  assert_int_equal(dw_shape_parse("kimi-k2.6-tp8,t=2,tree=r.r", &again, NULL), DW_OK);
  assert_int_equal(again.tree_nodes, 2);
  // The longest one has room in a text.
  char longest[400] = "mla:h=128,t=64,tree=r";
  for (int i = 1; i < 64; i++) snprintf(longest + strlen(longest), 8, ".%d", i - 1);
  assert_int_equal(dw_shape_parse(longest, &shape, NULL), DW_OK);
  assert_true(dw_shape_print(&shape, text, sizeof text) < sizeof text);
  assert_int_equal(dw_shape_parse(text, &again, NULL), DW_OK);
  assert_memory_equal(&shape, &again, sizeof shape);
}

static void trees_that_are_none_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *field, *found;
  } cases[] = {{"mla:h=8,t=4,tree=r.0.0", "tree", "3"},     {"mla:h=8,t=3,tree=r.0.2", "tree[2]", "2"},
               {"mla:h=8,t=3,tree=0.0.1", "tree[0]", "0"},  {"mla:h=8,t=3,tree=r.x.1", "tree", "x"},
               {"mla:h=8,t=3,tree=r..1", "tree", ""},       {"mla:h=8,t=3,tree=r.0.1.", "tree", ""},
               {"mla:h=8,t=3,tree=r.0.200", "tree", "200"}, {"mla:h=8,t=3,tree=", "tree", ""},
               {"mla:h=8,t=3,tree=r.0.-1", "tree", "-1"},   {"mla:h=8,t=3,tree=r.0.1,tree=r.0.1", "text", "tree"}};
  for (size_t i = 0; i < DW__COUNT(cases); i++) {
    dw_shape shape;
    dw_error error = {0};
    assert_int_equal(dw_shape_parse(cases[i].text, &shape, &error), DW_BAD_SHAPE);
    if (strcmp(error.field, cases[i].field) || strcmp(error.found, cases[i].found))
      fail_msg("%s: field '%s', found '%s'", cases[i].text, error.field, error.found);
  }
  char text[600] = "mla:h=8,t=65,tree=r";
  for (int i = 1; i < 65; i++) snprintf(text + strlen(text), 8, ".%d", i - 1);
  dw_shape shape;
  assert_int_equal(dw_shape_parse(text, &shape, NULL), DW_BAD_SHAPE);
  // Filled in by hand.
  assert_int_equal(dw_shape_parse("mla:h=8,t=4", &shape, NULL), DW_OK);
  shape.tree[3] = 1;
  assert_int_equal(dw_shape_check(&shape, NULL), DW_BAD_SHAPE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(trees_are_part_of_a_shape),
    cmocka_unit_test(trees_that_are_none_are_refused),
    cmocka_unit_test(shape_has_one_canonical_text),
    cmocka_unit_test(shape_out_follows_q_unless_given),
    cmocka_unit_test(preset_takes_other_fields),
    cmocka_unit_test(presets_are_what_their_names_say),
    cmocka_unit_test(shape_survives_print_and_parse),
    cmocka_unit_test(shape_print_says_how_long_it_is),
    cmocka_unit_test(shape_mistakes_are_told_with_evidence),
    cmocka_unit_test(shape_needs_text_and_place),
    cmocka_unit_test(shape_check_finds_each_bad_member),
    cmocka_unit_test(shape_parser_stands_any_text),
    cmocka_unit_test(long_texts_are_cut_in_messages),
    cmocka_unit_test(parsing_allocates_nothing),
    cmocka_unit_test(variant_text_is_as_documented),
    cmocka_unit_test(variant_left_out_is_normal),
    cmocka_unit_test(variant_survives_print_and_parse),
    cmocka_unit_test(variant_ranges_are_checked),
    cmocka_unit_test(variant_mistakes_are_told),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
