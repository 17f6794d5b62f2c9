// draftwood bundle verify: is every entry what it says it is? No GPU is needed.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_bundle.h"
#include "flow.h"

static dw_status wrong(dw_error *error, const char *field, const char *found, const char *allowed, const char *why) {
  return dw__fail(error, DW_BAD_CUBIN, field, found, allowed, "%s", why);
}

static dw_status wrong_int(dw_error *error, const char *kernel, const char *field, int found, int noted) {
  char text[96], other[32];
  snprintf(text, sizeof text, "%s of %.60s", field, kernel);
  snprintf(other, sizeof other, "%d as noted", noted);
  return dw__fail_int(error, DW_BAD_CUBIN, text, found, other, "the machine code says so");
}

// ---- the request ----------------------------------------------------------------------------------------------

// A request key is a digest of shape, variant, target, templates and layout, all of which are here.
static dw_status check_request(const dw__bundle *bundle, const dw__bundle_item *item, const json_t *metadata, dw_error *error) {
  const dw__bundle_facts *facts = dw__bundle_facts_of(bundle);
  dw__request_key_input input = {.shape = cli_bundle_text(metadata, "shape"),
                                 .variant = cli_bundle_text(metadata, "variant"),
                                 .compile_target = item->target,
                                 .templates = facts->templates,
                                 .abi = facts->abi};
  dw__digest key = dw__request_key(&input);
  char found[65], allowed[65];
  if (!memcmp(&key, &item->request, sizeof key)) return DW_OK;
  dw__hex(&item->request, found);
  dw__hex(&key, allowed);
  return wrong(error, "request key", found, allowed, "it is not that of the entry's shape and variant");
}

// ---- the cubin ------------------------------------------------------------------------------------------------

static dw_status check_target(const char *target, const char *noted, int arch, bool specific, dw_error *error) {
  char found[32];
  const char *digits = strncmp(target, "sm_", 3) ? "" : target + 3;
  char suffix = target[strlen(target) - 1];
  snprintf(found, sizeof found, "sm_%d%s", arch, specific ? "a" : "");
  if (strcmp(target, noted)) return wrong(error, "target", noted, target, "index and metadata differ");
  if (strtol(digits, NULL, 10) == arch && specific == (suffix == 'a')) return DW_OK;
  return wrong(error, "target", found, target, "the machine code is for another GPU");
}

static const dw_resources *named(const dw_resources *kernels, int count, const char *name) {
  for (int i = 0; i < count; i++)
    if (!strcmp(kernels[i].name, name)) return &kernels[i];
  return NULL;
}

