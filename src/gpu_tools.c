// See gpu_tools.h.
#include "gpu_tools.h"

#include <stdio.h>
#include <string.h>

#include "flow.h"
#include "plan.h"

typedef struct listed {
  const char *name;
  unsigned threads;
} listed;

static const listed entries[DW__TOOLS] = {
  [DW__TOOL_FILL] = {"dw_tool_fill", 256},
  [DW__TOOL_ORACLE] = {"dw_oracle64", DW_T_THREADS},
  [DW__TOOL_PLAIN] = {"dw_plain", DW_T_THREADS},
  [DW__TOOL_MERGE] = {"dw_oracle64_merge", DW_T_THREADS},
  [DW__TOOL_DEPTH] = {"dw_oracle64_depth", DW_T_THREADS},
  [DW__TOOL_COMPARE] = {"dw_tool_compare", DW_T_THREADS},
  [DW__TOOL_OUTSIDE] = {"dw_tool_outside", 256},
  [DW__TOOL_DIFFER] = {"dw_tool_differ", 256},
  [DW__TOOL_READ] = {"dw_tool_read", 512},
  [DW__TOOL_MMA] = {"dw_tool_mma", 512},
  [DW__TOOL_SPIN] = {"dw_tool_spin", 32},
  [DW__TOOL_COPY] = {"dw_tool_copy", 512},
  [DW__TOOL_GATHER] = {"dw_tool_gather", 512},
  [DW__TOOL_COPY_ROWS] = {"dw_tool_copy_rows", 128},
};

// The two cubins: which tools are in which.
static const char *const parts[] = {"verify", "peak"};
static int part_of(int tool) { return tool >= DW__TOOL_READ; }

struct dw__gpu_tools {
  dw__gpu *gpu;
  dw__module *modules[2];
  void *functions[DW__TOOLS];
  void *sink;  // a word nobody reads
};

// ---- source -> cubin, through the cache -----------------------------------------------------------------------

dw_status dw__gpu_tools_source(dw_ctx *ctx, const char *part, int head_dim_qk, int head_dim_v, char **source, size_t *size,
                               dw_error *error) {
  dw__gen *gen;
  const dw__gen_param params[] = {{"part", part, 0}, {"head_dim_qk", NULL, head_dim_qk}, {"head_dim_v", NULL, head_dim_v}};
  dw_status status = dw__ctx_gen(ctx, &gen, error);
  return status ? status : dw__gen_render(gen, "gpu_tools", params, DW__COUNT(params), source, size, error);
}

typedef struct wanted {
  int part, head_dim_qk, head_dim_v;
  char name[64], target[16];
  dw__digest key;
} wanted;

static dw_status want(dw_ctx *ctx, int part, int qk, int v, int target, wanted *w, dw_error *error) {
  dw__gen *gen;
  *w = (wanted){.part = part, .head_dim_qk = qk, .head_dim_v = v};
  snprintf(w->name, sizeof w->name, "gpu_tools:part=%s,qk=%d,v=%d", parts[part], qk, v);
  snprintf(w->target, sizeof w->target, "sm_%d", target);
  dw__request_key_input input = {w->name, "", w->target, {{0}}, DW__ABI};
  dw_status status = dw__ctx_gen(ctx, &gen, error);
  if (!status) status = dw__gen_digest(gen, &input.templates, error);
  if (!status) w->key = dw__request_key(&input);
  return status;
}

static dw_status publish(dw_ctx *ctx, const wanted *w, const dw_cubin *cubin, const dw__digest *build, dw__entry *entry,
                         dw_error *error) {
  *entry = (dw__entry){.request = w->key, .build = *build, .cubin = (void *)cubin->data, .cubin_size = cubin->size};
  dw_status status = dw__metadata_print(cubin, w->name, "", &entry->metadata, error);
  return status ? status : dw__cache_publish(dw__ctx_cache(ctx), entry, error);
}

