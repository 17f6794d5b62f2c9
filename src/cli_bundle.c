// draftwood bundle: many cubins in one file. This file looks into bundles and joins them.
#include "cli_bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- keys -----------------------------------------------------------------------------------------------------

// What comes before the 32 bytes of an Ed25519 key in PKCS #8 and in SubjectPublicKeyInfo (RFC 8410).
static const unsigned char secret_prefix[] = {0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06,
                                              0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20};
static const unsigned char public_prefix[] = {0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00};

static bool read_pem(const char *text, bool secret, unsigned char key[DW__BUNDLE_KEY_SIZE]) {
  const unsigned char *prefix = secret ? secret_prefix : public_prefix;
  const size_t size = secret ? sizeof secret_prefix : sizeof public_prefix;
  unsigned char der[64];
  size_t found = 0;
  const char *begin = strstr(text, secret ? "-----BEGIN PRIVATE KEY-----" : "-----BEGIN PUBLIC KEY-----"), *end = NULL;
  if (begin) begin = strchr(begin, '\n');
  if (begin) end = strstr(begin, "-----END");
  if (!end ||
      sodium_base642bin(der, sizeof der, begin, (size_t)(end - begin), "\r\n ", &found, NULL, sodium_base64_VARIANT_ORIGINAL))
    return false;
  bool sound = found == size + DW__BUNDLE_KEY_SIZE && !memcmp(der, prefix, size);
  if (sound) memcpy(key, der + size, DW__BUNDLE_KEY_SIZE);
  sodium_memzero(der, sizeof der);
  return sound;
}

static bool read_hex(const char *text, unsigned char key[DW__BUNDLE_KEY_SIZE]) {
  size_t digits = strspn(text, "0123456789abcdefABCDEF");
  bool whole = digits == 64 && text[digits + strspn(text + digits, "\r\n ")] == 0;
  return whole && !sodium_hex2bin(key, DW__BUNDLE_KEY_SIZE, text, 64, NULL, NULL, NULL);
}

int cli_bundle_key(const char *option, const char *text, bool secret, unsigned char key[DW__BUNDLE_KEY_SIZE]) {
  if (!secret && read_hex(text, key)) return CLI_GO_ON;
  dw_error error = {0};
  char *data;
  size_t size;
  if (dw__file_read(text, &data, &size, &error)) return cli_error(&error);
  bool sound = read_pem(data, secret, key) || read_hex(data, key);
  sodium_memzero(data, size);
  dw__release(data);
  if (sound) return CLI_GO_ON;
  return cli_usage("--%s: found %s, allowed an Ed25519 %s key: PEM (openssl genpkey -algorithm ed25519) or 64 hex digits",
                   option, text, secret ? "private" : "public");
}

// ---- files ----------------------------------------------------------------------------------------------------

int cli_bundle_open(const char *path, const unsigned char *public_key, dw__bundle **bundle) {
  dw_error error = {0};
  return dw__bundle_open_file(path, public_key, bundle, &error) ? cli_error(&error) : CLI_GO_ON;
}

static int emit(void *user, const void *bytes, size_t size) { return dw__fd_write(*(int *)user, bytes, size); }

// Written aside and renamed, so that nobody finds half a bundle.
static int write_file(dw__bundle_writer *writer, const unsigned char *seed, const char *path, size_t *size) {
  dw_error error = {0};
  dw__buf aside = {0};
  dw__buf_printf(&aside, "%s.XXXXXX", path);
  int file = aside.failed ? -1 : mkostemp(aside.data, O_CLOEXEC), why = 0;
  mode_t mask = umask(0);
  umask(mask);
  if (file < 0) why = errno;
  else if (dw__bundle_writer_finish(writer, seed, emit, &file, size, &error)) why = EIO;
  if (!why && (fchmod(file, 0644 & ~mask) || fsync(file))) why = errno;
  if (file >= 0 && close(file) && !why) why = errno;
  if (!why && rename(aside.data, path)) why = errno;
  if (why && file >= 0) unlink(aside.data);
  dw__buf_free(&aside);
  if (!why) return CLI_GO_ON;
  if (error.status) return cli_error(&error);
  fprintf(stderr, "draftwood: bundle: found %s: it cannot be written: %s\n", path, strerror(why));
  return CLI_WRONG;
}

