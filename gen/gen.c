// Variant -> source. A render is two steps: Lua runs the template and gives numbered lines (engine.lua says how), then the
// lines and the plain files they include become one text with #line marks.
//
// All files are read by dw__gen_open, and every render has a Lua state of its own, so renders need no lock and touch no file. What
// changes later is the table of Lua's functions, filled once, by the first render: where every kernel comes from a bundle, Lua need
// not be there. All of Lua runs under one lua_pcall; its memory and instructions are counted.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "gen.h"

#include <dirent.h>
#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lua_api.h"

// Limits against mistakes in a template: far above any use, low enough to end soon.
enum {
  MEMORY_LIMIT = 64 << 20,
  INSTRUCTION_LIMIT = 50 * 1000 * 1000,
  NAME_LIMIT = LUA_IDSIZE - 1,  // Lua would shorten a longer file name in its messages
  INCLUDE_LIMIT = 32,           // files that include one another in a row
  CONDITION_LIMIT = 32,         // #if inside #if
};

// As embed.cmake writes it.
struct dw__embedded {
  const char *name;
  const unsigned char *data;
  size_t size;
};
extern const struct dw__embedded dw__embedded_files[];
extern const size_t dw__embedded_count;

// ---- files ----------------------------------------------------------------------------------------------------

typedef struct source_file {
  const char *name;  // "templates/ptx.cuh", "gen/engine.lua"
  const char *data;
  size_t size;
  bool owned;  // name and data are ours
} source_file;

struct dw__gen {
  pthread_mutex_t loading;  // of Lua
  atomic_bool loaded;
  dw__lua lua;
  source_file *files;  // sorted by name
  size_t count;
  dw__digest digest;
};

static bool has_prefix(const char *text, const char *prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }

static bool has_suffix(const char *text, const char *suffix) {
  size_t n = strlen(text), m = strlen(suffix);
  return n > m && memcmp(text + n - m, suffix, m) == 0;
}

static bool is_template(const char *name) { return has_prefix(name, "templates/"); }

static int by_name(const void *a, const void *b) {
  const source_file *left = a, *right = b;
  return strcmp(left->name, right->name);
}

static const source_file *file_find(const dw__gen *gen, const char *name) {
  source_file key = {.name = name};
  return bsearch(&key, gen->files, gen->count, sizeof key, by_name);
}

static dw_status out_of_memory(dw_error *error) { return dw__fail(error, DW_OUT_OF_MEMORY, "templates", NULL, NULL, NULL); }

// Takes over the file's own memory, also when it fails.
static dw_status file_add(dw__gen *gen, source_file file, dw_error *error) {
  source_file *files = dw__realloc(gen->files, (gen->count + 1) * sizeof *files);
  if (files) {
    gen->files = files;
    gen->files[gen->count++] = file;
    return DW_OK;
  }
  if (file.owned) {
    dw__release((void *)file.name);
    dw__release((void *)file.data);
  }
  return out_of_memory(error);
}

static dw_status add_embedded(dw__gen *gen, bool templates, dw_error *error) {
  dw_status status = DW_OK;
  for (size_t i = 0; i < dw__embedded_count && !status; i++) {
    const struct dw__embedded *from = &dw__embedded_files[i];
    if (is_template(from->name) && !templates) continue;
    status = file_add(gen, (source_file){from->name, (const char *)from->data, from->size, false}, error);
  }
  return status;
}

static dw_status add_from_dir(dw__gen *gen, const char *dir, const char *entry, dw_error *error) {
  dw__buf path = {0}, name = {0};
  source_file file = {.owned = true};
  char *data = NULL;
  dw__buf_printf(&path, "%s/%s", dir, entry);
  dw__buf_printf(&name, "templates/%s", entry);
  dw_status status = DW_OK;
  if (path.failed || name.failed) status = out_of_memory(error);
  else if (name.size > NAME_LIMIT) status = dw__fail(error, DW_IO, "template_dir", entry, "shorter file names", NULL);
  if (!status) status = dw__file_read(path.data, &data, &file.size, error);
  dw__buf_free(&path);
  if (status) {
    dw__buf_free(&name);
    return status;
  }
  file.name = name.data;
  file.data = data;
  return file_add(gen, file, error);
}

static bool is_source(const char *name) {
  return name[0] != '.' && (has_suffix(name, ".cu.lua") || has_suffix(name, ".cuh") || has_suffix(name, ".h"));
}

