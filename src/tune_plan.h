// Plans where calls look into them. A context's plan is read when it is first needed and never changes after that.
#ifndef DRAFTWOOD_TUNE_PLAN_H
#define DRAFTWOOD_TUNE_PLAN_H

#include "tune.h"

// Where a GPU's journals, records and plan are: folder/<GPU>, or v1/tune/<GPU> in the context's cache. NULL with the reason in *why. Free
// with dw__release. board NULL: the folder of all of them.
char *dw__tune_folder(dw_ctx *ctx, const char *folder, const dw__board *board, const char **why);
// Makes plan.jsonl of a folder from its records.jsonl.
dw_status dw__tune_plan_write(const char *folder, dw__l2_state l2, bool any_numerics, dw_error *error);
// The cubins of all candidates into the cache, as dw_prepare does it.
dw_status dw__tune_build(dw_ctx *ctx, const dw_request *list, size_t count, const dw_tune_options *options,
                         const dw__board *board, dw_progress_fn progress, void *user, dw_error *error);
// Adds lines to a file of a folder that is made where it is missing.
dw_status dw__tune_append(const char *folder, const char *name, const dw__buf *text, dw_error *error);
// Writes a file whole, in place of an older one.
dw_status dw__tune_publish(const char *folder, const char *name, const dw__buf *text, dw_error *error);
#define DW__IMPORTED "imported"  // folder of a plan that came from elsewhere
// A plan's file.
dw_status dw__choices_load(const char *path, dw__choices *choices, dw_error *error);
// The plans that draftwood comes with (src/plans/), joined.
dw_status dw__choices_shipped(dw__choices *choices, dw_error *error);

// Of a context.
typedef struct dw__plan_book {
  dw__choices *asked;  // of the file that was asked for; NULL: none was
  bool off;            // "none" was asked for
} dw__plan_book;
// option, else $DRAFTWOOD_PLAN.
dw_status dw__plan_book_open(dw__plan_book *book, const char *option, dw_error *error);
void dw__plan_book_close(dw__plan_book *book);
// All that the context goes by: the file that was asked for, or the cache's and the shipped ones.
dw_status dw__plan_book_load(const dw__plan_book *book, dw_ctx *ctx, dw__choices *choices, dw_error *error);

// The choice for checked bounds, with what the model and the rule table have to say to it.
dw_status dw__plan_choose(const dw__choices *choices, const dw__board *board, const dw_shape *shape, const dw_bounds *bounds,
                          dw_variant *variant, dw_choice *choice, dw_error *error);

#endif