int cli_bundle_write(dw__bundle_writer *writer, const char *sign, const char *path, size_t *size) {
  unsigned char seed[DW__BUNDLE_KEY_SIZE];
  int code = sign ? cli_bundle_key("sign", sign, true, seed) : CLI_GO_ON;
  if (code == CLI_GO_ON) code = write_file(writer, sign ? seed : NULL, path, size);
  sodium_memzero(seed, sizeof seed);
  return code;
}

// ---- entries --------------------------------------------------------------------------------------------------

const char *cli_bundle_text(const json_t *entry, const char *key) {
  const char *text = json_string_value(json_object_get(entry, key));
  return text ? text : "?";
}

// Our own texts have nothing to escape. What has may be meant for the terminal that shows it.
static bool is_plain(const char *text) {
  for (; *text; text++)
    if (*text < ' ' || *text > '~' || *text == '\\') return false;
  return true;
}

json_t *cli_bundle_entry(const dw__bundle *bundle, size_t i, bool with_cubin, dw_error *error) {
  char request[65], build[65];
  dw__bundle_item item;
  dw__entry entry;
  if (dw__bundle_read(bundle, i, with_cubin, &entry, error)) return NULL;
  dw__bundle_item_at(bundle, i, &item);
  dw__hex(&item.request, request);
  dw__hex(&item.build, build);
  json_t *object = is_plain(entry.metadata) ? json_loads(entry.metadata, 0, NULL) : NULL;
  dw__entry_free(&entry);
  if (!json_is_object(object)) {
    json_decref(object);
    object = json_object();
  }
  json_t *known = json_pack("{s:s, s:s, s:s, s:I, s:I}", "request_key", request, "build_key", build, "target", item.target,
                            "packed_bytes", (json_int_t)item.packed_size, "cubin_bytes", (json_int_t)item.cubin_size);
  json_object_update(object, known);
  json_decref(known);
  return object;
}

void cli_bundle_name(const json_t *entry, char text[2 * DW_TEXT_MAX]) {
  char shown[DW_TEXT_MAX] = "";
  dw_variant variant;
  const char *given = cli_bundle_text(entry, "variant");
  if (*given && !dw_variant_parse(given, &variant, NULL)) cli_variant_text(&variant, shown);
  snprintf(text, 2 * DW_TEXT_MAX, "%s%s%s", cli_bundle_text(entry, "shape"), *shown ? "  " : "", shown);
}

// ---- ls -------------------------------------------------------------------------------------------------------

static json_t *bundle_json(const dw__bundle *bundle) {
  char templates[65], signer[65] = "";
  const dw__bundle_facts *facts = dw__bundle_facts_of(bundle);
  dw__hex(&facts->templates, templates);
  if (dw__bundle_signer(bundle)) sodium_bin2hex(signer, sizeof signer, dw__bundle_signer(bundle), DW__BUNDLE_KEY_SIZE);
  return json_pack("{s:s, s:s, s:s, s:i, s:s, s:I, s:I}", "file", dw__bundle_name(bundle), "version", facts->version,
                   "templates", templates, "parameters", facts->abi, "signer", signer, "bytes",
                   (json_int_t)dw__bundle_size(bundle), "entries", (json_int_t)dw__bundle_count(bundle));
}

static void print_bundle(const json_t *bundle) {
  const char *signer = cli_bundle_text(bundle, "signer");
  printf("bundle     %s\nmade by    draftwood %s (templates %.12s, parameters %" JSON_INTEGER_FORMAT ")\nsigned by  %s\n"
         "bytes      %" JSON_INTEGER_FORMAT "\nentries    %" JSON_INTEGER_FORMAT "\n",
         cli_bundle_text(bundle, "file"), cli_bundle_text(bundle, "version"), cli_bundle_text(bundle, "templates"),
         json_integer_value(json_object_get(bundle, "parameters")), *signer ? signer : "nobody",
         json_integer_value(json_object_get(bundle, "bytes")), json_integer_value(json_object_get(bundle, "entries")));
}

