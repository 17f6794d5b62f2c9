// Lua 5.4 as a table of function pointers. The shared library links no Lua: a host process may hold another one (LuaJIT,
// Lua 5.1) under the same symbol names, and neither may meet the other. So liblua is loaded privately, and calls read
// `lua->pcallk(...)`. Knows nothing of templates.
#ifndef DRAFTWOOD_LUA_API_H
#define DRAFTWOOD_LUA_API_H

#include "core.h"

// Debian keeps the headers in a folder of their own. They are read for types only.
#if !defined(DRAFTWOOD_LUA_STATIC) && __has_include(<lua5.4/lua.h>)
#include <lua5.4/lauxlib.h>
#include <lua5.4/lua.h>
#include <lua5.4/lualib.h>
#else
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#endif

#if LUA_VERSION_NUM != 504
#error "the headers of Lua 5.4 are needed (Debian, Ubuntu: liblua5.4-dev)"
#endif

// X(member, symbol): the functions we use, once.
#define DW__LUA_MAP(X)              \
  X(version, lua_version)           \
  X(newstate, lua_newstate)         \
  X(close, lua_close)               \
  X(settop, lua_settop)             \
  X(type, lua_type)                 \
  X(tolstring, lua_tolstring)       \
  X(pushlstring, lua_pushlstring)   \
  X(pushstring, lua_pushstring)     \
  X(pushfstring, lua_pushfstring)   \
  X(pushinteger, lua_pushinteger)   \
  X(pushcclosure, lua_pushcclosure) \
  X(createtable, lua_createtable)   \
  X(setfield, lua_setfield)         \
  X(callk, lua_callk)               \
  X(pcallk, lua_pcallk)             \
  X(error, lua_error)               \
  X(sethook, lua_sethook)           \
  X(getstack, lua_getstack)         \
  X(getinfo, lua_getinfo)           \
  X(loadbufferx, luaL_loadbufferx)  \
  X(requiref, luaL_requiref)        \
  X(traceback, luaL_traceback)      \
  X(open_base, luaopen_base)        \
  X(open_string, luaopen_string)    \
  X(open_table, luaopen_table)      \
  X(open_math, luaopen_math)

typedef struct dw__lua {
  void *library;  // NULL where Lua is built in
#define X(member, symbol) __typeof__(symbol) *member;
  DW__LUA_MAP(X)
#undef X
} dw__lua;

// Finds Lua: the file $DRAFTWOOD_LUA if set, else the distribution's library by its usual names; with DRAFTWOOD_LUA_STATIC the
// one that was built in. DW_NOT_FOUND says what was tried and which package has it.
dw_status dw__lua_open(dw__lua *lua, dw_error *error);
void dw__lua_close(dw__lua *lua);

#endif
