// draftwood doctor: what was found on this machine, and what to do about what was not.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "cli.h"
#include "flow.h"
#include "host_run.h"

// A finding: name, ok, found, advice, and whatever else a section has to tell.
static json_t *finding(const char *name, bool ok, const char *found, const char *advice) {
  json_t *object = json_pack("{s:s, s:b, s:s}", "name", name, "ok", (int)ok, "found", found);
  if (!ok) json_object_set_new(object, "advice", json_string(advice));
  return object;
}

static json_t *not_found(const char *name, dw_error *error, const char *advice) {
  json_t *object = finding(name, false, error->message, advice);
  if (error->log && error->log[0]) json_object_set_new(object, "log", json_string(error->log));
  dw_error_clear(error);
  return object;
}

// ---- compilers ------------------------------------------------------------------------------------------------

static json_t *find_nvrtc(dw_ctx *ctx) {
  static const char *const targets[] = {"sm_80",  "sm_86",  "sm_89",   "sm_90",   "sm_90a", "sm_100",  "sm_100f", "sm_103",
                                        "sm_110", "sm_120", "sm_120f", "sm_120a", "sm_121", "sm_121f", "sm_121a"};
  dw_error error = {0};
  dw__nvrtc *nvrtc;
  if (dw__ctx_nvrtc(ctx, &nvrtc, &error)) {
    return not_found("NVRTC", &error,
                     "install NVRTC 12.9 or newer (pip install nvidia-cuda-nvrtc, or a CUDA toolkit), or set DRAFTWOOD_NVRTC");
  }
  char text[512];
  snprintf(text, sizeof text, "%s, %s", dw__nvrtc_version(nvrtc), dw__nvrtc_path(nvrtc));
  json_t *object = finding("NVRTC", true, text, ""), *list = json_array();
  for (size_t i = 0; i < DW__COUNT(targets); i++)
    if (dw__nvrtc_has_target(nvrtc, targets[i])) json_array_append_new(list, json_string(targets[i]));
  json_object_set_new(object, "version", json_string(dw__nvrtc_version(nvrtc)));
  json_object_set_new(object, "path", json_string(dw__nvrtc_path(nvrtc)));
  json_object_set_new(object, "build_id", json_string(dw__nvrtc_build_id(nvrtc)));
  json_object_set_new(object, "targets", list);
  return object;
}

static json_t *find_templates(dw_ctx *ctx) {
  dw_error error = {0};
  dw__gen *gen;
  dw__digest digest;
  char hex[65], text[512];
  const char *directory = getenv("DRAFTWOOD_TEMPLATES");
  dw_status status = dw__ctx_gen(ctx, &gen, &error);
  if (!status) status = dw__gen_digest(gen, &digest, &error);
  if (!status) status = dw__gen_load(gen, &error);
  if (status) return not_found("generator", &error, "install Lua 5.4 (liblua5.4-0); check DRAFTWOOD_TEMPLATES if it is set");
  dw__hex(&digest, hex);
  snprintf(text, sizeof text, "Lua 5.4, templates %.12s (%.400s)", hex, directory && *directory ? directory : "built in");
  json_t *object = finding("generator", true, text, "");
  json_object_set_new(object, "templates", json_string(hex));
  return object;
}

static json_t *find_host_compiler(void) {
  const char *compiler = dw__host_compiler();
  return finding("C++ compiler", compiler != NULL, compiler ? compiler : "none",
                 "install g++ or clang++, or set CXX; only --verify host and verify --device host need it");
}

// ---- GPUs -----------------------------------------------------------------------------------------------------

static json_t *gpu_json(const dw__device *device) {
  return json_pack("{s:i, s:s, s:i, s:i, s:i, s:I, s:I}", "ordinal", device->ordinal, "name", device->name,
                   "compute_capability", device->cc, "sm_count", device->sm_count, "shared_optin", device->shared_optin,
                   "l2_bytes", (json_int_t)device->l2_bytes, "memory_bytes", (json_int_t)device->memory_bytes);
}

static json_t *find_driver(dw_ctx *ctx) {
  static const char advice[] = "install an NVIDIA driver; kernels can be generated and built without one";
  dw_error error = {0};
  dw__driver *driver;
  dw__device device = {0};
  int count = 0;
  dw_status status = dw__ctx_driver(ctx, &driver, &error);
  if (!status) status = dw__driver_device_count(driver, &count, &error);
  if (status) return not_found("CUDA driver", &error, advice);
  json_t *gpus = json_array();
  for (int i = 0; i < count; i++) {
    if (dw__driver_device(driver, i, &device, &error)) dw_error_clear(&error);
    else json_array_append_new(gpus, gpu_json(&device));
  }
  char text[64];
  snprintf(text, sizeof text, "CUDA %d.%d, %d GPU%s", device.driver_version / 1000, device.driver_version % 1000 / 10, count,
           count == 1 ? "" : "s");
  json_t *object = finding("CUDA driver", count > 0, count ? text : "no GPU", advice);
  json_object_set_new(object, "gpus", gpus);
  return object;
}

// ---- cache ----------------------------------------------------------------------------------------------------

static const char *filesystem_name(const char *path) {
  static const struct {
    unsigned long magic;
    const char *name;
  } known[] = {{0xEF53, "ext4"},        {0x58465342, "xfs"},  {0x9123683E, "btrfs"}, {0x01021994, "tmpfs"},
               {0x794C7630, "overlay"}, {0x2FC12FC1, "zfs"},  {0x6969, "nfs"},       {0x0BD00BD0, "lustre"},
               {0x47504653, "gpfs"},    {0xFF534D42, "cifs"}, {0xFE534D42, "smb2"},  {0x00C36400, "ceph"},
               {0x65735546, "fuse"},    {0x01021997, "9p"},   {0xF2F52010, "f2fs"}};
  struct statfs info;
  if (statfs(path, &info)) return "unknown";
  for (size_t i = 0; i < DW__COUNT(known); i++)
    if ((unsigned long)info.f_type == known[i].magic) return known[i].name;
  return "another";
}

