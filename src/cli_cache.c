// draftwood cache: a look into the directory of compiled kernels.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../cache/cache.h"
#include "cli.h"

typedef struct cli_trim {
  const char *limit;
  bool dry_run;
} cli_trim;

// Without a directory there is nothing to look into: the reason is the answer.
static int no_directory(const char *why) {
  fprintf(stderr, "draftwood: no cache directory: %s\n", why && *why ? why : "none could be found");
  return CLI_WRONG;
}

static json_t *entry_json(const char *path, uint64_t file_size, const dw__entry *entry, const char *damaged) {
  char request[65], build[65];
  dw__hex(&entry->request, request);
  dw__hex(&entry->build, build);
  json_t *metadata = entry->metadata ? json_loads(entry->metadata, 0, NULL) : NULL;
  json_t *object = metadata ? metadata : json_object();
  json_object_set_new(object, "build_key", json_string(build));
  if (!damaged) json_object_set_new(object, "request_key", json_string(request));
  json_object_set_new(object, "file", json_string(path));
  json_object_set_new(object, "file_bytes", json_integer((json_int_t)file_size));
  if (!damaged) json_object_set_new(object, "cubin_bytes", json_integer((json_int_t)entry->cubin_size));
  if (damaged) json_object_set_new(object, "damaged", json_string(damaged));
  return object;
}

static const char *text_of(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "?";
}

static void short_variant(const char *text, char shown[DW_TEXT_MAX]) {
  dw_variant variant;
  // Companions and tools have none.
  if (*text && dw_variant_parse(text, &variant, NULL) == DW_OK) cli_variant_text(&variant, shown);
  else snprintf(shown, DW_TEXT_MAX, "%s", text);  // of another version of draftwood
}

// ---- ls -------------------------------------------------------------------------------------------------------

static bool collect(void *user, const char *path, uint64_t file_size, const dw__entry *entry, const char *damaged) {
  return json_array_append_new(user, entry_json(path, file_size, entry, damaged)) == 0;
}

static void print_entry(const json_t *entry) {
  char variant[DW_TEXT_MAX];
  long long bytes = json_integer_value(json_object_get(entry, "file_bytes"));
  const char *damaged = json_string_value(json_object_get(entry, "damaged"));
  short_variant(text_of(entry, "variant"), variant);
  if (damaged) printf("%.12s  %8lld  damaged: %s\n", text_of(entry, "build_key"), bytes, damaged);
  if (damaged) return;
  printf("%.12s  %8lld  %-7s  %s%s%s\n", text_of(entry, "build_key"), bytes, text_of(entry, "target"), text_of(entry, "shape"),
         *variant ? "  " : "", variant);
}

static int list(dw__cache *cache, bool json) {
  dw_error error = {0};
  json_t *entries = json_array(), *entry;
  size_t i;
  if (dw__cache_scan(cache, false, collect, entries, &error)) {
    json_decref(entries);
    return cli_error(&error);
  }
  if (json) cli_print_json(entries);
  else if (json_array_size(entries)) printf("%-12s  %8s  %-7s  %s\n", "build key", "bytes", "target", "shape and variant");
  if (!json) json_array_foreach(entries, i, entry) print_entry(entry);
  json_decref(entries);
  return CLI_DONE;
}

// ---- stats ----------------------------------------------------------------------------------------------------

typedef struct totals {
  uint64_t entries, bytes, damaged;
} totals;

static bool add(void *user, const char *path, uint64_t file_size, const dw__entry *entry, const char *damaged) {
  (void)path, (void)entry;
  totals *sum = user;
  sum->entries++;
  sum->bytes += file_size;
  sum->damaged += damaged != NULL;
  return true;
}

static int stats(dw__cache *cache, bool json) {
  dw_error error = {0};
  totals sum = {0};
  const char *why = NULL, *directory = dw__cache_directory(cache, &why);
  if (dw__cache_scan(cache, false, add, &sum, &error)) return cli_error(&error);
  if (json) {
    json_t *object =
      json_pack("{s:s, s:b, s:b, s:I, s:I, s:I, s:I}", "directory", directory, "shared", dw__cache_is_shared(cache), "remote",
                dw__cache_is_remote(cache), "entries", (json_int_t)sum.entries, "bytes", (json_int_t)sum.bytes, "limit",
                (json_int_t)dw__cache_limit(cache), "damaged", (json_int_t)sum.damaged);
    cli_print_json(object);
    json_decref(object);
  } else {
    printf("directory  %s%s%s\n", directory, dw__cache_is_shared(cache) ? ", shared with its group" : "",
           dw__cache_is_remote(cache) ? ", on a filesystem of several hosts: no locks" : "");
    printf("entries    %" PRIu64 "\nbytes      %" PRIu64 "\nlimit      %" PRIu64 "\ndamaged    %" PRIu64 "\n", sum.entries,
           sum.bytes, dw__cache_limit(cache), sum.damaged);
  }
  return sum.damaged ? CLI_WRONG : CLI_DONE;
}

