// The generator: the template language, its errors with file and line, the sandbox and its limits, includes and #line marks,
// the same bytes everywhere, and what happens when memory runs out.
//
// Run as `test_gen --render DIR` it prints one rendered template: the test of other processes does so.
#include <limits.h>
#include <locale.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "gen.h"
#include "lua_api.h"
#include "support.h"

#define GOLDEN TEST_SOURCE_DIR "/tests/golden/gen"

// ---- rendering ------------------------------------------------------------------------------------------------

typedef struct outcome {
  dw_status status;
  dw_error error;
  char *source;
  size_t size;
} outcome;

static void outcome_free(outcome *o) {
  dw_error_clear(&o->error);
  dw__release(o->source);
}

static outcome render_from(const char *dir, const char *name, const dw__gen_param *params, size_t count) {
  outcome o = {0};
  dw__gen *gen = NULL;
  o.status = dw__gen_open(dir, &gen, &o.error);
  if (!o.status) o.status = dw__gen_render(gen, name, params, count, &o.source, &o.size, &o.error);
  dw__gen_close(gen);
  return o;
}

static outcome render_with(const char *text, const dw__gen_param *params, size_t count) {
  write_text("t.cu.lua", text);
  return render_from(test_folder, "t", params, count);
}

// What the template makes, without heading and marks.
static void strip_marks(char *source) {
  char *to = source;
  for (char *line = source; *line;) {
    char *next = strchr(line, '\n') + 1;
    size_t size = (size_t)(next - line);
    if (strncmp(line, "#line ", 6) && strncmp(line, "// Made by ", 11)) {
      memmove(to, line, size);
      to += size;
    }
    line = next;
  }
  *to = 0;
}

static void check_makes(const char *text, const char *expected) {
  outcome o = render_with(text, NULL, 0);
  if (o.status) print_error("%s\n", o.error.message);
  assert_int_equal(o.status, DW_OK);
  assert_int_equal(strlen(o.source), o.size);
  strip_marks(o.source);
  assert_string_equal(o.source, expected);
  outcome_free(&o);
}

// `expected` is how the message starts after "templates/", or with a leading colon after "templates/t.cu.lua".
static void check_failure(outcome o, const char *expected) {
  char start[256];
  snprintf(start, sizeof start, "templates/%s%s", expected[0] == ':' ? "t.cu.lua" : "", expected);
  const char *found = o.error.message;
  if (o.status != DW_TEMPLATE || strncmp(found, start, strlen(start))) {
    print_error("found    %s: %s\nexpected %s\n", dw_status_name(o.status), found, start);
    fail();
  }
  assert_null(o.source);
  outcome_free(&o);
}

static void check_fails(const char *text, const char *expected) { check_failure(render_with(text, NULL, 0), expected); }

// ---- the language ---------------------------------------------------------------------------------------------

static void text_and_code_lines(void **state) {
  (void)state;
  check_makes("", "");
  check_makes("a\n\n b\n", "a\n\n b\n");
  check_makes("no newline", "no newline\n");
  check_makes("@ local x = 3\nint x = ${x};\n", "int x = 3;\n");
  check_makes("@for i = 1, 2 do\n  @ ${i}\n@end\n", "  @ 1\n  @ 2\n");
  check_makes("@ if 1 > 2 then\nno\n@ else\nyes\n@ end\n", "yes\n");
  check_makes("@ local function f(x)\n#pragma f ${x}\n@ end\n@ f(1) f(2)\n", "#pragma f 1\n#pragma f 2\n");
  check_makes("@ goto done\nno\n@ ::done::\nyes\n", "yes\n");
  check_makes("@ local t = {\n@   'a', -- first\n@   'b',\n@ }\n${t[2]}\n", "b\n");
  check_makes("@ -- a comment\n@\na\"b\\c\td%e\\\\n\r\n", "a\"b\\c\td%e\\\\n\r\n");
}

static void holes(void **state) {
  (void)state;
  check_makes("${1}${'b'}${\"c\"}", "1bc\n");
  check_makes("$ {1} $1 {} ${ 2 } $", "$ {1} $1 {} 2 $\n");
  check_makes("$${1} $$${2} ${3}$${4}", "${1} $${2} 3${4}\n");
  check_makes("${'}'} ${\"{\"} ${'\\'}'} ${({a = {b = 1}}).a.b}", "} { '} 1\n");
  check_makes("${math.maxinteger} ${math.mininteger}", "9223372036854775807 -9223372036854775808\n");
  check_makes("${'a\\nb'}!\nc", "a\nb!\nc\n");
  check_makes("${(function() return 1, 2 end)()}", "1\n");
  check_makes("${select('#', 1, 2)}", "2\n");
}