static void print_entry(const json_t *entry) {
  char name[2 * DW_TEXT_MAX];
  cli_bundle_name(entry, name);
  printf("%.12s  %8" JSON_INTEGER_FORMAT "  %-7s  %s\n", cli_bundle_text(entry, "build_key"),
         json_integer_value(json_object_get(entry, "packed_bytes")), cli_bundle_text(entry, "target"), name);
}

static int list(const dw__bundle *bundle, bool json) {
  int code = CLI_DONE;
  json_t *object = bundle_json(bundle), *entries = json_array();
  if (!json) print_bundle(object);
  if (!json && dw__bundle_count(bundle)) printf("%-12s  %8s  %-7s  %s\n", "build key", "bytes", "target", "shape and variant");
  for (size_t i = 0; i < dw__bundle_count(bundle); i++) {
    dw_error error = {0};
    json_t *entry = cli_bundle_entry(bundle, i, false, &error);
    if (!entry) {
      fflush(stdout);
      code = cli_error(&error);
    } else if (json) {
      json_array_append(entries, entry);
    } else {
      print_entry(entry);
    }
    json_decref(entry);
  }
  json_object_set_new(object, "list", entries);
  if (json) cli_print_json(object);
  json_decref(object);
  return code;
}

static int bundle_ls(const cli_command *self, int argc, char **argv) {
  bool json = false;
  const cli_option options[] = {{"json", NULL, CLI_FLAG, &json, 0, 0, "print JSON"}};
  dw__bundle *bundle;
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc != 2) return cli_usage("bundle ls: found %d files, allowed one", argc - 1);
  code = cli_bundle_open(argv[1], NULL, &bundle);
  if (code != CLI_GO_ON) return code;
  code = list(bundle, json);
  dw__bundle_close(bundle);
  return code;
}

// ---- diff -----------------------------------------------------------------------------------------------------

// An entry by its name: keys of two versions never meet.
typedef struct named {
  char *name;
  const dw__bundle *bundle;
  size_t i;
} named;

static int compare_names(const void *a, const void *b) { return strcmp(((const named *)a)->name, ((const named *)b)->name); }

static int read_names(const dw__bundle *bundle, named **names) {
  dw_error error = {0};
  int code = CLI_GO_ON;
  size_t count = dw__bundle_count(bundle);
  *names = calloc(count + 1, sizeof **names);
  for (size_t i = 0; *names && i < count && code == CLI_GO_ON; i++) {
    char text[2 * DW_TEXT_MAX + 32], name[2 * DW_TEXT_MAX];
    json_t *entry = cli_bundle_entry(bundle, i, true, &error);
    if (!entry) {
      code = cli_error(&error);
      break;
    }
    cli_bundle_name(entry, name);
    snprintf(text, sizeof text, "%-7s  %s", cli_bundle_text(entry, "target"), name);
    json_decref(entry);
    (*names)[i] = (named){strdup(text), bundle, i};
    if (!(*names)[i].name) code = CLI_WRONG;
  }
  if (*names && code == CLI_GO_ON) qsort(*names, count, sizeof **names, compare_names);
  return *names ? code : CLI_WRONG;
}

static void free_names(named *names) {
  for (named *n = names; n && n->name; n++) free(n->name);
  free(names);
}

// NULL: the same; else in what they differ.
static const char *compare_entries(const named *a, const named *b) {
  dw__bundle_item left, right;
  dw__bundle_item_at(a->bundle, a->i, &left);
  dw__bundle_item_at(b->bundle, b->i, &right);
  if (memcmp(&left.build, &right.build, sizeof left.build)) return "another build";
  if (memcmp(&left.packed_digest, &right.packed_digest, sizeof left.packed_digest)) return "other bytes of the same build";
  if (memcmp(&left.request, &right.request, sizeof left.request)) return "another request key";
  if (memcmp(&left.metadata_digest, &right.metadata_digest, sizeof left.metadata_digest)) return "other metadata";
  return NULL;
}

static void tell_difference(json_t *list, char sign, const char *name, const char *what) {
  if (list) json_array_append_new(list, json_pack("{s:s, s:s}", "entry", name, "difference", what));
  else printf("%c %s%s%s\n", sign, name, sign == '~' ? ": " : "", sign == '~' ? what : "");
}