// ---- clear ----------------------------------------------------------------------------------------------------

static int clear(dw__cache *cache, bool json) {
  dw_error error = {0};
  uint64_t removed = 0;
  if (dw__cache_clear(cache, &removed, &error)) return cli_error(&error);
  printf(json ? "{\"removed\": %" PRIu64 "}\n" : "removed %" PRIu64 " entries\n", removed);
  return CLI_DONE;
}

// ---- trim -----------------------------------------------------------------------------------------------------

static int trim(dw__cache *cache, const cli_trim *asked, bool json) {
  dw_error error = {0};
  dw__trimmed seen;
  uint64_t limit = dw__cache_limit(cache);
  if (asked->limit && !dw__size_parse(asked->limit, &limit))
    return cli_usage("cache trim: --limit: found \"%s\", allowed bytes, as 1000000 or 512M", asked->limit);
  if (dw__cache_trim(cache, limit, asked->dry_run, &seen, &error)) return cli_error(&error);
  printf(json ? "{\"removed\": %" PRIu64 ", \"removed_bytes\": %" PRIu64 ", \"kept\": %" PRIu64 ", \"kept_bytes\": %" PRIu64
                "}\n"
              : "removed    %" PRIu64 " entries, %" PRIu64 " bytes\nkept       %" PRIu64 " entries, %" PRIu64 " bytes\n",
         seen.removed, seen.removed_bytes, seen.kept, seen.kept_bytes);
  if (!json && asked->dry_run) printf("nothing was changed\n");
  if (!json && seen.kept_bytes > limit) printf("what is younger than an hour stays\n");
  return CLI_DONE;
}

// ---- explain --------------------------------------------------------------------------------------------------

typedef struct explained {
  const char *variant;
  int batch, kv_len, call;  // for the rule table's choice, as in build
} explained;

static int explain(const char *shape_text, const explained *asked) {
  dw_error error = {0};
  dw_ctx *ctx;
  dw_shape shape;
  dw_variant variant;
  char *text = NULL;
  int code = cli_open(&ctx);
  if (code != CLI_GO_ON) return code;
  dw_status status = dw_shape_parse(shape_text, &shape, &error);
  if (!status) {
    dw_bounds bounds = cli_bounds(&shape, asked->batch, asked->kv_len);
    bounds.call = (dw_call)asked->call;
    status = cli_variant(asked->variant, &shape, &bounds, &variant, &error);
  }
  if (!status) status = dw_explain(ctx, &shape, &variant, &text, &error);
  if (!status) fputs(text, stdout);
  dw_free(text);
  dw_ctx_destroy(ctx);
  return status ? cli_error(&error) : CLI_DONE;
}

// ---- inspect --------------------------------------------------------------------------------------------------

typedef struct search {
  const char *key;
  json_t *found;
  int count;
} search;

static bool match(void *user, const char *path, uint64_t file_size, const dw__entry *entry, const char *damaged) {
  search *wanted = user;
  char request[65], build[65];
  dw__hex(&entry->request, request);
  dw__hex(&entry->build, build);
  size_t size = strlen(wanted->key);
  if (strncmp(build, wanted->key, size) != 0 && (damaged || strncmp(request, wanted->key, size) != 0)) return true;
  wanted->count++;
  if (!wanted->found) wanted->found = entry_json(path, file_size, entry, damaged);
  return true;
}

static void print_details(const json_t *entry) {
  static const char *const names[] = {"shape", "variant", "target", "compiler", "build_key", "request_key", "file", "damaged"};
  for (size_t i = 0; i < DW__COUNT(names); i++)
    if (json_object_get(entry, names[i])) printf("%-12s %s\n", names[i], text_of(entry, names[i]));
  printf("%-12s %.1f\n", "compile ms", json_number_value(json_object_get(entry, "compile_ms")));
  printf("%-12s %lld\n", "cubin bytes", (long long)json_integer_value(json_object_get(entry, "cubin_bytes")));
  json_t *kernels = json_object_get(entry, "kernels"), *kernel;
  size_t i;
  json_array_foreach(kernels, i, kernel) {
    char *text = json_dumps(kernel, JSON_PRESERVE_ORDER);
    printf("%-12s %s\n", "kernel", text ? text : "?");
    free(text);
  }
}

