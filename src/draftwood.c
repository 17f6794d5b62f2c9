// The flow: shape -> variant -> source -> cubin -> cache -> kernel -> launch, one function an arrow. Everything a step needs is
// in the folders gen, cache and runtime, which do not know one another; this file brings them together.
#include "draftwood.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "companions.h"
#include "flow.h"
#include "lookup.h"
#include "misses.h"
#include "plan.h"
#include "tune_plan.h"

// ---- context --------------------------------------------------------------------------------------------------

// A build in progress; a second thread that wants the same cubin waits for the first instead of compiling it again.
typedef struct flight {
  struct flight *next;
  dw__digest request;
} flight;

// A loaded cubin: kernels that differ in their bounds only share it.
typedef struct loaded {
  struct loaded *next;
  dw_shape shape;
  dw_variant variant;
  void *cu_context;
  dw__module *module;
} loaded;

struct dw_kernel {
  dw_kernel *next;
  dw__driver *driver;
  const loaded *image;
  dw_bounds bounds;
  dw__plan plan;
  dw__launch launches[DW__PLAN_KERNELS];  // as plan.kernels, with their functions
  dw__launch check, pack;                 // function NULL where the plan has none
};

// What dw_variant_tuned said.
typedef struct tuned_answer {
  struct tuned_answer *next;
  dw_variant variant;
  dw_choice choice;
} tuned_answer;

struct dw_ctx {
  char *template_dir, *nvrtc_path, *driver_path;  // NULL: the usual places
  dw_log_fn log;
  void *log_user;
  dw__cache *cache;

  int lock_timeout_ms;
  atomic_bool frozen;
  dw__misses *misses;

  pthread_mutex_t opening;  // held to set the three pointers below; each is set once
  dw__gen *_Atomic gen;
  dw__nvrtc *_Atomic nvrtc;
  dw__driver *_Atomic driver;

  bool no_compile;

  pthread_mutex_t building;  // guards flights
  pthread_cond_t landed;
  flight *flights;

  // Lists grow at their head, under the lock, and may be walked without it.
  pthread_mutex_t loading;
  loaded *_Atomic images;
  dw_kernel *_Atomic kernels;
  dw_companions *_Atomic companions;
  dw__lookup lookup;  // what dw_kernel_get was asked -> its kernel; put to under the lock

  dw__plan_book book;
  dw__choices *_Atomic plan;  // loaded once, under the lock
  dw__lookup tuned;           // what dw_variant_tuned was asked -> its answer
  tuned_answer *answers;

  atomic_uint_least64_t compiles, compile_failures, requests_missed, damaged, known_failures, lock_timeouts;
};