static size_t print_differences(const named *a, const named *b, json_t *list) {
  size_t differences = 0;
  while (a->name || b->name) {
    int sign = !a->name ? 1 : !b->name ? -1 : strcmp(a->name, b->name);
    const char *what = sign < 0 ? "only in the first" : sign > 0 ? "only in the second" : compare_entries(a, b);
    if (what) tell_difference(list, sign < 0 ? '-' : sign > 0 ? '+' : '~', sign > 0 ? b->name : a->name, what);
    differences += what != NULL;
    if (sign <= 0) a++;
    if (sign >= 0) b++;
  }
  return differences;
}

static int diff(const dw__bundle *a, const dw__bundle *b, bool json) {
  named *left = NULL, *right = NULL;
  json_t *list = json ? json_array() : NULL;
  int code = read_names(a, &left);
  if (code == CLI_GO_ON) code = read_names(b, &right);
  if (code == CLI_GO_ON) code = print_differences(left, right, list) ? CLI_WRONG : CLI_DONE;
  if (json && code != CLI_USAGE) cli_print_json(list);
  json_decref(list);
  free_names(left);
  free_names(right);
  return code;
}

static int bundle_diff(const cli_command *self, int argc, char **argv) {
  bool json = false;
  const cli_option options[] = {{"json", NULL, CLI_FLAG, &json, 0, 0, "print JSON"}};
  dw__bundle *a = NULL, *b = NULL;
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc != 3) return cli_usage("bundle diff: found %d files, allowed two", argc - 1);
  code = cli_bundle_open(argv[1], NULL, &a);
  if (code == CLI_GO_ON) code = cli_bundle_open(argv[2], NULL, &b);
  if (code == CLI_GO_ON) code = diff(a, b, json);
  dw__bundle_close(a);
  dw__bundle_close(b);
  return code;
}

// ---- merge ----------------------------------------------------------------------------------------------------

static dw_status same_facts(const dw__bundle *part, const dw__bundle_facts *facts, dw_error *error) {
  const dw__bundle_facts *other = dw__bundle_facts_of(part);
  if (!memcmp(other, facts, sizeof *facts)) return DW_OK;
  char found[65], allowed[65];
  dw__hex(&other->templates, found);
  dw__hex(&facts->templates, allowed);
  snprintf(found + 12, sizeof found - 12, " of draftwood %.31s", other->version);
  snprintf(allowed + 12, sizeof allowed - 12, " of draftwood %.31s", facts->version);
  return dw__fail(error, DW_BAD_BUNDLE, "templates", found, allowed, "%s was made by another version", dw__bundle_name(part));
}

static int merge_one(const char *path, dw__bundle_writer **writer, dw__bundle_facts *facts) {
  dw_error error = {0};
  dw__bundle *part;
  int code = cli_bundle_open(path, NULL, &part);
  if (code != CLI_GO_ON) return code;
  if (!*writer) {
    *facts = *dw__bundle_facts_of(part);
    *writer = dw__bundle_writer_create(facts);
  }
  dw_status status = *writer ? same_facts(part, facts, &error) : DW_OUT_OF_MEMORY;
  for (size_t i = 0; i < dw__bundle_count(part) && !status; i++) status = dw__bundle_writer_copy(*writer, part, i, &error);
  dw__bundle_close(part);
  return status ? cli_error(&error) : CLI_GO_ON;
}

static int bundle_merge(const cli_command *self, int argc, char **argv) {
  const char *output = NULL, *sign = NULL;
  const cli_option options[] = {
    {"output", "FILE", CLI_TEXT, &output, 0, 0, "the bundle to write"},
    {"sign", "KEYFILE", CLI_TEXT, &sign, 0, 0,
     "sign it with this Ed25519 private key; signatures of the parts are not taken over"},
  };
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc < 2 || !output)
    return cli_usage("bundle merge: found no %s; draftwood bundle merge --help tells more",
                     output ? "bundle to merge" : "--output FILE");
  dw__bundle_writer *writer = NULL;
  dw__bundle_facts facts;
  size_t size = 0;
  for (int i = 1; i < argc && code == CLI_GO_ON; i++) code = merge_one(argv[i], &writer, &facts);
  if (code == CLI_GO_ON) code = cli_bundle_write(writer, sign, output, &size);
  if (code == CLI_GO_ON) printf("%zu entries, %zu bytes, %s\n", dw__bundle_writer_count(writer), size, output);
  dw__bundle_writer_free(writer);
  return code == CLI_GO_ON ? CLI_DONE : code;
}

