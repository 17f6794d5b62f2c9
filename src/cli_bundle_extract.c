// draftwood bundle extract: a bundle's cubins as files for others, bare or joined into fatbins.
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli_bundle.h"

extern char **environ;

#define PART_MOST 110  // characters of a shape or variant in a name; longer ones are given by their digest

static int cannot(const char *what, const char *path, int why) {
  fprintf(stderr, "draftwood: bundle extract: %s %s: %s\n", what, path, strerror(why));
  return CLI_WRONG;
}

// ---- names (their grammar is in the help of bundle extract) ---------------------------------------------------

static void add_part(dw__buf *name, const char *text) {
  char hex[65];
  if (!*text) return;
  if (strlen(text) > PART_MOST) {
    dw__digest digest = dw__sha256(text, strlen(text));
    dw__hex(&digest, hex);
    dw__buf_printf(name, "%.12s__", hex);
    return;
  }
  size_t begin = name->size;
  dw__buf_printf(name, "%s__", text);
  for (size_t i = begin; i < name->size; i++) {
    if (strchr(":,/", name->data[i])) name->data[i] = '-';  // commas and = mean something to tools such as fatbinary
    if (name->data[i] == '=') name->data[i] = '_';
  }
}

static void without_target(const char *shape, char text[DW_TEXT_MAX]) {
  const char *field = strstr(shape, ",target=");
  size_t before = field ? (size_t)(field - shape) : strlen(shape);
  snprintf(text, DW_TEXT_MAX, "%.*s%s", (int)before, shape, field ? field + 1 + strcspn(field + 1, ",") : "");
}

// What entries for several targets have in common.
static char *common_name(const json_t *entry) {
  char shape[DW_TEXT_MAX], shown[DW_TEXT_MAX] = "";
  dw_variant variant;
  const char *given = cli_bundle_text(entry, "variant");
  dw__buf name = {0};
  without_target(cli_bundle_text(entry, "shape"), shape);
  if (*given && !dw_variant_parse(given, &variant, NULL)) cli_variant_text(&variant, shown);
  add_part(&name, shape);
  add_part(&name, shown);
  if (name.failed) dw__buf_free(&name);
  return name.data;
}

// ---- files ----------------------------------------------------------------------------------------------------

