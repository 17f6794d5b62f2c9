// A host that already holds another Lua: LuaJIT, linked in, its symbols visible to every library of the process (-rdynamic),
// with a state that lives on while our generator, a shared library, loads Lua 5.4 and renders. Neither may notice the other.
//
//   host TEMPLATE_DIR [libdraftwood.so]    with the second argument the public library runs its whole generator too
#include <dlfcn.h>
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen.h"

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

// ---- the host's own Lua ---------------------------------------------------------------------------------------

static lua_State *host_open(void) {
  lua_State *L = luaL_newstate();
  CHECK(L);
  luaL_openlibs(L);
  CHECK(luaL_dostring(
          L, "count = 0; words = {}; function step(word) count = count + 1; words[count] = word; return count end") == 0);
  return L;
}

// The host works in its state as if nothing else were there; its version is its own.
static void host_step(lua_State *L, const char *word, int expected) {
  lua_getglobal(L, "step");
  lua_pushstring(L, word);
  CHECK(lua_pcall(L, 1, 1, 0) == 0);
  CHECK(lua_tointeger(L, -1) == expected);
  lua_pop(L, 1);
  CHECK(luaL_dostring(L, "assert(_VERSION == 'Lua 5.1' and loadstring and not math.type); collectgarbage()") == 0);
  CHECK(luaL_dostring(L, "error('caught')") != 0);
  CHECK(strstr(lua_tostring(L, -1), "caught"));
  lua_settop(L, 0);
}

// ---- ours -----------------------------------------------------------------------------------------------------

// The template is Lua 5.4 and nothing older: <const>, // and math.type.
static void render(dw__gen *gen) {
  char *source = NULL;
  size_t size = 0;
  dw_error error = {0};
  dw_status status = dw__gen_render(gen, "lua54", NULL, 0, &source, &size, &error);
  if (status) fprintf(stderr, "%s\n", error.message);
  CHECK(status == DW_OK);
  CHECK(strstr(source, "int version = 3 integer 7;"));
  dw__release(source);
  // An error unwinds inside our Lua, not through the host's.
  status = dw__gen_render(gen, "fails", NULL, 0, &source, &size, &error);
  CHECK(status == DW_TEMPLATE);
  CHECK(!strcmp(error.message, "templates/fails.cu.lua:2: as meant"));
  dw_error_clear(&error);
}

static void check_loaded_apart(void) {
  void *ours = dlopen("liblua5.4.so.0", RTLD_LAZY | RTLD_NOLOAD);
  if (!ours) return;  // another file by DRAFTWOOD_LUA, or built in
  CHECK(dlsym(ours, "lua_pcall") != (void *)lua_pcall);
  CHECK(dlsym(ours, "lua_newstate") != dlsym(RTLD_DEFAULT, "lua_newstate"));
  // What only 5.4 has is not to be seen by the rest of the process.
  CHECK(dlsym(ours, "lua_newuserdatauv"));
  CHECK(!dlsym(RTLD_DEFAULT, "lua_newuserdatauv"));
  dlclose(ours);
}

// ---- the public library ---------------------------------------------------------------------------------------

static void *find(void *library, const char *name) {
  void *address = dlsym(library, name);
  if (!address) fprintf(stderr, "%s\n", dlerror());
  CHECK(address);
  return address;
}

#define FIND(name) __typeof__(name) *p_##name = (__typeof__(name) *)find(library, #name)

static void generate_by_library(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library) fprintf(stderr, "%s\n", dlerror());
  CHECK(library);
  FIND(dw_ctx_create);
  FIND(dw_ctx_destroy);
  FIND(dw_shape_parse);
  FIND(dw_variant_choose);
  FIND(dw_source_generate);
  FIND(dw_free);
  dw_ctx *ctx = NULL;
  dw_shape shape;
  dw_variant variant;
  char *source = NULL;
  size_t size = 0;
  const dw_options options = {.size = sizeof options, .cache_dir = ""};
  const dw_bounds bounds = {.size = sizeof bounds, .batch = 1, .kv_len = 4096, .sm_count = 188};
  CHECK(p_dw_ctx_create(&options, &ctx, NULL) == DW_OK);
  CHECK(p_dw_shape_parse("kimi-k2.6-tp8,t=9", &shape, NULL) == DW_OK);
  CHECK(p_dw_variant_choose(&shape, &bounds, &variant, NULL) == DW_OK);
  CHECK(p_dw_source_generate(ctx, &shape, &variant, &source, &size, NULL) == DW_OK);
  CHECK(strstr(source, "dw_verify"));
  p_dw_free(source);
  p_dw_ctx_destroy(ctx);
}

int main(int count, char **arguments) {
  CHECK(count >= 2);
  CHECK(LUA_VERSION_NUM == 501);
  CHECK(dlsym(RTLD_DEFAULT, "lua_pcall") == (void *)lua_pcall);
  lua_State *L = host_open();
  host_step(L, "before", 1);

  dw__gen *gen = NULL;
  dw_error error = {0};
  dw_status status = dw__gen_open(arguments[1], &gen, &error);
  if (status) fprintf(stderr, "%s\n", error.message);
  CHECK(status == DW_OK);
  check_loaded_apart();
  host_step(L, "opened", 2);
  render(gen);
  host_step(L, "rendered", 3);
  lua_State *second = host_open();
  render(gen);
  host_step(second, "second", 1);
  lua_close(second);
  dw__gen_close(gen);
  host_step(L, "closed", 4);
  if (count > 2) generate_by_library(arguments[2]);
  host_step(L, "generated", 5);
  CHECK(luaL_dostring(L, "assert(table.concat(words, ' ') == 'before opened rendered closed generated')") == 0);
  lua_close(L);
  puts("both are as they were");
  return 0;
}