static dw_status no_memory(dw_error *error) { return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory"); }

static void warn(void *user, const char *message) {
  dw_ctx *ctx = user;
  if (ctx->log) ctx->log(ctx->log_user, DW_LOG_WARNING, message);
}

// An option, else an environment variable (where it has one), else NULL. *copy is the context's own.
static bool setting(const char *option, const char *variable, char **copy) {
  const char *value = option ? option : secure_getenv(variable);  // programs with raised rights take options only
  if (!value || !*value) return true;
  *copy = dw__strdup(value);
  return *copy != NULL;
}

static bool is_on(const char *variable) {
  const char *value = secure_getenv(variable);
  return value && !strcmp(value, "1");
}

static dw_status open_cache(const dw_options *options, dw_ctx *ctx, dw_error *error) {
  if (options->compile_slots < 0 || options->compile_slots > 1024) {
    return dw__fail_int(error, DW_BAD_ARGUMENT, "compile_slots", options->compile_slots, "0 to 1024", "0 is the host's own");
  }
  const dw__cache_options cache = {.directory = options->cache_dir,
                                   .system_directories = options->system_dirs,
                                   .shared = options->cache_shared,
                                   .limit = options->cache_limit,
                                   .slots = options->compile_slots,
                                   .warn = warn,
                                   .warn_user = ctx};
  return dw__cache_open_with(&cache, &ctx->cache, error);
}

dw_status dw_ctx_create(const dw_options *given, dw_ctx **result, dw_error *error) {
  if (!result) return dw__no_argument(error, "ctx");
  *result = NULL;
  dw_options options = {.size = sizeof options};
  dw_status status = given ? dw__read_sized("options", given, &options, sizeof options, error) : DW_OK;
  if (status) return status;
  dw_ctx *ctx = dw__calloc(1, sizeof *ctx);
  if (!ctx) return no_memory(error);
  ctx->log = options.log;
  ctx->log_user = options.log_user;
  ctx->lock_timeout_ms = options.lock_timeout_ms > 0 ? options.lock_timeout_ms : 60000;
  ctx->no_compile = options.no_compile || is_on("DRAFTWOOD_NO_COMPILE");
  pthread_mutex_init(&ctx->opening, NULL);
  pthread_mutex_init(&ctx->building, NULL);
  pthread_mutex_init(&ctx->loading, NULL);
  pthread_cond_init(&ctx->landed, NULL);
  if (!setting(options.template_dir, "DRAFTWOOD_TEMPLATES", &ctx->template_dir) ||
      !setting(options.nvrtc_path, "DRAFTWOOD_NVRTC", &ctx->nvrtc_path) ||
      !setting(options.driver_path, "DRAFTWOOD_DRIVER", &ctx->driver_path) || !(ctx->misses = dw__misses_create())) {
    status = no_memory(error);
  } else {
    status = open_cache(&options, ctx, error);
    if (!status) status = dw__plan_book_open(&ctx->book, options.plan, error);
  }
  if (status) {
    dw_ctx_destroy(ctx);
    return status;
  }
  dw__bundles_from_environment(ctx);
  *result = ctx;
  return DW_OK;
}

static void unload_all(dw_ctx *ctx) {
  for (dw_kernel *kernel = ctx->kernels, *next; kernel; kernel = next) {
    next = kernel->next;
    dw__release(kernel);
  }
  for (loaded *image = ctx->images, *next; image; image = next) {
    next = image->next;
    dw__module_unload(image->module);
    dw__release(image);
  }
  dw__companions_free(ctx->companions);
  dw__lookup_free(&ctx->lookup);
  dw__lookup_free(&ctx->tuned);
  for (tuned_answer *answer = ctx->answers, *next; answer; answer = next) {
    next = answer->next;
    dw__release(answer);
  }
}

void dw_ctx_destroy(dw_ctx *ctx) {
  if (!ctx) return;
  unload_all(ctx);
  if (ctx->driver) dw__driver_close(ctx->driver);
  if (ctx->nvrtc) dw__nvrtc_close(ctx->nvrtc);
  if (ctx->gen) dw__gen_close(ctx->gen);
  if (ctx->cache) dw__cache_close(ctx->cache);
  dw__misses_free(ctx->misses);
  if (ctx->plan) dw__choices_free(ctx->plan);
  dw__release(ctx->plan);
  dw__plan_book_close(&ctx->book);
  pthread_cond_destroy(&ctx->landed);
  pthread_mutex_destroy(&ctx->loading);
  pthread_mutex_destroy(&ctx->building);
  pthread_mutex_destroy(&ctx->opening);
  dw__release(ctx->template_dir);
  dw__release(ctx->nvrtc_path);
  dw__release(ctx->driver_path);
  dw__release(ctx);
}

dw__cache *dw__ctx_cache(dw_ctx *ctx) { return ctx->cache; }

void dw__ctx_warn(dw_ctx *ctx, const char *message) { warn(ctx, message); }

bool dw__ctx_is_frozen(const dw_ctx *ctx) { return atomic_load_explicit(&ctx->frozen, memory_order_relaxed); }
int dw__ctx_lock_timeout_ms(const dw_ctx *ctx) { return ctx->lock_timeout_ms; }

static dw_status fail_frozen(const char *field, dw_error *error) {
  return dw__fail(error, DW_FROZEN, field, "", "what was prepared before dw_freeze", "the context is frozen");
}

dw_companions *dw__ctx_companions(const dw_ctx *ctx) { return atomic_load(&ctx->companions); }
void dw__ctx_companions_lock(dw_ctx *ctx) { pthread_mutex_lock(&ctx->loading); }
void dw__ctx_companions_add(dw_ctx *ctx, dw_companions *added) { atomic_store(&ctx->companions, added); }
void dw__ctx_companions_unlock(dw_ctx *ctx) { pthread_mutex_unlock(&ctx->loading); }

// dw__ctx_<part>: opened by the first call, without a lock from then on.
#define OPEN_PART(type, part, path, opener)                                      \
  dw_status dw__ctx_##part(dw_ctx *ctx, type **part, dw_error *error) {          \
    *part = atomic_load_explicit(&ctx->part, memory_order_acquire);              \
    if (*part) return DW_OK;                                                     \
    if (dw__ctx_is_frozen(ctx)) return fail_frozen(#part, error);                \
    pthread_mutex_lock(&ctx->opening);                                           \
    *part = atomic_load(&ctx->part);                                             \
    dw_status status = *part ? DW_OK : opener(ctx->path, part, error);           \
    if (!status) atomic_store_explicit(&ctx->part, *part, memory_order_release); \
    pthread_mutex_unlock(&ctx->opening);                                         \
    return status;                                                               \
  }
OPEN_PART(dw__gen, gen, template_dir, dw__gen_open)
OPEN_PART(dw__nvrtc, nvrtc, nvrtc_path, dw__nvrtc_open)
OPEN_PART(dw__driver, driver, driver_path, dw__driver_open)
#undef OPEN_PART

void dw__ctx_use_nvrtc(dw_ctx *ctx, dw__nvrtc *nvrtc) {
  if (ctx->nvrtc) dw__nvrtc_close(ctx->nvrtc);
  ctx->nvrtc = nvrtc;
}

void dw__ctx_use_driver(dw_ctx *ctx, dw__driver *driver) {
  if (ctx->driver) dw__driver_close(ctx->driver);
  ctx->driver = driver;
}

void dw_stats_get(dw_ctx *ctx, dw_stats *stats) {
  if (!stats) return;
  memset(stats, 0, sizeof *stats);
  if (!ctx) return;
  dw__cache_stats counted = {0};
  dw__cache_counters(ctx->cache, &counted);
  *stats = (dw_stats){
    .compiles = atomic_load(&ctx->compiles),
    .compile_failures = atomic_load(&ctx->compile_failures),
    .hits_memory = counted.hits_memory,
    .hits_disk = counted.hits_disk,
    .misses = atomic_load(&ctx->requests_missed),  // requests; the cache counts look-ups, of which a request makes two
    .damaged = counted.damaged + atomic_load(&ctx->damaged),
    .publish_failures = counted.publish_failures,
    .hits_layers = counted.hits_layers,
    .known_failures = atomic_load(&ctx->known_failures),
    .lock_timeouts = atomic_load(&ctx->lock_timeouts),
    .evicted = counted.evicted,
    .list_misses = dw__misses_count(ctx->misses),
  };
}

// ---- shape, variant -> source ---------------------------------------------------------------------------------

#define PARAMS_MAX 64

// The variant's parameters are cut out of its canonical text "name=value,...", so that variant.def stays their only list.
// Numbers go over as integers, the named values of `family` and `combine` as text. `text` is cut in place.
static size_t variant_params(char *text, dw__gen_param *params) {
  size_t count = 0;
  char *rest = NULL;
  for (char *item = strtok_r(text, ",", &rest); item && count < PARAMS_MAX; item = strtok_r(NULL, ",", &rest)) {
    char *value = strchr(item, '='), *end = NULL;
    if (!value) continue;
    *value++ = 0;
    long long integer = strtoll(value, &end, 10);
    params[count++] = (dw__gen_param){item, *end ? value : NULL, *end ? 0 : integer};
  }
  return count;
}

static size_t shape_params(const dw_shape *shape, dw__gen_param *params) {
  const dw__gen_param list[] = {
    {"attention", shape->attention == DW_MLA ? "mla" : "gqa", 0},
    {"heads", NULL, shape->heads},
    {"kv_heads", NULL, shape->kv_heads},
    {"width", NULL, shape->width},
    {"head_dim_qk", NULL, shape->head_dim_qk},
    {"head_dim_v", NULL, shape->head_dim_v},
    {"page", NULL, shape->page},
    {"q", dw__dtype_name(shape->q), 0},
    {"kv", dw__dtype_name(shape->kv), 0},
    {"out", dw__dtype_name(shape->out), 0},
    {"target", NULL, shape->target},
    {"limits", NULL, shape->limits},
  };
  memcpy(params, list, sizeof list);
  return DW__COUNT(list);
}

// Shape and variant, checked and as canonical text. The companions have neither; their name stands in place of the shape's text.
typedef struct request {
  const dw_shape *shape;  // NULL: the companions
  const dw_variant *variant;
  char shape_text[DW_TEXT_MAX], variant_text[DW_TEXT_MAX];
  char target[16];  // compile target
  dw__digest key;
  bool anew;  // what the cache has will not do
} request;

static dw_status request_check(const dw_shape *shape, const dw_variant *variant, request *ask, dw_error *error) {
  ask->anew = false;
  dw_status status = dw_variant_applicable(shape, variant, error);  // of a sound shape only
  if (!status) status = dw_compile_target(shape, variant, ask->target, error);
  if (status) return status;
  ask->shape = shape;
  ask->variant = variant;
  dw_shape_print(shape, ask->shape_text, sizeof ask->shape_text);
  dw_variant_print(variant, ask->variant_text, sizeof ask->variant_text);
  return DW_OK;
}

static dw_status generate(dw_ctx *ctx, const request *ask, char **source, size_t *size, dw_error *error) {
  dw__gen *gen;
  dw_status status = dw__ctx_gen(ctx, &gen, error);
  if (status) return status;
  if (!ask->shape) return dw__gen_render(gen, "companions", NULL, 0, source, size, error);
  char text[DW_TEXT_MAX];
  memcpy(text, ask->variant_text, sizeof text);
  dw__gen_param params[PARAMS_MAX];
  size_t count = shape_params(ask->shape, params);
  count += variant_params(text, params + count);
  // What the text leaves out, a template still gets.
#define DW_PARAM(name, kind, least, most, normal, help)                                                    \
  if (!strcmp(#kind, "feature") && !ask->variant->name) params[count++] = (dw__gen_param){#name, NULL, 0}; \
  if (!strcmp(#kind, "accumulate") && !ask->variant->name)                                                 \
    params[count++] = (dw__gen_param){#name, dw__accumulate_names[0].text, 0};
#include "draftwood_variant.def"
#undef DW_PARAM
  const char *tree = strstr(ask->shape_text, ",tree=");  // the canonical text ends with it
  params[count++] = (dw__gen_param){"tree", tree ? tree + strlen(",tree=") : "", 0};
  params[count++] = (dw__gen_param){"shared_bytes", NULL, (long long)dw_shared_bytes(ask->shape, ask->variant)};
  return dw__gen_render(gen, "verify", params, count, source, size, error);
}

dw_status dw_source_generate(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, char **source, size_t *size,
                             dw_error *error) {
  if (source) *source = NULL;
  if (!ctx || !source) return dw__no_argument(error, ctx ? "source" : "ctx");
  request ask;
  size_t length;
  if (dw__ctx_is_frozen(ctx)) return fail_frozen("source", error);  // Lua may be a file not opened yet
  dw_status status = request_check(shape, variant, &ask, error);
  return status ? status : generate(ctx, &ask, source, size ? size : &length, error);
}

// ---- cache entry <-> cubin ------------------------------------------------------------------------------------

// The integer members of a kernel's record, once for both directions.
#define RESOURCE_FIELDS(X) \
  X(registers) X(stack_bytes) X(shared_static) X(barriers) X(spill_stores) X(spill_loads) X(max_threads) X(uses_setmaxnreg)

static json_t *resources_json(const dw_cubin *cubin) {
  json_t *list = json_array();
  for (int i = 0; i < cubin->kernel_count; i++) {
    const dw_resources *kernel = &cubin->kernels[i];
    json_t *object = json_pack("{s:s}", "name", kernel->name);
#define X(field) json_object_set_new(object, #field, json_integer(kernel->field));
    RESOURCE_FIELDS(X)
#undef X
    json_array_append_new(list, object);
  }
  return list;
}

dw_status dw__metadata_print(const dw_cubin *cubin, const char *shape, const char *variant, char **text, dw_error *error) {
  json_t *object = json_pack("{s:s, s:s, s:s, s:s, s:o}", "shape", shape, "variant", variant, "target", cubin->target,
                             "compiler", cubin->compiler, "kernels", resources_json(cubin));
  if (object && cubin->compile_ms > 0) json_object_set_new(object, "compile_ms", json_real(cubin->compile_ms));
  char *dump = object ? json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
  json_decref(object);
  *text = dump ? dw__strdup(dump) : NULL;
  free(dump);
  return *text ? DW_OK : no_memory(error);
}

static bool resources_read(json_t *object, dw_resources *kernel) {
  const char *name = json_string_value(json_object_get(object, "name"));
  if (!name) return false;
  snprintf(kernel->name, sizeof kernel->name, "%s", name);
#define X(field)                                                       \
  if (!json_is_integer(json_object_get(object, #field))) return false; \
  kernel->field = (int)json_integer_value(json_object_get(object, #field));
  RESOURCE_FIELDS(X)
#undef X
  return true;
}

static bool metadata_fill(json_t *object, dw_cubin *cubin) {
  const char *target = json_string_value(json_object_get(object, "target"));
  const char *compiler = json_string_value(json_object_get(object, "compiler"));
  json_t *kernels = json_object_get(object, "kernels");
  if (!target || !compiler || !json_is_array(kernels) || json_array_size(kernels) > DW_KERNELS_MAX) return false;
  snprintf(cubin->target, sizeof cubin->target, "%s", target);
  snprintf(cubin->compiler, sizeof cubin->compiler, "%s", compiler);
  cubin->compile_ms = json_number_value(json_object_get(object, "compile_ms"));
  cubin->kernel_count = (int)json_array_size(kernels);
  for (int i = 0; i < cubin->kernel_count; i++) {
    if (!resources_read(json_array_get(kernels, (size_t)i), &cubin->kernels[i])) return false;
  }
  return true;
}

dw_status dw__metadata_read(const char *text, dw_cubin *cubin, dw_error *error) {
  json_t *object = json_loads(text, 0, NULL);
  bool whole = object && metadata_fill(object, cubin);
  json_decref(object);
  if (whole) return DW_OK;
  return dw__fail(error, DW_BAD_CUBIN, "metadata", "", "a whole record", "the cache entry's record is not whole");
}

// Takes the cubin's bytes out of the entry. DW_BAD_CUBIN where the entry is not what we would have published.
static dw_status cubin_from_entry(const request *ask, dw__entry *entry, dw_cubin *cubin, dw_error *error) {
  dw_status status = dw__metadata_read(entry->metadata, cubin, error);
  if (status) return status;
  if (strcmp(cubin->target, ask->target) != 0) {
    return dw__fail(error, DW_BAD_CUBIN, "target", cubin->target, ask->target, "the cache entry is for another target");
  }
  cubin->data = entry->cubin;
  cubin->size = entry->cubin_size;
  entry->cubin = NULL;
  cubin->from_cache = 1;
  dw__hex(&ask->key, cubin->request_key);
  dw__hex(&entry->build, cubin->build_key);
  return DW_OK;
}

void dw_cubin_free(dw_cubin *cubin) {
  if (!cubin) return;
  dw__release((void *)cubin->data);
  dw__release(cubin);
}

// ---- source -> cubin ------------------------------------------------------------------------------------------

static int target_number(const char *target) { return (int)strtol(target + strlen("sm_"), NULL, 10); }

// Our kernels are self-contained: a call into the driver's runtime (assert, printf, device malloc) would cost stack and launch
// time behind our back, and a cubin for another GPU would fail at load, far from its cause.
static dw_status lint(const request *ask, const void *data, size_t size, int arch, dw_error *error) {
  char symbol[64];
  if (dw__cubin_calls_driver(data, size, symbol)) {
    return dw__fail(error, DW_COMPILE, "cubin", symbol, "no __cuda_syscall_* symbol", "the kernel calls the driver's runtime");
  }
  if (arch == target_number(ask->target)) return DW_OK;
  return dw__fail_int(error, DW_WRONG_ARCH, "cubin", arch, ask->target, "the compiler made code for another GPU");
}

// The kernel that does the work is the first of a record, wherever the compiler put it.
static void main_first(dw_cubin *cubin) {
  for (int i = 1; i < cubin->kernel_count; i++) {
    if (strcmp(cubin->kernels[i].name, "dw_verify") != 0) continue;
    dw_resources main = cubin->kernels[i];
    cubin->kernels[i] = cubin->kernels[0];
    cubin->kernels[0] = main;
  }
}

static dw_status compile(dw_ctx *ctx, const dw__nvrtc *nvrtc, const request *ask, const char *source,
                         const dw__options *options, dw_cubin *cubin, dw_error *error) {
  void *data = NULL;
  char *log = NULL;
  int arch = 0;
  bool specific = false;
  double start = dw__seconds();
  atomic_fetch_add(&ctx->compiles, 1);
  dw_status status =
    dw__nvrtc_compile(nvrtc, ask->shape ? "verify.cu" : "companions.cu", source, options, &data, &cubin->size, &log, error);
  cubin->compile_ms = (dw__seconds() - start) * 1e3;
  cubin->data = data;
  if (!status) status = dw__cubin_read(data, cubin->size, &arch, &specific, cubin->kernels, &cubin->kernel_count, error);
  if (!status) status = lint(ask, data, cubin->size, arch, error);
  if (status) {
    atomic_fetch_add(&ctx->compile_failures, 1);
  } else {
    if (log) dw__cubin_read_log(log, cubin->kernels, cubin->kernel_count);
    main_first(cubin);
    snprintf(cubin->target, sizeof cubin->target, "%s", ask->target);
    snprintf(cubin->compiler, sizeof cubin->compiler, "%s", dw__nvrtc_version(nvrtc));
  }
  dw__release(log);
  return status;
}

// A failed write is the cache's counter and warning, so only memory can fail here.
static dw_status publish(dw_ctx *ctx, const request *ask, const dw__digest *build, dw_cubin *cubin, dw_error *error) {
  dw__entry entry = {.request = ask->key, .build = *build, .cubin = (void *)cubin->data, .cubin_size = cubin->size};
  dw__hex(&ask->key, cubin->request_key);
  dw__hex(build, cubin->build_key);
  dw_status status = dw__metadata_print(cubin, ask->shape_text, ask->variant_text, &entry.metadata, error);
  if (!status) status = dw__cache_publish(ctx->cache, &entry, error);
  dw__release(entry.metadata);
  return status;
}

// What a lookup found, as a cubin; DW_NOT_FOUND where there is nothing usable, so that a spoilt entry costs a compile at most.
static dw_status take(dw_ctx *ctx, const request *ask, dw_status found, dw__entry *entry, dw_cubin *cubin, dw_error *error) {
  if (found == DW_NOT_FOUND) return found;
  if (found) return no_memory(error);
  dw_status status = cubin_from_entry(ask, entry, cubin, NULL);
  dw__entry_free(entry);
  if (!status) return DW_OK;
  atomic_fetch_add(&ctx->damaged, 1);
  memset(cubin, 0, sizeof *cubin);
  return DW_NOT_FOUND;
}

static dw_status find_request(dw_ctx *ctx, const request *ask, dw_cubin *cubin, dw_error *error) {
  dw__entry entry = {0};
  if (ask->anew) return DW_NOT_FOUND;
  return take(ctx, ask, dw__cache_find(ctx->cache, &ask->key, &entry, NULL), &entry, cubin, error);
}

static dw_status find_build(dw_ctx *ctx, const request *ask, const dw__digest *build, dw_cubin *cubin, dw_error *error) {
  dw__entry entry = {0};
  if (ask->anew) return DW_NOT_FOUND;
  return take(ctx, ask, dw__cache_find_build(ctx->cache, build, &entry, NULL), &entry, cubin, error);
}

static dw__digest build_key(const dw__nvrtc *nvrtc, const request *ask, const char *source, size_t size,
                            const dw__options *options) {
  return dw__build_key(&(dw__build_key_input){
    .source = source,
    .source_size = size,
    .options = options->list,
    .option_count = options->count,
    .compile_target = ask->target,
    .compiler = dw__nvrtc_version(nvrtc),
    .compiler_build = dw__nvrtc_build_id(nvrtc),
  });
}

// ---- failed compiles ------------------------------------------------------------------------------------------

// Its beginning, in characters that JSON can hold: a compiler may quote anything, and without end.
static json_t *quoted(const char *text) {
  enum { MOST = 1 << 16 };
  char *copy = dw__strdup(text ? text : "");
  if (copy && strlen(copy) > MOST) copy[MOST] = 0;
  json_t *made = copy ? json_string(copy) : NULL;
  for (char *at = copy; at && *at && !made; at++)
    if (*at & 0x80) *at = '?';
  if (!made && copy) made = json_string(copy);
  dw__release(copy);
  return made;
}

static void remember_failure(dw_ctx *ctx, const dw__digest *build, const dw_error *failed) {
  json_t *object =
    json_pack("{s:o, s:o, s:o, s:o, s:o}", "field", quoted(failed->field), "found", quoted(failed->found), "allowed",
              quoted(failed->allowed), "message", quoted(failed->message), "log", quoted(failed->log));
  char *text = object ? json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
  if (text) dw__cache_fail(ctx->cache, build, text);
  free(text);
  json_decref(object);
}

static const char *string_of(json_t *object, const char *name) {
  const char *text = json_string_value(json_object_get(object, name));
  return text ? text : "";
}

// The very error of the compile that failed. DW_NOT_FOUND where none is known.
static dw_status recall_failure(dw_ctx *ctx, const dw__digest *build, dw_error *error) {
  char *text = dw__cache_failure(ctx->cache, build);
  json_t *object = text ? json_loads(text, 0, NULL) : NULL;
  dw__release(text);
  if (!object) return DW_NOT_FOUND;
  atomic_fetch_add(&ctx->known_failures, 1);
  if (error) {
    dw_error_clear(error);
    error->status = DW_COMPILE;
    snprintf(error->field, sizeof error->field, "%s", string_of(object, "field"));
    snprintf(error->found, sizeof error->found, "%s", string_of(object, "found"));
    snprintf(error->allowed, sizeof error->allowed, "%s", string_of(object, "allowed"));
    snprintf(error->message, sizeof error->message, "%s", string_of(object, "message"));
    const char *log = string_of(object, "log");
    error->log = *log ? dw__strdup(log) : NULL;
  }
  json_decref(object);
  return DW_COMPILE;
}

static dw_status compile_anew(dw_ctx *ctx, const dw__nvrtc *nvrtc, const request *ask, const char *source,
                              const dw__options *options, const dw__digest *build, dw_cubin *cubin, dw_error *error) {
  dw_error failed = {0};
  dw_status status = compile(ctx, nvrtc, ask, source, options, cubin, &failed);
  if (status == DW_COMPILE) remember_failure(ctx, build, &failed);
  if (error) {
    dw_error_clear(error);
    *error = failed;
  } else {
    dw_error_clear(&failed);
  }
  return status;
}

// ---- obtaining a cubin ----------------------------------------------------------------------------------------

// A host that runs from bundles learns which shape they lack; what it would need to make it is in the message already.
static dw_status name_request(const request *ask, dw_status status, dw_error *error) {
  char message[sizeof error->message];
  if ((status != DW_NO_COMPILER && status != DW_NOT_FOUND) || !error) return status;
  memcpy(message, error->message, sizeof message);
  snprintf(error->message, sizeof error->message, "%.240s is in no cache or bundle, and cannot be compiled: %.340s",
           ask->shape_text, message);
  return status;
}

// The rights to compile: that to this request among the processes, and one of the host's slots. Nobody holds one while waiting for
// the other.
typedef struct rights {
  dw__lock request, slot;
} rights;

// The request is new: make its source. Another request may have led to the very same source, so the build key is asked too. What the
// compile needs is opened first, so that a host without says so at once. The slot is given back once the compiler is done: writing waits
// for the disk, not for a core.
static dw_status make(dw_ctx *ctx, const request *ask, rights *held, dw_cubin *cubin, dw_error *error) {
  char *source = NULL;
  size_t size = 0;
  dw__nvrtc *nvrtc = NULL;
  atomic_fetch_add(&ctx->requests_missed, 1);
  dw__misses_add(ctx->misses, ask->shape, ask->variant, ask->target);
  dw_status status = dw__ctx_nvrtc(ctx, &nvrtc, error);
  if (!status) status = generate(ctx, ask, &source, &size, error);
  name_request(ask, status, error);
  if (!status) {
    dw__options options;
    dw__compile_options(ask->target, &options);
    dw__digest build = build_key(nvrtc, ask, source, size, &options);
    status = find_build(ctx, ask, &build, cubin, error);
    if (status == DW_NOT_FOUND) status = recall_failure(ctx, &build, error);
    if (status == DW_NOT_FOUND) status = compile_anew(ctx, nvrtc, ask, source, &options, &build, cubin, error);
    dw__lock_release(&held->slot);
    if (!status) status = publish(ctx, ask, &build, cubin, error);
  }
  dw__release(source);
  return status;
}

static void release_rights(rights *held) {
  dw__lock_release(&held->request);
  dw__lock_release(&held->slot);
}

// DW__COMPILED: go on (also where there are no locks); else who or what is in the way.
static dw__outcome try_rights(dw_ctx *ctx, const request *ask, rights *held) {
  *held = (rights){{-1}, {-1}};
  if (dw__cache_try_lock(ctx->cache, &ask->key, &held->request) == DW__BUSY) return DW__ELSEWHERE;
  if (dw__cache_try_slot(ctx->cache, &held->slot) != DW__BUSY) return DW__COMPILED;
  release_rights(held);
  return DW__NO_SLOT;
}

static void pause_ms(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL); }

static void tell_waiting(const dw_ctx *ctx, const request *ask, dw__outcome why) {
  char message[256 + DW_TEXT_MAX];
  snprintf(message, sizeof message, "waiting for %s: %s",
           why == DW__ELSEWHERE ? "another process that compiles the same" : "one of this host's compile slots",
           ask->shape_text);
  if (ctx->log) ctx->log(ctx->log_user, DW_LOG_INFO, message);
}

// Waits for the rights, or for somebody else to be done. DW_NOT_FOUND: compile, with what rights there are.
static dw_status await(dw_ctx *ctx, const request *ask, rights *held, dw__outcome why, dw_cubin *cubin, dw_error *error) {
  enum { TELL_AFTER_MS = 3000, LONGEST_PAUSE_MS = 20, SLOT_PATIENCE = 5 };
  double start = dw__seconds();
  bool told = false;
  for (int ms = 1;; ms = ms < LONGEST_PAUSE_MS ? 2 * ms : ms) {
    pause_ms(ms);
    dw_status status = find_request(ctx, ask, cubin, error);
    if (status != DW_NOT_FOUND) return status;
    why = try_rights(ctx, ask, held);
    if (why == DW__COMPILED) return DW_NOT_FOUND;
    double waited = (dw__seconds() - start) * 1e3;
    if (waited > TELL_AFTER_MS && !told) tell_waiting(ctx, ask, why), told = true;
    if (waited <= (double)ctx->lock_timeout_ms * (why == DW__NO_SLOT ? SLOT_PATIENCE : 1)) continue;
    atomic_fetch_add(&ctx->lock_timeouts, 1);
    return DW_NOT_FOUND;
  }
}

static dw_status fail_uncompiled(dw_ctx *ctx, const request *ask, dw_error *error) {
  dw__misses_add(ctx->misses, ask->shape, ask->variant, ask->target);
  return dw__fail(error, DW_NOT_FOUND, "request", ask->shape_text, "what bundles and cache have",
                  "this context does not compile (no_compile), and the miss list has it");
}

// What the cache lacks: compiled once among all processes that want it now, as far as locks can see to that.
static dw_status obtain(dw_ctx *ctx, const request *ask, dw__patience patience, dw__outcome *outcome, dw_cubin *cubin,
                        dw_error *error) {
  rights held;
  *outcome = DW__FAILED;
  if (ctx->no_compile) return fail_uncompiled(ctx, ask, error);
  dw__outcome why = try_rights(ctx, ask, &held);
  dw_status status = DW_NOT_FOUND;
  if (why != DW__COMPILED && patience == DW__TRY) {
    *outcome = why;
    return status;
  }
  // Free, but it may have been made between our look and the lock.
  if (why == DW__COMPILED) status = find_request(ctx, ask, cubin, error);
  else if (patience == DW__WAIT) status = await(ctx, ask, &held, why, cubin, error);
  if (status == DW_NOT_FOUND) status = make(ctx, ask, &held, cubin, error);
  release_rights(&held);
  *outcome = status ? DW__FAILED : cubin->from_cache ? DW__FOUND : DW__COMPILED;
  return status;
}

static void flight_begin(dw_ctx *ctx, flight *mine) {
  pthread_mutex_lock(&ctx->building);
  for (flight *other = ctx->flights; other;) {
    if (memcmp(&other->request, &mine->request, sizeof mine->request) != 0) {
      other = other->next;
      continue;
    }
    pthread_cond_wait(&ctx->landed, &ctx->building);
    other = ctx->flights;
  }
  mine->next = ctx->flights;
  ctx->flights = mine;
  pthread_mutex_unlock(&ctx->building);
}

static void flight_end(dw_ctx *ctx, flight *mine) {
  pthread_mutex_lock(&ctx->building);
  flight **link = &ctx->flights;
  while (*link != mine) link = &(*link)->next;
  *link = mine->next;
  pthread_cond_broadcast(&ctx->landed);
  pthread_mutex_unlock(&ctx->building);
}

static dw_status request_key(dw_ctx *ctx, request *ask, dw_error *error) {
  dw__gen *gen;
  dw__request_key_input input = {ask->shape_text, ask->variant_text, ask->target, {{0}}, DW__ABI};
  dw_status status = dw__ctx_gen(ctx, &gen, error);
  if (!status) status = dw__gen_digest(gen, &input.templates, error);
  if (!status) ask->key = dw__request_key(&input);
  return status;
}

static dw_status fail_missing(dw_ctx *ctx, const request *ask, dw_error *error) {
  dw__misses_add(ctx->misses, ask->shape, ask->variant, ask->target);
  return dw__fail(error, DW_FROZEN, "request", ask->shape_text, "what was prepared before dw_freeze",
                  "the context is frozen, and the miss list has it");
}

static dw_status build_with(dw_ctx *ctx, request *ask, dw__patience patience, dw__outcome *outcome, dw_cubin *cubin,
                            dw_error *error) {
  dw_status status = request_key(ctx, ask, error);
  if (dw__ctx_is_frozen(ctx)) {  // nothing is in flight, nothing is on the disk
    if (!status) status = find_request(ctx, ask, cubin, error);
    return status == DW_NOT_FOUND || status == DW_FROZEN ? fail_missing(ctx, ask, error) : status;
  }
  if (status) return status;
  flight mine = {NULL, ask->key};
  flight_begin(ctx, &mine);
  status = find_request(ctx, ask, cubin, error);
  *outcome = status ? DW__FAILED : DW__FOUND;
  if (status == DW_NOT_FOUND) status = obtain(ctx, ask, patience, outcome, cubin, error);
  flight_end(ctx, &mine);
  return status;
}

static dw_status build_request(dw_ctx *ctx, request *ask, dw__patience patience, dw__outcome *outcome, dw_cubin **result,
                               dw_error *error) {
  *outcome = DW__FAILED;
  dw_cubin *cubin = dw__calloc(1, sizeof *cubin);
  if (!cubin) return no_memory(error);
  dw_status status = build_with(ctx, ask, patience, outcome, cubin, error);
  if (status) dw_cubin_free(cubin);
  else *result = cubin;
  return status;
}

dw_status dw_cubin_build(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, dw_cubin **result, dw_error *error) {
  if (result) *result = NULL;
  if (!ctx || !result) return dw__no_argument(error, ctx ? "cubin" : "ctx");
  request ask;
  dw__outcome outcome;
  dw_status status = request_check(shape, variant, &ask, error);
  return status ? status : build_request(ctx, &ask, DW__WAIT, &outcome, result, error);
}

dw_status dw__obtain(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, dw__patience patience, dw__outcome *outcome,
                     dw_error *error) {
  request ask;
  dw_cubin *cubin = NULL;
  *outcome = DW__FAILED;
  dw_status status = request_check(shape, variant, &ask, error);
  if (!status) status = build_request(ctx, &ask, patience, outcome, &cubin, error);
  dw_cubin_free(cubin);
  return status;
}

dw_status dw__request_key_of(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, dw__digest *key, char target[16],
                             dw_error *error) {
  request ask;
  dw_status status = request_check(shape, variant, &ask, error);
  if (!status) status = request_key(ctx, &ask, error);
  if (status) return status;
  *key = ask.key;
  memcpy(target, ask.target, sizeof ask.target);
  return DW_OK;
}

static request companions_request(int target) {
  request ask = {.shape_text = DW__COMPANIONS};
  snprintf(ask.target, sizeof ask.target, "sm_%d", target);
  return ask;
}

dw_status dw__companions_source(dw_ctx *ctx, char **source, size_t *size, dw_error *error) {
  request ask = companions_request(0);
  return generate(ctx, &ask, source, size, error);
}

dw_status dw__companions_cubin(dw_ctx *ctx, int target, dw_cubin **cubin, dw_error *error) {
  request ask = companions_request(target);
  dw__outcome outcome;
  return build_request(ctx, &ask, DW__WAIT, &outcome, cubin, error);
}

// ---- cubin -> kernel ------------------------------------------------------------------------------------------

bool dw__device_runs(const char *target, int cc) {
  return dw__arch_runs(target_number(target), target[strlen(target) - 1] == 'a', cc);
}

static dw_status check_device(const request *ask, const dw__device *device, dw_error *error) {
  if (dw__device_runs(ask->target, device->cc)) return DW_OK;
  char found[192], allowed[64];
  snprintf(found, sizeof found, "%s", ask->target);
  snprintf(allowed, sizeof allowed, "target=sm_%d", device->cc);
  return dw__fail(error, DW_UNSUPPORTED_TARGET, "target", found, allowed, "the current device %d, %s (sm_%d), cannot run it",
                  device->ordinal, device->name, device->cc);
}

static bool same_bounds(const dw_bounds *a, const dw_bounds *b) {
  return a->batch == b->batch && a->total_q == b->total_q && a->kv_len == b->kv_len && a->sm_count == b->sm_count &&
         a->call == b->call && a->split_tokens == b->split_tokens;
}

static bool same_image(const loaded *image, const request *ask, const void *cu_context) {
  return image->cu_context == cu_context && memcmp(&image->shape, ask->shape, sizeof image->shape) == 0 &&
         memcmp(&image->variant, ask->variant, sizeof image->variant) == 0;
}

static dw_kernel *find_kernel(dw_ctx *ctx, const request *ask, const dw_bounds *bounds, const void *cu_context) {
  dw_kernel *kernel = atomic_load(&ctx->kernels);
  while (kernel && !(same_bounds(&kernel->bounds, bounds) && same_image(kernel->image, ask, cu_context))) kernel = kernel->next;
  return kernel;
}

static loaded *find_image(dw_ctx *ctx, const request *ask, const void *cu_context) {
  loaded *image = atomic_load(&ctx->images);
  while (image && !same_image(image, ask, cu_context)) image = image->next;
  return image;
}

static dw_status load_image(dw_ctx *ctx, const request *ask, const dw_cubin *cubin, void *cu_context, loaded **result,
                            dw_error *error) {
  *result = find_image(ctx, ask, cu_context);
  if (*result) return DW_OK;
  loaded *image = dw__calloc(1, sizeof *image);
  if (!image) return no_memory(error);
  *image = (loaded){.shape = *ask->shape, .variant = *ask->variant, .cu_context = cu_context};
  dw_status status = dw__module_load(ctx->driver, cubin->data, cubin->size, &image->module, error);
  if (status) {
    dw__release(image);
    return status;
  }
  image->next = ctx->images;
  ctx->images = image;
  *result = image;
  return DW_OK;
}

static dw_status prepare(const loaded *image, const dw__plan_kernel *planned, dw__launch *launch, dw_error *error) {
  *launch = (dw__launch){
    .grid = {planned->grid[0], planned->grid[1], planned->grid[2]},
    .block = {planned->block, 1, 1},
    .cluster_x = planned->cluster,
    .dynamic_shared = planned->dynamic_shared,
    .dependent = planned->dependent,
  };
  return dw__module_function(image->module, planned->entry, planned->dynamic_shared, &launch->function, error);
}

// ctx->loading is held: a lost race with another thread finds that thread's kernel.
static dw_status load_kernel(dw_ctx *ctx, const request *ask, const dw_bounds *bounds, const dw__plan *plan,
                             const dw_cubin *cubin, void *cu_context, dw_kernel **result, dw_error *error) {
  *result = find_kernel(ctx, ask, bounds, cu_context);
  if (*result) return DW_OK;
  loaded *image = NULL;
  dw_status status = load_image(ctx, ask, cubin, cu_context, &image, error);
  if (status) return status;
  dw_kernel *kernel = dw__calloc(1, sizeof *kernel);
  if (!kernel) return no_memory(error);
  kernel->driver = ctx->driver;
  kernel->image = image;
  kernel->bounds = *bounds;
  kernel->plan = *plan;
  for (int i = 0; i < plan->count && !status; i++) status = prepare(image, &plan->kernels[i], &kernel->launches[i], error);
  if (!status && plan->check.entry) status = prepare(image, &plan->check, &kernel->check, error);
  if (!status && plan->pack.entry) status = prepare(image, &plan->pack, &kernel->pack, error);
  if (status) {
    dw__release(kernel);
    return status;
  }
  kernel->next = ctx->kernels;
  ctx->kernels = kernel;
  *result = kernel;
  return DW_OK;
}

// Loading touches the device in ways that would end or spoil a capture.
static dw_status check_capture(dw__driver *driver, dw_error *error) {
  if (!dw__driver_capturing(driver, NULL)) return DW_OK;
  return dw__fail(error, DW_BAD_ARGUMENT, "stream", "a capture in progress", "dw_kernel_get before the capture begins",
                  "a kernel cannot be loaded during stream capture");
}

// For an image out of the cache that the driver refuses though its checksum is right: made once more, in place of the old one.
static dw_status make_again(dw_ctx *ctx, const request *ask, dw_cubin **cubin, dw_error *error) {
  request again = *ask;
  dw__outcome outcome;
  dw_cubin *made = dw__calloc(1, sizeof *made);
  if (!made) return no_memory(error);
  again.anew = true;
  atomic_fetch_add(&ctx->damaged, 1);
  dw_status status = request_key(ctx, &again, error);
  if (!status) status = obtain(ctx, &again, DW__FORCE, &outcome, made, error);
  if (status) {
    dw_cubin_free(made);
    return status;
  }
  dw_cubin_free(*cubin);
  *cubin = made;
  return DW_OK;
}

static dw_status load_locked(dw_ctx *ctx, const request *ask, const dw_bounds *bounds, const dw__plan *plan,
                             const dw_cubin *cubin, void *cu_context, dw_kernel **kernel, dw_error *error) {
  pthread_mutex_lock(&ctx->loading);
  dw_status status = load_kernel(ctx, ask, bounds, plan, cubin, cu_context, kernel, error);
  pthread_mutex_unlock(&ctx->loading);
  return status;
}

static dw_status new_kernel(dw_ctx *ctx, const request *ask, const dw_bounds *bounds, void *cu_context, dw_kernel **kernel,
                            dw_error *error) {
  dw__plan plan;
  dw_cubin *cubin = NULL;
  dw_status status = check_capture(ctx->driver, error);
  if (!status) status = dw__plan_make(ask->shape, ask->variant, bounds, &plan, error);
  if (!status) status = dw_cubin_build(ctx, ask->shape, ask->variant, &cubin, error);
  if (status) return status;
  status = load_locked(ctx, ask, bounds, &plan, cubin, cu_context, kernel, error);
  if (status == DW_BAD_CUBIN && cubin->from_cache && !make_again(ctx, ask, &cubin, NULL)) {
    if (error) dw_error_clear(error);
    status = load_locked(ctx, ask, bounds, &plan, cubin, cu_context, kernel, error);
  }
  dw_cubin_free(cubin);
  return status;
}

// Bounds with their defaults filled in, so that equal requests compare equal.
static dw_status fill_bounds(const dw_shape *shape, int sm_count, dw_bounds *bounds, dw_error *error) {
  bounds->size = sizeof *bounds;
  if (bounds->batch < 1) return dw__fail_int(error, DW_BAD_ARGUMENT, "batch", bounds->batch, "1 or more", "most requests");
  if (!bounds->sm_count) bounds->sm_count = sm_count;
  if (!bounds->total_q) {
    long long rows = (long long)bounds->batch * shape->width;
    if (rows > INT32_MAX) return dw__fail_int(error, DW_BAD_ARGUMENT, "total_q", rows, "up to 2147483647", "batch x width");
    bounds->total_q = (int)rows;
  }
  return DW_OK;
}

// What dw_kernel_get was asked, as bytes without gaps.
typedef struct question {
  dw_shape shape;
  dw_variant variant;
  int has_variant;
  int batch, total_q, kv_len, sm_count, call, features, split_tokens;
  void *cu_context;
} question;

static void put_question(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds, void *cu_context,
                         question *asked) {
  memset(asked, 0, sizeof *asked);
  asked->shape = *shape;
  if (variant) asked->variant = *variant;
  asked->has_variant = variant != NULL;
  asked->batch = bounds->batch;
  asked->total_q = bounds->total_q;
  asked->kv_len = bounds->kv_len;
  asked->sm_count = bounds->sm_count;
  asked->call = (int)bounds->call;
  asked->features = bounds->features;
  asked->split_tokens = bounds->split_tokens;
  asked->cu_context = cu_context;
}

// ---- the plan -------------------------------------------------------------------------------------------------

// Without a device: a board of the target.
static void put_board(const dw_shape *shape, const dw_bounds *bounds, const dw__device *device, dw__board *board) {
  *board = (dw__board){.mig = -1, .ecc = -1, .cc = device ? device->cc : shape->target};
  board->sm_count = device ? device->sm_count : bounds->sm_count;
  if (device) board->l2_bytes = device->l2_bytes;
  if (device) memcpy(board->name, device->name, sizeof board->name);
}

static dw_status load_plan(dw_ctx *ctx, dw__choices **plan, dw_error *error) {
  *plan = atomic_load_explicit(&ctx->plan, memory_order_acquire);
  if (*plan) return DW_OK;
  dw__choices *made = dw__calloc(1, sizeof *made);
  if (!made) return no_memory(error);
  // Frozen: no file is opened any more.
  dw_status status = dw__ctx_is_frozen(ctx) && !ctx->book.asked ? DW_OK : dw__plan_book_load(&ctx->book, ctx, made, error);
  pthread_mutex_lock(&ctx->loading);
  *plan = atomic_load(&ctx->plan);
  if (!status && !*plan) atomic_store_explicit(&ctx->plan, *plan = made, memory_order_release), made = NULL;
  pthread_mutex_unlock(&ctx->loading);
  if (made) dw__choices_free(made);
  dw__release(made);
  return status;
}

static void tell_near(dw_ctx *ctx, const dw_shape *shape, const dw_choice *choice) {
  char text[DW_TEXT_MAX], message[DW_TEXT_MAX + 160];
  if (choice->source < DW_FROM_NEAR_SHAPE) return;
  dw_shape_print(shape, text, sizeof text);
  snprintf(message, sizeof message, "%s: not tuned; its variant is that of %s", text,
           choice->source == DW_FROM_NEAR_SHAPE ? "a near problem" : "another GPU of this architecture");
  warn(ctx, message);
}

// device NULL: none. bounds are filled in.
static dw_status choose_tuned(dw_ctx *ctx, const dw_shape *shape, const dw_bounds *bounds, const dw__device *device,
                              dw_variant *variant, dw_choice *choice, dw_error *error) {
  dw__board board;
  dw__choices *plan;
  put_board(shape, bounds, device, &board);
  dw_status status = load_plan(ctx, &plan, error);
  if (!status) status = dw__bounds_check(shape, bounds, error);
  return status ? status : dw__plan_choose(plan, &board, shape, bounds, variant, choice, error);
}

// Frozen, with no driver ever opened: what the request would have been.
static dw_status fail_unopened(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds,
                               dw_error *error) {
  dw_variant chosen;
  request ask;
  dw_status status = variant ? DW_OK : dw_variant_choose(shape, bounds, &chosen, error);
  if (!status) status = request_check(shape, variant ? variant : &chosen, &ask, error);
  return status ? status : fail_missing(ctx, &ask, error);
}

// The first time that a request is asked for: everything is checked, and what is not there is made.
static dw_status find_or_make_kernel(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, const dw_bounds *given,
                                     dw_kernel **kernel, dw_error *error) {
  dw__driver *driver;
  dw__device device;
  void *cu_context = NULL;
  dw_bounds bounds = *given;
  dw_variant chosen;
  request ask;
  question asked;
  dw_status status = dw_shape_check(shape, error);
  if (!status && dw__ctx_is_frozen(ctx) && !ctx->driver) return fail_unopened(ctx, shape, variant, given, error);
  if (!status) status = dw__ctx_driver(ctx, &driver, error);
  if (!status) status = dw__driver_current(driver, &device, &cu_context, error);
  if (!status) put_question(shape, variant, given, cu_context, &asked);
  if (!status) status = fill_bounds(shape, device.sm_count, &bounds, error);
  if (!status && !variant) {
    dw_choice choice;
    status = choose_tuned(ctx, shape, &bounds, &device, &chosen, &choice, error);
    if (!status) tell_near(ctx, shape, &choice);
    variant = &chosen;
  }
  if (!status) status = request_check(shape, variant, &ask, error);
  if (!status) status = check_device(&ask, &device, error);
  if (status) return status;

  *kernel = find_kernel(ctx, &ask, &bounds, cu_context);
  if (dw__ctx_is_frozen(ctx)) return *kernel ? DW_OK : fail_missing(ctx, &ask, error);
  if (!*kernel) status = new_kernel(ctx, &ask, &bounds, cu_context, kernel, error);
  if (status) return status;
  pthread_mutex_lock(&ctx->loading);
  dw__lookup_put(&ctx->lookup, &asked, sizeof asked, *kernel);  // without memory for it the next call is slower, no more
  pthread_mutex_unlock(&ctx->loading);
  return DW_OK;
}

dw_status dw_kernel_get(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, const dw_bounds *given,
                        dw_kernel **kernel, dw_error *error) {
  if (kernel) *kernel = NULL;
  if (!ctx || !shape || !given || !kernel) {
    return dw__no_argument(error, !ctx ? "ctx" : !shape ? "shape" : !given ? "bounds" : "kernel");
  }
  dw_bounds bounds;
  question asked;
  dw_status status = dw__read_sized("bounds", given, &bounds, sizeof bounds, error);
  if (status) return status;
  dw__driver *driver = atomic_load_explicit(&ctx->driver, memory_order_acquire);
  void *cu_context = driver ? dw__driver_context(driver) : NULL;
  if (cu_context) {
    put_question(shape, variant, &bounds, cu_context, &asked);
    *kernel = dw__lookup_find(&ctx->lookup, &asked, sizeof asked);
  }
  return *kernel ? DW_OK : find_or_make_kernel(ctx, shape, variant, &bounds, kernel, error);
}

dw_status dw__request_variant(dw_ctx *ctx, const dw_request *asked, bool on_device, dw_variant *variant, dw_error *error) {
  dw__driver *driver;
  dw__device device = {0};
  dw_bounds bounds;
  dw_status status = dw_shape_check(asked->shape, error);
  if (!status && on_device) status = dw__ctx_driver(ctx, &driver, error);
  if (!status && on_device) status = dw__driver_current(driver, &device, NULL, error);
  if (!status && asked->bounds) status = dw__read_sized("bounds", asked->bounds, &bounds, sizeof bounds, error);
  if (!status && asked->bounds) status = fill_bounds(asked->shape, device.sm_count, &bounds, error);
  if (status) return status;
  if (!asked->variant && !asked->bounds) return dw_variant_choose(asked->shape, NULL, variant, error);
  if (!asked->variant) {
    dw_choice choice;
    if (!bounds.sm_count) bounds.sm_count = dw__target_sm_count(asked->shape->target);
    return choose_tuned(ctx, asked->shape, &bounds, on_device ? &device : NULL, variant, &choice, error);
  }
  *variant = *asked->variant;
  return DW_OK;
}

static dw_status answer_anew(dw_ctx *ctx, const dw_shape *shape, const dw_bounds *given, const question *asked, bool has_device,
                             tuned_answer **answer, dw_error *error) {
  dw__driver *driver;
  dw__device device = {0};
  dw_bounds bounds = *given;
  dw_status status = dw_shape_check(shape, error);
  if (!status && has_device) status = dw__ctx_driver(ctx, &driver, error);
  if (!status && has_device) status = dw__driver_current(driver, &device, NULL, error);
  if (!status) status = fill_bounds(shape, has_device ? device.sm_count : dw__target_sm_count(shape->target), &bounds, error);
  tuned_answer *made = status ? NULL : dw__calloc(1, sizeof *made);
  if (!status && !made) status = no_memory(error);
  if (!status) status = choose_tuned(ctx, shape, &bounds, has_device ? &device : NULL, &made->variant, &made->choice, error);
  if (status) {
    dw__release(made);
    return status;
  }
  tell_near(ctx, shape, &made->choice);
  pthread_mutex_lock(&ctx->loading);
  made->next = ctx->answers;
  ctx->answers = made;
  dw__lookup_put(&ctx->tuned, asked, sizeof *asked, made);
  pthread_mutex_unlock(&ctx->loading);
  *answer = made;
  return DW_OK;
}

dw_status dw_variant_tuned(dw_ctx *ctx, const dw_shape *shape, const dw_bounds *given, dw_variant *variant, dw_choice *choice,
                           dw_error *error) {
  dw_bounds bounds;
  question asked;
  if (!ctx || !shape || !given || !variant)
    return dw__no_argument(error, !ctx ? "ctx" : !shape ? "shape" : !given ? "bounds" : "variant");
  dw_status status = dw__read_sized("bounds", given, &bounds, sizeof bounds, error);
  if (status) return status;
  dw__driver *driver = atomic_load_explicit(&ctx->driver, memory_order_acquire);
  if (!driver && !dw__ctx_is_frozen(ctx) && dw__ctx_driver(ctx, &driver, NULL)) driver = NULL;
  void *cu_context = driver ? dw__driver_context(driver) : NULL;
  if (driver && !cu_context && dw__driver_current(driver, &(dw__device){0}, &cu_context, NULL)) cu_context = NULL;
  put_question(shape, NULL, &bounds, cu_context, &asked);
  tuned_answer *answer = dw__lookup_find(&ctx->tuned, &asked, sizeof asked);
  if (!answer) status = answer_anew(ctx, shape, &bounds, &asked, cu_context != NULL, &answer, error);
  if (status) return status;
  *variant = answer->variant;
  if (choice) {
    const size_t size = choice->size && choice->size < sizeof *choice ? choice->size : sizeof *choice;
    memcpy(choice, &answer->choice, size);
    choice->size = size;
  }
  return DW_OK;
}

dw_status dw_plan_digest(dw_ctx *ctx, char text[65], dw_error *error) {
  dw__driver *driver;
  dw__device device;
  dw__choices *plan, here = {0};
  if (!ctx || !text) return dw__no_argument(error, ctx ? "text" : "ctx");
  dw_status status = dw__ctx_driver(ctx, &driver, error);
  if (!status) status = dw__driver_current(driver, &device, NULL, error);
  if (!status) status = load_plan(ctx, &plan, error);
  if (status) return status;
  // What other GPUs' choices lend to this one is their architecture's.
  for (size_t i = 0; i < plan->count && !status; i++) {
    const dw__choices one = {&plan->list[i], 1, 1};
    if (plan->list[i].board.cc == device.cc && !dw__choices_add(&here, &one, true)) status = no_memory(error);
  }
  if (!status) {
    const dw__digest digest = dw__choices_digest(&here);
    dw__hex(&digest, text);
  }
  dw__choices_free(&here);
  return status;
}

dw_status dw_freeze(dw_ctx *ctx, dw_error *error) {
  if (!ctx) return dw__no_argument(error, "ctx");
  atomic_store(&ctx->frozen, true);
  dw__cache_freeze(ctx->cache);
  return DW_OK;
}

dw_status dw_miss_list(dw_ctx *ctx, char **text, size_t *size, dw_error *error) {
  if (text) *text = NULL;
  if (!ctx || !text) return dw__no_argument(error, ctx ? "text" : "ctx");
  dw__buf list = {0};
  if (!dw__misses_print(ctx->misses, &list)) {
    dw__buf_free(&list);
    return no_memory(error);
  }
  *text = list.data;
  if (size) *size = list.size;
  return DW_OK;
}

void dw_kernel_variant(const dw_kernel *kernel, dw_variant *variant) {
  if (variant) *variant = kernel ? kernel->image->variant : (dw_variant){0};
}

size_t dw_workspace_size(const dw_kernel *kernel) { return kernel ? kernel->plan.workspace_bytes : 0; }

// ---- kernel -> launch: host arithmetic and driver launches, nothing else --------------------------------------

static dw_status read_args(const dw_kernel *kernel, const dw_args *given, dw_args *args, dw_error *error) {
  if (!kernel || !given) return dw__no_argument(error, kernel ? "args" : "kernel");
  dw_status status = dw__read_sized("args", given, args, sizeof *args, error);
  args->size = sizeof *args;
  if (!status) status = dw__args_check(&kernel->image->shape, &kernel->bounds, &kernel->plan, args, error);
  return status;
}

dw_status dw_args_check(const dw_kernel *kernel, const dw_args *given, dw_error *error) {
  dw_args args;
  return read_args(kernel, given, &args, error);
}

static dw_status launch_one(const dw_kernel *kernel, const dw__launch *launch, dw_params *params, void *stream,
                            dw_error *error) {
  void *list[] = {params};
  return dw__driver_launch(kernel->driver, launch, list, stream, error);
}

// Of a checked kernel, before whatever else reads through the arguments. `out`: clear the rows of requests with a fault.
static dw_status launch_check(const dw_kernel *kernel, const dw_args *args, bool out, void *stream, dw_error *error) {
  if (!kernel->check.function) return DW_OK;
  dw_params params;
  dw__plan_check_params(&kernel->image->shape, &kernel->image->variant, &kernel->bounds, &kernel->plan, args, &params);
  if (!out) params.out = NULL;
  return launch_one(kernel, &kernel->check, &params, stream, error);
}

dw_status dw_launch(const dw_kernel *kernel, const dw_args *given, void *stream, dw_error *error) {
  dw_args args;
  dw_status status = read_args(kernel, given, &args, error);
  if (status) return status;
  dw_params params, pack;
  dw__plan_params(&kernel->image->shape, &kernel->image->variant, &kernel->bounds, &kernel->plan, &args, &params, &pack);
  status = launch_check(kernel, &args, true, stream, error);
  // The mask moved into the workspace: it has to be packed there first.
  if (!status && params.mask != args.mask) status = launch_one(kernel, &kernel->pack, &pack, stream, error);
  dw__launch first = kernel->launches[0];
  first.dependent = params.dependent;  // the call's choice, not the plan's
  if (!status) status = launch_one(kernel, &first, &params, stream, error);
  for (int i = 1; i < kernel->plan.count && !status; i++) {
    status = launch_one(kernel, &kernel->launches[i], &params, stream, error);
  }
  return status;
}

dw_status dw_pack_mask(const dw_kernel *kernel, const dw_args *given, uint32_t *bits, int64_t bits_row_stride, void *stream,
                       dw_error *error) {
  dw_args args;
  dw_status status = read_args(kernel, given, &args, error);
  if (status) return status;
  if (!bits) return dw__no_argument(error, "bits");
  if (!kernel->pack.function) {
    return dw__fail(error, DW_NOT_APPLICABLE, "variant", "one that reads every kind of mask", "one that reads bits",
                    "this kernel needs no packed mask");
  }
  dw_params params;
  const dw_shape *shape = &kernel->image->shape;
  dw__plan_params(shape, &kernel->image->variant, &kernel->bounds, &kernel->plan, &args, &params, NULL);
  params.mask = args.mask;  // the caller's, wherever dw_launch would have packed it
  if (args.qo_indptr && args.mask_kind != DW_MASK_BITS) params.width = shape->width;
  params.out = bits;
  params.out_row_stride = bits_row_stride ? bits_row_stride : (params.width + 31) / 32;
  status = launch_check(kernel, &args, false, stream, error);
  return status ? status : launch_one(kernel, &kernel->pack, &params, stream, error);
}