static int write_file(const char *folder, const char *name, const void *bytes, size_t size) {
  dw__buf path = {0};
  dw__buf_printf(&path, "%s/%s", folder, name);
  if (path.failed) return cannot("cannot name", name, ENOMEM);
  int file = open(path.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  int why = file < 0 ? errno : dw__fd_write(file, bytes, size);
  if (file >= 0 && close(file) && !why) why = errno;
  int code = why ? cannot("cannot write", path.data, why) : CLI_GO_ON;
  dw__buf_free(&path);
  return code;
}

static int make_folder(const char *folder) {
  struct stat status;
  if (!mkdir(folder, 0755) || (errno == EEXIST && !stat(folder, &status) && S_ISDIR(status.st_mode))) return CLI_GO_ON;
  return cannot("cannot make", folder, errno);
}

// An entry's cubin under its own name. `described` gets what index.json says of it.
static int extract_one(const dw__bundle *bundle, size_t i, const char *folder, json_t **described) {
  dw_error error = {0};
  dw__entry entry;
  *described = NULL;
  if (dw__bundle_read(bundle, i, true, &entry, &error)) return cli_error(&error);
  json_t *object = cli_bundle_entry(bundle, i, false, &error);
  char *common = object ? common_name(object) : NULL;
  dw__buf name = {0};
  if (common)
    dw__buf_printf(&name, "%s%s__%.12s.cubin", common, cli_bundle_text(object, "target"), cli_bundle_text(object, "build_key"));
  int code = common && !name.failed ? write_file(folder, name.data, entry.cubin, entry.cubin_size)
                                    : cannot("cannot name an entry of", dw__bundle_name(bundle), ENOMEM);
  if (code == CLI_GO_ON) {
    json_object_set_new(object, "file", json_string(name.data));
    json_object_set_new(object, "common", json_string(common));
    *described = object;
  } else {
    json_decref(object);
  }
  dw__buf_free(&name);
  dw__release(common);
  dw__entry_free(&entry);
  return code;
}

static int write_index(const char *folder, json_t *list) {
  char *text = json_dumps(list, JSON_INDENT(1) | JSON_SORT_KEYS);
  int code = text ? write_file(folder, "index.json", text, strlen(text)) : cannot("cannot write", "index.json", ENOMEM);
  free(text);
  return code;
}

static int extract_all(const dw__bundle *bundle, const char *folder, json_t *list) {
  int code = make_folder(folder);
  for (size_t i = 0; i < dw__bundle_count(bundle) && code == CLI_GO_ON; i++) {
    json_t *described;
    code = extract_one(bundle, i, folder, &described);
    if (described) json_array_append_new(list, described);
  }
  return code;
}

static int extract_cubins(const dw__bundle *bundle, const char *folder) {
  json_t *list = json_array(), *entry;
  size_t i;
  int code = extract_all(bundle, folder, list);
  json_array_foreach(list, i, entry) json_object_del(entry, "common");
  if (code == CLI_GO_ON) code = write_index(folder, list);
  if (code == CLI_GO_ON) printf("%zu cubins, %s\n", json_array_size(list), folder);
  json_decref(list);
  return code == CLI_GO_ON ? CLI_DONE : code;
}

// ---- fatbins --------------------------------------------------------------------------------------------------

// $CUDA_HOME/bin, the usual place, then the search path: posix_spawnp looks there for a name without a slash.
static const char *find_tool(char path[4096]) {
  const char *home = getenv("CUDA_HOME");
  snprintf(path, 4096, "%s/bin/fatbinary", home && *home ? home : "/usr/local/cuda");
  return access(path, X_OK) ? "fatbinary" : path;
}

static int run_tool(const char *tool, char **arguments) {
  pid_t child;
  int status, why = posix_spawnp(&child, tool, NULL, NULL, arguments, environ);
  while (!why && waitpid(child, &status, 0) < 0)
    if (errno != EINTR) why = errno;
  if (why == ENOENT)
    return cli_usage("bundle extract --fatbin: found no fatbinary, allowed one in $CUDA_HOME/bin, /usr/local/cuda/bin or the "
                     "search path; it comes with the CUDA toolkit");
  if (why) return cannot("cannot run", tool, why);
  // The C library tells of a missing program by this status, too.
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return CLI_GO_ON;
  fprintf(stderr, "draftwood: bundle extract: %s failed for %s\n", tool, arguments[1]);
  return CLI_WRONG;
}

// One fatbin of the entries from `first` on that have its name; *end is the first that has another.
static int join(const char *tool, json_t *list, size_t first, const char *parts, const char *folder, size_t *end,
                json_t *described) {
  const char *common = cli_bundle_text(json_array_get(list, first), "common");
  json_t *images = json_array();
  dw__buf name = {0}, create = {0};
  char *arguments[80] = {(char *)tool}, *specs[64];
  int count = 0;
  dw__buf_printf(&name, "%sfat.fatbin", common);
  dw__buf_printf(&create, "--create=%s/%s", folder, name.data);
  for (*end = first; *end < json_array_size(list) && count < 64; ++*end, count++) {
    json_t *entry = json_array_get(list, *end);
    dw__buf spec = {0};
    if (strcmp(cli_bundle_text(entry, "common"), common)) break;
    dw__buf_printf(&spec, "--image3=kind=elf,sm=%s,file=%s/%s", cli_bundle_text(entry, "target") + strlen("sm_"), parts,
                   cli_bundle_text(entry, "file"));
    arguments[2 + count] = specs[count] = spec.data;
    json_array_append(images, entry);
  }
  arguments[1] = create.data;
  int code = name.failed || create.failed ? cannot("cannot name", common, ENOMEM) : run_tool(tool, arguments);
  if (code == CLI_GO_ON) json_array_append_new(described, json_pack("{s:s, s:O}", "file", name.data, "images", images));
  for (int i = 0; i < count; i++) dw__release(specs[i]);
  json_decref(images);
  dw__buf_free(&create);
  dw__buf_free(&name);
  return code;
}

static int compare_common(const void *a, const void *b) {
  const json_t *const *left = a, *const *right = b;
  int sign = strcmp(cli_bundle_text(*left, "common"), cli_bundle_text(*right, "common"));
  return sign ? sign : strcmp(cli_bundle_text(*left, "file"), cli_bundle_text(*right, "file"));
}

// The same entries, those of one shape and variant beside one another.
static json_t *sorted(const json_t *list) {
  size_t count = json_array_size(list);
  const json_t **entries = calloc(count + 1, sizeof *entries);
  json_t *result = json_array();
  for (size_t i = 0; entries && i < count; i++) entries[i] = json_array_get(list, i);
  if (entries) qsort(entries, count, sizeof *entries, compare_common);
  for (size_t i = 0; entries && i < count; i++) json_array_append(result, (json_t *)entries[i]);
  free(entries);
  return result;
}

static int join_all(json_t *list, const char *parts, const char *folder) {
  char path[4096];
  const char *tool = find_tool(path);
  json_t *ordered = sorted(list), *described = json_array(), *entry;
  int code = CLI_GO_ON;
  size_t i;
  for (size_t end, first = 0; first < json_array_size(ordered) && code == CLI_GO_ON; first = end)
    code = join(tool, ordered, first, parts, folder, &end, described);
  json_array_foreach(list, i, entry) {
    json_object_del(entry, "common");
    json_object_del(entry, "file");
  }
  if (code == CLI_GO_ON) code = write_index(folder, described);
  if (code == CLI_GO_ON) printf("%zu fatbins, %s\n", json_array_size(described), folder);
  json_decref(described);
  json_decref(ordered);
  return code;
}

// The cubins go into a folder of their own for as long as it takes.
static int extract_fatbins(const dw__bundle *bundle, const char *folder) {
  dw__buf parts = {0};
  json_t *list = json_array(), *entry;
  size_t i;
  int code = make_folder(folder);
  dw__buf_printf(&parts, "%s/parts.XXXXXX", folder);
  if (code == CLI_GO_ON && (parts.failed || !mkdtemp(parts.data))) code = cannot("cannot make a folder in", folder, errno);
  if (code == CLI_GO_ON) {
    code = extract_all(bundle, parts.data, list);
    json_t *files = json_array();
    json_array_foreach(list, i, entry) json_array_append_new(files, json_string(cli_bundle_text(entry, "file")));
    if (code == CLI_GO_ON) code = join_all(list, parts.data, folder);
    json_array_foreach(files, i, entry) {
      dw__buf path = {0};
      dw__buf_printf(&path, "%s/%s", parts.data, json_string_value(entry));
      if (!path.failed) unlink(path.data);
      dw__buf_free(&path);
    }
    rmdir(parts.data);
    json_decref(files);
  }
  dw__buf_free(&parts);
  json_decref(list);
  return code == CLI_GO_ON ? CLI_DONE : code;
}

// ---- the command ----------------------------------------------------------------------------------------------

int cli_bundle_extract(const cli_command *self, int argc, char **argv) {
  const char *cubins = NULL, *fatbins = NULL;
  const cli_option options[] = {
    {"cubin", "FOLDER", CLI_TEXT, &cubins, 0, 0, "each entry as a bare cubin"},
    {"fatbin", "FOLDER", CLI_TEXT, &fatbins, 0, 0, "each shape and variant as a fatbin of all its targets"},
  };
  dw__bundle *bundle;
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc != 2) return cli_usage("bundle extract: found %d files, allowed one", argc - 1);
  if (!cubins && !fatbins) return cli_usage("bundle extract: found neither --cubin FOLDER nor --fatbin FOLDER");
  code = cli_bundle_open(argv[1], NULL, &bundle);
  if (code != CLI_GO_ON) return code;
  code = cubins ? extract_cubins(bundle, cubins) : CLI_DONE;
  if (code == CLI_DONE && fatbins) code = extract_fatbins(bundle, fatbins);
  dw__bundle_close(bundle);
  return code;
}