static void parameters(void **state) {
  (void)state;
  const dw__gen_param params[] = {{"n", NULL, 4}, {"kind", "bf16", 0}, {"on", NULL, 1}, {"off", NULL, 0}};
  const char *text = "@ local n_too = param.int('n', 1, 5)\n@ param.string('kind', {'fp16', 'bf16'})\n"
                     "@ param.flag('on') param.flag('off')\n"
                     "${n} ${n_too} ${kind} ${on and 'on'} ${off or 'off'}\n";
  outcome o = render_with(text, params, 4);
  assert_int_equal(o.status, DW_OK);
  assert_non_null(strstr(o.source, "4 4 bf16 on off\n"));
  assert_non_null(strstr(o.source, "// Made by draftwood from templates/t.cu.lua: kind=bf16 n=4 off=0 on=1\n"));
  // The order in which they are handed in leaves no trace.
  const dw__gen_param shuffled[] = {params[3], params[1], params[0], params[2]};
  outcome again = render_with(text, shuffled, 4);
  assert_string_equal(o.source, again.source);
  outcome_free(&o);
  outcome_free(&again);
}

static void check_param(const char *declaration, dw__gen_param param, const char *expected) {
  char text[256];
  snprintf(text, sizeof text, "// first\n@ %s\n", declaration);
  check_failure(render_with(text, &param, 1), expected);
}

static void parameter_errors(void **state) {
  (void)state;
  const dw__gen_param n = {"n", NULL, 9}, s = {"s", "x", 0};
  check_param("param.int('n', 1, 5)", n, ":2: n: found 9, allowed 1 to 5");
  check_param("param.int('n', 10)", n, ":2: n: found 9, allowed 10 or more");
  check_param("param.int('n', nil, 8)", n, ":2: n: found 9, allowed at most 8");
  check_param("param.int('s')", s, ":2: s: found 'x', allowed an integer");
  check_param("param.string('n')", n, ":2: n: found 9, allowed a string");
  check_param("param.string('s', {'y', 'z'})", s, ":2: s: found 'x', allowed y, z");
  check_param("param.flag('n')", n, ":2: n: found 9, allowed 0 or 1");
  check_param("param.int('n') param.int('n')", n, ":2: parameter 'n' is declared twice");
  check_param("param.int('m')", n, ":2: parameter 'm' is declared, but was not handed in");
  check_param("param.int('ipairs')", (dw__gen_param){"ipairs", NULL, 1}, ":2: parameter 'ipairs' has the name of a helper");
  check_param("param.real('n')", n, ":2: unknown name 'param.real'");
  check_param("param.int()", n, ":2: param: a name is needed");
  check_param("local x = n", n, ":2: unknown name 'n': a parameter that is handed in, but not declared");
  check_param("local x = 1", n, ":1: parameter 'n' was handed in, but the template does not declare it");
}

static void check_refused(const dw__gen_param *params, size_t count, const char *field) {
  outcome o = render_with("a", params, count);
  assert_int_equal(o.status, DW_BAD_ARGUMENT);
  assert_string_equal(o.error.field, field);
  outcome_free(&o);
}

static void parameters_no_template_could_take(void **state) {
  (void)state;
  check_refused((dw__gen_param[]){{"", NULL, 1}}, 1, "parameter");
  check_refused((dw__gen_param[]){{"a-b", NULL, 1}}, 1, "parameter");
  check_refused((dw__gen_param[]){{"a", "x\ny", 0}}, 1, "a");
  check_refused((dw__gen_param[]){{"a", "x\\", 0}}, 1, "a");
  check_refused((dw__gen_param[]){{"a", NULL, 1}, {"b", NULL, 1}, {"a", NULL, 2}}, 3, "a");
}

static void helpers(void **state) {
  (void)state;
  check_makes("${float(0.1)} ${float(2)} ${float(1e-5)} ${float(-1e20)} ${float(1/3)}",
              "0.100000001f 2.0f 9.99999975e-06f -1.00000002e+20f 0.333333343f\n");
  check_makes("${div_up(9, 4)} ${round_up(9, 4)} ${log2(64)} ${is_power_of_two(6) and 1 or 0}", "3 12 6 0\n");
  check_makes("${list(3, 'd[#]')}; ${list(2, function(i) return i * i end, ' + ')}; ${list(0, 'x')}",
              "d[0], d[1], d[2]; 0 + 1; \n");
  check_makes("@ for k, v in sorted_pairs({b = 1, a = 2, c = 3}) do\n${k}${v}\n@ end", "a2\nb1\nc3\n");
  check_makes("@ for _, v in ipairs(sorted({3, 1, 2})) do\n${v}\n@ end", "1\n2\n3\n");
  check_makes("${tostring(1)} ${tostring(false)} ${string.format('%5.2f|%s|%%p', 1.5, 'x')}", "1 false  1.50|x|%p\n");
  check_makes("${('x'):rep(3)} ${table.concat({1, 2}, '-')} ${math.max(1, 7)}", "xxx 1-2 7\n");
  check_fails("${float(1/0)}", ":1: float: inf is out of range");
  check_fails("${float(1e39)}", ":1: float: 1e+39 is out of range");
  check_fails("${float('1')}", ":1: float: found a string, allowed a number");
  check_fails("${div_up(1, 0)}", ":1: div_up: found 0, allowed 1 or more");
  check_fails("${log2(6)}", ":1: log2: a power of two is needed");
  check_fails("${list(1, function() return 0.5 end)}", ":1: list: item 0 is a float");
  check_fails("@ sorted({1, 'a'})", ":1: sorted: strings and integers mixed");
  check_fails("@ sorted({1.5})", ":1: sorted: found a float");
  check_fails("@ sorted_pairs({a = 1, [2] = 2})", ":1: sorted: strings and integers mixed");
  check_fails("${tostring({})}", ":1: tostring: found a table");
}

