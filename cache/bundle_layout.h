// What the reader and the writer of bundles share; see bundle.c for the picture.
#ifndef DRAFTWOOD_BUNDLE_LAYOUT_H
#define DRAFTWOOD_BUNDLE_LAYOUT_H

#include <sodium.h>

#include "bundle.h"

#define DW__BUNDLE_MAGIC "DWBUNDLE"
enum {
  DW__BUNDLE_DIGEST = 128,  // in the header
  DW__BUNDLE_HEADER = 160,
  DW__BUNDLE_ITEM = 192,
  DW__BUNDLE_SIGNATURE = 96,
};
#define DW__BUNDLE_ENTRIES_MOST ((size_t)1 << 18)
#define DW__BUNDLE_BYTES_MOST ((uint64_t)1 << 40)

_Static_assert(DW__BUNDLE_SIGNATURE == crypto_sign_PUBLICKEYBYTES + crypto_sign_BYTES, "a key and a signature");
_Static_assert(DW__BUNDLE_KEY_SIZE == crypto_sign_PUBLICKEYBYTES && DW__BUNDLE_KEY_SIZE == crypto_sign_SEEDBYTES, "Ed25519");

// Where the parts begin; the index begins behind the header.
typedef struct dw__bundle_layout {
  size_t count, signature;
  uint64_t metadata, packed, size;
} dw__bundle_layout;

static inline dw__bundle_layout dw__bundle_lay_out(size_t count, uint64_t metadata_size, uint64_t packed_size) {
  dw__bundle_layout at = {.count = count, .signature = DW__BUNDLE_HEADER + count * DW__BUNDLE_ITEM};
  at.metadata = at.signature + DW__BUNDLE_SIGNATURE;
  at.packed = at.metadata + metadata_size;
  at.size = at.packed + packed_size;
  return at;
}

// Of header and index, without the digest's own place.
static inline dw__digest dw__bundle_digest(const char *head, const dw__bundle_layout *at) {
  dw__digest digest;
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  crypto_hash_sha256_update(&state, (const unsigned char *)head, DW__BUNDLE_DIGEST);
  crypto_hash_sha256_update(&state, (const unsigned char *)head + DW__BUNDLE_HEADER, at->signature - DW__BUNDLE_HEADER);
  crypto_hash_sha256_final(&state, digest.bytes);
  return digest;
}

// An entry's packed cubin, its digest checked. *owned has to be released.
dw_status dw__bundle_packed(const dw__bundle *bundle, size_t i, const char **bytes, char **owned, dw_error *error);

#endif