static dw_status add_dir(dw__gen *gen, const char *path, dw_error *error) {
  DIR *dir = opendir(path);
  if (!dir) {
    dw_status status = errno == ENOENT || errno == ENOTDIR ? DW_NOT_FOUND : errno == ENOMEM ? DW_OUT_OF_MEMORY : DW_IO;
    return dw__fail(error, status, "template_dir", path, "a folder of templates", "%s", strerror(errno));
  }
  dw_status status = DW_OK;
  size_t before = gen->count;
  for (struct dirent *entry; !status && (errno = 0, entry = readdir(dir));)
    if (is_source(entry->d_name)) status = add_from_dir(gen, path, entry->d_name, error);
  if (!status && errno) status = dw__fail(error, DW_IO, "template_dir", path, "a folder of templates", "%s", strerror(errno));
  closedir(dir);
  if (!status && gen->count == before)
    status =
      dw__fail(error, DW_NOT_FOUND, "template_dir", path, "a folder of templates", "it holds no .cu.lua, .cuh or .h file");
  return status;
}

// A zero byte would end the text early for a reader of C strings.
static dw_status check_files(const dw__gen *gen, dw_error *error) {
  for (size_t i = 0; i < gen->count; i++)
    if (memchr(gen->files[i].data, 0, gen->files[i].size))
      return dw__fail(error, DW_TEMPLATE, NULL, NULL, NULL, "%s: it holds a zero byte", gen->files[i].name);
  return DW_OK;
}

static dw_status make_digest(dw__gen *gen, dw_error *error) {
  dw__buf all = {0};
  for (size_t i = 0; i < gen->count; i++) {
    dw__buf_printf(&all, "%s\n%zu\n", gen->files[i].name, gen->files[i].size);
    dw__buf_append(&all, gen->files[i].data, gen->files[i].size);
  }
  if (!all.failed) gen->digest = dw__sha256(all.data, all.size);
  bool failed = all.failed;
  dw__buf_free(&all);
  return failed ? out_of_memory(error) : DW_OK;
}

dw_status dw__gen_open(const char *template_dir, dw__gen **gen, dw_error *error) {
  dw__gen *made = dw__calloc(1, sizeof *made);
  *gen = NULL;
  if (!made) return out_of_memory(error);
  pthread_mutex_init(&made->loading, NULL);
  dw_status status = add_embedded(made, !template_dir, error);
  if (!status && template_dir) status = add_dir(made, template_dir, error);
  if (!status) status = check_files(made, error);
  if (!status) {
    qsort(made->files, made->count, sizeof *made->files, by_name);
    status = make_digest(made, error);
  }
  if (status) dw__gen_close(made);
  else *gen = made;
  return status;
}

void dw__gen_close(dw__gen *gen) {
  if (!gen) return;
  for (size_t i = 0; i < gen->count; i++) {
    if (!gen->files[i].owned) continue;
    dw__release((void *)gen->files[i].name);
    dw__release((void *)gen->files[i].data);
  }
  dw__release(gen->files);
  if (atomic_load(&gen->loaded)) dw__lua_close(&gen->lua);
  pthread_mutex_destroy(&gen->loading);
  dw__release(gen);
}

dw_status dw__gen_load(dw__gen *gen, dw_error *error) {
  if (atomic_load_explicit(&gen->loaded, memory_order_acquire)) return DW_OK;
  pthread_mutex_lock(&gen->loading);
  dw_status status = atomic_load(&gen->loaded) ? DW_OK : dw__lua_open(&gen->lua, error);
  if (!status) atomic_store_explicit(&gen->loaded, true, memory_order_release);
  pthread_mutex_unlock(&gen->loading);
  return status;
}

dw_status dw__gen_digest(dw__gen *gen, dw__digest *digest, dw_error *error) {
  (void)error;
  *digest = gen->digest;
  return DW_OK;
}

// ---- template -> numbered lines -------------------------------------------------------------------------------

// One render. Lua reaches it as its allocator's argument, our C functions through the state's extra space.
typedef struct render {
  const dw__gen *gen;
  const source_file *file;
  const dw__gen_param *params;
  size_t count;
  size_t memory;    // bytes that Lua holds
  bool over_limit;  // why the last failed allocation failed: our limit, or the system
  int line;         // of the template, that ran last; 1 before any ran
} render;

static render *render_of(lua_State *L) { return *(render **)lua_getextraspace(L); }

