// Error records, memory, buffers, hashing and files.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core.h"

// ---- status ---------------------------------------------------------------------------------------------------

static void status_has_a_name_and_a_text(void **state) {
  (void)state;
  assert_string_equal(dw_status_name(DW_OK), "DW_OK");
  assert_string_equal(dw_status_text(DW_OK), "done");
  assert_string_equal(dw_status_name(DW_INTERNAL), "DW_INTERNAL");
  for (int i = DW_OK; i <= DW_INTERNAL; i++) assert_true(strlen(dw_status_text((dw_status)i)) > 2);
  assert_string_equal(dw_status_name((dw_status)999), "DW_UNKNOWN");
  assert_string_equal(dw_status_text((dw_status)-1), "unknown status");
  assert_string_equal(dw_version(), DW_VERSION);
}

// ---- errors ---------------------------------------------------------------------------------------------------

static void error_holds_its_evidence(void **state) {
  (void)state;
  dw_error e = {0};
  assert_int_equal(dw__fail_int(&e, DW_BAD_SHAPE, "heads", 0, "1 to 128", "a kernel needs %s", "heads"), DW_BAD_SHAPE);
  assert_int_equal(e.status, DW_BAD_SHAPE);
  assert_string_equal(e.field, "heads");
  assert_string_equal(e.found, "0");
  assert_string_equal(e.allowed, "1 to 128");
  assert_string_equal(e.message, "heads: found 0, allowed 1 to 128: a kernel needs heads");
  dw_error_clear(&e);
  assert_int_equal(e.status, DW_OK);
  assert_string_equal(e.message, "");
}

static void error_message_leaves_out_what_is_not_known(void **state) {
  (void)state;
  dw_error e = {0};
  dw__fail(&e, DW_IO, "", NULL, "", "disk on fire");
  assert_string_equal(e.message, "disk on fire");
  dw__fail(&e, DW_IO, "file", "/a", NULL, "gone");
  assert_string_equal(e.message, "file: found /a: gone");
  dw__fail(&e, DW_BAD_ARGUMENT, "q", "", "16-byte aligned", "%s", "");
  assert_string_equal(e.message, "q: allowed 16-byte aligned");
  dw__fail(&e, DW_NOT_FOUND, NULL, NULL, NULL, "%s", "");
  assert_string_equal(e.message, "not found");
}

static void error_parts_may_point_into_the_record(void **state) {
  (void)state;
  dw_error e = {0};
  dw__fail(&e, DW_IO, "file", "/a", "", "inner");
  dw__fail(&e, DW_TEMPLATE, e.field, e.found, e.allowed, "outer: %s", e.message);
  assert_string_equal(e.message, "file: found /a: outer: file: found /a: inner");
}