// What the machine code says itself; spills are known from the compiler's log alone.
static dw_status check_kernel(const dw_resources *noted, const dw_resources *found, dw_error *error) {
#define SAME(field) \
  if (noted->field != found->field) return wrong_int(error, noted->name, #field, found->field, noted->field);
  SAME(registers)
  SAME(stack_bytes)
  SAME(shared_static)
  SAME(barriers)
  SAME(max_threads)
  SAME(uses_setmaxnreg)
#undef SAME
  return DW_OK;
}

static dw_status check_cubin(const dw__bundle_item *item, const dw__entry *entry, dw_error *error) {
  dw_cubin noted = {0};
  dw_resources kernels[DW_KERNELS_MAX];
  int arch, count = 0;
  bool specific;
  char symbol[64];
  dw_status status = dw__metadata_read(entry->metadata, &noted, error);
  if (!status) status = dw__cubin_read(entry->cubin, entry->cubin_size, &arch, &specific, kernels, &count, error);
  if (!status) status = check_target(item->target, noted.target, arch, specific, error);
  if (!status && dw__cubin_calls_driver(entry->cubin, entry->cubin_size, symbol))
    status = wrong(error, "cubin", symbol, "no __cuda_syscall_* symbol", "the kernel calls the driver's runtime");
  if (!status && count != noted.kernel_count) status = wrong_int(error, "the cubin", "kernels", count, noted.kernel_count);
  for (int i = 0; i < noted.kernel_count && !status; i++) {
    const dw_resources *found = named(kernels, count, noted.kernels[i].name);
    status = found ? check_kernel(&noted.kernels[i], found, error)
                   : wrong(error, "kernel", "none of this name", noted.kernels[i].name, "the cubin lacks it");
  }
  return status;
}

// ---- the command ----------------------------------------------------------------------------------------------

static dw_status check_entry(const dw__bundle *bundle, size_t i, dw_error *error) {
  dw__bundle_item item;
  dw__entry entry;
  dw__bundle_item_at(bundle, i, &item);
  dw_status status = dw__bundle_read(bundle, i, true, &entry, error);
  if (status) return status;
  json_t *metadata = json_loads(entry.metadata, 0, NULL);
  status = check_cubin(&item, &entry, error);
  if (!status) status = check_request(bundle, &item, metadata, error);
  json_decref(metadata);
  dw__entry_free(&entry);
  return status;
}

static void tell(const dw__bundle *bundle, size_t i, dw_error *error, json_t *faults) {
  char build[65];
  dw__bundle_item item;
  dw__bundle_item_at(bundle, i, &item);
  dw__hex(&item.build, build);
  if (faults) json_array_append_new(faults, json_pack("{s:s, s:s}", "build_key", build, "error", error->message));
  else printf("%.12s  %-7s  %s\n", build, item.target, error->message);
  dw_error_clear(error);
}

static int verify(const dw__bundle *bundle, bool known_key, json_t *list) {
  json_t *faults = list ? json_array() : NULL;
  size_t wrong_ones = 0, count = dw__bundle_count(bundle);
  for (size_t i = 0; i < count; i++) {
    dw_error error = {0};
    cli_progress("checked %zu of %zu", i, count);
    if (!check_entry(bundle, i, &error)) continue;
    cli_progress("%s", "");
    tell(bundle, i, &error, faults);
    wrong_ones++;
  }
  cli_progress("%s", "");
  const char *seal = !dw__bundle_signer(bundle) ? "not signed"
                     : known_key                ? "signature holds"
                                                : "signed, the key was not checked";
  if (list) {
    json_array_append_new(list,
                          json_pack("{s:s, s:I, s:I, s:s, s:o}", "file", dw__bundle_name(bundle), "entries", (json_int_t)count,
                                    "wrong", (json_int_t)wrong_ones, "signature", seal, "faults", faults));
  } else {
    printf("%s: %zu entries, %zu wrong, %s\n", dw__bundle_name(bundle), count, wrong_ones, seal);
  }
  return wrong_ones ? CLI_WRONG : CLI_DONE;
}

int cli_bundle_verify(const cli_command *self, int argc, char **argv) {
  const char *public_key = NULL;
  bool json = false;
  const cli_option options[] = {
    {"public-key", "KEY", CLI_TEXT, &public_key, 0, 0, "it has to be signed with this Ed25519 key: a file, or 64 hex digits"},
    {"json", NULL, CLI_FLAG, &json, 0, 0, "print JSON"},
  };
  unsigned char key[DW__BUNDLE_KEY_SIZE];
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc < 2) return cli_usage("bundle verify: found no file, allowed one or more");
  if (public_key && (code = cli_bundle_key("public-key", public_key, false, key)) != CLI_GO_ON) return code;
  json_t *list = json ? json_array() : NULL;
  code = CLI_DONE;
  for (int i = 1; i < argc; i++) {
    dw__bundle *bundle;
    int one = cli_bundle_open(argv[i], public_key ? key : NULL, &bundle);
    if (one == CLI_GO_ON) {
      one = verify(bundle, public_key != NULL, list);
      dw__bundle_close(bundle);
    }
    code = one > code ? one : code;
  }
  if (json) cli_print_json(list);
  json_decref(list);
  return code;
}
