// Variant -> source. Runs the Lua templates in a sandbox; knows no driver, no compiler, no files but the templates'.
#ifndef DRAFTWOOD_GEN_H
#define DRAFTWOOD_GEN_H

#include "core.h"

typedef struct dw__gen dw__gen;

// template_dir NULL: the templates embedded in the library. Lua (see gen/lua_api.h) is left to the first render.
// A dw__gen may be used from several threads.
dw_status dw__gen_open(const char *template_dir, dw__gen **gen, dw_error *error);
void dw__gen_close(dw__gen *gen);
// Loads Lua now. DW_NOT_FOUND says where it was looked for; a later call looks anew.
dw_status dw__gen_load(dw__gen *gen, dw_error *error);

// One parameter a template may read, by name.
typedef struct dw__gen_param {
  const char *name;
  const char *text;   // a string parameter, or NULL
  long long integer;  // an integer parameter where text is NULL
} dw__gen_param;

// Renders template `name` ("verify" -> templates/verify.cu.lua) into one self-contained text: plain #include lines for files
// under templates/ are replaced by the files' text, once each, with #line marks that name template file and line.
// Free with dw__release. Errors are those of dw__gen_load, or DW_TEMPLATE with "<file>:<line>: ..." in the message.
dw_status dw__gen_render(dw__gen *gen, const char *name, const dw__gen_param *params, size_t count, char **source, size_t *size,
                         dw_error *error);

// SHA-256 over names and bytes of every template file, in sorted order: part of the request key. Cheap after the first call.
dw_status dw__gen_digest(dw__gen *gen, dw__digest *digest, dw_error *error);

#endif