// ---- errors ---------------------------------------------------------------------------------------------------

static void errors_of_holes(void **state) {
  (void)state;
  check_fails("a\n${nil}", ":2: ${nil} is nil");
  check_fails("@ local t = {}\n${t.x}", ":2: ${t.x} is nil");
  check_fails("${1} ${1 == 1}", ":1: ${1 == 1} is a boolean");
  check_fails("${{}}", ":1: ${{}} is a table");
  check_fails("${ipairs}", ":1: ${ipairs} is a function");
  check_fails("${4 / 2}", ":1: ${4 / 2} is the float 2: write float()");
  check_fails("${'\\0'}", ":1: ${'\\0'} holds a zero byte");
  check_fails("a\n\n${}", ":3: an empty hole");
  check_fails("a\n${b", ":2: a hole '${' without its '}'");
  check_fails("${'}'", ":1: a hole '${' without its '}'");
  check_fails("a\n${1, 2}", ":2: ${1, 2}: ')' expected near ','");
  check_fails("${1) .. (2}", ":1: ${1) .. (2}: <eof> expected near ')'");
  check_fails("${1 -- no}", ":1: ${1 -- no}: ')' expected near <eof>");
  check_fails("${x = 1}", ":1: ${x = 1}: ");
  check_fails("${_ENV}", ":1: '_ENV' is not for templates");
  check_fails("${[[x]]}", ":1: long brackets are not for templates");
}

static void errors_of_code(void **state) {
  (void)state;
  check_fails("a\n@ local a = = 1\n", ":2: unexpected symbol near '='");
  check_fails("a\n@ if true then\nb\n", ":3: 'end' expected");
  check_fails("a\n@ end\nb\n", ":2: <eof> expected near 'end'");
  check_fails("@ local a =\ntext\n", ":2: unexpected symbol near ';' (a text line; is the code line before it complete?)");
  check_fails("@ while true\ntext\n@ end\n", ":2: 'do' expected near ';'");
  check_fails("@ local t = {\ntext\n@ }\n", ":2: ");
  check_fails("@ local t = { 1\ntext\n@ }\n", ":2: unexpected symbol near 'do'");
  check_fails("@ local s = 'a\\\ntext'\n", ":2: ");
  check_fails("@ local s = [[\ntext\n@ ]]\n", ":1: long brackets are not for templates");
  check_fails("a\n@ --[==[\ntext\n", ":2: long brackets are not for templates");
  check_fails("a\n@ __emit(1, 'x')\n", ":2: '__emit' is not for templates");
  check_fails("@ x = 1\n", ":1: 'x' is not a local: write 'local x'");
  check_fails("@ function f() end\n", ":1: 'f' is not a local");
  check_fails("a\nb\n@ local y = x\n", ":3: unknown name 'x'");
  check_fails("a\n${x}\n", ":2: unknown name 'x'");
  check_fails("@ local x = string.foo\n", ":1: unknown name 'string.foo'");
  check_fails("@ string.rep = 1\n", ":1: 'string' is read-only");
  check_fails("@ return 1\ntext\n", ":2: ");
}

static void errors_at_run_time(void **state) {
  (void)state;
  check_fails("a\n@ error('boom')\n", ":2: boom");
  check_fails("a\n@ assert(1 == 2, 'one is not two')\n", ":2: one is not two");
  check_fails("@ assert(false)\n", ":1: assertion failed");
  check_fails("@ error({})\n", ":1: error");
  check_fails("@ local t = {}\n@ t.x.y = 1\n", ":2: attempt to index a nil value (field 'x')");
  check_fails("@ local function f()\n@   return nil + 1\n@ end\n\n${f()}\n",
              ":2: attempt to perform arithmetic on a nil value");
  check_fails("@ local s = ('x'):rep(1, 2, 3, 4):foo()\n", ":1: attempt to call a nil value (method 'foo')");
  check_fails("a\n@ local s = string.rep()\n", ":2: bad argument #1 to 'rep'");
  check_fails("@ local s = 1 .. {}\n", ":1: attempt to concatenate a table value");
  check_fails("a\n@ local s = string.format('%d', 'x')\n", ":2: ");
  check_fails("@ local function f() return 1 + f() end\n@ f()\n", ":1: ");  // Lua's limit or ours
  check_fails("@ local function f() return (('x'):gsub('x', f)) end\n@ f()\n", ":1: ");
  outcome o = render_with("@ local function f() error('deep') end\n@ f()\n", NULL, 0);
  assert_non_null(o.error.log);
  assert_non_null(strstr(o.error.log, "templates/t.cu.lua:2: in"));
  check_failure(o, ":1: deep");
}