// The cache creates its directory when it first writes; until then the nearest one above tells the filesystem.
static void nearest_there(char *path) {
  struct stat info;
  while (stat(path, &info) && strrchr(path, '/') != path && strrchr(path, '/')) *strrchr(path, '/') = 0;
}

static json_t *find_cache(dw_ctx *ctx) {
  const char *why = NULL, *directory = dw__cache_directory(dw__ctx_cache(ctx), &why);
  if (!directory) {
    return finding("cache", false, why ? why : "memory only",
                   "set DRAFTWOOD_CACHE_DIR to a directory that only you can write; until then each process compiles");
  }
  char path[4096], text[4400];
  struct stat info;
  snprintf(path, sizeof path, "%s", directory);
  bool there = stat(path, &info) == 0;
  nearest_there(path);
  const char *filesystem = filesystem_name(path);
  if (there) snprintf(text, sizeof text, "%s (%s, mode %04o)", directory, filesystem, (unsigned)info.st_mode & 07777u);
  else snprintf(text, sizeof text, "%s (%s, made when first needed)", directory, filesystem);
  json_t *object = finding("cache", true, text, "");
  json_object_set_new(object, "directory", json_string(directory));
  json_object_set_new(object, "filesystem", json_string(filesystem));
  return object;
}

// ---- output ---------------------------------------------------------------------------------------------------

static const char *text_of(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}

static void print_targets(const json_t *targets) {
  size_t i;
  json_t *target;
  if (!json_array_size(targets)) return;
  printf("%-14s targets:", "");
  json_array_foreach(targets, i, target) printf(" %s", json_string_value(target));
  putchar('\n');
}

static void print_gpus(const json_t *gpus) {
  size_t i;
  json_t *gpu;
  json_array_foreach(gpus, i, gpu) {
    printf("%-14s %lld: %s, sm_%lld, %lld multiprocessors, %lld bytes of shared memory a block\n", "",
           (long long)json_integer_value(json_object_get(gpu, "ordinal")), text_of(gpu, "name"),
           (long long)json_integer_value(json_object_get(gpu, "compute_capability")),
           (long long)json_integer_value(json_object_get(gpu, "sm_count")),
           (long long)json_integer_value(json_object_get(gpu, "shared_optin")));
  }
}

static void print_finding(const json_t *found) {
  printf("%-14s %s\n", text_of(found, "name"), text_of(found, "found"));
  print_targets(json_object_get(found, "targets"));
  print_gpus(json_object_get(found, "gpus"));
  if (json_is_false(json_object_get(found, "ok"))) printf("%-14s -> %s\n", "", text_of(found, "advice"));
}

// Without these draftwood cannot do what it is for; a driver and a C++ compiler are for some machines only.
static bool is_needed(const json_t *found) {
  static const char *const needed[] = {"NVRTC", "generator", "cache"};
  for (size_t i = 0; i < DW__COUNT(needed); i++)
    if (strcmp(text_of(found, "name"), needed[i]) == 0) return true;
  return false;
}

// What a context says when it is made, most of it known better from its parts. Bundles that are left out are not.
static void note(void *user, dw_log_level level, const char *message) {
  if (level == DW_LOG_WARNING && strncmp(message, "DRAFTWOOD_BUNDLES", strlen("DRAFTWOOD_BUNDLES")) == 0)
    json_array_append_new(user, finding("bundle", false, message, "build it anew with this version, or take it from the list"));
}

// In the order in which they are asked.
static void find_layers(dw_ctx *ctx, json_t *list) {
  dw__layer_place place;
  const char *name;
  for (size_t i = 0; (name = dw__cache_layer_name(dw__ctx_cache(ctx), i, &place)); i++)
    json_array_append_new(list, finding(place == DW__LAYER_BUNDLE ? "bundle" : "system cache", true, name, ""));
}

int cli_doctor(const cli_command *self, int argc, char **argv) {
  bool json = false;
  const cli_option options[] = {{"json", NULL, CLI_FLAG, &json, 0, 0, "print JSON"}};
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc != 1) return cli_usage("doctor: found \"%s\", allowed no argument", argv[1]);
  dw_error error = {0};
  dw_ctx *ctx;
  json_t *bundles = json_array();
  if (dw_ctx_create(&(dw_options){.size = sizeof(dw_options), .log = note, .log_user = bundles}, &ctx, &error)) {
    json_decref(bundles);
    return cli_error(&error);
  }
  json_t *list = json_pack("[o, o, o, o, o]", find_templates(ctx), find_nvrtc(ctx), find_host_compiler(), find_driver(ctx),
                           find_cache(ctx)),
         *found;
  find_layers(ctx, bundles);
  json_array_extend(list, bundles);
  json_decref(bundles);
  dw_ctx_destroy(ctx);
  size_t i;
  code = CLI_DONE;
  if (!json) printf("%-14s %s\n", "draftwood", dw_version());
  json_array_foreach(list, i, found) {
    if (!json) print_finding(found);
    if (is_needed(found) && json_is_false(json_object_get(found, "ok"))) code = CLI_WRONG;
  }
  if (json) cli_print_json(list);
  json_decref(list);
  return code;
}
