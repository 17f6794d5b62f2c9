// Bundles in front of a context's cache: those that the host adds, and those that $DRAFTWOOD_BUNDLES names.
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "flow.h"
#include "plan.h"

// ---- does it fit this library? --------------------------------------------------------------------------------

dw_status dw__bundle_facts_here(dw_ctx *ctx, dw__bundle_facts *facts, dw_error *error) {
  dw__gen *gen;
  *facts = (dw__bundle_facts){.abi = DW__ABI};
  snprintf(facts->version, sizeof facts->version, "%s", dw_version());
  dw_status status = dw__ctx_gen(ctx, &gen, error);
  return status ? status : dw__gen_digest(gen, &facts->templates, error);
}

static void facts_text(const dw__bundle_facts *facts, char text[128]) {
  char templates[65];
  dw__hex(&facts->templates, templates);
  snprintf(text, 128, "draftwood %s (templates %.12s, parameters %d)", facts->version, templates, facts->abi);
}

// Keys are made of templates and layout: with others nothing would ever be found, and nobody would be told.
static dw_status check_facts(dw_ctx *ctx, const dw__bundle *bundle, dw_error *error) {
  dw__bundle_facts here;
  const dw__bundle_facts *there = dw__bundle_facts_of(bundle);
  dw_status status = dw__bundle_facts_here(ctx, &here, error);
  if (status || (here.abi == there->abi && !memcmp(&here.templates, &there->templates, sizeof here.templates))) return status;
  char found[128], allowed[128];
  facts_text(there, found);
  facts_text(&here, allowed);
  return dw__fail(error, DW_BAD_BUNDLE, "bundle", found, allowed, "another version made it: %s", dw__bundle_name(bundle));
}

static dw_status check_open(dw_ctx *ctx, dw_error *error) {
  if (!dw__ctx_is_frozen(ctx)) return DW_OK;
  return dw__fail(error, DW_FROZEN, "bundle", "", "bundles that are added before dw_freeze", "the context is frozen");
}

static dw_status add(dw_ctx *ctx, dw__bundle *bundle, dw_error *error) {
  dw_status status = check_facts(ctx, bundle, error);
  if (!status) return dw__cache_add_bundle(dw__ctx_cache(ctx), bundle, error);
  dw__bundle_close(bundle);
  return status;
}

dw_status dw_bundle_add_file(dw_ctx *ctx, const char *path, const unsigned char *public_key, dw_error *error) {
  if (!ctx || !path) return dw__no_argument(error, ctx ? "path" : "ctx");
  dw__bundle *bundle;
  dw_status status = check_open(ctx, error);
  if (!status) status = dw__bundle_open_file(path, public_key, &bundle, error);
  return status ? status : add(ctx, bundle, error);
}

dw_status dw_bundle_add_memory(dw_ctx *ctx, const void *data, size_t size, const unsigned char *public_key, dw_error *error) {
  if (!ctx || !data) return dw__no_argument(error, ctx ? "data" : "ctx");
  dw__bundle *bundle;
  dw_status status = check_open(ctx, error);
  if (!status) status = dw__bundle_open_memory(data, size, public_key, &bundle, error);
  return status ? status : add(ctx, bundle, error);
}

// ---- $DRAFTWOOD_BUNDLES ---------------------------------------------------------------------------------------

static void leave_out(dw_ctx *ctx, const char *path, const char *why) {
  char text[900];
  snprintf(text, sizeof text, "DRAFTWOOD_BUNDLES: %.200s is left out: %s", path, why);
  dw__ctx_warn(ctx, text);
}

static void add_or_warn(dw_ctx *ctx, const char *path) {
  dw_error error = {0};
  if (dw_bundle_add_file(ctx, path, NULL, &error)) leave_out(ctx, path, error.message);
  dw_error_clear(&error);
}

static int is_bundle(const struct dirent *file) {
  size_t size = strlen(file->d_name);
  return size > 4 && !strcmp(file->d_name + size - 4, ".dwb");
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static void add_folder(dw_ctx *ctx, const char *folder) {
  struct dirent **files;
  int count = scandir(folder, &files, is_bundle, by_name);
  if (count <= 0) leave_out(ctx, folder, count ? strerror(errno) : "it holds no file *.dwb");
  for (int i = 0; i < count; i++) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", folder, files[i]->d_name) < (int)sizeof path) add_or_warn(ctx, path);
    free(files[i]);
  }
  if (count >= 0) free(files);
}

// Files, or folders for the *.dwb in them by name, parted by colons. One that cannot be used is a warning: it is a fault of the
// site, and the program it concerns may know nothing of bundles.
void dw__bundles_from_environment(dw_ctx *ctx) {
  const char *list = secure_getenv("DRAFTWOOD_BUNDLES");
  while (list && *list) {
    char path[4096];
    struct stat status;
    size_t size = strcspn(list, ":");
    if (size >= sizeof path) leave_out(ctx, list, "the name is too long");
    if (size && size < sizeof path) {
      memcpy(path, list, size);
      path[size] = 0;
      if (stat(path, &status) || !S_ISDIR(status.st_mode)) add_or_warn(ctx, path);
      else if (status.st_mode & S_IWOTH) leave_out(ctx, path, "everybody can put files there, and a cubin is code");
      else add_folder(ctx, path);
    }
    list += size + (list[size] == ':');
  }
}