static void deep_nesting_is_an_error(void **state) {
  (void)state;
  dw__buf text = {0};
  dw__buf_puts(&text, "a\n${");
  for (int i = 0; i < 100000; i++) dw__buf_puts(&text, "(");
  dw__buf_puts(&text, "}\n");
  check_fails(text.data, ":2: ${((");
  dw__buf_free(&text);
  dw__buf_puts(&text, "a\n@ local x = ");
  for (int i = 0; i < 100000; i++) dw__buf_puts(&text, "{");
  check_fails(text.data, ":1: C stack overflow");  // Lua's parser gives no line with this one
  dw__buf_free(&text);
}

static void errors_of_includes(void **state) {
  (void)state;
  write_text("a.cuh", "#pragma once\n#include \"none.cuh\"\n");
  write_text("b.cuh", "int b;\n");
  check_fails("\n#include \"none.cuh\"\n", ":2: no such file in templates/: none.cuh");
  check_fails("#include \"a.cuh\"\n", "a.cuh:2: no such file in templates/: none.cuh");
  check_fails("# include  \"../b.cuh\"\n", ":1: no such file in templates/: ../b.cuh");
  check_fails("#include \"t.cu.lua\"\n", ":1: no such file in templates/: t.cu.lua");
  check_fails("#include \"engine.lua\"\n", ":1: no such file in templates/: engine.lua");
  check_fails("#include <stdio.h>\n", ":1: only #include \"FILE\" of templates/ is possible: #include <stdio.h>");
  check_fails("#include HEADER\n", ":1: only #include \"FILE\" of templates/ is possible");
  check_fails("#include\n", ":1: only #include \"FILE\" of templates/ is possible");
  check_fails("#include \"b.cuh\n", ":1: only #include \"FILE\" of templates/ is possible");
  check_fails("#include \"b.cuh\" int c;\n", ":1: text after an #include");
  check_fails("#ifdef A\n#include \"b.cuh\"\n#endif\n", ":2: an #include under #if, but each file is put in once");
  check_fails("#ifndef A\n#define B\n#include \"b.cuh\"\n#endif\n", ":3: an #include under #if");
  check_makes("#ifndef A\n#define A\n#include \"b.cuh\" // b\n#endif\n#if 0\n#endif\n#include \"b.cuh\"\n",
              "#ifndef A\n#define A\nint b;\n#endif\n#if 0\n#endif\n\n");
  check_makes("${'#include'} \"b.cuh\"\n", "int b;\n");
}

static void chains_of_includes_end(void **state) {
  (void)state;
  write_text("a.cuh", "#include \"b.cuh\"\nint a;\n");
  write_text("b.cuh", "#include \"a.cuh\"\nint b;\n");
  check_makes("#include \"a.cuh\"\n", "\nint b;\nint a;\n");
  char name[32], text[64];
  for (int i = 0; i < 40; i++) {
    snprintf(name, sizeof name, "c%d.cuh", i);
    snprintf(text, sizeof text, "#include \"c%d.cuh\"\n", i + 1);
    write_text(name, text);
  }
  check_fails("#include \"c0.cuh\"\n", "c31.cuh:1: too many files include one another");
  dw__buf deep = {0};
  for (int i = 0; i < 40; i++) dw__buf_puts(&deep, "#if 1\n");
  check_fails(deep.data, ":33: too many #if inside one another");
  dw__buf_free(&deep);
}

static void missing_templates(void **state) {
  (void)state;
  write_text("t.cu.lua", "a");
  const char *names[] = {"none", "../t", "t.cu.lua", "", "a/../t"};
  for (size_t i = 0; i < DW__COUNT(names); i++) {
    outcome o = render_from(test_folder, names[i], NULL, 0);
    assert_non_null(strstr(o.error.message, "no such template"));
    check_failure(o, names[i]);
  }
  char longer[300];
  memset(longer, 'x', sizeof longer);
  longer[sizeof longer - 1] = 0;
  outcome o = render_from(test_folder, longer, NULL, 0);
  check_failure(o, "xxx");
}

static void check_open(const char *dir, dw_status status, const char *part) {
  outcome o = render_from(dir, "t", NULL, 0);
  if (o.status != status || !strstr(o.error.message, part)) print_error("%s: %s\n", dw_status_name(o.status), o.error.message);
  assert_int_equal(o.status, status);
  assert_non_null(strstr(o.error.message, part));
  outcome_free(&o);
}

