// See support.h.
#include "support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

dw_shape shape_of(const char *text) {
  dw_shape shape;
  dw_error error = {0};
  if (dw_shape_parse(text, &shape, &error)) fail_msg("%s: %s", text, error.message);
  return shape;
}

dw_variant variant_of(const char *text) {
  dw_variant variant;
  dw_error error = {0};
  if (dw_variant_parse(text, &variant, &error)) fail_msg("%s: %s", text, error.message);
  return variant;
}

char *read_data(const char *name, size_t *size) {
  char path[512], *data = NULL;
  dw_error error = {0};
  snprintf(path, sizeof path, "%s/tests/data/%s", TEST_SOURCE_DIR, name);
  if (dw__file_read(path, &data, size, &error)) fail_msg("%s", error.message);
  return data;
}

// ---- folders --------------------------------------------------------------------------------------------------

char test_folder[64];

int make_folder(void **state) {
  (void)state;
  strcpy(test_folder, "/tmp/draftwood-test-XXXXXX");
  return mkdtemp(test_folder) ? 0 : -1;
}

int remove_folder(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", test_folder);
  return system(command);
}

const char *path_of(const char *name) {
  static char paths[4][256];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, 256, "%s/%s", test_folder, name);
  return path;
}

void write_bytes(const char *name, const void *data, size_t size) {
  FILE *file = fopen(path_of(name), "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(data, 1, size, file), size);
  assert_int_equal(fclose(file), 0);
}

void write_text(const char *name, const char *text) { write_bytes(name, text, strlen(text)); }