static int inspect(dw__cache *cache, const char *key, bool json) {
  dw_error error = {0};
  search wanted = {key, NULL, 0};
  if (strlen(key) < 4 || strspn(key, "0123456789abcdef") != strlen(key))
    return cli_usage("cache inspect: found \"%s\", allowed at least 4 digits (0-9, a-f) of a key", key);
  dw_status status = dw__cache_scan(cache, true, match, &wanted, &error);
  if (status) {
    json_decref(wanted.found);
    return cli_error(&error);
  }
  if (wanted.count == 1 && json) cli_print_json(wanted.found);
  if (wanted.count == 1 && !json) print_details(wanted.found);
  json_decref(wanted.found);
  if (wanted.count == 1) return CLI_DONE;
  fprintf(stderr, "draftwood: cache inspect: %d entries have a key that starts with %s\n", wanted.count, key);
  return CLI_WRONG;
}

// ---- the command ----------------------------------------------------------------------------------------------

static int act(dw__cache *cache, const char *action, const char *key, const cli_trim *trimming, bool json) {
  const char *why = NULL;
  if (!dw__cache_directory(cache, &why)) return no_directory(why);
  if (strcmp(action, "ls") == 0) return list(cache, json);
  if (strcmp(action, "stats") == 0) return stats(cache, json);
  if (strcmp(action, "clear") == 0) return clear(cache, json);
  if (strcmp(action, "trim") == 0) return trim(cache, trimming, json);
  return inspect(cache, key, json);
}

static void silent(void *user, const char *message) { (void)user, (void)message; }

#define ACTIONS "ls, stats, trim, clear, inspect KEY or explain SHAPE"

int cli_cache(const cli_command *self, int argc, char **argv) {
  static const char *const actions[] = {"ls", "stats", "trim", "clear", "inspect", "explain"};
  bool json = false;
  explained asked = {.batch = 8, .kv_len = 32768};
  cli_trim trimming = {0};
  const cli_option options[] = {
    {"json", NULL, CLI_FLAG, &json, 0, 0, "print JSON (not explain)"},
    {"limit", "SIZE", CLI_TEXT, &trimming.limit, 0, 0,
     "trim: bytes to keep, as 200M (default: $DRAFTWOOD_CACHE_LIMIT, else 512M)"},
    {"dry-run", NULL, CLI_FLAG, &trimming.dry_run, 0, 0, "trim: say what would be removed, and remove nothing"},
    {"variant", "TEXT", CLI_TEXT, &asked.variant, 0, 0, "explain: the variant (default: the rule table's choice)"},
    {"batch", "N", CLI_INT, &asked.batch, 1, 65535, "explain: most requests, for that choice (8)"},
    {"kv-len", "N", CLI_INT, &asked.kv_len, 1, 1 << 24, "explain: most tokens a request, for that choice (32768)"},
    {"call", "any|table", CLI_WORD, &asked.call, 0, 0, "explain: what calls have in common, for that choice (any)"},
  };
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc < 2) return cli_usage("cache: found nothing, allowed " ACTIONS);
  size_t action = 0;
  while (action < DW__COUNT(actions) && strcmp(argv[1], actions[action]) != 0) action++;
  if (action == DW__COUNT(actions)) {
    const char *nearest = cli_nearest(argv[1], actions, DW__COUNT(actions));
    return cli_usage("cache: found \"%s\", allowed " ACTIONS "%s%s%s", argv[1], nearest ? "; did you mean " : "",
                     nearest ? nearest : "", nearest ? "?" : "");
  }
  int wanted = action >= 4 ? 3 : 2;
  if (argc != wanted) return cli_usage("cache %s: found %d arguments, allowed %d", argv[1], argc - 2, wanted - 2);
  if (strcmp(argv[1], "explain") == 0) return explain(argv[2], &asked);
  dw_error error = {0};
  dw__cache *cache;
  if (dw__cache_open(NULL, silent, NULL, &cache, &error)) return cli_error(&error);
  code = act(cache, argv[1], wanted == 3 ? argv[2] : NULL, &trimming, json);
  dw__cache_close(cache);
  return code;
}