// ---- the command ----------------------------------------------------------------------------------------------

static const char build_help[] =
  "Compiles what the cache does not have yet, as draftwood build does, and writes all of it into one file. The bytes depend on\n"
  "the list, draftwood, NVRTC and libzstd alone: not on folder, time, host or cache.\n"
  "In FILE, %i stands for the number of the shard and %n for their count: mpirun -n 8 draftwood bundle build --all-presets\n"
  "  --shard auto --output part-%i.dwb; draftwood bundle merge part-*.dwb --output all.dwb";
static const char verify_help[] =
  "Checks without a GPU: digests and signature, that each entry is what its request key says, and from its machine code that it is\n"
  "for its target and has the registers, shared memory and barriers that are noted. Exit 1 where something is wrong.";
static const char diff_help[] =
  "Names the entries that only one of two bundles has (-, +) or that differ (~). Exit 1 where there is any.";
static const char merge_help[] =
  "Joins bundles of one version. The order does not show. Two that answer the same request with different bytes are refused.";
static const char extract_help[] =
  "Writes each entry into a folder, with index.json that says what each is. Names:\n"
  "  NAME    = SHAPE \"__\" [VARIANT \"__\"] TARGET \"__\" BUILD \".cubin\", or SHAPE \"__\" [VARIANT \"__\"] \"fat.fatbin\"\n"
  "  SHAPE   = the shape's text with - for : and , and _ for =, without target; companions have no variant\n"
  "  VARIANT = the variant's parameters that do not have their normal value, likewise\n"
  "  TARGET  = sm_120, sm_120f, ...     BUILD = the first 12 digits of the build key\n"
  "A shape or variant of more than 110 characters is given by the first 12 digits of its SHA-256.\n"
  "A fatbin joins the entries of one shape and variant for several targets; it needs fatbinary of the CUDA toolkit.";

static const cli_command actions[] = {
  {"bundle build", "SHAPE... --output FILE [options]", "Compiles kernels into a bundle", build_help, cli_bundle_build},
  {"bundle ls", "FILE [options]", "Lists a bundle's entries", NULL, bundle_ls},
  {"bundle verify", "FILE... [options]", "Checks every entry of a bundle", verify_help, cli_bundle_verify},
  {"bundle diff", "FILE FILE [options]", "Compares two bundles", diff_help, bundle_diff},
  {"bundle merge", "FILE... --output FILE [options]", "Joins bundles", merge_help, bundle_merge},
  {"bundle extract", "FILE --cubin FOLDER | --fatbin FOLDER", "Writes a bundle's cubins as files", extract_help,
   cli_bundle_extract},
};

static const char *action_word(size_t i) { return actions[i].name + strlen("bundle "); }

int cli_bundle(const cli_command *self, int argc, char **argv) {
  const char *words[DW__COUNT(actions)];
  if (argc < 2 || argv[1][0] == '-') {
    int code = argc < 2 ? CLI_GO_ON : cli_parse(self, (cli_options){NULL, 0}, &argc, argv);
    return code == CLI_GO_ON ? cli_usage("bundle: found nothing, allowed build, ls, verify, diff, merge or extract") : code;
  }
  for (size_t i = 0; i < DW__COUNT(actions); i++) {
    words[i] = action_word(i);
    if (!strcmp(argv[1], words[i])) return actions[i].run(&actions[i], argc - 1, argv + 1);
  }
  const char *nearest = cli_nearest(argv[1], words, DW__COUNT(words));
  return cli_usage("bundle: found \"%s\", allowed build, ls, verify, diff, merge or extract%s%s%s", argv[1],
                   nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}
