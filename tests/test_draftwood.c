// The flow: cache before compiler, one compile for many who ask, errors with their evidence, kernels and launches. The compiler
// is a stand-in that hands out a cubin of tests/data, the driver one that notes what it is asked; tests that need a real NVRTC
// say so in their name and skip without.
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_driver.h"
#include "fake_nvrtc.h"
#include "companions.h"
#include "flow.h"
#include "plan.h"
#include "list_tests.h"
#include "support.h"

// ---- a folder with templates and a cache for each test --------------------------------------------------------

// A template has to declare every parameter that it is handed: the shape's, and the variant's as its list has them.
#define DECLARE_int "param.int"
#define DECLARE_feature "param.int"
#define DECLARE_accumulate "param.string"
#define DECLARE_family "param.string"
#define DECLARE_combine "param.string"
#define DECLARE_call "param.string"
static const char declarations[] =
  "@ for _, name in ipairs{'attention', 'q', 'kv', 'out', 'tree'} do param.string(name) end\n"
  "@ for _, name in ipairs{'heads', 'kv_heads', 'width', 'head_dim_qk', 'head_dim_v', 'page', 'target', 'limits', 'shared_bytes'} do "
  "param.int(name) end\n"
#define DW_PARAM(name, kind, least, most, normal, help) "@ " DECLARE_##kind "('" #name "')\n"
#include "draftwood_variant.def"
#undef DW_PARAM
  ;

static void write_template(const char *body) {
  char text[4096];
  snprintf(text, sizeof text, "%s%s", declarations, body);
  write_text("templates/verify.cu.lua", text);
}

// Small kernels with the names that plans use; the width makes sources differ.
static const char template_text[] = "extern \"C\" __global__ void dw_verify(int *p) { *p = ${width}; }\n"
                                    "extern \"C\" __global__ void dw_combine(int *p) { *p += 1; }\n"
                                    "extern \"C\" __global__ void dw_pack_mask(int *p) { *p += 2; }\n"
                                    "@ if checked == 1 then\n"
                                    "extern \"C\" __global__ void dw_check(int *p) { *p += 3; }\n"
                                    "@ end\n";

static void reset_compiler(void);

static int set_up(void **state) {
  if (make_folder(state) || mkdir(path_of("templates"), 0700)) return -1;
  write_template(template_text);
  reset_compiler();
  return 0;
}

// ---- the compiler, a stand-in ---------------------------------------------------------------------------------

static void give_cubin(const char *name) {
  dw__release((void *)fake_nvrtc.cubin);
  fake_nvrtc.cubin = read_data(name, &fake_nvrtc.cubin_size);
}

static void reset_compiler(void) {
  dw__release((void *)fake_nvrtc.cubin);
  fake_nvrtc_reset(13, 0);
  fake_nvrtc.arch_count = 3;
  give_cubin("two_sm_120f.cubin");
}

static const char wrong_log[] = "templates/verify.cu.lua(2): error: identifier \"wrong\" is undefined\n\n1 error detected.\n";

static void let_compiles_fail(bool fail) {
  fake_nvrtc.log = fail ? wrong_log : "";
  atomic_store(&fake_nvrtc.compile_result, fail ? DW__NVRTC_COMPILATION : DW__NVRTC_SUCCESS);
}

// ---- contexts and requests ------------------------------------------------------------------------------------

static dw_ctx *new_ctx_at(const char *cache) {
  dw_error error = {0};
  dw_ctx *ctx = NULL;
  dw_options options = {.size = sizeof options,
                        .cache_dir = cache,
                        .template_dir = path_of("templates"),
                        .nvrtc_path = "/nonexistent/libnvrtc.so",
                        .driver_path = "/nonexistent/libcuda.so",
                        .compile_slots = 8};  // whatever this host has
  assert_int_equal(dw_ctx_create(&options, &ctx, &error), DW_OK);
  return ctx;
}

static dw_ctx *new_ctx(void) { return new_ctx_at(path_of("cache")); }

// With the stand-in compiler.
static dw_ctx *with_fake(dw_ctx *ctx) {
  dw__nvrtc *nvrtc = NULL;
  dw_error error = {0};
  assert_int_equal(dw__nvrtc_open_table(&fake_nvrtc_table, &nvrtc, &error), DW_OK);
  dw__ctx_use_nvrtc(ctx, nvrtc);
  return ctx;
}

static dw_status build_width(dw_ctx *ctx, int width, dw_cubin **cubin, dw_error *error) {
  dw_shape shape = shape_of("mla:h=8,t=1");
  dw_variant variant = variant_of("family=reference");
  shape.width = width;
  return dw_cubin_build(ctx, &shape, &variant, cubin, error);
}

static dw_status build(dw_ctx *ctx, dw_cubin **cubin, dw_error *error) { return build_width(ctx, 9, cubin, error); }

// A build that works; tells whether it came from the cache.
static bool built_from_cache(dw_ctx *ctx, int width) {
  dw_cubin *cubin = NULL;
  dw_error error = {0};
  dw_status status = build_width(ctx, width, &cubin, &error);
  if (status) print_error("%s\n", error.message);
  assert_int_equal(status, DW_OK);
  bool cached = cubin->from_cache;
  dw_cubin_free(cubin);
  return cached;
}

// ---- cache before compiler ------------------------------------------------------------------------------------

static void second_build_compiles_nothing(void **state) {
  (void)state;
  dw_stats stats;
  dw_ctx *ctx = with_fake(new_ctx());
  assert_false(built_from_cache(ctx, 9));
  assert_true(built_from_cache(ctx, 9));
  dw_stats_get(ctx, &stats);
  assert_int_equal(stats.compiles, 1);
  assert_int_equal(stats.misses, 1);
  assert_int_equal(stats.hits_memory, 1);
  dw_ctx_destroy(ctx);

  // Another process has neither memory nor, here, a compiler: a hit opens none.
  ctx = new_ctx();
  assert_true(built_from_cache(ctx, 9));
  dw_stats_get(ctx, &stats);
  assert_int_equal(stats.compiles, 0);
  assert_int_equal(stats.hits_disk, 1);
  dw_ctx_destroy(ctx);
}

static void cached_cubin_is_what_was_built(void **state) {
  (void)state;
  dw_cubin *made, *found;
  dw_ctx *ctx = with_fake(new_ctx());
  assert_int_equal(build(ctx, &made, NULL), DW_OK);
  dw_ctx_destroy(ctx);
  ctx = new_ctx();
  assert_int_equal(build(ctx, &found, NULL), DW_OK);
  assert_int_equal(made->size, found->size);
  assert_memory_equal(made->data, found->data, made->size);
  assert_string_equal(made->target, "sm_120");
  assert_string_equal(found->target, made->target);
  assert_string_equal(found->compiler, "nvrtc 13.0.88");
  assert_string_equal(found->request_key, made->request_key);
  assert_string_equal(found->build_key, made->build_key);
  assert_int_equal(found->kernel_count, 2);
  assert_memory_equal(found->kernels, made->kernels, sizeof made->kernels);
  assert_true(found->compile_ms == made->compile_ms || found->compile_ms > 0);
  dw_cubin_free(made);
  dw_cubin_free(found);
  dw_ctx_destroy(ctx);
}

