// What the files of draftwood bundle share.
#ifndef DRAFTWOOD_CLI_BUNDLE_H
#define DRAFTWOOD_CLI_BUNDLE_H

#include "../cache/bundle.h"
#include "cli.h"

int cli_bundle_build(const cli_command *self, int argc, char **argv);
int cli_bundle_verify(const cli_command *self, int argc, char **argv);
int cli_bundle_extract(const cli_command *self, int argc, char **argv);

// An Ed25519 key: PEM as openssl writes it, or 64 hex digits; a file, or the digits themselves where it is a public one. CLI_GO_ON,
// or what is wrong has been said.
int cli_bundle_key(const char *option, const char *text, bool secret, unsigned char key[DW__BUNDLE_KEY_SIZE]);

// CLI_GO_ON, or what is wrong has been said. public_key NULL: any.
int cli_bundle_open(const char *path, const unsigned char *public_key, dw__bundle **bundle);
// Finishes a bundle and puts it where PATH is, whole or not at all; *size is its size. The same returns.
int cli_bundle_write(dw__bundle_writer *writer, const char *sign, const char *path, size_t *size);

// An entry as JSON: what its metadata says, its keys and sizes. NULL with the error where it, or with_cubin its cubin, is damaged.
json_t *cli_bundle_entry(const dw__bundle *bundle, size_t i, bool with_cubin, dw_error *error);
// "SHAPE  VARIANT", shortened; of companions their name.
void cli_bundle_name(const json_t *entry, char text[2 * DW_TEXT_MAX]);
const char *cli_bundle_text(const json_t *entry, const char *key);

#endif
