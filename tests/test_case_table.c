// tests/cases.tsv against what there is: every case of the list has its line, every test in it exists and is run by ctest, every GPU
// case exists, and no case goes untested without a reason.
#include <ctype.h>
#include <fnmatch.h>
#include <jansson.h>
#include <unistd.h>

#include "companion_checks.h"
#include "list_tests.h"
#include "named_cases.h"
#include "support.h"

enum { LINES_MOST = 128, PROGRAMS_MOST = 24, TESTS_MOST = 512 };

// ---- the table ------------------------------------------------------------------------------------------------

typedef struct line {
  char id[8], ci[1024], gpu[256], note[512];
} line;

static line lines[LINES_MOST];
static int line_count;

static void cut(char *to, size_t n, char **rest) {
  char *field = strsep(rest, "\t\n");
  snprintf(to, n, "%s", field ? field : "");
}

static int read_table(void **state) {
  (void)state;
  char text[4096];
  FILE *file = fopen(TEST_SOURCE_DIR "/tests/cases.tsv", "r");
  if (!file) return -1;
  while (fgets(text, sizeof text, file) && line_count < LINES_MOST) {
    char *rest = text;
    if (*text == '#' || *text == '\n') continue;
    line *l = &lines[line_count++];
    cut(l->id, sizeof l->id, &rest);
    cut(l->ci, sizeof l->ci, &rest);
    cut(l->gpu, sizeof l->gpu, &rest);
    cut(l->note, sizeof l->note, &rest);
  }
  return fclose(file);
}

static void every_case_has_its_line(void **state) {
  (void)state;
  static const struct {
    char section;
    int first, last;
  } ranges[] = {{'a', 1, 47}, {'b', 3, 5}, {'b', 8, 10}, {'c', 1, 35}, {'d', 1, 14}, {'e', 1, 6}};
  int at = 0;
  for (size_t r = 0; r < DW__COUNT(ranges); r++)
    for (int i = ranges[r].first; i <= ranges[r].last; i++, at++) {
      char id[8];
      snprintf(id, sizeof id, "%c%02d", ranges[r].section, i);
      assert_true(at < line_count);
      assert_string_equal(lines[at].id, id);
    }
  assert_int_equal(at, line_count);
}

static void what_is_not_tested_has_a_reason(void **state) {
  (void)state;
  for (int i = 0; i < line_count; i++) {
    const line *l = &lines[i];
    if (!*l->ci || !*l->gpu) fail_msg("%s: a column is empty", l->id);
    if ((!strcmp(l->ci, "-") || !strcmp(l->gpu, "-")) && strlen(l->note) < 10) fail_msg("%s: no reason is given", l->id);
  }
}

// ---- tests of CI ----------------------------------------------------------------------------------------------

typedef struct program {
  char name[64];
  char tests[TESTS_MOST][96];
  bool run[TESTS_MOST];  // by ctest
  int count;
} program;

static program programs[PROGRAMS_MOST];
static int program_count;
static json_t *everything;  // what ctest says it runs

static void list_program(program *p) {
  char command[1024], text[96];
  snprintf(command, sizeof command, "'%s/test_%s' --list", TEST_BINARY_DIR, p->name);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  while (fgets(text, sizeof text, pipe) && p->count < TESTS_MOST) {
    text[strcspn(text, "\n")] = 0;
    snprintf(p->tests[p->count++], sizeof p->tests[0], "%s", text);
  }
  if (pclose(pipe)) fail_msg("test_%s --list failed", p->name);
}

static program *find_program(const char *name) {
  for (int i = 0; i < program_count; i++)
    if (!strcmp(programs[i].name, name)) return &programs[i];
  assert_true(program_count < PROGRAMS_MOST);
  program *p = &programs[program_count++];
  snprintf(p->name, sizeof p->name, "%s", name);
  list_program(p);
  return p;
}

// What a command of ctest's runs: all tests of its program, or those of a pattern.
static void note_command(const json_t *command) {
  const char *path = json_string_value(json_array_get(command, 0)), *base = path ? strrchr(path, '/') : NULL;
  const char *pattern = json_string_value(json_array_get(command, 1));
  for (int i = 0; i < program_count && base; i++) {
    program *p = &programs[i];
    if (strncmp(base, "/test_", 6) || strcmp(base + 6, p->name)) continue;
    for (int t = 0; t < p->count; t++) p->run[t] = p->run[t] || !pattern || fnmatch(pattern, p->tests[t], 0) == 0;
  }
}

static void note_what_is_run(void) {
  json_t *test;
  size_t i;
  json_array_foreach(json_object_get(everything, "tests"), i, test) note_command(json_object_get(test, "command"));
}

static void ask_ctest(void) {
  json_error_t error;
  FILE *pipe = popen("cd '" TEST_BINARY_DIR "' && '" CTEST_COMMAND "' --show-only=json-v1", "r");
  assert_non_null(pipe);
  everything = json_loadf(pipe, 0, &error);
  assert_int_equal(pclose(pipe), 0);
  assert_non_null(everything);
}

// For each PROGRAM:TEST of a column's text.
static void each_word(const line *l, const char *text, void (*look)(const line *l, const char *kind, const char *name)) {
  char copy[1024], *rest = copy, *word;
  snprintf(copy, sizeof copy, "%s", text);
  while ((word = strsep(&rest, " "))) {
    char *name = strchr(word, ':');
    if (!strcmp(word, "-")) continue;
    if (!name) fail_msg("%s: %s is no KIND:NAME", l->id, word);
    *name++ = 0;
    look(l, word, name);
  }
}

