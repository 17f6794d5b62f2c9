// What the commands share: a table-driven option reader, messages, and small pieces.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

// ---- messages -------------------------------------------------------------------------------------------------

int cli_usage(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("draftwood: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  return CLI_USAGE;
}

static bool is_bad_input(dw_status status) {
  return status == DW_BAD_ARGUMENT || status == DW_BAD_SHAPE || status == DW_NOT_APPLICABLE || status == DW_UNSUPPORTED_TARGET;
}

int cli_exit_code(dw_status status) { return is_bad_input(status) ? CLI_USAGE : CLI_WRONG; }

// The log without its first line where the message already ends with it.
static const char *log_after(const dw_error *error) {
  const char *log = error->log ? error->log : "";
  size_t line = strcspn(log, "\n"), size = strlen(error->message);
  if (!line || line > size || memcmp(error->message + size - line, log, line) != 0) return log;
  return log + line + (log[line] == '\n');
}

int cli_error(dw_error *error) {
  cli_progress("%s", "");
  fprintf(stderr, "draftwood: %s\n", error->message[0] ? error->message : dw_status_text(error->status));
  const char *log = log_after(error);
  if (*log) fprintf(stderr, "%s%s", log, strchr(log, 0)[-1] == '\n' ? "" : "\n");
  int code = cli_exit_code(error->status);
  dw_error_clear(error);
  return code;
}

void cli_progress(const char *format, ...) {
  if (!isatty(STDERR_FILENO)) return;
  va_list arguments;
  va_start(arguments, format);
  fputs("\r\033[K", stderr);
  vfprintf(stderr, format, arguments);
  fflush(stderr);
  va_end(arguments);
}

void cli_print_json(const json_t *value) {
  json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
  putchar('\n');
}

// ---- nearest --------------------------------------------------------------------------------------------------

#define WORD_MAX 40

// Levenshtein distance; words longer than WORD_MAX are far from everything.
static int distance(const char *a, const char *b) {
  size_t m = strlen(a), n = strlen(b);
  if (m > WORD_MAX || n > WORD_MAX) return INT_MAX;
  int row[WORD_MAX + 1];
  for (size_t j = 0; j <= n; j++) row[j] = (int)j;
  for (size_t i = 1; i <= m; i++) {
    int diagonal = row[0];
    row[0] = (int)i;
    for (size_t j = 1; j <= n; j++) {
      int change = diagonal + (a[i - 1] != b[j - 1]);
      int least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
      diagonal = row[j];
      row[j] = change < least ? change : least;
    }
  }
  return row[n];
}

const char *cli_nearest(const char *word, const char *const *candidates, size_t count) {
  const char *best = NULL;
  int best_distance = (int)strlen(word) / 3 + 2;  // further than that is another word, not a misspelt one
  for (size_t i = 0; i < count; i++) {
    int d = distance(word, candidates[i]);
    if (d >= best_distance) continue;
    best = candidates[i];
    best_distance = d;
  }
  return best;
}

// ---- help -----------------------------------------------------------------------------------------------------

void cli_help(const cli_command *command, cli_options options) {
  printf("usage: draftwood %s%s%s\n\n%s.\n", command->name, *command->usage ? " " : "", command->usage, command->summary);
  if (command->help) printf("\n%s\n", command->help);
  puts("\noptions:");
  for (size_t i = 0; i < options.count; i++) {
    char left[64];
    const cli_option *option = &options.list[i];
    snprintf(left, sizeof left, "--%s %s", option->name, option->argument ? option->argument : "");
    printf("  %-34s %s\n", left, option->help);
  }
  printf("  %-34s %s\n", "--help", "print this");
}

// ---- options --------------------------------------------------------------------------------------------------

static int read_int(const cli_option *option, const char *text, size_t size, int *value) {
  char digits[24], *end = digits;
  snprintf(digits, sizeof digits, "%.*s", (int)(size < 23 ? size : 23), text);
  errno = 0;
  long long number = strtoll(digits, &end, 10);
  if (size == 0 || size > 22 || *end || errno || number < option->least || number > option->most) {
    return cli_usage("--%s: found \"%.*s\", allowed a whole number from %d to %d", option->name, (int)(size < 60 ? size : 60),
                     text, option->least, option->most);
  }
  *value = (int)number;
  return CLI_GO_ON;
}

static int read_ints(const cli_option *option, const char *text) {
  cli_list *list = option->value;
  list->count = 0;
  for (const char *at = text;; at++) {
    size_t size = strcspn(at, ",");
    if (list->count == CLI_LIST_MAX) return cli_usage("--%s: allowed at most %d numbers", option->name, CLI_LIST_MAX);
    int code = read_int(option, at, size, &list->values[list->count]);
    if (code != CLI_GO_ON) return code;
    list->count++;
    at += size;
    if (!*at) return CLI_GO_ON;
  }
}

static int read_number(const cli_option *option, const char *text) {
  char *end;
  double number = strtod(text, &end);
  if (!*text || *end || !(number >= option->least && number <= option->most))
    return cli_usage("--%s: found \"%.60s\", allowed a number from %d to %d", option->name, text, option->least, option->most);
  *(double *)option->value = number;
  return CLI_GO_ON;
}

static int read_word(const cli_option *option, const char *text) {
  int index = 0;
  for (const char *at = option->argument;; index++) {
    size_t size = strcspn(at, "|");
    if (strlen(text) == size && memcmp(text, at, size) == 0) {
      *(int *)option->value = index;
      return CLI_GO_ON;
    }
    if (!at[size]) break;
    at += size + 1;
  }
  return cli_usage("--%s: found \"%s\", allowed %s", option->name, text, option->argument);
}

static int read_value(const cli_option *option, const char *text) {
  switch (option->kind) {
    case CLI_FLAG: *(bool *)option->value = true; return CLI_GO_ON;
    case CLI_TEXT: *(const char **)option->value = text; return CLI_GO_ON;
    case CLI_INT: return read_int(option, text, strlen(text), option->value);
    case CLI_INTS: return read_ints(option, text);
    case CLI_NUMBER: return read_number(option, text);
    case CLI_WORD: return read_word(option, text);
  }
  return CLI_USAGE;
}

static int unknown_option(const cli_command *command, cli_options options, const char *name) {
  const char *names[64] = {"help"};
  size_t count = 1;
  for (size_t i = 0; i < options.count && count < DW__COUNT(names); i++) names[count++] = options.list[i].name;
  const char *nearest = cli_nearest(name, names, count);
  if (nearest) return cli_usage("%s: unknown option --%s, did you mean --%s?", command->name, name, nearest);
  return cli_usage("%s: unknown option --%s; draftwood %s --help lists all", command->name, name, command->name);
}

static const cli_option *find_option(cli_options options, const char *name) {
  for (size_t i = 0; i < options.count; i++)
    if (strcmp(options.list[i].name, name) == 0) return &options.list[i];
  return NULL;
}

// One argument that starts with "-": "--name", "--name=value" or "--name value" (then *i moves on).
static int read_option(const cli_command *command, cli_options options, int argc, char **argv, int *i) {
  char name[64];
  const char *text = argv[*i] + (argv[*i][1] == '-' ? 2 : 1), *equals = strchr(text, '=');
  size_t size = equals ? (size_t)(equals - text) : strlen(text);
  snprintf(name, sizeof name, "%.*s", (int)(size < 63 ? size : 63), text);
  if (strcmp(name, "help") == 0 || strcmp(argv[*i], "-h") == 0) {
    cli_help(command, options);
    return CLI_DONE;
  }
  const cli_option *option = argv[*i][1] == '-' ? find_option(options, name) : NULL;
  if (!option) return unknown_option(command, options, name);
  if (option->kind == CLI_FLAG && equals) return cli_usage("--%s takes no value, found \"%s\"", name, equals + 1);
  if (option->kind == CLI_FLAG) return read_value(option, "");
  if (equals) return read_value(option, equals + 1);
  if (*i + 1 >= argc) return cli_usage("--%s: found nothing, allowed %s", name, option->argument);
  return read_value(option, argv[++*i]);
}

int cli_parse(const cli_command *command, cli_options options, int *argc, char **argv) {
  int kept = 1;
  bool only_words = false;  // after "--"
  for (int i = 1; i < *argc; i++) {
    if (!only_words && strcmp(argv[i], "--") == 0) {
      only_words = true;
    } else if (only_words || argv[i][0] != '-' || !argv[i][1]) {
      argv[kept++] = argv[i];
    } else {
      int code = read_option(command, options, *argc, argv, &i);
      if (code != CLI_GO_ON) return code;
    }
  }
  *argc = kept;
  return CLI_GO_ON;
}

bool cli_has(int argc, char **argv, const char *flag) {
  size_t size = strlen(flag);
  for (int i = 1; i < argc; i++)
    if (strncmp(argv[i], flag, size) == 0 && (!argv[i][size] || argv[i][size] == '=')) return true;
  return false;
}

// ---- shared pieces --------------------------------------------------------------------------------------------

static void warn(void *user, dw_log_level level, const char *message) {
  (void)user;
  if (level != DW_LOG_WARNING) return;
  cli_progress("%s", "");
  fprintf(stderr, "draftwood: warning: %s\n", message);
}

int cli_open(dw_ctx **ctx) {
  dw_error error = {0};
  dw_options options = {.size = sizeof options, .log = warn};
  return dw_ctx_create(&options, ctx, &error) ? cli_error(&error) : CLI_GO_ON;
}

void cli_variant_text(const dw_variant *variant, char text[DW_TEXT_MAX]) {
  dw_variant normal;
  char all[DW_TEXT_MAX], usual[DW_TEXT_MAX];
  dw_variant_parse("", &normal, NULL);
  dw_variant_print(variant, all, sizeof all);
  dw_variant_print(&normal, usual, sizeof usual);
  // Both texts name the same parameters in the same order, features that are on behind them. The first, the family, is always shown.
  size_t used = 0;
  char *rest = NULL, *rest_usual = NULL, *item = strtok_r(all, ",", &rest), *other = strtok_r(usual, ",", &rest_usual);
  for (; item; item = strtok_r(NULL, ",", &rest), other = other ? strtok_r(NULL, ",", &rest_usual) : NULL) {
    if (used && other && strcmp(item, other) == 0) continue;
    used += (size_t)snprintf(text + used, DW_TEXT_MAX - used, "%s%s", used ? "," : "", item);
  }
}

const char *const cli_mask_names[CLI_MASKS] = {"none", "parents", "bits", "bytes_qlen", "bytes_full", "bias_f32", "static"};

dw_bounds cli_bounds(const dw_shape *shape, int batch, int kv_len) {
  return (dw_bounds){.size = sizeof(dw_bounds), .batch = batch, .total_q = batch * shape->width, .kv_len = kv_len};
}

dw_status cli_variant(const char *text, const dw_shape *shape, const dw_bounds *bounds, dw_variant *variant, dw_error *error) {
  if (!text) return dw_variant_choose(shape, bounds, variant, error);
  dw_status status = dw_variant_parse(text, variant, error);
  return status ? status : dw_variant_applicable(shape, variant, error);
}

// By way of the shape's own text, so that words and messages are those of the grammar. Of a canonical text the parser refuses a
// second "target=", so the first is cut out.
dw_status cli_shape_field(dw_shape *shape, const char *field, const char *value, dw_error *error) {
  char old[DW_TEXT_MAX], text[2 * DW_TEXT_MAX], key[32];
  dw_shape_print(shape, old, sizeof old);
  snprintf(key, sizeof key, ",%s=", field);
  char *found = strstr(old, key);
  const char *after = found ? found + 1 + strcspn(found + 1, ",") : "";
  snprintf(text, sizeof text, "%.*s%s%.128s%s", found ? (int)(found - old) : (int)strlen(old), old, key, value, after);
  return dw_shape_parse(text, shape, error);
}