// A template that is not used makes another request, but the same source and so the same build.
static void same_source_is_compiled_once(void **state) {
  (void)state;
  dw_ctx *ctx = with_fake(new_ctx());
  assert_false(built_from_cache(ctx, 9));
  dw_ctx_destroy(ctx);
  write_text("templates/unused.cuh", "// Nobody includes this.\n");
  ctx = with_fake(new_ctx());
  assert_true(built_from_cache(ctx, 9));
  assert_int_equal(atomic_load(&fake_nvrtc.kernel_compiles), 1);
  dw_ctx_destroy(ctx);
  ctx = new_ctx();  // the second request was published too: no compiler is needed to find it
  assert_true(built_from_cache(ctx, 9));
  dw_ctx_destroy(ctx);
}

static void other_templates_are_another_request(void **state) {
  (void)state;
  dw_ctx *ctx = with_fake(new_ctx());
  assert_false(built_from_cache(ctx, 9));
  dw_ctx_destroy(ctx);
  write_template("extern \"C\" __global__ void dw_verify(int *p) { *p = 2; }\n");
  ctx = with_fake(new_ctx());
  assert_false(built_from_cache(ctx, 9));
  dw_ctx_destroy(ctx);
}

// Overwrites every entry's file.
static int damage_entries(const char *directory) {
  int count = 0;
  DIR *at = opendir(directory);
  assert_non_null(at);
  for (struct dirent *item; (item = readdir(at));) {
    char path[600];
    struct stat info;
    if (item->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "%s/%s", directory, item->d_name);
    assert_int_equal(stat(path, &info), 0);
    if (S_ISDIR(info.st_mode)) {
      count += damage_entries(path);
    } else {
      assert_int_equal(truncate(path, info.st_size / 2), 0);
      count++;
    }
  }
  closedir(at);
  return count;
}

static void damaged_entry_is_compiled_again(void **state) {
  (void)state;
  dw_stats stats;
  dw_ctx *ctx = with_fake(new_ctx());
  assert_false(built_from_cache(ctx, 9));
  dw_ctx_destroy(ctx);
  assert_int_equal(damage_entries(path_of("cache/v1/obj")), 1);
  ctx = with_fake(new_ctx());
  assert_false(built_from_cache(ctx, 9));
  dw_stats_get(ctx, &stats);
  assert_int_equal(stats.compiles, 1);
  assert_true(stats.damaged >= 1);
  dw_ctx_destroy(ctx);
  ctx = new_ctx();
  assert_true(built_from_cache(ctx, 9));
  dw_ctx_destroy(ctx);
}

static dw__digest digest_of(const char *hex) {
  dw__digest digest;
  for (size_t i = 0; i < sizeof digest.bytes; i++) {
    char pair[3] = {hex[2 * i], hex[2 * i + 1], 0};
    digest.bytes[i] = (unsigned char)strtoul(pair, NULL, 16);
  }
  return digest;
}

// A whole entry, but of somebody who writes other records.
static void foreign_metadata_is_compiled_again(void **state) {
  (void)state;
  dw_stats stats;
  dw_cubin *cubin;
  dw_ctx *ctx = with_fake(new_ctx());
  assert_int_equal(build(ctx, &cubin, NULL), DW_OK);
  dw_ctx_destroy(ctx);
  dw__cache *cache;
  assert_int_equal(dw__cache_open(path_of("cache"), NULL, NULL, &cache, NULL), DW_OK);
  dw__entry entry = {.request = digest_of(cubin->request_key),
                     .build = digest_of(cubin->build_key),
                     .metadata = "{\"target\": 120}",
                     .cubin = (void *)cubin->data,
                     .cubin_size = cubin->size};
  assert_int_equal(dw__cache_publish(cache, &entry, NULL), DW_OK);
  dw__cache_close(cache);
  dw_cubin_free(cubin);

  ctx = with_fake(new_ctx());
  assert_false(built_from_cache(ctx, 9));
  dw_stats_get(ctx, &stats);
  assert_int_equal(stats.compiles, 1);
  assert_true(stats.damaged >= 1);
  dw_ctx_destroy(ctx);
}

static void metadata_reads_what_it_prints(void **state) {
  (void)state;
  dw_cubin made = {.target = "sm_120f", .compiler = "nvrtc 13.0.88", .compile_ms = 402.5, .kernel_count = 2}, found = {0};
  made.kernels[0] = (dw_resources){"dw_verify", 168, 8, 16, 3, -1, -1, 512, 1};
  made.kernels[1] = (dw_resources){"dw_combine", 40, 0, 0, 1, 0, 4, 128, 0};
  char *text;
  assert_int_equal(dw__metadata_print(&made, "mla:h=8", "family=split", &text, NULL), DW_OK);
  assert_int_equal(dw__metadata_read(text, &found, NULL), DW_OK);
  assert_memory_equal(&found, &made, sizeof made);
  // Any part of it is no record.
  for (size_t n = strlen(text); n-- > 0;) {
    text[n] = 0;
    assert_int_equal(dw__metadata_read(text, &found, NULL), DW_BAD_CUBIN);
  }
  dw__release(text);
  const char *bad[] = {"[]", "{}", "{\"target\":\"sm_120\",\"compiler\":\"c\",\"kernels\":[{}]}",
                       "{\"target\":\"sm_120\",\"compiler\":\"c\",\"kernels\":[1,2,3,4,5,6,7,8,9]}"};
  for (size_t i = 0; i < DW__COUNT(bad); i++) assert_int_equal(dw__metadata_read(bad[i], &found, NULL), DW_BAD_CUBIN);
}

static void no_cache_directory_is_no_error(void **state) {
  (void)state;
  write_text("file", "");
  dw_ctx *ctx = with_fake(new_ctx_at(path_of("file/cache")));
  assert_false(built_from_cache(ctx, 9));
  assert_true(built_from_cache(ctx, 9));
  assert_int_equal(atomic_load(&fake_nvrtc.kernel_compiles), 1);
  dw_ctx_destroy(ctx);
}

// ---- errors with their evidence -------------------------------------------------------------------------------

static void template_error_names_file_and_line(void **state) {
  (void)state;
  write_text("templates/verify.cu.lua", "// one\n@ assert(false, \"width is small\")\n");
  dw_ctx *ctx = with_fake(new_ctx());
  dw_cubin *cubin;
  dw_error error = {0};
  assert_int_equal(build(ctx, &cubin, &error), DW_TEMPLATE);
  assert_null(cubin);
  assert_non_null(strstr(error.message, "verify.cu.lua:2:"));
  dw_error_clear(&error);
  assert_int_equal(atomic_load(&fake_nvrtc.kernel_compiles), 0);
  dw_ctx_destroy(ctx);
}