static void folders_that_cannot_be_used(void **state) {
  (void)state;
  check_open("/no/such/folder", DW_NOT_FOUND, "/no/such/folder");
  check_open(test_folder, DW_NOT_FOUND, "it holds no .cu.lua, .cuh or .h file");
  write_text("t.txt", "no template");
  write_text(".t.cu.lua", "an editor's lock");
  check_open(test_folder, DW_NOT_FOUND, "it holds no");
  check_open(path_of("t.txt"), DW_NOT_FOUND, "t.txt");
  write_bytes("t.cu.lua", "a\0b", 3);
  check_open(test_folder, DW_TEMPLATE, "templates/t.cu.lua: it holds a zero byte");
  write_text("t.cu.lua", "a");
  mkdir(path_of("folder.h"), 0700);
  check_open(test_folder, DW_IO, "folder.h");
  rmdir(path_of("folder.h"));
  write_text("a_name_so_long_that_lua_would_shorten_it_in_its_messages_.cuh", "a");
  check_open(test_folder, DW_IO, "shorter file names");
}

// ---- the sandbox ----------------------------------------------------------------------------------------------

static void nothing_leads_out(void **state) {
  (void)state;
  const char *names[] = {
    "load",         "loadstring",   "loadfile",      "dofile",          "require",    "package",        "module",
    "io",           "os",           "debug",         "coroutine",       "utf8",       "collectgarbage", "print",
    "warn",         "pcall",        "xpcall",        "rawget",          "rawset",     "rawequal",       "rawlen",
    "setmetatable", "getmetatable", "next",          "pairs",           "_G",         "_VERSION",       "arg",
    "string.dump",  "string.pack",  "string.unpack", "string.packsize", "table.sort", "math.random",    "math.randomseed",
    "math.exp",     "math.log",     "math.sin",      "math.pi"};
  for (size_t i = 0; i < DW__COUNT(names); i++) {
    char text[64], expected[64];
    snprintf(text, sizeof text, "\n@ local x = %s\n", names[i]);
    snprintf(expected, sizeof expected, ":2: unknown name '%s'", names[i]);
    check_fails(text, expected);
  }
}

static void attempts_to_get_out(void **state) {
  (void)state;
  check_fails("@ local f = ('').dump\n${f}", ":2: ${f} is nil");
  check_fails("@ local f = ('').pack\n${f}", ":2: ${f} is nil");
  check_fails("@ ('').rep = 1", ":1: attempt to index a string value");
  check_fails("@ local _ENV = {}", ":1: '_ENV' is not for templates");
  check_fails("@ local f = _ENV", ":1: '_ENV' is not for templates");
  check_fails("${string.format('%p', 'x')}", ":1: string.format: %p is not for templates");
  check_fails("${('%-9p'):format(ipairs)}", ":1: string.format: %p is not for templates");
  check_fails("${string.format('%s', {})}", ":1: string.format: argument 2 is a table");
  check_fails("${string.format('%q', ipairs)}", ":1: string.format: argument 2 is a function");
  check_fails("@ string.foo = 1", ":1: 'string' is read-only");
  check_fails("@ param.int = 1", ":1: 'param' is read-only");
  check_fails("@ ipairs = 1", ":1: 'ipairs' is not a local");
  check_fails("@ goto outside", ":1: no visible label 'outside'");
  check_makes("\x1bLua", "\x1bLua\n");  // a binary chunk is text like any other
}

static void work_is_limited(void **state) {
  (void)state;
  check_fails("a\n@ while true do\n@ end\n", ":2: more than 50 million instructions");
  check_fails("@ local function f()\n@   return f()\n@ end\n${f()}\n", ":2: more than 50 million instructions");
  check_fails("@ local t = {}\n@ for i = 1, 1 << 40 do\n@   t[i] = i .. 'x'\n@ end\n",
              ":3: it needs more than 64 MiB of memory");
  check_fails("a\n@ local s = 'x'\n@ local t = s:rep(100 << 20)\n", ":3: it needs more than 64 MiB of memory");
  check_fails("@ local s = ('x'):rep(1 << 62, 'xx')\n", ":1: ");
  check_fails("@ for i = 1, 1 << 40 do\nsome text, long enough to be a string of its own each time: ${i}\n@ end\n",
              ":2: it needs more than 64 MiB of memory");
}

// ---- marks ----------------------------------------------------------------------------------------------------

static void read_all(FILE *file, dw__buf *text) {
  char part[4096];
  for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0;) dw__buf_append(text, part, n);
  dw__buf_puts(text, "");
}

