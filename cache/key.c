// What decides a cubin, in two functions.
//
// A key is the SHA-256 of a domain tag, the schema number and the fields, each behind its length: no two inputs have the same
// encoding, and a request key can never equal a build key. Numbers are 64 bits, little-endian. No paths, times, hosts, driver
// versions or device indices go in.
#include <sodium.h>
#include <string.h>

#include "cache.h"

typedef crypto_hash_sha256_state hasher;

static void add_number(hasher *state, uint64_t number) {
  unsigned char bytes[8];
  for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(number >> 8 * i);
  crypto_hash_sha256_update(state, bytes, sizeof bytes);
}

static void add_bytes(hasher *state, const void *data, size_t size) {
  add_number(state, size);
  if (size) crypto_hash_sha256_update(state, data, size);
}

static void add_text(hasher *state, const char *text) { add_bytes(state, text, text ? strlen(text) : 0); }

static void begin(hasher *state, const char *domain) {
  crypto_hash_sha256_init(state);
  add_text(state, domain);
  add_number(state, DW__CACHE_SCHEMA);
}

static dw__digest finish(hasher *state) {
  dw__digest digest;
  crypto_hash_sha256_final(state, digest.bytes);
  return digest;
}

dw__digest dw__request_key(const dw__request_key_input *input) {
  hasher state;
  begin(&state, "draftwood request");
  add_text(&state, input->shape);
  add_text(&state, input->variant);
  add_text(&state, input->compile_target);
  add_bytes(&state, input->templates.bytes, sizeof input->templates.bytes);
  add_number(&state, (uint64_t)input->abi);
  return finish(&state);
}

dw__digest dw__build_key(const dw__build_key_input *input) {
  hasher state;
  begin(&state, "draftwood build");
  add_bytes(&state, input->source, input->source_size);
  add_number(&state, input->option_count);
  for (size_t i = 0; i < input->option_count; i++) add_text(&state, input->options[i]);
  add_text(&state, input->compile_target);
  add_text(&state, input->compiler);
  add_text(&state, input->compiler_build);
  return finish(&state);
}