static dw_status compile(dw_ctx *ctx, const wanted *w, const char *source, size_t size, dw__entry *entry, dw_error *error) {
  dw__nvrtc *nvrtc;
  dw__options options;
  dw_cubin cubin = {0};
  void *data = NULL;
  char *log = NULL;
  int arch;
  bool specific;
  dw_status status = dw__ctx_nvrtc(ctx, &nvrtc, error);
  if (status) return status;
  dw__compile_options(w->target, &options);
  dw__digest build = dw__build_key(&(dw__build_key_input){
    .source = source,
    .source_size = size,
    .options = options.list,
    .option_count = options.count,
    .compile_target = w->target,
    .compiler = dw__nvrtc_version(nvrtc),
    .compiler_build = dw__nvrtc_build_id(nvrtc),
  });
  double start = dw__seconds();
  status = dw__nvrtc_compile(nvrtc, "gpu_tools.cu", source, &options, &data, &cubin.size, &log, error);
  cubin.compile_ms = (dw__seconds() - start) * 1e3;
  cubin.data = data;
  snprintf(cubin.target, sizeof cubin.target, "%s", w->target);
  if (!status) snprintf(cubin.compiler, sizeof cubin.compiler, "%s", dw__nvrtc_version(nvrtc));
  if (!status) status = dw__cubin_read(data, cubin.size, &arch, &specific, cubin.kernels, &cubin.kernel_count, error);
  if (!status && log) dw__cubin_read_log(log, cubin.kernels, cubin.kernel_count);
  if (!status) status = publish(ctx, w, &cubin, &build, entry, error);
  if (status) {
    dw__release(entry->metadata);
    dw__release(data);
  }
  dw__release(log);
  return status;
}

// Free the entry with dw__entry_free.
static dw_status get_cubin(dw_ctx *ctx, const wanted *w, dw__entry *entry, dw_error *error) {
  char *source;
  size_t size;
  dw_status status = dw__cache_find(dw__ctx_cache(ctx), &w->key, entry, NULL);
  if (status != DW_NOT_FOUND) return status ? dw__fail(error, status, "cache", "", "", NULL) : DW_OK;
  status = dw__gpu_tools_source(ctx, parts[w->part], w->head_dim_qk, w->head_dim_v, &source, &size, error);
  if (status) return status;
  status = compile(ctx, w, source, size, entry, error);
  dw__release(source);
  return status;
}

dw_status dw__gpu_tools_build(dw_ctx *ctx, int head_dim_qk, int head_dim_v, int target, dw_error *error) {
  dw_status status = DW_OK;
  for (int part = 0; part < 2 && !status; part++) {
    wanted w;
    dw__entry entry = {0};
    status = want(ctx, part, head_dim_qk, head_dim_v, target, &w, error);
    if (!status) status = get_cubin(ctx, &w, &entry, error);
    if (!status) dw__entry_free(&entry);
  }
  return status;
}

// ---- cubin -> functions ---------------------------------------------------------------------------------------

static dw_status load_part(dw_ctx *ctx, dw__gpu_tools *tools, int part, int qk, int v, dw_error *error) {
  wanted w;
  dw__entry entry = {0};
  dw_status status = want(ctx, part, qk, v, dw__gpu_device(tools->gpu)->cc, &w, error);
  if (!status) status = get_cubin(ctx, &w, &entry, error);
  if (status) return status;
  status = dw__module_load(dw__gpu_driver(tools->gpu), entry.cubin, entry.cubin_size, &tools->modules[part], error);
  dw__entry_free(&entry);
  for (int i = 0; i < DW__TOOLS && !status; i++)
    if (part_of(i) == part) status = dw__module_function(tools->modules[part], entries[i].name, 0, &tools->functions[i], error);
  return status;
}

dw_status dw__gpu_tools_open(dw_ctx *ctx, dw__gpu *gpu, int head_dim_qk, int head_dim_v, dw__gpu_tools **result,
                             dw_error *error) {
  *result = NULL;
  dw__gpu_tools *tools = dw__calloc(1, sizeof *tools);
  if (!tools) return dw__fail(error, DW_OUT_OF_MEMORY, "gpu_tools", "", "", NULL);
  tools->gpu = gpu;
  dw_status status = dw__gpu_alloc(gpu, 256, &tools->sink, error);
  for (int part = 0; part < 2 && !status; part++) status = load_part(ctx, tools, part, head_dim_qk, head_dim_v, error);
  if (status) dw__gpu_tools_close(tools);
  else *result = tools;
  return status;
}

void dw__gpu_tools_close(dw__gpu_tools *tools) {
  if (!tools) return;
  for (int part = 0; part < 2; part++) dw__module_unload(tools->modules[part]);
  dw__gpu_free(tools->gpu, tools->sink);
  dw__release(tools);
}

void *dw__gpu_tools_sink(const dw__gpu_tools *tools) { return tools->sink; }
dw__gpu *dw__gpu_tools_gpu(const dw__gpu_tools *tools) { return tools->gpu; }