// What a host compiler says of the template's text.
static dw__buf compile_messages(const char *text) {
  outcome o = render_with(text, NULL, 0);
  if (o.status) print_error("%s\n", o.error.message);
  assert_int_equal(o.status, DW_OK);
  write_bytes("made.cc", o.source, o.size);
  outcome_free(&o);
  char command[512];
  snprintf(command, sizeof command, "cd '%s' && LC_ALL=C g++ -std=c++20 -fsyntax-only made.cc 2>&1", test_folder);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  dw__buf said = {0};
  read_all(pipe, &said);
  pclose(pipe);
  return said;
}

static void check_named(const char *text, const char *place) {
  dw__buf said = compile_messages(text);
  bool good = strstr(said.data, place) && strstr(said.data, "BAD");
  if (!good) print_error("expected %s in:\n%s\n", place, said.data);
  dw__buf_free(&said);
  assert_true(good);
}

static void compilers_name_the_template(void **state) {
  (void)state;
  if (system("g++ --version > /dev/null 2>&1")) skip();
  write_text("x.cuh", "#pragma once\n// line 2\n#include \"y.cuh\"\nBAD x;\n");
  write_text("y.cuh", "int y;\n");
  write_text("bad.cuh", "\n\n  BAD z;\n");
  check_named("#include \"x.cuh\"\n", "templates/x.cuh:4:1: error");
  check_named("int a;\n#include \"y.cuh\"\n#include \"bad.cuh\"\n", "templates/bad.cuh:3:3: error");
  check_named("#include \"y.cuh\"\nint a;\n BAD b;\n", "templates/t.cu.lua:3:2: error");
  check_named("@ for i = 1, 3 do\nint a${i};\n@ end\n\nBAD b;\n", "templates/t.cu.lua:5:1: error");
  check_named("@ for i = 1, 3 do\nint a${i};\n@ if i == 2 then\nBAD b;\n@ end\n@ end\n", "templates/t.cu.lua:4:1: error");
  check_named("${'int a;\\nint b;'}\nBAD c;\n", "templates/t.cu.lua:2:1: error");
  check_named("${'int a;\\nBAD b;'}\nint c;\n", "templates/t.cu.lua:1:1: error");
  // Marks in a group that the compiler skips do not count.
  check_named("#if 0\nint a;\n@ local x = 1\n@ x = 2\nint b;\n#endif\nBAD c;\n", "templates/t.cu.lua:7:1: error");
  check_named("#if 0\nint a;\n@ local x = 1\nint b;\n#else\nBAD c;\n#endif\n", "templates/t.cu.lua:6:1: error");
  // No mark inside a macro.
  check_named("#define M(x) \\\n@ for i = 1, 3 do\n  x \\\n@ end\n  int m;\nM(int n;)\nBAD c;\n",
              "templates/t.cu.lua:7:1: error");
}

static void marks_only_where_lines_jump(void **state) {
  (void)state;
  outcome o = render_with("a\nb\n@ local x = 1\nc\n\nd\n", NULL, 0);
  assert_string_equal(o.source, "// Made by draftwood from templates/t.cu.lua:\n#line 1 \"templates/t.cu.lua\"\na\nb\n"
                                "#line 4 \"templates/t.cu.lua\"\nc\n\nd\n");
  outcome_free(&o);
}

// ---- the same everywhere --------------------------------------------------------------------------------------

static const dw__gen_param small_params[] = {{"n", NULL, 3}, {"word", "int", 0}, {"checked", NULL, 1}};

static outcome render_small(const char *dir) { return render_from(dir, "small", small_params, DW__COUNT(small_params)); }

// With DRAFTWOOD_GOLDEN=write in the environment the expected text is made anew.
static void golden_texts(void **state) {
  (void)state;
  const struct {
    const char *file;
    dw__gen_param params[3];
  } cases[] = {
    {"small_int_3_checked.cu", {{"n", NULL, 3}, {"word", "int", 0}, {"checked", NULL, 1}}},
    {"small_float_1.cu", {{"n", NULL, 1}, {"word", "float", 0}, {"checked", NULL, 0}}},
  };
  for (size_t i = 0; i < DW__COUNT(cases); i++) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", GOLDEN, cases[i].file);
    outcome o = render_from(GOLDEN "/templates", "small", cases[i].params, 3);
    assert_int_equal(o.status, DW_OK);
    if (getenv("DRAFTWOOD_GOLDEN")) {
      FILE *file = fopen(path, "wb");
      assert_non_null(file);
      fwrite(o.source, 1, o.size, file);
      fclose(file);
    }
    char *expected = NULL;
    size_t size = 0;
    assert_int_equal(dw__file_read(path, &expected, &size, NULL), DW_OK);
    assert_string_equal(o.source, expected);
    dw__release(expected);
    outcome_free(&o);
  }
}

static int render_to_stdout(const char *dir) {
  setlocale(LC_ALL, "");
  outcome o = render_small(dir);
  if (o.status) puts(o.error.message);
  else fwrite(o.source, 1, o.size, stdout);
  int status = (int)o.status;
  outcome_free(&o);
  return status;
}

