// Finds and loads Lua. See lua_api.h for why it is not linked.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "lua_api.h"

#ifdef DRAFTWOOD_LUA_STATIC

dw_status dw__lua_open(dw__lua *lua, dw_error *error) {
  (void)error;
  *lua = (dw__lua){
#define X(member, symbol) .member = symbol,
    DW__LUA_MAP(X)
#undef X
  };
  return DW_OK;
}

void dw__lua_close(dw__lua *lua) { *lua = (dw__lua){0}; }

#else

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

// DEEPBIND: liblua's calls to itself stay in liblua, though the host exports the same names. The sanitizers' runtime refuses
// it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(DRAFTWOOD_SANITIZE) || !defined(RTLD_DEEPBIND)
enum { LOAD_FLAGS = RTLD_NOW | RTLD_LOCAL };
#else
enum { LOAD_FLAGS = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND };
#endif

// Only 5.4 and later have it; asked first, because lua_version has another type in 5.3 and LuaJIT.
static const char new_symbol[] = "lua_newuserdatauv";

static const struct {
  const char *symbol;
  size_t offset;
} entries[] = {
#define X(member, symbol) {#symbol, offsetof(dw__lua, member)},
  DW__LUA_MAP(X)
#undef X
};

// Fills the table. The name of what is missing, or NULL.
static const char *find_entries(dw__lua *lua) {
  if (!dlsym(lua->library, new_symbol)) return new_symbol;
  for (size_t i = 0; i < DW__COUNT(entries); i++) {
    void *address = dlsym(lua->library, entries[i].symbol);
    if (!address) return entries[i].symbol;
    memcpy((char *)lua + entries[i].offset, &address, sizeof address);
  }
  return NULL;
}

// `why` gets the reason of a failure.
static bool load(dw__lua *lua, const char *name, dw__buf *why) {
  *lua = (dw__lua){.library = dlopen(name, LOAD_FLAGS)};
  if (!lua->library) {
    dw__buf_printf(why, "%s%s", why->size ? "; " : "", dlerror());
    return false;
  }
  const char *missing = find_entries(lua);
  int version = missing ? 0 : (int)lua->version(NULL);
  if (version == LUA_VERSION_NUM) return true;
  dw__buf_printf(why, "%s%s: not Lua 5.4: ", why->size ? "; " : "", name);
  if (missing) dw__buf_printf(why, "it lacks %s", missing);
  else dw__buf_printf(why, "it says version %d", version);
  dw__lua_close(lua);
  return false;
}

static bool load_usual(dw__lua *lua, dw__buf *why) {
  static const char *const names[] = {"liblua5.4.so.0", "liblua5.4.so", "liblua-5.4.so", "liblua.so.5.4"};
  for (size_t i = 0; i < DW__COUNT(names); i++)
    if (load(lua, names[i], why)) return true;
  return false;
}

dw_status dw__lua_open(dw__lua *lua, dw_error *error) {
  dw__buf why = {0};
  const char *chosen = secure_getenv("DRAFTWOOD_LUA");
  if (chosen && !chosen[0]) chosen = NULL;
  dw_status status = DW_OK;
  if (!(chosen ? load(lua, chosen, &why) : load_usual(lua, &why)))
    status = dw__fail(error, DW_NOT_FOUND, "Lua", chosen, "Lua 5.4 (package liblua5.4-0), or its file in DRAFTWOOD_LUA",
                      "tried %s", why.data ? why.data : "");
  if (why.failed) {
    dw__lua_close(lua);
    status = dw__fail(error, DW_OUT_OF_MEMORY, "Lua", NULL, NULL, NULL);
  }
  dw__buf_free(&why);
  return status;
}

void dw__lua_close(dw__lua *lua) {
  if (lua->library) dlclose(lua->library);
  *lua = (dw__lua){0};
}

#endif