// Cases of the command line: ctest takes them from the folder.
static bool is_command_line(const line *l, const char *name, const char *test) {
  char path[512];
  if (strcmp(name, "cli")) return false;
  snprintf(path, sizeof path, "%s/tests/cli/%s.out", TEST_SOURCE_DIR, test);
  if (access(path, R_OK)) fail_msg("%s: there is no %s", l->id, path);
  return true;
}

// Scripts: tests of ctest by their names.
static bool is_script(const line *l, const char *name, const char *test) {
  json_t *known;
  size_t i;
  if (strcmp(name, "ctest")) return false;
  json_array_foreach(json_object_get(everything, "tests"), i,
                     known) if (!strcmp(json_string_value(json_object_get(known, "name")), test)) return true;
  fail_msg("%s: ctest has no test %s", l->id, test);
  return true;
}

static int find_test(const line *l, const char *name, const char *test) {
  const program *p = find_program(name);
  for (int t = 0; t < p->count; t++)
    if (!strcmp(p->tests[t], test)) return t;
  fail_msg("%s: test_%s has no test %s", l->id, name, test);
  return -1;
}

static void exists(const line *l, const char *name, const char *test) {
  if (!is_command_line(l, name, test) && !is_script(l, name, test)) find_test(l, name, test);
}
static void is_run(const line *l, const char *name, const char *test) {
  if (is_command_line(l, name, test) || is_script(l, name, test)) return;
  if (!find_program(name)->run[find_test(l, name, test)]) fail_msg("%s: ctest does not run %s of test_%s", l->id, test, name);
}

static void tests_exist_and_are_run(void **state) {
  (void)state;
  ask_ctest();
  for (int i = 0; i < line_count; i++) each_word(&lines[i], lines[i].ci, exists);
  note_what_is_run();
  for (int i = 0; i < line_count; i++) each_word(&lines[i], lines[i].ci, is_run);
  json_decref(everything);
}

// No test of these programs is there for nothing.
static void every_test_is_run(void **state) {
  (void)state;
  for (int i = 0; i < program_count; i++)
    for (int t = 0; t < programs[i].count; t++)
      if (!programs[i].run[t]) fail_msg("ctest does not run %s of test_%s", programs[i].tests[t], programs[i].name);
}

// ---- on a GPU -------------------------------------------------------------------------------------------------

static bool named_here[1024];

static void gpu_case_exists(const line *l, const char *kind, const char *name) {
  int found = 0;
  for (size_t i = 0; i < dw__companion_check_count && !strcmp(kind, "companions"); i++)
    found += !strcmp(dw__companion_checks[i].name, name);
  for (size_t i = 0; i < dw__named_count() && !strcmp(kind, "named"); i++) {
    if (fnmatch(name, dw__named_name(i), 0)) continue;
    if (strncmp(dw__named_name(i), l->id, 3)) fail_msg("%s: %s is another case's", l->id, dw__named_name(i));
    named_here[i] = true;
    found++;
  }
  if (!found) fail_msg("%s: there is no %s:%s", l->id, kind, name);
}

static void gpu_cases_exist(void **state) {
  (void)state;
  assert_true(dw__named_count() < DW__COUNT(named_here));
  for (int i = 0; i < line_count; i++) each_word(&lines[i], lines[i].gpu, gpu_case_exists);
  // A name that begins with a case of these sections is in the table.
  for (size_t i = 0; i < dw__named_count(); i++) {
    const char *name = dw__named_name(i);
    if (strchr("acde", name[0]) && !named_here[i]) fail_msg("%s is in no line", name);
    for (size_t k = 0; k < i; k++)
      if (!strcmp(name, dw__named_name(k))) fail_msg("%s is there twice", name);
  }
}

// Every line of the named cases makes a valid check, for a large GPU and for an emulated one.
static void named_cases_are_calls(void **state) {
  (void)state;
  dw__named_check *made = calloc(1, sizeof *made);
  assert_non_null(made);
  for (size_t i = 0; i < dw__named_count(); i++)
    for (int k = 0; k < 4; k++) {
      dw_error error = {0};
      dw_status status = dw__named_make(i, k / 2 ? 120 : 90, 132, k % 2, made, &error);
      if (status) fail_msg("%s: %s", dw__named_name(i), error.message);
      assert_true(made->check.spec.batch <= DW__NAMED_BATCH);
      assert_true(made->check.shape.width >= (made->check.spec.width ? made->check.spec.width : 1));
      assert_true(!(made->check.asks & (DW__ASK_OWN_RUNS | DW__ASK_ASCENDING | DW__ASK_FAULTS)) || made->check.split_tokens);
      assert_true(!(made->check.asks & DW__ASK_FAULTS) || (made->check.variant.checked && made->check.spec.batch >= 3));
    }
  free(made);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_case_has_its_line), cmocka_unit_test(what_is_not_tested_has_a_reason),
    cmocka_unit_test(tests_exist_and_are_run), cmocka_unit_test(every_test_is_run),
    cmocka_unit_test(gpu_cases_exist),         cmocka_unit_test(named_cases_are_calls),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  return cmocka_run_group_tests(tests, read_table, NULL);
}