static void compile_error_has_the_log_and_is_known_from_then_on(void **state) {
  (void)state;
  dw_ctx *ctx = with_fake(new_ctx());
  dw_cubin *cubin;
  dw_error error = {0};
  dw_stats stats;
  let_compiles_fail(true);
  assert_int_equal(build(ctx, &cubin, &error), DW_COMPILE);
  assert_null(cubin);
  assert_non_null(strstr(error.message, "identifier \"wrong\" is undefined"));
  assert_string_equal(error.log, wrong_log);
  dw_error_clear(&error);
  dw_stats_get(ctx, &stats);
  assert_int_equal(stats.compiles, 1);
  assert_int_equal(stats.compile_failures, 1);
  dw_ctx_destroy(ctx);

  // Here, and for other processes, it fails without being tried; with another compiler it is another build.
  let_compiles_fail(false);
  ctx = with_fake(new_ctx());
  for (int i = 0; i < 2; i++) {
    assert_int_equal(build(ctx, &cubin, &error), DW_COMPILE);
    assert_null(cubin);
    assert_non_null(strstr(error.message, "identifier \"wrong\" is undefined"));
    assert_string_equal(error.field, "source");
    assert_string_equal(error.log, wrong_log);
    dw_error_clear(&error);
  }
  dw_stats_get(ctx, &stats);
  assert_int_equal(stats.compiles, 0);
  assert_int_equal(stats.known_failures, 2);
  assert_int_equal(build(ctx, &cubin, NULL), DW_COMPILE);
  dw_ctx_destroy(ctx);
  fake_nvrtc.ptx = "// Cuda compilation tools, release 13.0, V13.0.99\n";
  ctx = with_fake(new_ctx());
  assert_false(built_from_cache(ctx, 9));
  dw_ctx_destroy(ctx);
}

// Megabytes of a log, in characters of no encoding: known to peers all the same, by its beginning.
static void endless_logs_are_remembered_too(void **state) {
  (void)state;
  enum { SIZE = 3 << 20 };
  char *log = malloc(SIZE + 1);
  dw_cubin *cubin;
  dw_error error = {0};
  dw_stats stats;
  for (int i = 0; i < SIZE; i++) log[i] = i % 80 == 79 ? '\n' : i % 7 ? 'x' : '\xfe';
  memcpy(log, wrong_log, strlen(wrong_log));
  log[SIZE] = 0;
  let_compiles_fail(true);
  fake_nvrtc.log = log;
  for (int i = 0; i < 2; i++) {
    dw_ctx *ctx = with_fake(new_ctx());
    assert_int_equal(build(ctx, &cubin, &error), DW_COMPILE);
    assert_memory_equal(error.log, wrong_log, strlen(wrong_log));
    assert_in_range(strlen(error.log), i ? 60000 : SIZE, SIZE);
    dw_stats_get(ctx, &stats);
    assert_int_equal(stats.compiles, 1 - i);
    assert_int_equal(stats.known_failures, i);
    dw_error_clear(&error);
    dw_ctx_destroy(ctx);
  }
  free(log);
}

static void unknown_targets_are_named(void **state) {
  (void)state;
  dw_shape shape = shape_of("mla:h=8,t=9");
  dw_variant variant = variant_of("family=reference");
  dw_cubin *cubin;
  dw_error error = {0};
  dw_ctx *ctx = with_fake(new_ctx());
  shape.target = 110;  // no template serves it
  assert_int_equal(dw_cubin_build(ctx, &shape, &variant, &cubin, &error), DW_BAD_SHAPE);
  assert_string_equal(error.field, "target");
  dw_error_clear(&error);
  shape.target = 123;  // nobody knows it
  assert_int_equal(dw_cubin_build(ctx, &shape, &variant, &cubin, &error), DW_BAD_SHAPE);
  assert_string_equal(error.found, "123");
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);

  fake_nvrtc.arch_count = 1;  // the compiler does not
  ctx = with_fake(new_ctx());
  assert_int_equal(build(ctx, &cubin, &error), DW_UNSUPPORTED_TARGET);
  assert_string_equal(error.found, "sm_120");
  assert_string_equal(error.allowed, "sm_90");
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
}