static void *allocate(void *user, void *p, size_t old, size_t size) {
  render *r = user;
  if (!p) old = 0;  // Lua hands a type here
  if (size == 0) {
    dw__release(p);
    r->memory -= old;
    return NULL;
  }
  bool over_limit = size > old && size - old > MEMORY_LIMIT - r->memory;
  void *made = over_limit ? NULL : dw__realloc(p, size);
  if (!made && size <= old) made = p;  // Lua counts on shrinking
  if (made) r->memory += size - old;
  else r->over_limit = over_limit;
  return made;
}

static void on_hook(lua_State *L, lua_Debug *at) {
  render *r = render_of(L);
  const dw__lua *lua = &r->gen->lua;
  if (at->event == LUA_HOOKCOUNT) {
    lua->pushfstring(L, "more than %d million instructions: an endless loop?", INSTRUCTION_LIMIT / 1000000);
    lua->error(L);
  }
  lua->getinfo(L, "Sl", at);
  if (at->source[0] == '@' && is_template(at->source + 1)) r->line = at->currentline;
}

// Line of the innermost call that stands in the template, else of the last one that ran.
static int template_line(lua_State *L, const render *r) {
  lua_Debug at;
  for (int level = 0; r->gen->lua.getstack(L, level, &at); level++) {
    r->gen->lua.getinfo(L, "Sl", &at);
    if (at.source[0] == '@' && is_template(at.source + 1) && at.currentline > 0) return at.currentline;
  }
  return r->line;
}

static const char traceback_start[] = "\nstack traceback:";

// Message handler: a message without a place gets the template's; the calls that led there follow.
static int on_error(lua_State *L) {
  render *r = render_of(L);
  const dw__lua *lua = &r->gen->lua;
  const char *message = lua->type(L, 1) == LUA_TSTRING ? lua->tolstring(L, 1, NULL) : "an error that is not a text";
  if (!is_template(message)) message = lua->pushfstring(L, "%s:%d: %s", r->file->name, template_line(L, r), message);
  lua->traceback(L, L, message, 1);
  return 1;
}

static void push_params(lua_State *L, const render *r) {
  const dw__lua *lua = &r->gen->lua;
  lua->createtable(L, 0, (int)r->count);
  for (size_t i = 0; i < r->count; i++) {
    if (r->params[i].text) lua->pushstring(L, r->params[i].text);
    else lua->pushinteger(L, r->params[i].integer);
    lua->setfield(L, -2, r->params[i].name);
  }
}

// Runs under lua_pcall: engine.lua makes a function of the template, the function gives the numbered lines.
static int run_template(lua_State *L) {
  const render *r = render_of(L);
  const dw__lua *lua = &r->gen->lua;
  const source_file *engine = file_find(r->gen, "gen/engine.lua"), *prelude = file_find(r->gen, "gen/prelude.lua");
  lua->sethook(L, on_hook, LUA_MASKCOUNT, INSTRUCTION_LIMIT);
  lua->requiref(L, LUA_GNAME, lua->open_base, 1);
  lua->requiref(L, LUA_STRLIBNAME, lua->open_string, 1);
  lua->requiref(L, LUA_TABLIBNAME, lua->open_table, 1);
  lua->requiref(L, LUA_MATHLIBNAME, lua->open_math, 1);
  if (lua->loadbufferx(L, engine->data, engine->size, "@gen/engine.lua", "t")) return lua->error(L);
  lua->pushlstring(L, prelude->data, prelude->size);
  lua->pushstring(L, r->file->name);
  lua->pushlstring(L, r->file->data, r->file->size);
  push_params(L, r);
  lua->callk(L, 4, 1, 0, NULL);
  lua->sethook(L, on_hook, LUA_MASKCOUNT | LUA_MASKLINE, INSTRUCTION_LIMIT);
  lua->callk(L, 0, 1, 0, NULL);
  return 1;
}