dw__launch dw__gpu_tool_launch(const dw__gpu_tools *tools, dw__tool tool, unsigned x, unsigned y, unsigned z) {
  return (dw__launch){
    .function = tools->functions[tool], .grid = {x, y, z}, .block = {entries[tool].threads, 1, 1}, .cluster_x = 1};
}

dw_status dw__gpu_tool_run(const dw__gpu_tools *tools, dw__tool tool, unsigned x, unsigned y, unsigned z, void *params,
                           dw_error *error) {
  dw__launch launch = dw__gpu_tool_launch(tools, tool, x, y, z);
  return dw__gpu_launch(tools->gpu, &launch, params, error);
}

// ---- ceilings -------------------------------------------------------------------------------------------------

// The best of some replays of one launch.
static dw_status best_time(const dw__gpu_tools *tools, dw__tool tool, unsigned blocks, dw_tool_peak_params *params, double *us,
                           dw_error *error) {
  dw__graph *graph = NULL;
  void *side;
  dw__launch launch = {
    .function = tools->functions[tool], .grid = {blocks, 1, 1}, .block = {entries[tool].threads, 1, 1}, .cluster_x = 1};
  void *list[] = {params};
  *us = 0;
  dw_status status = dw__gpu_capture_begin(tools->gpu, DW__CAPTURE_RELAXED, &side, error);
  if (status) return status;
  status = dw__driver_launch(dw__gpu_driver(tools->gpu), &launch, list, side, error);
  if (status) dw__gpu_capture_drop(tools->gpu);
  else status = dw__gpu_capture_end(tools->gpu, &graph, error);
  for (int i = 0; i < 8 && !status; i++) {
    double time;
    status = dw__gpu_time(tools->gpu, graph, &time, error);
    if (i > 0 && (*us == 0 || time < *us)) *us = time;
  }
  dw__graph_free(tools->gpu, graph);
  return status;
}

static dw_status read_rate(const dw__gpu_tools *tools, double *gbs, dw_error *error) {
  static const unsigned per_sm[] = {1, 2, 3, 4};
  unsigned sms = (unsigned)dw__gpu_device(tools->gpu)->sm_count;
  size_t bytes = (size_t)4 << 30, room = dw__gpu_free_bytes(tools->gpu);
  if (room && bytes > room / 2) bytes = room / 2 & ~(size_t)4095;
  dw_tool_peak_params params = {.sink = tools->sink, .bytes = (long long)bytes};
  void *data;
  *gbs = 0;
  dw_status status = dw__gpu_alloc(tools->gpu, bytes, &data, error);
  if (status) return status;
  params.data = data;
  status = dw__gpu_fill_word(tools->gpu, data, 0x3F813F82, bytes, error);
  for (size_t i = 0; i < DW__COUNT(per_sm) && !status; i++) {
    double us;
    status = best_time(tools, DW__TOOL_READ, sms * per_sm[i], &params, &us, error);
    if (!status && (double)bytes / us * 1e-3 > *gbs) *gbs = (double)bytes / us * 1e-3;
  }
  dw__gpu_free(tools->gpu, data);
  return status;
}

// 16 warps an SM, eight products a step of 2 x 16 x 8 x 16 operations.
static dw_status mma_rate(const dw__gpu_tools *tools, double *tflops, dw_error *error) {
  unsigned sms = (unsigned)dw__gpu_device(tools->gpu)->sm_count;
  dw_tool_peak_params params = {.sink = tools->sink, .steps = 100000};
  double us;
  dw_status status = best_time(tools, DW__TOOL_MMA, sms, &params, &us, error);
  if (!status) *tflops = (double)sms * 16 * 8 * (double)params.steps * 4096 / us * 1e-6;
  return status;
}

dw_status dw__gpu_clock_mhz(const dw__gpu_tools *tools, double *mhz, dw_error *error) {
  dw_tool_peak_params params = {.sink = tools->sink, .steps = 2000000};
  double us;
  dw_status status = best_time(tools, DW__TOOL_SPIN, 1, &params, &us, error);
  if (!status) *mhz = (double)params.steps / us;
  return status;
}

dw_status dw__gpu_ceilings(const dw__gpu_tools *tools, dw__ceilings *found, dw_error *error) {
  *found = (dw__ceilings){0};
  dw_status status = read_rate(tools, &found->read_gbs, error);
  if (!status) status = mma_rate(tools, &found->mma_tflops, error);
  if (!status) status = dw__gpu_clock_mhz(tools, &found->sm_mhz, error);
  return status;
}