static void bad_shapes_and_variants_are_refused(void **state) {
  (void)state;
  dw_shape shape = shape_of("mla:h=8,t=9");
  dw_variant variant = variant_of("family=reference,combine=few");
  dw_cubin *cubin;
  dw_error error = {0};
  dw_ctx *ctx = with_fake(new_ctx());
  assert_int_equal(dw_cubin_build(ctx, &shape, &variant, &cubin, &error), DW_NOT_APPLICABLE);
  assert_string_equal(error.field, "combine");
  dw_error_clear(&error);
  shape.heads = 0;
  assert_int_equal(dw_cubin_build(ctx, &shape, &variant, &cubin, &error), DW_BAD_SHAPE);
  assert_string_equal(error.field, "heads");
  dw_error_clear(&error);
  assert_int_equal(dw_cubin_build(ctx, NULL, &variant, &cubin, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw_cubin_build(ctx, &shape, NULL, &cubin, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw_cubin_build(NULL, &shape, &variant, &cubin, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw_cubin_build(ctx, &shape, &variant, NULL, NULL), DW_BAD_ARGUMENT);
  dw_ctx_destroy(ctx);
}

static void calls_into_the_driver_are_refused(void **state) {
  (void)state;
  give_cubin("syscall_sm_120.cubin");
  dw_ctx *ctx = with_fake(new_ctx());
  dw_cubin *cubin;
  dw_error error = {0};
  assert_int_equal(build(ctx, &cubin, &error), DW_COMPILE);
  assert_non_null(strstr(error.found, "__cuda_syscall"));
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
}

static void code_for_another_gpu_is_refused(void **state) {
  (void)state;
  give_cubin("two_sm_90_nvrtc12.cubin");
  dw_ctx *ctx = with_fake(new_ctx());
  dw_cubin *cubin;
  dw_error error = {0};
  assert_int_equal(build(ctx, &cubin, &error), DW_WRONG_ARCH);
  assert_string_equal(error.found, "90");
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
}

static void missing_compiler_is_named(void **state) {
  (void)state;
  dw_ctx *ctx = new_ctx();
  dw_cubin *cubin;
  dw_error error = {0};
  assert_int_equal(build(ctx, &cubin, &error), DW_NO_COMPILER);
  assert_non_null(strstr(error.message, "/nonexistent/libnvrtc.so"));
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
}

static void options_of_another_size_are_understood(void **state) {
  (void)state;
  struct {
    dw_options known;
    void *later;
  } newer = {.known = {.size = sizeof newer, .cache_dir = ""}};
  dw_error error = {0};
  dw_ctx *ctx;
  assert_int_equal(dw_ctx_create(&newer.known, &ctx, &error), DW_OK);
  dw_ctx_destroy(ctx);
  newer.later = &newer;
  assert_int_equal(dw_ctx_create(&newer.known, &ctx, &error), DW_BAD_ARGUMENT);
  assert_null(ctx);
  dw_error_clear(&error);
  newer.known.size = 0;
  assert_int_equal(dw_ctx_create(&newer.known, &ctx, &error), DW_BAD_ARGUMENT);
  assert_string_equal(error.field, "options");
  dw_error_clear(&error);
  newer.known.size = offsetof(dw_options, template_dir);  // as if made before that member was there
  assert_int_equal(dw_ctx_create(&newer.known, &ctx, &error), DW_OK);
  dw_ctx_destroy(ctx);
  dw_ctx_destroy(NULL);
}

// One build of which the n-th allocation and all after it fail. Returns how many it made.
static long build_without_memory(const char *cache, bool compiler, long n, dw_status *status) {
  dw_ctx *ctx = NULL;
  dw_cubin *cubin = NULL;
  dw_error error = {0};
  dw__nvrtc *nvrtc = NULL;
  dw_options options = {
    .size = sizeof options, .cache_dir = cache, .template_dir = path_of("templates"), .nvrtc_path = "/nonexistent/libnvrtc.so"};
  if (compiler) assert_int_equal(dw__nvrtc_open_table(&fake_nvrtc_table, &nvrtc, NULL), DW_OK);
  dw__alloc_fail_after(n);
  *status = dw_ctx_create(&options, &ctx, &error);
  if (ctx && nvrtc) dw__ctx_use_nvrtc(ctx, nvrtc);
  else dw__nvrtc_close(nvrtc);
  if (!*status) *status = build(ctx, &cubin, &error);
  long made = dw__alloc_fail_after(0);
  if (*status && *status != DW_OUT_OF_MEMORY) print_error("allocation %ld: %s\n", n, error.message);
  assert_true(*status == DW_OK || *status == DW_OUT_OF_MEMORY);
  assert_int_equal(*status == DW_OK, cubin != NULL);
  dw_cubin_free(cubin);
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
  return made;
}

// Out of memory is the only answer, and nothing leaks (AddressSanitizer looks).
static void every_allocation_may_fail(void **state) {
  (void)state;
  dw_status status = DW_OUT_OF_MEMORY;
  long n = 1;
  for (long made = 1; status || made >= n; n++) made = build_without_memory("", true, n, &status);
  assert_true(n > 100);
}

// Want of memory while a hit is read must not pass for a miss: there is no compiler to make up for it.
static void every_allocation_of_a_hit_may_fail(void **state) {
  (void)state;
  dw_ctx *ctx = with_fake(new_ctx());
  assert_false(built_from_cache(ctx, 9));
  dw_ctx_destroy(ctx);
  dw_status status = DW_OUT_OF_MEMORY;
  long n = 1;
  for (long made = 1; status || made >= n; n++) made = build_without_memory(path_of("cache"), false, n, &status);
  assert_true(n > 10);
}

// ---- contexts and threads -------------------------------------------------------------------------------------

static void two_contexts_are_independent(void **state) {
  (void)state;
  dw_stats first, second;
  dw_ctx *a = with_fake(new_ctx_at(path_of("cache_a"))), *b = with_fake(new_ctx_at(path_of("cache_b")));
  assert_false(built_from_cache(a, 9));
  assert_false(built_from_cache(b, 9));
  dw_stats_get(a, &first);
  dw_ctx_destroy(a);
  assert_true(built_from_cache(b, 9));
  dw_stats_get(b, &second);
  assert_int_equal(first.compiles, 1);
  assert_int_equal(first.hits_memory, 0);
  assert_int_equal(second.compiles, 1);
  assert_int_equal(second.hits_memory, 1);
  dw_ctx_destroy(b);
}

typedef struct worker {
  dw_ctx *ctx;
  int width, failed;
  pthread_t thread;
} worker;

static void *work(void *user) {
  worker *self = user;
  for (int i = 0; i < 4; i++) {
    dw_cubin *cubin = NULL;
    self->failed += build_width(self->ctx, self->width, &cubin, NULL) || !cubin || cubin->size != fake_nvrtc.cubin_size;
    dw_cubin_free(cubin);
  }
  return NULL;
}

static void run_workers(worker *workers, size_t count) {
  for (size_t i = 0; i < count; i++) assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
  for (size_t i = 0; i < count; i++) {
    pthread_join(workers[i].thread, NULL);
    assert_int_equal(workers[i].failed, 0);
  }
}

static void threads_that_ask_the_same_compile_once(void **state) {
  (void)state;
  worker workers[8] = {{0}};
  dw_ctx *ctx = with_fake(new_ctx());
  atomic_store(&fake_nvrtc.delay_us, 50000);
  for (size_t i = 0; i < DW__COUNT(workers); i++) workers[i] = (worker){.ctx = ctx, .width = 9};
  run_workers(workers, DW__COUNT(workers));
  assert_int_equal(atomic_load(&fake_nvrtc.kernel_compiles), 1);
  dw_ctx_destroy(ctx);
}

static void threads_that_ask_different_things_do_not_wait(void **state) {
  (void)state;
  worker workers[8] = {{0}};
  dw_ctx *ctx = with_fake(new_ctx());
  atomic_store(&fake_nvrtc.delay_us, 100000);
  for (size_t i = 0; i < DW__COUNT(workers); i++) workers[i] = (worker){.ctx = ctx, .width = 1 + (int)i};
  double start = dw__seconds();
  run_workers(workers, DW__COUNT(workers));
  assert_int_equal(atomic_load(&fake_nvrtc.kernel_compiles), 8);
  assert_true(dw__seconds() - start < 0.6);  // one after another: 0.8 s
  dw_ctx_destroy(ctx);
}

// The one that compiles fails: those that waited try for themselves, and all are told.
static void *work_and_fail(void *user) {
  worker *self = user;
  dw_cubin *cubin = NULL;
  dw_error error = {0};
  self->failed = build_width(self->ctx, self->width, &cubin, &error) == DW_COMPILE && error.log != NULL;
  dw_error_clear(&error);
  return NULL;
}

static void threads_are_all_told_of_a_failure(void **state) {
  (void)state;
  worker workers[4] = {{0}};
  dw_ctx *ctx = with_fake(new_ctx());
  let_compiles_fail(true);
  for (size_t i = 0; i < DW__COUNT(workers); i++) {
    workers[i] = (worker){.ctx = ctx, .width = 9};
    assert_int_equal(pthread_create(&workers[i].thread, NULL, work_and_fail, &workers[i]), 0);
  }
  for (size_t i = 0; i < DW__COUNT(workers); i++) {
    pthread_join(workers[i].thread, NULL);
    assert_true(workers[i].failed);
  }
  dw_ctx_destroy(ctx);
}

// ---- the driver, a stand-in that keeps every launch ------------------------------------------------------------

#define LAUNCHES_MAX 64
static struct {
  int launches;
  const char *names[LAUNCHES_MAX];  // of the kernels launched
  dw_params params[LAUNCHES_MAX];
  bool dependent[LAUNCHES_MAX];  // may start before the kernel ahead of it has ended
} device;

static dw__driver_table plain_driver;

// A function's handle is its name.
static int named_function(void **function, void *module, const char *name) {
  static const char *const names[] = {"dw_verify", "dw_combine", "dw_pack_mask", "dw_check"};
  int result = plain_driver.cuModuleGetFunction(function, module, name);
  for (size_t i = 0; i < DW__COUNT(names); i++)
    if (strcmp(names[i], name) == 0) *function = (void *)(uintptr_t)names[i];
  return result;
}

static int set_attribute(void *function, int attribute, int value) { return function && attribute && value ? 0 : 1; }

static int keep_launch(const dw__cu_launch *launch, void *function, void **params, void **extra) {
  int result = plain_driver.cuLaunchKernelEx(launch, function, params, extra);
  if (result) return result;
  int i = device.launches++ % LAUNCHES_MAX;
  device.names[i] = function;
  for (unsigned k = 0; k < launch->attribute_count; k++)
    device.dependent[i] |= launch->attributes[k].id == DW__CU_LAUNCH_DEPENDENT;
  memcpy(&device.params[i], params[0], sizeof device.params[i]);
  return 0;
}

static dw__driver *open_device(void) {
  dw__driver *driver = NULL;
  memset(&device, 0, sizeof device);
  fake_driver_reset();
  fake.cc = 120;
  fake.sm_count = 188;
  fake.shared_optin = 101376;
  plain_driver = fake_driver_table();
  dw__driver_table table = fake_driver_table_old();
  table.cuModuleGetFunction = named_function;
  table.cuFuncSetAttribute = set_attribute;
  table.cuLaunchKernelEx = keep_launch;
  assert_int_equal(dw__driver_open_table(&table, &driver, NULL), DW_OK);
  return driver;
}

// A context with a real compiler (kernels need the names that plans use) and the stand-in device; NULL: no NVRTC here.
static dw_ctx *with_device(void) {
  dw_error error = {0};
  dw__nvrtc *nvrtc = NULL;
  if (dw__nvrtc_open(NULL, &nvrtc, &error)) {
    print_message("SKIP: %s\n", error.message);
    dw_error_clear(&error);
    return NULL;
  }
  dw_ctx *ctx = new_ctx();
  dw__ctx_use_nvrtc(ctx, nvrtc);
  dw__ctx_use_driver(ctx, open_device());
  return ctx;
}

static const dw_bounds usual_bounds = {.size = sizeof(dw_bounds), .batch = 4, .kv_len = 4096};

// ---- kernels (real NVRTC) -------------------------------------------------------------------------------------

static void nvrtc_builds_and_reads_resources(void **state) {
  (void)state;
  dw_ctx *ctx = with_device();
  dw_cubin *cubin;
  if (!ctx) skip();
  assert_int_equal(build(ctx, &cubin, NULL), DW_OK);
  assert_false(cubin->from_cache);
  assert_int_equal(cubin->kernel_count, 3);
  for (int i = 0; i < cubin->kernel_count; i++) {
    assert_true(cubin->kernels[i].registers > 0);
    assert_int_equal(cubin->kernels[i].spill_stores, 0);
  }
  dw_cubin_free(cubin);
  assert_true(built_from_cache(ctx, 9));
  dw_ctx_destroy(ctx);
}

static void nvrtc_error_names_the_template(void **state) {
  (void)state;
  char text[4096];
  snprintf(text, sizeof text, "// one\nextern \"C\" __global__ void dw_verify(int *p) { *p = wrong; }\n%s", declarations);
  write_text("templates/verify.cu.lua", text);
  dw_ctx *ctx = with_device();
  dw_cubin *cubin;
  dw_error error = {0};
  if (!ctx) skip();
  assert_int_equal(build(ctx, &cubin, &error), DW_COMPILE);
  assert_non_null(strstr(error.message, "verify.cu.lua(2): error"));
  assert_non_null(strstr(error.log, "\"wrong\" is undefined"));
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
}

static void nvrtc_kernels_are_kept(void **state) {
  (void)state;
  dw_ctx *ctx = with_device();
  if (!ctx) skip();
  dw_shape shape = shape_of("mla:h=8,t=9");
  dw_bounds larger = usual_bounds;
  dw_kernel *first, *again, *wider, *elsewhere;
  dw_variant variant, chosen;
  larger.kv_len *= 4;
  assert_int_equal(dw_kernel_get(ctx, &shape, NULL, &usual_bounds, &first, NULL), DW_OK);
  assert_int_equal(dw_kernel_get(ctx, &shape, NULL, &usual_bounds, &again, NULL), DW_OK);
  assert_ptr_equal(first, again);
  assert_int_equal(fake.calls[FAKE_cuModuleLoadData], 1);
  dw_kernel_variant(first, &variant);
  dw_bounds with_board = usual_bounds;
  with_board.sm_count = 188;
  assert_int_equal(dw_variant_choose(&shape, &with_board, &chosen, NULL), DW_OK);
  assert_memory_equal(&variant, &chosen, sizeof variant);
  // Other bounds: another kernel on the same loaded cubin.
  assert_int_equal(dw_kernel_get(ctx, &shape, &variant, &larger, &wider, NULL), DW_OK);
  assert_ptr_not_equal(first, wider);
  assert_int_equal(fake.calls[FAKE_cuModuleLoadData], 1);
  // Another promise about the calls: another variant, unless one is given.
  larger = usual_bounds;
  larger.call = DW_CALL_TABLE;
  assert_int_equal(dw_kernel_get(ctx, &shape, NULL, &larger, &wider, NULL), DW_OK);
  dw_kernel_variant(wider, &chosen);
  assert_int_equal(chosen.call, DW_CALL_TABLE);
  assert_int_equal(fake.calls[FAKE_cuModuleLoadData], 2);
  // Another CUDA context: loaded there too.
  fake.context = &shape;
  assert_int_equal(dw_kernel_get(ctx, &shape, &variant, &usual_bounds, &elsewhere, NULL), DW_OK);
  assert_ptr_not_equal(first, elsewhere);
  assert_int_equal(fake.calls[FAKE_cuModuleLoadData], 3);
  dw_ctx_destroy(ctx);
  assert_int_equal(fake.calls[FAKE_cuModuleUnload], 3);
}

static void nvrtc_other_devices_are_refused(void **state) {
  (void)state;
  dw_ctx *ctx = with_device();
  if (!ctx) skip();
  dw_shape shape = shape_of("mla:h=8,t=9");
  dw_kernel *kernel;
  dw_error error = {0};
  fake.cc = 90;
  assert_int_equal(dw_kernel_get(ctx, &shape, NULL, &usual_bounds, &kernel, &error), DW_UNSUPPORTED_TARGET);
  assert_null(kernel);
  assert_non_null(strstr(error.message, "sm_120"));
  assert_non_null(strstr(error.message, "Fake GPU (sm_90)"));
  dw_error_clear(&error);
  fake.context = NULL;
  assert_int_equal(dw_kernel_get(ctx, &shape, NULL, &usual_bounds, &kernel, &error), DW_DRIVER);
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
}

// Two boards in one host, the current one switched between calls, one folder: each gets its own, and no other's.
static void O_c09_the_current_device_decides(void **state) {
  (void)state;
  static const int boards[] = {120, 86};
  const dw_shape shapes[] = {shape_of("mla:h=8,t=2,target=sm_120"), shape_of("mla:h=8,t=2,target=sm_86")};
  const dw_variant variant = variant_of("family=reference");
  dw_stats stats;
  for (int start = 0; start < 2; start++) {
    dw_ctx *ctx = with_device();
    dw_kernel *kernels[2] = {NULL}, *kernel;
    if (!ctx) skip();
    for (int call = 0; call < 6; call++) {
      int board = call % 2;
      fake.cc = boards[board];
      fake.context = (void *)&boards[board];
      dw_error error = {0};
      assert_int_equal(dw_kernel_get(ctx, &shapes[board], &variant, &usual_bounds, &kernel, NULL), DW_OK);
      assert_true(!kernels[board] || kernels[board] == kernel);
      kernels[board] = kernel;
      assert_int_equal(dw_kernel_get(ctx, &shapes[1 - board], &variant, &usual_bounds, &kernel, &error), DW_UNSUPPORTED_TARGET);
      assert_null(kernel);
      dw_error_clear(&error);
    }
    assert_ptr_not_equal(kernels[0], kernels[1]);
    dw_stats_get(ctx, &stats);
    assert_int_equal(stats.compiles, start ? 0 : 2);
    assert_int_equal(stats.hits_disk, start ? 2 : 0);
    dw_ctx_destroy(ctx);
  }
}

static void nvrtc_capture_is_refused(void **state) {
  (void)state;
  dw_ctx *ctx = with_device();
  if (!ctx) skip();
  dw_shape shape = shape_of("mla:h=8,t=9");
  dw_kernel *kernel;
  dw_error error = {0};
  fake.capture_status = 1;
  assert_int_equal(dw_kernel_get(ctx, &shape, NULL, &usual_bounds, &kernel, &error), DW_BAD_ARGUMENT);
  assert_string_equal(error.field, "stream");
  assert_int_equal(fake.calls[FAKE_cuModuleLoadData], 0);
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
}

static void nvrtc_bounds_are_checked(void **state) {
  (void)state;
  dw_ctx *ctx = with_device();
  if (!ctx) skip();
  dw_shape shape = shape_of("mla:h=8,t=9");
  dw_kernel *kernel;
  dw_error error = {0};
  const struct {
    dw_bounds bounds;
    const char *field;
  } cases[] = {
    {{.size = 0}, "bounds"},
    {{.size = sizeof(dw_bounds), .batch = 0, .kv_len = 10}, "batch"},
    {{.size = sizeof(dw_bounds), .batch = 1 << 30, .kv_len = 10}, "total_q"},
    {{.size = sizeof(dw_bounds), .batch = 1, .kv_len = 0}, "kv_len"},
    {{.size = sizeof(dw_bounds), .batch = 1, .kv_len = 10, .split_tokens = 3}, "split_tokens"},
  };
  for (size_t i = 0; i < DW__COUNT(cases); i++) {
    assert_int_equal(dw_kernel_get(ctx, &shape, NULL, &cases[i].bounds, &kernel, &error), DW_BAD_ARGUMENT);
    assert_non_null(strstr(error.field, cases[i].field));
    dw_error_clear(&error);
  }
  assert_int_equal(dw_kernel_get(ctx, NULL, NULL, &usual_bounds, &kernel, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw_kernel_get(ctx, &shape, NULL, NULL, &kernel, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw_kernel_get(ctx, &shape, NULL, &usual_bounds, NULL, NULL), DW_BAD_ARGUMENT);
  dw_ctx_destroy(ctx);
}

// ---- launches -------------------------------------------------------------------------------------------------

static char memory[1 << 16] __attribute__((aligned(256)));

static dw_args usual_args(const dw_kernel *kernel) {
  return (dw_args){.size = sizeof(dw_args),
                   .q = memory,
                   .out = memory,
                   .batch = 2,
                   .kv = memory,
                   .kv_indptr = (const int32_t *)(const void *)memory,
                   .kv_indices = memory,
                   .kv_len = (const int32_t *)(const void *)memory,
                   .lengths_include_drafts = 1,
                   .softmax_scale = 0.07f,
                   .workspace = memory,  // the stand-in writes nothing
                   .workspace_size = dw_workspace_size(kernel)};
}

static dw_kernel *kernel_of(dw_ctx *ctx, const char *text) {
  dw_shape shape = shape_of(text);
  dw_kernel *kernel;
  dw_variant variant = variant_of("family=split,combine=many,combine_splits=8");
  assert_int_equal(dw_kernel_get(ctx, &shape, &variant, &usual_bounds, &kernel, NULL), DW_OK);
  return kernel;
}
static dw_kernel *usual_kernel(dw_ctx *ctx) { return kernel_of(ctx, "mla:h=8,t=9"); }

static void nvrtc_launch_runs_the_plan(void **state) {
  (void)state;
  dw_ctx *ctx = with_device();
  if (!ctx) skip();
  dw_kernel *kernel = usual_kernel(ctx);
  dw_args args = usual_args(kernel);
  dw__alloc_fail_after(1);  // a launch that asks for memory would fail
  assert_int_equal(dw_launch(kernel, &args, NULL, NULL), DW_OK);
  assert_int_equal(device.launches, 2);
  assert_string_equal(device.names[0], "dw_verify");
  assert_string_equal(device.names[1], "dw_combine");
  assert_int_equal(device.params[0].total_q, 18);
  assert_false(device.dependent[0]);
  assert_true(device.dependent[1]);
  // Parents of up to 64 drafts are read as they come.
  args.mask_kind = DW_MASK_PARENTS;
  args.mask = memory;
  assert_int_equal(dw_launch(kernel, &args, NULL, NULL), DW_OK);
  assert_int_equal(dw__alloc_fail_after(0), 0);
  assert_int_equal(device.launches, 4);
  assert_string_equal(device.names[2], "dw_verify");
  assert_ptr_equal(device.params[2].mask, memory);
  // The kernel must know it, too, when it may start early.
  args.overlap_prologue = 1;
  assert_int_equal(dw_launch(kernel, &args, NULL, NULL), DW_OK);
  assert_true(device.dependent[4]);
  assert_true(device.params[4].dependent);
  // Of more drafts they are packed into the workspace first, and that is where the kernel then looks.
  const int before = device.launches;
  kernel = kernel_of(ctx, "mla:h=8,t=65");
  args = usual_args(kernel);
  args.mask_kind = DW_MASK_PARENTS;
  args.mask = memory;
  args.overlap_prologue = 1;
  assert_int_equal(dw_launch(kernel, &args, NULL, NULL), DW_OK);
  assert_int_equal(device.launches, before + 3);
  assert_string_equal(device.names[before], "dw_pack_mask");
  assert_string_equal(device.names[before + 1], "dw_verify");
  assert_ptr_equal(device.params[before].mask, memory);
  assert_ptr_equal(device.params[before].out, device.params[before + 1].mask);
  assert_false(device.params[before + 1].dependent);
  dw_ctx_destroy(ctx);
}

// A checked kernel looks at the call before anything else reads through it, in order even where the call may start early.
static void nvrtc_checked_kernels_look_first(void **state) {
  (void)state;
  dw_ctx *ctx = with_device();
  if (!ctx) skip();
  dw_shape shape = shape_of("mla:h=8,t=65");
  dw_variant variant = variant_of("family=split,combine=many,combine_splits=8,checked=1");
  dw_kernel *kernel;
  assert_int_equal(dw_kernel_get(ctx, &shape, &variant, &usual_bounds, &kernel, NULL), DW_OK);
  dw_args args = usual_args(kernel);
  uint32_t report[DW_REPORT_WORDS], bits[8];
  args.mask_kind = DW_MASK_PARENTS;
  args.mask = memory;
  args.kv_pages = 77;
  args.mask_size = 4096;
  args.report = report;
  args.overlap_prologue = 1;
  assert_int_equal(dw_launch(kernel, &args, NULL, NULL), DW_OK);
  static const char *const names[] = {"dw_check", "dw_pack_mask", "dw_verify", "dw_combine"};
  assert_int_equal(device.launches, 4);
  for (int i = 0; i < 4; i++) {
    assert_string_equal(device.names[i], names[i]);
    assert_int_equal(device.dependent[i], i == 3);
    assert_int_equal(device.params[i].dependent, 0);
    assert_ptr_equal(device.params[i].faults, device.params[0].faults);
  }
  const dw_params *check = &device.params[0];
  assert_ptr_equal(check->mask, memory);
  assert_int_equal(check->mask_kind, DW_P_MASK_PARENTS);
  assert_ptr_equal(check->report, report);
  assert_int_equal(check->pool_pages, 77);
  assert_int_equal(check->kv_len_most, usual_bounds.kv_len);
  assert_int_equal(check->mask_size, 4096);
  assert_ptr_equal(check->out, args.out);
  assert_true((const char *)(check->faults + usual_bounds.batch) <= (const char *)args.workspace + args.workspace_size);
  // Packing alone leaves out as it is.
  assert_int_equal(dw_pack_mask(kernel, &args, bits, 0, NULL, NULL), DW_OK);
  assert_int_equal(device.launches, 6);
  assert_string_equal(device.names[4], "dw_check");
  assert_null(device.params[4].out);
  assert_string_equal(device.names[5], "dw_pack_mask");
  dw_ctx_destroy(ctx);
}

// What a captured call may not do: any other call of the driver (memory, synchronisation, copies, queries), and memory of the host's.
// Batches of 1 to the bound, every mask, with and without its packing.
static void nvrtc_a_call_is_its_launches_alone(void **state) {
  (void)state;
  dw_ctx *ctx = with_device();
  if (!ctx) skip();
  static const char *const shapes[] = {"mla:h=8,t=9", "mla:h=8,t=65"};
  for (int s = 0; s < 2; s++) {
    dw_kernel *kernel = kernel_of(ctx, shapes[s]);
    dw_args args = usual_args(kernel);
    args.mask = memory;
    args.mask_indptr = (const int64_t *)(const void *)memory;
    for (args.batch = 1; args.batch <= usual_bounds.batch; args.batch++)
      for (int mask = DW_MASK_NONE; mask <= DW_MASK_BIAS_F32; mask++) {
        args.mask_kind = (dw_mask)mask;
        const bool packs = s == 1 && mask != DW_MASK_NONE && mask != DW_MASK_BITS;
        const int calls = fake_driver_calls(), launches = device.launches;
        dw__alloc_fail_after(1);
        const dw_status status = dw_launch(kernel, &args, NULL, NULL);
        assert_int_equal(dw__alloc_fail_after(0), 0);
        assert_int_equal(status, DW_OK);
        assert_int_equal(device.launches - launches, packs ? 3 : 2);
        assert_int_equal(fake_driver_calls() - calls, packs ? 3 : 2);
      }
  }
  dw_ctx_destroy(ctx);
}

static void nvrtc_pack_mask_writes_to_the_caller(void **state) {
  (void)state;
  dw_ctx *ctx = with_device();
  if (!ctx) skip();
  dw_kernel *kernel = usual_kernel(ctx);
  dw_args args = usual_args(kernel);
  uint32_t bits[64];
  args.mask_kind = DW_MASK_PARENTS;
  args.mask = memory;
  assert_int_equal(dw_pack_mask(kernel, &args, bits, 0, NULL, NULL), DW_OK);
  assert_int_equal(device.launches, 1);
  assert_string_equal(device.names[0], "dw_pack_mask");
  assert_ptr_equal(device.params[0].mask, memory);
  assert_ptr_equal(device.params[0].out, bits);
  assert_int_equal(device.params[0].out_row_stride, 1);
  assert_int_equal(dw_pack_mask(kernel, &args, bits, 3, NULL, NULL), DW_OK);
  assert_int_equal(device.params[1].out_row_stride, 3);
  assert_int_equal(dw_pack_mask(kernel, &args, NULL, 0, NULL, NULL), DW_BAD_ARGUMENT);
  dw_ctx_destroy(ctx);
}

static void nvrtc_bad_arguments_launch_nothing(void **state) {
  (void)state;
  dw_ctx *ctx = with_device();
  if (!ctx) skip();
  dw_kernel *kernel = usual_kernel(ctx);
  dw_error error = {0};
  dw_args args = usual_args(kernel);
  assert_int_equal(dw_args_check(kernel, &args, &error), DW_OK);
  args.q = NULL;
  assert_int_equal(dw_launch(kernel, &args, NULL, &error), DW_BAD_ARGUMENT);
  assert_string_equal(error.field, "q");
  dw_error_clear(&error);
  args = usual_args(kernel);
  args.workspace_size -= 1;
  assert_int_equal(dw_launch(kernel, &args, NULL, &error), DW_BAD_ARGUMENT);
  assert_string_equal(error.field, "workspace_size");
  dw_error_clear(&error);
  args = usual_args(kernel);
  args.batch = usual_bounds.batch + 1;
  assert_int_equal(dw_args_check(kernel, &args, &error), DW_BAD_ARGUMENT);
  assert_string_equal(error.field, "batch");
  dw_error_clear(&error);
  args.size = 0;
  assert_int_equal(dw_args_check(kernel, &args, &error), DW_BAD_ARGUMENT);
  assert_string_equal(error.field, "args");
  dw_error_clear(&error);
  assert_int_equal(dw_launch(kernel, NULL, NULL, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw_launch(NULL, &args, NULL, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(device.launches, 0);
  // What the driver says is passed on.
  args = usual_args(kernel);
  fake.result[FAKE_cuLaunchKernelEx] = 700;
  assert_int_equal(dw_launch(kernel, &args, NULL, &error), DW_DRIVER);
  assert_non_null(strstr(error.message, "700"));
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
}

static void targets_run_where_they_should(void **state) {
  (void)state;
  assert_true(dw__device_runs("sm_120", 120));
  assert_true(dw__device_runs("sm_120", 121));
  assert_true(dw__device_runs("sm_120f", 121));
  assert_true(dw__device_runs("sm_90a", 90));
  assert_true(dw__device_runs("sm_80", 86));
  assert_false(dw__device_runs("sm_120a", 121));
  assert_false(dw__device_runs("sm_121", 120));
  assert_false(dw__device_runs("sm_90", 100));
  assert_false(dw__device_runs("sm_90", 120));
}

// Every architecture gets code of its own number, whatever the neighbours have; those that nothing serves are refused by name.
static void O_c12_no_target_takes_anothers_code(void **state) {
  (void)state;
  static const struct {
    int target;
    const char *allowed;  // the letters a variant may add
  } served[] = {{80, ""}, {86, ""}, {89, ""}, {90, "a"}, {100, ""}, {103, ""}, {120, "f"}, {121, "f"}};
  static const char *const refused[] = {"sm_75", "sm_101", "sm_110", "sm_122", "sm_130"};
  char text[64], target[16], number[16];
  for (size_t i = 0; i < DW__COUNT(served); i++) {
    dw_variant variant;
    snprintf(text, sizeof text, "mla:h=8,t=9,target=sm_%d", served[i].target);
    snprintf(number, sizeof number, "sm_%d", served[i].target);
    dw_shape shape = shape_of(text);
    size_t n = 0;
    for (; dw_variant_enumerate(&shape, n, &variant) == DW_OK; n++) {
      assert_int_equal(dw_compile_target(&shape, &variant, target, NULL), DW_OK);
      assert_memory_equal(target, number, strlen(number));
      if (target[strlen(number)] && strcmp(target + strlen(number), served[i].allowed)) fail_msg("%s for %s", target, number);
      assert_true(dw__device_runs(target, served[i].target));
    }
    assert_true(n > 0);
    assert_int_equal(dw_variant_choose(&shape, NULL, &variant, NULL), DW_OK);
  }
  for (size_t i = 0; i < DW__COUNT(refused); i++) {
    dw_shape shape;
    dw_error error = {0};
    snprintf(text, sizeof text, "mla:h=8,t=9,target=%s", refused[i]);
    assert_int_not_equal(dw_shape_parse(text, &shape, &error), DW_OK);
    assert_non_null(strstr(error.message, refused[i]));
    assert_non_null(strstr(error.message, "sm_120"));
    dw_error_clear(&error);
  }
}

// Nothing that is generated asks for a header, of a toolkit or of anybody; one line is for the CPU's compiler alone.
static void O_c03_generated_text_includes_nothing(void **state) {
  (void)state;
  static const char host_execution[] = "include \"draftwood_host.h\"";
  static const char *const texts[] = {"mla:h=8,t=9", "mla:h=16,t=64,page=64,target=sm_90", "mla:h=4,t=3,tree=r.0.0",
                                      "gqa:h=32,hk=8,t=9,d=128,page=64"};
  dw_options options = {.size = sizeof options, .cache_dir = ""};
  dw_ctx *ctx = NULL;
  int made = 0;
  assert_int_equal(dw_ctx_create(&options, &ctx, NULL), DW_OK);
  for (size_t i = 0; i <= DW__COUNT(texts); i++) {
    dw_shape shape = shape_of(texts[i % DW__COUNT(texts)]);
    dw_variant variant;
    for (size_t n = 0; dw_variant_enumerate(&shape, n, &variant) == DW_OK; n += 5) {
      char *source;
      size_t size;
      dw_error error = {0};
      dw_status status = i == DW__COUNT(texts) ? dw__companions_source(ctx, &source, &size, &error)
                                               : dw_source_generate(ctx, &shape, &variant, &source, &size, &error);
      if (status) fail_msg("%s", error.message);
      for (const char *hash = source; (hash = strchr(hash, '#')); hash++) {
        const char *word = hash + 1 + strspn(hash + 1, " \t");
        if (!strncmp(word, "include", 7) && strncmp(word, host_execution, strlen(host_execution))) fail_msg("%.80s", hash);
      }
      dw_free(source);
      made++;
      if (i == DW__COUNT(texts)) break;
    }
  }
  assert_true(made > 10);
  dw_ctx_destroy(ctx);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, remove_folder)

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    TEST(second_build_compiles_nothing),
    TEST(cached_cubin_is_what_was_built),
    TEST(same_source_is_compiled_once),
    TEST(other_templates_are_another_request),
    TEST(damaged_entry_is_compiled_again),
    TEST(foreign_metadata_is_compiled_again),
    TEST(metadata_reads_what_it_prints),
    TEST(no_cache_directory_is_no_error),
    TEST(template_error_names_file_and_line),
    TEST(compile_error_has_the_log_and_is_known_from_then_on),
    TEST(endless_logs_are_remembered_too),
    TEST(unknown_targets_are_named),
    TEST(bad_shapes_and_variants_are_refused),
    TEST(calls_into_the_driver_are_refused),
    TEST(code_for_another_gpu_is_refused),
    TEST(missing_compiler_is_named),
    TEST(options_of_another_size_are_understood),
    TEST(every_allocation_may_fail),
    TEST(every_allocation_of_a_hit_may_fail),
    TEST(two_contexts_are_independent),
    TEST(threads_that_ask_the_same_compile_once),
    TEST(threads_that_ask_different_things_do_not_wait),
    TEST(threads_are_all_told_of_a_failure),
    TEST(targets_run_where_they_should),
    TEST(O_c12_no_target_takes_anothers_code),
    TEST(O_c03_generated_text_includes_nothing),
    TEST(nvrtc_builds_and_reads_resources),
    TEST(nvrtc_error_names_the_template),
    TEST(nvrtc_kernels_are_kept),
    TEST(nvrtc_other_devices_are_refused),
    TEST(O_c09_the_current_device_decides),
    TEST(nvrtc_capture_is_refused),
    TEST(nvrtc_bounds_are_checked),
    TEST(nvrtc_launch_runs_the_plan),
    TEST(nvrtc_a_call_is_its_launches_alone),
    TEST(nvrtc_checked_kernels_look_first),
    TEST(nvrtc_pack_mask_writes_to_the_caller),
    TEST(nvrtc_bad_arguments_launch_nothing),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  dw__release((void *)fake_nvrtc.cubin);
  return failed;
}