// Lua's own verdict -> ours. The message on the stack may carry a traceback, which becomes the error's log.
static dw_status run_failed(lua_State *L, const render *r, int verdict, dw_error *error) {
  if (verdict == LUA_ERRMEM && !r->over_limit) return out_of_memory(error);
  if (verdict == LUA_ERRMEM)
    return dw__fail(error, DW_TEMPLATE, NULL, NULL, NULL, "%s:%d: it needs more than %d MiB of memory", r->file->name, r->line,
                    MEMORY_LIMIT >> 20);
  const char *text = r->gen->lua.type(L, -1) == LUA_TSTRING ? r->gen->lua.tolstring(L, -1, NULL) : "";
  if (!is_template(text))
    return dw__fail(error, DW_TEMPLATE, NULL, NULL, NULL, "%s:%d: an error inside an error", r->file->name, r->line);
  const char *trace = strstr(text, traceback_start);
  int length = trace ? (int)(trace - text) : (int)strlen(text);
  dw__fail(error, DW_TEMPLATE, NULL, NULL, NULL, "%.*s", length, text);
  dw__error_log(error, dw__strdup(text));
  return DW_TEMPLATE;
}

// The C locale for this thread: Lua prints, compares and classifies characters by the locale that the host chose.
static dw_status run_lua(render *r, dw__buf *lines, dw_error *error) {
  const dw__lua *lua = &r->gen->lua;
  locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (!plain) return out_of_memory(error);
  locale_t before = uselocale(plain);
  dw_status status = DW_OK;
  lua_State *L = lua->newstate(allocate, r);
  if (!L) status = out_of_memory(error);
  if (L) {
    *(render **)lua_getextraspace(L) = r;
    lua->pushcclosure(L, on_error, 0);
    lua->pushcclosure(L, run_template, 0);
    int verdict = lua->pcallk(L, 0, 1, 1, 0, NULL);
    size_t size = 0;
    const char *text = verdict ? NULL : lua->tolstring(L, -1, &size);
    if (verdict) status = run_failed(L, r, verdict, error);
    else dw__buf_append(lines, text, size);
    lua->close(L);
  }
  uselocale(before);
  freelocale(plain);
  return status;
}

// ---- numbered lines and includes -> one text ------------------------------------------------------------------

typedef struct slice {
  const char *data;
  size_t size;
} slice;

typedef struct condition {
  slice guard;     // NAME of `#ifndef NAME`, else empty
  int line;        // of the #if
  bool is_guard;   // the next line defines NAME: an include guard
  unsigned marks;  // marks written before it
} condition;

typedef struct flat {
  const dw__gen *gen;
  dw_error *error;
  dw__buf out;
  const char *file;  // what the compiler takes the next line for
  int line;
  bool continued;  // the last line ended in a backslash: no mark may follow
  bool stale;      // marks since an #if may have been skipped with its group
  unsigned marks;
  condition conditions[CONDITION_LIMIT];
  int depth;
  int includes;  // files open now
  bool *seen;    // by index of the generator's files
} flat;

static dw_status flat_fail(flat *f, const char *file, int line, const char *message, slice what) {
  return dw__fail(f->error, DW_TEMPLATE, NULL, NULL, NULL, "%s:%d: %s: %.*s", file, line, message, (int)what.size, what.data);
}

// Cuts the first line, without its newline, off `text`.
static slice next_line(slice *text) {
  const char *stop = memchr(text->data, '\n', text->size);
  slice line = {text->data, stop ? (size_t)(stop - text->data) : text->size};
  size_t used = line.size + (stop ? 1 : 0);
  *text = (slice){text->data + used, text->size - used};
  return line;
}

static void skip_blanks(slice *text) {
  while (text->size && (*text->data == ' ' || *text->data == '\t' || *text->data == '\r')) {
    text->data++;
    text->size--;
  }
}