// Another working directory, another spelling of the folder, another environment: the same bytes.
static void other_processes_make_the_same(void **state) {
  (void)state;
  char self[512] = {0}, absolute[PATH_MAX], command[2048];
  assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  assert_non_null(realpath(GOLDEN "/templates", absolute));
  outcome o = render_small(GOLDEN "/templates");
  assert_int_equal(o.status, DW_OK);
  const char *forms[] = {"cd / && '%s' --render '%s'",
                         "cd /usr/lib && LC_ALL=de_DE.UTF-8 TZ=Asia/Tokyo '%s' --render '%s/../templates/'",
                         "cd /tmp && env -i '%s' --render '%s'"};
  for (size_t i = 0; i < 3 * DW__COUNT(forms); i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(command, sizeof command, forms[i % DW__COUNT(forms)], self, absolute);
#pragma GCC diagnostic pop
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    dw__buf made = {0};
    read_all(pipe, &made);
    assert_int_equal(pclose(pipe), 0);
    assert_string_equal(made.data, o.source);
    dw__buf_free(&made);
  }
  outcome_free(&o);
}

static dw__digest digest_of(const char *dir) {
  dw__gen *gen = NULL;
  dw__digest digest = {0};
  assert_int_equal(dw__gen_open(dir, &gen, NULL), DW_OK);
  assert_int_equal(dw__gen_digest(gen, &digest, NULL), DW_OK);
  dw__gen_close(gen);
  return digest;
}

static bool same_digest(dw__digest a, dw__digest b) { return memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0; }

static void digest_follows_names_and_bytes(void **state) {
  (void)state;
  write_text("t.cu.lua", "a\n");
  write_text("a.cuh", "b\n");
  dw__digest first = digest_of(test_folder);
  write_text("notes.txt", "no template");
  assert_true(same_digest(first, digest_of(test_folder)));
  write_text("a.cuh", "c\n");
  assert_false(same_digest(first, digest_of(test_folder)));
  write_text("a.cuh", "b\n");
  assert_true(same_digest(first, digest_of(test_folder)));
  write_text("b.cuh", "");
  assert_false(same_digest(first, digest_of(test_folder)));
  assert_true(same_digest(digest_of(NULL), digest_of(NULL)));
  assert_false(same_digest(first, digest_of(NULL)));
}

// The folder is read once: what renders is what the digest was made of.
static void files_are_read_at_open(void **state) {
  (void)state;
  dw__gen *gen = NULL;
  char *source = NULL;
  size_t size = 0;
  write_text("t.cu.lua", "before");
  assert_int_equal(dw__gen_open(test_folder, &gen, NULL), DW_OK);
  write_text("t.cu.lua", "after");
  assert_int_equal(dw__gen_render(gen, "t", NULL, 0, &source, &size, NULL), DW_OK);
  assert_non_null(strstr(source, "before"));
  dw__release(source);
  dw__gen_close(gen);
}

static void embedded_templates_are_those_of_the_folder(void **state) {
  (void)state;
  if (access(TEST_SOURCE_DIR "/templates", R_OK)) skip();
  assert_true(same_digest(digest_of(NULL), digest_of(TEST_SOURCE_DIR "/templates")));
}

// ---- threads and memory ---------------------------------------------------------------------------------------

static void *render_often(void *user) {
  dw__gen *gen = user;
  char *first = NULL, *source = NULL;
  size_t size = 0;
  for (int i = 0; i < 50; i++) {
    if (dw__gen_render(gen, "small", small_params, 3, &source, &size, NULL)) break;
    if (first && strcmp(first, source)) break;
    if (first) dw__release(source);
    else first = source;
    source = NULL;
  }
  dw__release(source);
  return first;
}

static void threads_share_a_generator(void **state) {
  (void)state;
  pthread_t threads[4];
  dw__gen *gen = NULL;
  outcome o = render_small(GOLDEN "/templates");
  assert_int_equal(dw__gen_open(GOLDEN "/templates", &gen, NULL), DW_OK);
  for (size_t i = 0; i < DW__COUNT(threads); i++) assert_int_equal(pthread_create(&threads[i], NULL, render_often, gen), 0);
  for (size_t i = 0; i < DW__COUNT(threads); i++) {
    void *source = NULL;
    pthread_join(threads[i], &source);
    assert_non_null(source);
    assert_string_equal(source, o.source);
    dw__release(source);
  }
  dw__gen_close(gen);
  outcome_free(&o);
}