static void error_cuts_long_parts_between_characters(void **state) {
  (void)state;
  dw_error e = {0};
  char text[2000];
  for (size_t shift = 0; shift < 4; shift++) {
    memset(text, 'x', shift);
    for (size_t i = shift; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xE2\x82\xAC", 4);
    dw__fail(&e, DW_IO, text, text, text, "%s", text);
    const char *const parts[] = {e.field, e.found, e.allowed, e.message};
    for (size_t p = 0; p < DW__COUNT(parts); p++) {
      size_t length = strlen(parts[p]);
      assert_true(length > 40);
      assert_true((unsigned char)parts[p][length - 1] == 0xAC);
    }
  }
  memset(text, 'x', sizeof text);
  text[sizeof text - 1] = 0;
  dw__fail(&e, DW_IO, text, text, text, "%s", text);
  assert_int_equal(strlen(e.field), sizeof e.field - 1);
  assert_int_equal(strlen(e.message), sizeof e.message - 1);
}

static void error_owns_its_log(void **state) {
  (void)state;
  dw_error e = {0};
  dw__fail(&e, DW_COMPILE, "", "", "", "no");
  dw__error_log(&e, strdup("first"));
  dw__error_log(&e, strdup("second"));
  assert_string_equal(e.log, "second");
  dw__fail(&e, DW_COMPILE, "", "", "", "a new failure has no old log");
  assert_null(e.log);
  dw__error_log(&e, strdup("third"));
  dw_error_clear(&e);
  assert_null(e.log);
  dw_error_clear(&e);
  dw_error_clear(NULL);
}

static void error_record_is_optional(void **state) {
  (void)state;
  assert_int_equal(dw__fail(NULL, DW_IO, "a", "b", "c", "%d", 1), DW_IO);
  assert_int_equal(dw__fail_int(NULL, DW_IO, "a", 1, "c", "%d", 1), DW_IO);
  dw__error_log(NULL, strdup("freed"));
}

// ---- memory ---------------------------------------------------------------------------------------------------

static void allocations_fail_from_the_nth_on(void **state) {
  (void)state;
  dw__alloc_fail_after(3);
  void *first = dw__alloc(8), *second = dw__calloc(2, 4), *third = dw__alloc(8), *fourth = dw__realloc(NULL, 8);
  char *text = dw__strdup("no");
  long made = dw__alloc_fail_after(0);
  assert_non_null(first);
  assert_non_null(second);
  assert_null(third);
  assert_null(fourth);
  assert_null(text);
  assert_int_equal(made, 5);
  dw__release(first);
  dw_free(second);
  dw__alloc_fail_after(LONG_MAX);
  dw__release(dw__alloc(1));
  assert_int_equal(dw__alloc_fail_after(0), 1);
  dw__release(dw__alloc(1));
  assert_int_equal(dw__alloc_fail_after(0), 0);
}

static void nothing_is_an_amount(void **state) {
  (void)state;
  void *a = dw__alloc(0), *b = dw__calloc(0, 0), *c = dw__realloc(NULL, 0);
  assert_non_null(a);
  assert_non_null(b);
  assert_non_null(c);
  dw__release(a);
  dw__release(b);
  dw__release(c);
  dw__release(NULL);
  assert_null(dw__strdup(NULL));
  assert_null(dw__calloc(SIZE_MAX, 2));
}

// ---- buffer ---------------------------------------------------------------------------------------------------

static void buffer_grows(void **state) {
  (void)state;
  dw__buf buf = {0};
  size_t expected = 0;
  for (int i = 0; i < 2000; i++) {
    dw__buf_printf(&buf, "%d,", i);
    dw__buf_puts(&buf, "");
    dw__buf_append(&buf, NULL, 0);
    expected += (size_t)snprintf(NULL, 0, "%d,", i);
    assert_int_equal(buf.data[buf.size], 0);
  }
  assert_false(buf.failed);
  assert_int_equal(buf.size, expected);
  assert_memory_equal(buf.data, "0,1,2,3,", 8);
  assert_string_equal(buf.data + buf.size - 5, "1999,");
  dw__buf_free(&buf);
  assert_null(buf.data);
}

static void buffer_holds_any_bytes(void **state) {
  (void)state;
  dw__buf buf = {0};
  char block[300];
  memset(block, 0, sizeof block);
  for (size_t n = 0; n < sizeof block; n++) dw__buf_append(&buf, block, n);
  assert_int_equal(buf.size, sizeof block * (sizeof block - 1) / 2);
  dw__buf_free(&buf);
  dw__buf_puts(&buf, "");
  assert_string_equal(buf.data, "");
  dw__buf_free(&buf);
}

static void buffer_remembers_a_failure(void **state) {
  (void)state;
  dw__buf buf = {0};
  dw__buf_puts(&buf, "kept");
  dw__alloc_fail_after(1);
  for (int i = 0; i < 100; i++) dw__buf_puts(&buf, "more than there is room for");
  dw__alloc_fail_after(0);
  assert_true(buf.failed);
  size_t size = buf.size;
  dw__buf_printf(&buf, "%s", "does nothing");
  assert_int_equal(buf.size, size);
  assert_memory_equal(buf.data, "kept", 4);
  dw__buf_free(&buf);
  assert_false(buf.failed);
}

static void buffer_refuses_absurd_sizes(void **state) {
  (void)state;
  dw__buf buf = {0};
  dw__buf_append(&buf, "x", SIZE_MAX - 1);
  assert_true(buf.failed);
  dw__buf_free(&buf);
}

// ---- hashing --------------------------------------------------------------------------------------------------

static void sha256_is_sha256(void **state) {
  (void)state;
  char text[65];
  dw__digest digest = dw__sha256("abc", 3);
  dw__hex(&digest, text);
  assert_string_equal(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  digest = dw__sha256("", 0);
  dw__hex(&digest, text);
  assert_string_equal(text, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

// ---- files ----------------------------------------------------------------------------------------------------

static void file_read_gives_every_byte(void **state) {
  (void)state;
  static const size_t sizes[] = {0, 1, 127, 128, 129, 4095, 4096, 100000};
  for (size_t i = 0; i < DW__COUNT(sizes); i++) {
    char path[] = "/tmp/test_core.XXXXXX", *data;
    char *content = calloc(1, sizes[i] + 1);
    size_t size;
    for (size_t k = 0; k < sizes[i]; k++) content[k] = (char)(k * 7);
    int fd = mkstemp(path);
    assert_int_equal(dw__fd_write(fd, content, sizes[i]), 0);
    close(fd);
    assert_int_equal(dw__file_read(path, &data, &size, NULL), DW_OK);
    assert_int_equal(size, sizes[i]);
    assert_memory_equal(data, content, size);
    assert_int_equal(data[size], 0);
    unlink(path);
    dw_free(data);
    free(content);
  }
}

static void file_read_says_what_went_wrong(void **state) {
  (void)state;
  dw_error e = {0};
  char *data;
  size_t size;
  assert_int_equal(dw__file_read("/nonexistent/file", &data, &size, &e), DW_NOT_FOUND);
  assert_string_equal(e.found, "/nonexistent/file");
  assert_int_equal(dw__file_read("/", &data, &size, &e), DW_IO);
  assert_int_equal(dw__file_read("/dev/null/x", &data, &size, &e), DW_NOT_FOUND);
  assert_int_equal(dw__file_read("/proc/self/stat", &data, &size, &e), DW_OK);  // says it is empty, and is not
  assert_true(size > 10);
  dw_free(data);
  for (long n = 1; n < 10; n++) {
    dw__alloc_fail_after(n);
    dw_status status = dw__file_read("/proc/self/maps", &data, &size, &e);
    dw__alloc_fail_after(0);
    if (status == DW_OK) dw_free(data);
    else assert_int_equal(status, DW_OUT_OF_MEMORY);
  }
}

static void fd_read_keeps_to_its_limit(void **state) {
  (void)state;
  char path[] = "/tmp/test_core.XXXXXX", *data;
  size_t size;
  int fd = mkstemp(path);
  unlink(path);
  assert_int_equal(dw__fd_write(fd, "0123456789", 10), 0);
  lseek(fd, 0, SEEK_SET);
  assert_int_equal(dw__fd_read(fd, 9, &data, &size), EFBIG);
  assert_int_equal(dw__fd_read(fd, 10, &data, &size), 0);
  assert_int_equal(size, 10);
  dw_free(data);
  close(fd);
  fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  assert_int_equal(dw__fd_read(fd, 100000, &data, &size), EFBIG);
  close(fd);
  assert_int_equal(dw__fd_write(-1, "x", 1), EBADF);
}

static void seconds_go_forward(void **state) {
  (void)state;
  double before = dw__seconds();
  usleep(2000);
  double passed = dw__seconds() - before;
  assert_true(passed >= 0.002 && passed < 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(status_has_a_name_and_a_text),
    cmocka_unit_test(error_holds_its_evidence),
    cmocka_unit_test(error_message_leaves_out_what_is_not_known),
    cmocka_unit_test(error_parts_may_point_into_the_record),
    cmocka_unit_test(error_cuts_long_parts_between_characters),
    cmocka_unit_test(error_owns_its_log),
    cmocka_unit_test(error_record_is_optional),
    cmocka_unit_test(allocations_fail_from_the_nth_on),
    cmocka_unit_test(nothing_is_an_amount),
    cmocka_unit_test(buffer_grows),
    cmocka_unit_test(buffer_holds_any_bytes),
    cmocka_unit_test(buffer_remembers_a_failure),
    cmocka_unit_test(buffer_refuses_absurd_sizes),
    cmocka_unit_test(sha256_is_sha256),
    cmocka_unit_test(file_read_gives_every_byte),
    cmocka_unit_test(file_read_says_what_went_wrong),
    cmocka_unit_test(fd_read_keeps_to_its_limit),
    cmocka_unit_test(seconds_go_forward),
  };
  return cmocka_run_group_tests_name("core", tests, NULL, NULL);
}