static bool is_word_char(char c) {
  return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

// Cuts a word of letters, digits and underscores off `text`, and the blanks after it.
static slice next_word(slice *text) {
  slice word = {text->data, 0};
  while (word.size < text->size && is_word_char(text->data[word.size])) word.size++;
  *text = (slice){text->data + word.size, text->size - word.size};
  skip_blanks(text);
  return word;
}

static bool is(slice word, const char *text) { return word.size == strlen(text) && memcmp(word.data, text, word.size) == 0; }

static bool same(slice a, slice b) { return a.size == b.size && memcmp(a.data, b.data, a.size) == 0; }

// Writes one line, after a mark where the compiler would name another one.
static void put_line(flat *f, const char *file, int line, slice text) {
  bool moved = f->stale || line != f->line || !f->file || strcmp(file, f->file) != 0;
  if (moved && !f->continued) {
    dw__buf_printf(&f->out, "#line %d \"%s\"\n", line, file);
    f->file = file;
    f->line = line;
    f->stale = false;
    f->marks++;
  }
  dw__buf_append(&f->out, text.data, text.size);
  dw__buf_puts(&f->out, "\n");
  f->line++;
  f->continued = text.size && text.data[text.size - 1] == '\\';
}

static dw_status open_condition(flat *f, const char *file, int line, slice text, slice guard) {
  if (f->depth == CONDITION_LIMIT) return flat_fail(f, file, line, "too many #if inside one another", text);
  f->conditions[f->depth++] = (condition){.line = line, .marks = f->marks, .guard = guard};
  return DW_OK;
}

// The compiler reads no mark in a group that it skips, so after a group with marks it has to be told again.
static void turn_condition(flat *f, bool closes) {
  if (f->depth == 0) return;  // the compiler will say so
  f->stale = f->stale || f->conditions[f->depth - 1].marks != f->marks;
  if (closes) f->depth--;
}

static void note_guard(flat *f, int line, slice rest) {
  if (f->depth == 0) return;
  condition *open = &f->conditions[f->depth - 1];
  if (open->line == line - 1 && open->guard.size && same(open->guard, next_word(&rest))) open->is_guard = true;
}

static bool inside_condition(const flat *f) {
  for (int i = 0; i < f->depth; i++)
    if (!f->conditions[i].is_guard) return true;
  return false;
}

static dw_status put_text(flat *f, const char *file, int line, slice text);

static dw_status put_file(flat *f, const source_file *file) {
  slice rest = {file->data, file->size};
  dw_status status = DW_OK;
  for (int line = 1; rest.size && !status; line++) status = put_text(f, file->name, line, next_line(&rest));
  f->continued = false;
  return status;
}

static dw_status put_included(flat *f, const char *file, int line, slice text, slice name) {
  char path[NAME_LIMIT + 1];
  int length = snprintf(path, sizeof path, "templates/%.*s", (int)name.size, name.data);
  const source_file *found = (size_t)length < sizeof path ? file_find(f->gen, path) : NULL;
  if (!found || has_suffix(path, ".lua")) return flat_fail(f, file, line, "no such file in templates/", name);
  if (inside_condition(f)) return flat_fail(f, file, line, "an #include under #if, but each file is put in once", text);
  bool *seen = &f->seen[found - f->gen->files];
  if (*seen) {
    put_line(f, file, line, (slice){0});
    return DW_OK;
  }
  *seen = true;
  if (f->includes == INCLUDE_LIMIT) return flat_fail(f, file, line, "too many files include one another", name);
  f->includes++;
  dw_status status = put_file(f, found);
  f->includes--;
  return status;
}

// Cuts a "name" in quotes off `text`; empty if there is none.
static slice next_quoted(slice *text) {
  const char *stop = text->size && text->data[0] == '"' ? memchr(text->data + 1, '"', text->size - 1) : NULL;
  if (!stop) return (slice){0};
  slice name = {text->data + 1, (size_t)(stop - text->data - 1)};
  *text = (slice){stop + 1, text->size - name.size - 2};
  skip_blanks(text);
  return name;
}

// `rest` is what stands after the word include.
static dw_status put_include(flat *f, const char *file, int line, slice text, slice rest) {
  slice name = next_quoted(&rest);
  if (!name.size) return flat_fail(f, file, line, "only #include \"FILE\" of templates/ is possible", text);
  if (rest.size && rest.data[0] != '/') return flat_fail(f, file, line, "text after an #include", text);
  // The host twin's header, which only a host compiler sees.
  if (is(name, "draftwood_host.h")) {
    put_line(f, file, line, text);
    return DW_OK;
  }
  return put_included(f, file, line, text, name);
}

static dw_status put_text(flat *f, const char *file, int line, slice text) {
  slice rest = text;
  skip_blanks(&rest);
  bool directive = !f->continued && rest.size && rest.data[0] == '#';
  if (directive) {
    rest = (slice){rest.data + 1, rest.size - 1};
    skip_blanks(&rest);
  }
  slice word = directive ? next_word(&rest) : (slice){0};
  dw_status status = DW_OK;
  if (is(word, "include")) return put_include(f, file, line, text, rest);
  if (is(word, "pragma") && is(next_word(&rest), "once")) text = (slice){0};
  else if (is(word, "if") || is(word, "ifdef") || is(word, "ifndef"))
    status = open_condition(f, file, line, text, is(word, "ifndef") ? next_word(&rest) : (slice){0});
  else if (is(word, "define")) note_guard(f, line, rest);
  put_line(f, file, line, text);
  if (is(word, "else") || is(word, "elif") || is(word, "endif")) turn_condition(f, is(word, "endif"));
  return status;
}

// Says on top which template made the text, from what.
static void put_heading(flat *f, const render *r) {
  dw__buf_printf(&f->out, "// Made by draftwood from %s:", r->file->name);
  for (size_t i = 0; i < r->count; i++) {
    if (r->params[i].text) dw__buf_printf(&f->out, " %s=%s", r->params[i].name, r->params[i].text);
    else dw__buf_printf(&f->out, " %s=%lld", r->params[i].name, r->params[i].integer);
  }
  dw__buf_puts(&f->out, "\n");
}

static dw_status flatten(const render *r, slice lines, dw__buf *out, dw_error *error) {
  flat f = {.gen = r->gen, .error = error, .seen = dw__calloc(r->gen->count, sizeof(bool))};
  if (!f.seen) return out_of_memory(error);
  put_heading(&f, r);
  dw_status status = DW_OK;
  while (lines.size && !status) {
    slice text = next_line(&lines);
    int line = atoi(text.data);
    const char *colon = memchr(text.data, ':', text.size);
    status = put_text(&f, r->file->name, line, (slice){colon + 1, text.size - (size_t)(colon + 1 - text.data)});
  }
  dw__release(f.seen);
  *out = f.out;
  if (!status && out->failed) status = out_of_memory(error);
  return status;
}

// ---- render ---------------------------------------------------------------------------------------------------

// They stand in Lua as names and on the text's first line.
static dw_status check_params(const dw__gen_param *params, size_t count, dw_error *error) {
  for (size_t i = 0; i < count; i++) {
    slice name = {params[i].name, strlen(params[i].name)}, rest = name;
    if (!name.size || !same(next_word(&rest), name))
      return dw__fail(error, DW_BAD_ARGUMENT, "parameter", params[i].name, "a name", NULL);
    for (const char *c = params[i].text; c && *c; c++)
      if (*c < ' ' || *c > '~' || *c == '\\')
        return dw__fail(error, DW_BAD_ARGUMENT, params[i].name, NULL, "printable ASCII without backslash", NULL);
    for (size_t j = 0; j < i; j++)
      if (!strcmp(params[i].name, params[j].name))
        return dw__fail(error, DW_BAD_ARGUMENT, params[i].name, "the name twice", "once", NULL);
  }
  return DW_OK;
}

static dw_status find_template(const dw__gen *gen, const char *name, const source_file **file, dw_error *error) {
  char path[NAME_LIMIT + 1];
  int length = snprintf(path, sizeof path, "templates/%s.cu.lua", name);
  *file = (size_t)length < sizeof path ? file_find(gen, path) : NULL;
  return *file ? DW_OK : dw__fail(error, DW_TEMPLATE, NULL, NULL, NULL, "templates/%s.cu.lua:1: no such template", name);
}

static int param_by_name(const void *a, const void *b) {
  const dw__gen_param *left = a, *right = b;
  return strcmp(left->name, right->name);
}

// In order of name, so that the order in which a caller lists parameters leaves no trace.
static dw__gen_param *sorted_params(const dw__gen_param *params, size_t count) {
  dw__gen_param *sorted = dw__alloc((count + 1) * sizeof *sorted);
  if (!sorted) return NULL;
  if (count) memcpy(sorted, params, count * sizeof *sorted);
  qsort(sorted, count, sizeof *sorted, param_by_name);
  return sorted;
}

dw_status dw__gen_render(dw__gen *gen, const char *name, const dw__gen_param *params, size_t count, char **source, size_t *size,
                         dw_error *error) {
  render r = {.gen = gen, .count = count, .line = 1};
  dw__buf lines = {0}, text = {0};
  *source = NULL;
  dw_status status = check_params(params, count, error);
  if (!status) status = find_template(gen, name, &r.file, error);
  if (!status) status = dw__gen_load(gen, error);
  if (status) return status;
  dw__gen_param *sorted = sorted_params(params, count);
  r.params = sorted;
  status = sorted ? run_lua(&r, &lines, error) : out_of_memory(error);
  if (!status && lines.failed) status = out_of_memory(error);
  if (!status) status = flatten(&r, (slice){lines.data, lines.size}, &text, error);
  dw__buf_free(&lines);
  dw__release(sorted);
  if (status) dw__buf_free(&text);
  if (status) return status;
  *source = text.data;
  *size = text.size;
  return DW_OK;
}