// Every allocation fails once, and with it all later ones.
static void out_of_memory_is_reported(void **state) {
  (void)state;
  outcome o = {0};
  long n = 0;
  do {
    outcome_free(&o);
    n += n < 1000 ? 1 : 7;
    dw__alloc_fail_after(n);
    o = render_small(GOLDEN "/templates");
    dw__alloc_fail_after(0);
    if (o.status) assert_int_equal(o.status, DW_OUT_OF_MEMORY);
    if (o.status) assert_null(o.source);
  } while (o.status);
  assert_true(n > 1000);
  outcome whole = render_small(GOLDEN "/templates");
  assert_string_equal(o.source, whole.source);
  outcome_free(&o);
  outcome_free(&whole);
}

static void out_of_memory_in_a_failing_template(void **state) {
  (void)state;
  write_text("t.cu.lua", "a\n@ error('boom')\n");
  for (long n = 1; n < 3000; n += 3) {
    dw__alloc_fail_after(n);
    outcome o = render_from(test_folder, "t", NULL, 0);
    dw__alloc_fail_after(0);
    assert_true(o.status == DW_OUT_OF_MEMORY || o.status == DW_TEMPLATE);
    outcome_free(&o);
  }
}

// ---- Lua ------------------------------------------------------------------------------------------------------

static void lua_is_5_4(void **state) {
  (void)state;
  dw__lua lua;
  assert_int_equal(dw__lua_open(&lua, NULL), DW_OK);
  assert_int_equal((int)lua.version(NULL), 504);
  dw__lua_close(&lua);
}

#ifndef DRAFTWOOD_LUA_STATIC
static void check_lua(const char *file, const char *part) {
  setenv("DRAFTWOOD_LUA", file, 1);
  dw_error error = {0};
  dw__lua lua;
  dw_status status = dw__lua_open(&lua, &error);
  unsetenv("DRAFTWOOD_LUA");
  assert_int_equal(status, DW_NOT_FOUND);
  if (!strstr(error.message, part)) print_error("%s\n", error.message);
  assert_non_null(strstr(error.message, part));
  assert_non_null(strstr(error.message, "liblua5.4-0"));
  dw_error_clear(&error);
}

static void lua_that_cannot_be_used(void **state) {
  (void)state;
  check_lua("/no/such/liblua.so", "/no/such/liblua.so: cannot open");
  check_lua("libc.so.6", "libc.so.6: not Lua 5.4: it lacks lua_newuserdatauv");
  write_text("liblua.so", "no library");
  check_lua(path_of("liblua.so"), "liblua.so");
  setenv("DRAFTWOOD_LUA", "", 1);  // as if it were not set
  lua_is_5_4(state);
  unsetenv("DRAFTWOOD_LUA");
}

// Opening and the digest, which is all that finding a kernel takes, need no Lua; a render without says what is missing, and one after
// it has come works.
static void lua_is_loaded_by_the_first_render(void **state) {
  (void)state;
  dw__gen *gen = NULL;
  dw__digest digest;
  dw_error error = {0};
  char *source = NULL;
  size_t size = 0;
  write_text("t.cu.lua", "text");
  setenv("DRAFTWOOD_LUA", path_of("none.so"), 1);
  assert_int_equal(dw__gen_open(test_folder, &gen, NULL), DW_OK);
  assert_int_equal(dw__gen_digest(gen, &digest, NULL), DW_OK);
  assert_int_equal(dw__gen_render(gen, "t", NULL, 0, &source, &size, &error), DW_NOT_FOUND);
  assert_null(source);
  assert_non_null(strstr(error.message, "none.so"));
  unsetenv("DRAFTWOOD_LUA");
  assert_int_equal(dw__gen_render(gen, "t", NULL, 0, &source, &size, &error), DW_OK);
  dw__release(source);
  dw_error_clear(&error);
  dw__gen_close(gen);
}
#endif

#define T(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(int count, char **arguments) {
  if (count == 3 && !strcmp(arguments[1], "--render")) return render_to_stdout(arguments[2]);
  const struct CMUnitTest tests[] = {
    T(text_and_code_lines),
    T(holes),
    T(parameters),
    T(parameter_errors),
    T(parameters_no_template_could_take),
    T(helpers),
    T(errors_of_holes),
    T(errors_of_code),
    T(errors_at_run_time),
    T(deep_nesting_is_an_error),
    T(errors_of_includes),
    T(chains_of_includes_end),
    T(missing_templates),
    T(folders_that_cannot_be_used),
    T(nothing_leads_out),
    T(attempts_to_get_out),
    T(work_is_limited),
    T(compilers_name_the_template),
    T(marks_only_where_lines_jump),
    T(golden_texts),
    T(other_processes_make_the_same),
    T(digest_follows_names_and_bytes),
    T(files_are_read_at_open),
    T(embedded_templates_are_those_of_the_folder),
    T(threads_share_a_generator),
    T(out_of_memory_is_reported),
    T(out_of_memory_in_a_failing_template),
    T(lua_is_5_4),
#ifndef DRAFTWOOD_LUA_STATIC
    T(lua_that_cannot_be_used),
    T(lua_is_loaded_by_the_first_render),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
