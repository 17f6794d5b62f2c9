// A bundle in a shared library that is C++.
#include <draftwood.h>
#include <draftwood_bundle.h>

extern "C" dw_status add_kernels(dw_ctx *ctx, dw_error *error) {
  return dw_bundle_add_memory(ctx, draftwood_bundle, draftwood_bundle_size, nullptr, error);
}
