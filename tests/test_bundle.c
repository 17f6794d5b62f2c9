// Bundles: bytes that depend on content alone, a reader that trusts no byte, signatures, size and speed, and contexts that run from
// a bundle with no compiler and no directory. Cases of the list of reports have its names (O_c..).
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "bundle_layout.h"
#include "fake_nvrtc.h"
#include "flow.h"
#include "list_tests.h"
#include "parts.h"
#include "support.h"

// ---- small bundles --------------------------------------------------------------------------------------------

static const dw__bundle_facts facts = {"9.8.7", 3, {{1, 2, 3}}};

static dw__digest digest_of(const char *text) { return dw__sha256(text, strlen(text)); }

// The i-th of many entries, their cubins random enough not to pack to nothing.
static void make_entry(int i, size_t size, char metadata[64], unsigned char *cubin, dw__entry *entry) {
  char request[32], build[32];
  unsigned char seed[randombytes_SEEDBYTES] = {(unsigned char)i, (unsigned char)(i >> 8)};
  snprintf(request, sizeof request, "request %d", i);
  snprintf(build, sizeof build, "build %d", i / 2);  // two requests share one
  seed[0] = (unsigned char)(i / 2);
  seed[1] = (unsigned char)(i / 2 >> 8);
  randombytes_buf_deterministic(cubin, size, seed);
  snprintf(metadata, 64, "{\"shape\":\"shape %d\",\"variant\":\"\"}", i);
  *entry = (dw__entry){digest_of(request), digest_of(build), metadata, cubin, size};
}

static int append(void *user, const void *bytes, size_t size) {
  dw__buf *buf = user;
  dw__buf_append(buf, bytes, size);
  return buf->failed ? ENOMEM : 0;
}

static dw_status finish(dw__bundle_writer *writer, const unsigned char *seed, char **bytes, size_t *size, dw_error *error) {
  dw__buf buf = {0};
  dw_status status = dw__bundle_writer_finish(writer, seed, append, &buf, size, error);
  if (!status) assert_int_equal(buf.size, *size);
  if (status) dw__buf_free(&buf);
  *bytes = buf.data;
  return status;
}

static void add_entry(dw__bundle_writer *writer, int i, size_t size) {
  char metadata[64];
  unsigned char *cubin = malloc(size);
  dw__entry entry;
  make_entry(i, size, metadata, cubin, &entry);
  assert_int_equal(dw__bundle_writer_add(writer, &entry, i % 2 ? "sm_120f" : "sm_90", NULL), DW_OK);
  free(cubin);
}

// Entries 0 to count - 1, added in the order i x step.
static char *make_bundle(int count, int step, size_t cubin_size, const unsigned char *seed, size_t *size) {
  char *bytes;
  dw__bundle_writer *writer = dw__bundle_writer_create(&facts);
  for (int i = 0; i < count; i++) add_entry(writer, i * step % count, cubin_size);
  assert_int_equal(finish(writer, seed, &bytes, size, NULL), DW_OK);
  dw__bundle_writer_free(writer);
  return bytes;
}

// Is what it says of an entry the truth, or an error?
static bool holds(const dw__bundle *bundle, int i, size_t cubin_size) {
  char metadata[64];
  unsigned char cubin[4096];
  dw__entry entry, expected;
  make_entry(i, cubin_size, metadata, cubin, &expected);
  size_t at = dw__bundle_find(bundle, &expected.request);
  if (at == DW__BUNDLE_NONE || dw__bundle_read(bundle, at, true, &entry, NULL)) return false;
  assert_memory_equal(&entry.request, &expected.request, 32);
  assert_memory_equal(&entry.build, &expected.build, 32);
  assert_string_equal(entry.metadata, metadata);
  assert_int_equal(entry.cubin_size, cubin_size);
  assert_memory_equal(entry.cubin, cubin, cubin_size);
  dw__entry_free(&entry);
  return true;
}

static dw__bundle *open_memory(const void *bytes, size_t size) {
  dw__bundle *bundle;
  dw_error error = {0};
  if (dw__bundle_open_memory(bytes, size, NULL, &bundle, &error)) fail_msg("%s", error.message);
  return bundle;
}

static void entries_come_back(void **state) {
  (void)state;
  size_t size;
  char *bytes = make_bundle(7, 1, 900, NULL, &size);
  write_bytes("b.dwb", bytes, size);
  dw__bundle *memory = open_memory(bytes, size), *file;
  assert_int_equal(dw__bundle_open_file(path_of("b.dwb"), NULL, &file, NULL), DW_OK);
  assert_string_equal(dw__bundle_name(file), path_of("b.dwb"));
  assert_memory_equal(dw__bundle_facts_of(file), &facts, sizeof facts);
  assert_int_equal(dw__bundle_size(file), size);
  assert_int_equal(dw__bundle_count(memory), 7);
  for (int i = 0; i < 7; i++) assert_true(holds(memory, i, 900) && holds(file, i, 900));
  dw__digest other = digest_of("something else");
  assert_true(dw__bundle_find(file, &other) == DW__BUNDLE_NONE);
  assert_null(dw__bundle_signer(file));
  dw__bundle_close(memory);
  dw__bundle_close(file);
  dw__release(bytes);
}

static void an_empty_bundle_is_one(void **state) {
  (void)state;
  size_t size;
  char *bytes = make_bundle(0, 1, 0, NULL, &size);
  dw__bundle *bundle = open_memory(bytes, size);
  dw__digest any = digest_of("any");
  assert_int_equal(dw__bundle_count(bundle), 0);
  assert_true(dw__bundle_find(bundle, &any) == DW__BUNDLE_NONE);
  dw__bundle_close(bundle);
  dw__release(bytes);
}

static void order_does_not_show(void **state) {
  (void)state;
  size_t size, other_size;
  char *bytes = make_bundle(10, 1, 500, NULL, &size), *other = make_bundle(10, 3, 500, NULL, &other_size);
  assert_int_equal(size, other_size);
  assert_memory_equal(bytes, other, size);
  dw__release(bytes);
  dw__release(other);
}

static void same_cubins_are_there_once(void **state) {
  (void)state;
  size_t one, two;
  dw__release(make_bundle(1, 1, 4000, NULL, &one));
  dw__release(make_bundle(2, 1, 4000, NULL, &two));
  assert_true(two < one + 400);
}

static void any_alignment_will_do(void **state) {
  (void)state;
  size_t size;
  char *bytes = make_bundle(3, 1, 300, NULL, &size), *room = malloc(size + 8);
  for (int shift = 0; shift < 8; shift++) {
    memcpy(room + shift, bytes, size);
    dw__bundle *bundle = open_memory(room + shift, size);
    for (int i = 0; i < 3; i++) assert_true(holds(bundle, i, 300));
    dw__bundle_close(bundle);
  }
  free(room);
  dw__release(bytes);
}

// ---- merging --------------------------------------------------------------------------------------------------

static void parts_make_the_whole(void **state) {
  (void)state;
  size_t size, part_size, merged_size;
  char *whole = make_bundle(9, 1, 400, NULL, &size), *merged;
  dw__bundle_writer *writer = dw__bundle_writer_create(&facts);
  for (int shard = 2; shard >= 0; shard--) {
    dw__bundle_writer *part = dw__bundle_writer_create(&facts);
    for (int i = shard; i < 9; i += 3) add_entry(part, i, 400);
    add_entry(part, 0, 400);  // twice is no harm
    char *bytes;
    assert_int_equal(finish(part, NULL, &bytes, &part_size, NULL), DW_OK);
    dw__bundle *bundle = open_memory(bytes, part_size);
    for (size_t i = 0; i < dw__bundle_count(bundle); i++)
      assert_int_equal(dw__bundle_writer_copy(writer, bundle, i, NULL), DW_OK);
    dw__bundle_close(bundle);
    dw__release(bytes);
    dw__bundle_writer_free(part);
  }
  assert_int_equal(finish(writer, NULL, &merged, &merged_size, NULL), DW_OK);
  assert_int_equal(merged_size, size);
  assert_memory_equal(merged, whole, size);
  dw__bundle_writer_free(writer);
  dw__release(merged);
  dw__release(whole);
}

static void conflicts_are_named(void **state) {
  (void)state;
  char metadata[64];
  unsigned char cubin[100];
  dw__entry entry;
  dw_error error = {0};
  dw__bundle_writer *writer = dw__bundle_writer_create(&facts);
  add_entry(writer, 4, 100);
  make_entry(4, 100, metadata, cubin, &entry);
  assert_int_equal(dw__bundle_writer_add(writer, &entry, "sm_90", NULL), DW_OK);
  cubin[50] ^= 1;
  assert_int_equal(dw__bundle_writer_add(writer, &entry, "sm_90", &error), DW_BAD_BUNDLE);
  assert_non_null(strstr(error.message, "different bytes"));
  assert_non_null(strstr(error.message, "shape 4"));
  cubin[50] ^= 1;
  entry.build = digest_of("another compiler's");
  assert_int_equal(dw__bundle_writer_add(writer, &entry, "sm_90", &error), DW_BAD_BUNDLE);
  assert_non_null(strstr(error.message, "different builds"));
  assert_int_equal(dw__bundle_writer_count(writer), 1);
  dw_error_clear(&error);
  dw__bundle_writer_free(writer);
}

static int full_disk(void *user, const void *bytes, size_t size) {
  (void)bytes, (void)size;
  return --*(int *)user ? 0 : ENOSPC;
}

static void a_full_disk_is_an_error(void **state) {
  (void)state;
  dw_error error = {0};
  size_t size;
  dw__bundle_writer *writer = dw__bundle_writer_create(&facts);
  for (int i = 0; i < 3; i++) add_entry(writer, i, 100);
  for (int room = 1; room <= 6; room++) {  // head, three records, two cubins
    int left = room;
    assert_int_equal(dw__bundle_writer_finish(writer, NULL, full_disk, &left, &size, &error), DW_IO);
    assert_non_null(strstr(error.message, strerror(ENOSPC)));
    dw_error_clear(&error);
  }
  int left = 7;
  assert_int_equal(dw__bundle_writer_finish(writer, NULL, full_disk, &left, &size, NULL), DW_OK);
  dw__bundle_writer_free(writer);
}

static dw_status open_signed(const char *bytes, size_t size, const unsigned char *key, const char *why) {
  dw__bundle *bundle;
  dw_error error = {0};
  dw_status status = dw__bundle_open_memory(bytes, size, key, &bundle, &error);
  if (status && !strstr(error.message, why)) fail_msg("%s does not say: %s", error.message, why);
  dw_error_clear(&error);
  dw__bundle_close(bundle);
  return status;
}

static void what_cannot_be_stored_is_refused(void **state) {
  (void)state;
  char cubin[4] = "abc", metadata[] = "{}";
  dw__entry entry = {.metadata = metadata, .cubin = cubin, .cubin_size = 0};
  dw__bundle_writer *writer = dw__bundle_writer_create(&facts);
  assert_int_equal(dw__bundle_writer_add(writer, &entry, "sm_90", NULL), DW_BAD_ARGUMENT);
  entry.cubin_size = 4;
  assert_int_equal(dw__bundle_writer_add(writer, &entry, "", NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw__bundle_writer_add(writer, &entry, "a target with too long a name", NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw__bundle_writer_count(writer), 0);
  // A target becomes part of names of files: what could lead elsewhere is no bundle.
  size_t size;
  char *bytes;
  assert_int_equal(dw__bundle_writer_add(writer, &entry, "../sm_90", NULL), DW_OK);
  assert_int_equal(finish(writer, NULL, &bytes, &size, NULL), DW_OK);
  assert_int_equal(open_signed(bytes, size, NULL, "target of an entry"), DW_BAD_BUNDLE);
  dw__release(bytes);
  dw__bundle_writer_free(writer);
}

// ---- damage ---------------------------------------------------------------------------------------------------

// Whatever is in there: no crash, and what it hands out is right. How many entries it still has.
static int try_bytes(const char *bytes, size_t size) {
  dw__bundle *bundle;
  dw_error error = {0};
  int sound = 0;
  dw_status status = dw__bundle_open_memory(bytes, size, NULL, &bundle, &error);
  if (status) {
    assert_int_equal(status, DW_BAD_BUNDLE);
    assert_true(strlen(error.message) > 20);
    dw_error_clear(&error);
    return 0;
  }
  for (int i = 0; i < 3; i++) sound += holds(bundle, i, 60);
  dw__bundle_close(bundle);
  return sound;
}

static void truncation_at_every_offset(void **state) {
  (void)state;
  size_t size;
  char *bytes = make_bundle(3, 1, 60, NULL, &size);
  assert_int_equal(try_bytes(bytes, size), 3);
  for (size_t cut = 0; cut < size; cut++) {
    char *part = malloc(cut + 1);  // of its own size: a read beyond it is found by the sanitizer
    memcpy(part, bytes, cut);
    assert_int_equal(try_bytes(part, cut), 0);
    part = realloc(part, cut ? cut : 1);
    assert_int_equal(try_bytes(part, cut), 0);
    free(part);
  }
  dw__release(bytes);
}

static void every_bit_flipped(void **state) {
  (void)state;
  size_t size;
  char *bytes = make_bundle(3, 1, 60, NULL, &size);
  dw__bundle *bundle = open_memory(bytes, size);
  dw__bundle_close(bundle);
  for (size_t i = 0; i < size; i++)
    for (int bit = 0; bit < 8; bit++) {
      bytes[i] ^= (char)(1 << bit);
      assert_true(try_bytes(bytes, size) < 3);  // every byte is covered by a digest
      bytes[i] ^= (char)(1 << bit);
    }
  dw__release(bytes);
}

static void a_damaged_entry_is_named_and_harms_no_other(void **state) {
  (void)state;
  size_t size;
  dw__bundle_item item;
  dw__entry entry;
  dw_error error = {0};
  char *bytes = make_bundle(4, 1, 60, NULL, &size), build[65];
  bytes[size - 1] ^= 1;  // the last cubin, which two requests share
  dw__bundle *bundle = open_memory(bytes, size);
  int wrong = 0;
  for (size_t i = 0; i < 4; i++) {
    if (!dw__bundle_read(bundle, i, true, &entry, &error)) {
      dw__entry_free(&entry);
      continue;
    }
    wrong++;
    dw__bundle_item_at(bundle, i, &item);
    dw__hex(&item.build, build);
    build[12] = 0;
    assert_int_equal(error.status, DW_BAD_BUNDLE);
    assert_non_null(strstr(error.message, build));
    assert_non_null(strstr(error.message, item.target));
    dw_error_clear(&error);
    assert_int_equal(dw__bundle_read(bundle, i, false, &entry, NULL), DW_OK);  // its metadata is sound
    dw__entry_free(&entry);
  }
  assert_int_equal(wrong, 2);
  dw__bundle_close(bundle);
  dw__release(bytes);
}

// ---- files ----------------------------------------------------------------------------------------------------

static void a_file_that_shrinks_is_an_error(void **state) {
  (void)state;
  size_t size;
  char *bytes = make_bundle(3, 1, 3000, NULL, &size);
  dw__bundle *bundle;
  dw_error error = {0};
  dw__entry entry;
  write_bytes("b.dwb", bytes, size);
  assert_int_equal(dw__bundle_open_file(path_of("b.dwb"), NULL, &bundle, NULL), DW_OK);
  assert_int_equal(truncate(path_of("b.dwb"), (off_t)size / 2), 0);
  int wrong = 0;
  for (size_t i = 0; i < 3; i++) {
    if (dw__bundle_read(bundle, i, true, &entry, &error)) wrong++;
    else dw__entry_free(&entry);
  }
  assert_true(wrong > 0);
  assert_non_null(strstr(error.message, "ends too early"));
  dw_error_clear(&error);
  dw__bundle_close(bundle);
  dw__release(bytes);
}

// Replaced under an open bundle. By rename, as an update should: the old file goes on being read. In place, as cp does it: every entry
// is the one that was asked for, or an error.
static void a_file_that_is_replaced_in_use(void **state) {
  (void)state;
  size_t size, other_size;
  char *bytes = make_bundle(6, 1, 900, NULL, &size), *other = make_bundle(4, 1, 1300, NULL, &other_size);
  for (int in_place = 0; in_place < 2; in_place++) {
    dw__bundle *bundle;
    dw_error error = {0};
    write_bytes("b.dwb", bytes, size);
    assert_int_equal(dw__bundle_open_file(path_of("b.dwb"), NULL, &bundle, NULL), DW_OK);
    write_bytes(in_place ? "b.dwb" : "new.dwb", other, other_size);
    if (!in_place) assert_int_equal(rename(path_of("new.dwb"), path_of("b.dwb")), 0);
    int sound = 0;
    for (int i = 0; i < 6; i++) sound += holds(bundle, i, 900);
    assert_int_equal(sound, in_place ? 0 : 6);
    dw__entry entry;
    if (in_place) assert_int_equal(dw__bundle_read(bundle, 0, true, &entry, &error), DW_BAD_BUNDLE);
    dw_error_clear(&error);
    dw__bundle_close(bundle);
  }
  dw__release(bytes);
  dw__release(other);
}

// Every size and place, of the header and of an entry, with values that overflow, wrap or ask for all memory; digests made good.
static void sizes_from_a_liar(void **state) {
  (void)state;
  static const size_t fields[] = {16, 24, 32, 40, 160 + 144, 160 + 152, 160 + 160, 160 + 168, 160 + 176, 160 + 184};
  static const uint64_t values[] = {0,
                                    1,
                                    0x7fffffff,
                                    0x80000000,
                                    0xffffffff,
                                    0x100000000,
                                    (uint64_t)1 << 40,
                                    INT64_MAX,
                                    (uint64_t)INT64_MAX + 1,
                                    UINT64_MAX,
                                    UINT64_MAX - 160,
                                    UINT64_MAX / 192,
                                    UINT64_MAX / 192 + 1};
  size_t size;
  char *bytes = make_bundle(3, 1, 60, NULL, &size), *forged = malloc(size);
  const dw__bundle_layout at = dw__bundle_lay_out(3, 0, 0);
  for (size_t f = 0; f < DW__COUNT(fields); f++)
    for (size_t g = 0; g < DW__COUNT(fields); g++)  // a second one makes up for the first
      for (size_t v = 0; v < DW__COUNT(values); v++) {
        memcpy(forged, bytes, size);
        uint64_t old = dw__get(forged + fields[f], 8), second = dw__get(forged + fields[g], 8);
        if (values[v] == old) continue;
        dw__put(forged + fields[f], values[v], 8);
        if (g != f) dw__put(forged + fields[g], second + old - values[v], 8);
        dw__digest digest = dw__bundle_digest(forged, &at);
        memcpy(forged + 128, digest.bytes, 32);
        assert_true(try_bytes(forged, size) < 3);
      }
  free(forged);
  dw__release(bytes);
}

// On a filesystem of several hosts a mapping would end the process where somebody cuts the file: none is made, on any.
static void a_bundle_is_not_mapped(void **state) {
  (void)state;
  size_t size;
  char *bytes = make_bundle(3, 1, 3000, NULL, &size), line[4096];
  dw__bundle *bundle;
  write_bytes("b.dwb", bytes, size);
  assert_int_equal(dw__bundle_open_file(path_of("b.dwb"), NULL, &bundle, NULL), DW_OK);
  assert_true(holds(bundle, 0, 3000));
  FILE *maps = fopen("/proc/self/maps", "r");
  assert_non_null(maps);
  while (fgets(line, sizeof line, maps)) assert_null(strstr(line, "b.dwb"));
  fclose(maps);
  dw__bundle_close(bundle);
  dw__release(bytes);
}

static void files_that_are_no_bundle_are_refused(void **state) {
  (void)state;
  size_t size;
  char *bytes = make_bundle(1, 1, 60, NULL, &size);
  dw__bundle *bundle;
  dw_error error = {0};
  assert_int_equal(dw__bundle_open_file(path_of("none.dwb"), NULL, &bundle, &error), DW_NOT_FOUND);
  assert_null(bundle);
  assert_int_equal(dw__bundle_open_file(test_folder, NULL, &bundle, &error), DW_BAD_BUNDLE);
  assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
  assert_int_equal(dw__bundle_open_file(path_of("pipe"), NULL, &bundle, &error), DW_BAD_BUNDLE);
  char text[300];
  memset(text, 'x', sizeof text);
  write_bytes("text.dwb", text, sizeof text);
  assert_int_equal(dw__bundle_open_file(path_of("text.dwb"), NULL, &bundle, &error), DW_BAD_BUNDLE);
  assert_non_null(strstr(error.message, "no bundle"));
  write_bytes("open.dwb", bytes, size);
  assert_int_equal(chmod(path_of("open.dwb"), 0666), 0);
  assert_int_equal(dw__bundle_open_file(path_of("open.dwb"), NULL, &bundle, &error), DW_BAD_BUNDLE);
  assert_non_null(strstr(error.message, "everybody"));
  dw_error_clear(&error);
  dw__release(bytes);
}

// ---- signatures -----------------------------------------------------------------------------------------------

static void signatures_are_checked(void **state) {
  (void)state;
  unsigned char seed[32], other_seed[32], key[32], other[32], secret[64];
  size_t size, plain_size;
  randombytes_buf(seed, sizeof seed);
  randombytes_buf(other_seed, sizeof other_seed);
  crypto_sign_seed_keypair(key, secret, seed);
  crypto_sign_seed_keypair(other, secret, other_seed);
  char *bytes = make_bundle(3, 1, 60, seed, &size), *plain = make_bundle(3, 1, 60, NULL, &plain_size);
  const size_t block = 160 + 3 * 192;
  assert_int_equal(size, plain_size);
  assert_memory_equal(bytes, plain, block);
  assert_int_equal(open_signed(bytes, size, key, ""), DW_OK);
  assert_int_equal(open_signed(bytes, size, NULL, ""), DW_OK);
  assert_int_equal(open_signed(bytes, size, other, "another key"), DW_BAD_BUNDLE);
  assert_int_equal(open_signed(plain, size, key, "not signed"), DW_BAD_BUNDLE);
  dw__bundle *bundle = open_memory(bytes, size);
  assert_memory_equal(dw__bundle_signer(bundle), key, 32);
  dw__bundle_close(bundle);
  // Somebody else's name on it, and each byte of the signature.
  memcpy(bytes + block, other, 32);
  assert_int_equal(open_signed(bytes, size, other, "signature is wrong"), DW_BAD_BUNDLE);
  memcpy(bytes + block, key, 32);
  for (size_t i = block + 32; i < block + 96; i++) {
    bytes[i] ^= 4;
    assert_int_equal(open_signed(bytes, size, key, "signature is wrong"), DW_BAD_BUNDLE);
    bytes[i] ^= 4;
  }
  // Entries of another bundle under a true signature: the index that is signed is another.
  size_t more_size;
  char *more = make_bundle(3, 1, 61, NULL, &more_size);
  memcpy(more + block, bytes + block, 96);
  assert_int_equal(open_signed(more, more_size, key, "signature is wrong"), DW_BAD_BUNDLE);
  dw__release(more);
  dw__release(plain);
  dw__release(bytes);
}

// ---- memory and time ------------------------------------------------------------------------------------------

static void every_allocation_may_fail(void **state) {
  (void)state;
  size_t size, made_size;
  char *bytes = make_bundle(3, 1, 200, NULL, &size);
  write_bytes("b.dwb", bytes, size);
  for (long n = 1;; n++) {
    dw__bundle *bundle = NULL;
    char *made = NULL;
    dw__entry entry = {0};
    dw__alloc_fail_after(n);
    dw_status status = dw__bundle_open_file(path_of("b.dwb"), NULL, &bundle, NULL);
    if (!status) status = dw__bundle_read(bundle, 0, true, &entry, NULL);
    dw__bundle_writer *writer = status ? NULL : dw__bundle_writer_create(&facts);
    if (!status && !writer) status = DW_OUT_OF_MEMORY;
    if (!status) status = dw__bundle_writer_copy(writer, bundle, 0, NULL);
    if (!status) status = dw__bundle_writer_add(writer, &entry, "sm_90", NULL);
    if (!status) status = finish(writer, NULL, &made, &made_size, NULL);
    dw__alloc_fail_after(0);
    dw__release(made);
    dw__entry_free(&entry);
    dw__bundle_writer_free(writer);
    dw__bundle_close(bundle);
    if (status == DW_OK || status == DW_BAD_BUNDLE) break;  // the entry's target may differ from what was copied
    assert_int_equal(status, DW_OUT_OF_MEMORY);
  }
  dw__release(bytes);
}

static long resident_bytes(void) {
  long pages = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  assert_non_null(file);
  assert_int_equal(fscanf(file, "%ld %ld", &pages, &resident), 2);
  fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

enum { MANY = 2000 };

static void entries_2000_open_fast_and_small(void **state) {
  (void)state;
  size_t size;
  char *bytes = make_bundle(MANY, 7, 2048, NULL, &size);
  write_bytes("many.dwb", bytes, size);
  dw__release(bytes);
  malloc_trim(0);
  double open_seconds = 1;
  dw__bundle *bundle;
  const long before = resident_bytes();
  for (int i = 0; i < 5; i++) {  // the best of a few: others work on this machine
    double start = dw__seconds();
    assert_int_equal(dw__bundle_open_file(path_of("many.dwb"), NULL, &bundle, NULL), DW_OK);
    double took = dw__seconds() - start;
    open_seconds = took < open_seconds ? took : open_seconds;
    if (i < 4) dw__bundle_close(bundle);
  }
  const long grown = resident_bytes() - before;
  dw__digest keys[MANY];
  for (int i = 0; i < MANY; i++) {
    char text[32];
    snprintf(text, sizeof text, "request %d", i);
    keys[i] = digest_of(text);
  }
  double find_seconds = 1;
  for (int round = 0; round < 5; round++) {
    double start = dw__seconds();
    for (int i = 0; i < MANY; i++) assert_true(dw__bundle_find(bundle, &keys[i]) != DW__BUNDLE_NONE);
    double took = (dw__seconds() - start) / MANY;
    find_seconds = took < find_seconds ? took : find_seconds;
  }
  print_message("2,000 entries, %zu bytes: opened in %.2f ms, found in %.0f ns, %ld KiB resident\n", size, open_seconds * 1e3,
                find_seconds * 1e9, grown / 1024);
  assert_true(holds(bundle, 1234, 2048));
  dw__bundle_close(bundle);
#if !defined(__SANITIZE_ADDRESS__)  // these are bars for the product, at three times what is asked for
  assert_true(open_seconds < 3 * 5e-3);
  assert_true(find_seconds < 3 * 1e-6);
  assert_true(grown < 3 * 4 * 1024 * 1024);
#endif
}

// ---- contexts -------------------------------------------------------------------------------------------------

static char warned[2048];
static int warnings;

static void note(void *user, dw_log_level level, const char *message) {
  (void)user;
  if (level != DW_LOG_WARNING) return;
  snprintf(warned, sizeof warned, "%s", message);
  warnings++;
}

// No compiler, no driver, and a cache directory that cannot be made.
static dw_ctx *bare_ctx(void) {
  dw_error error = {0};
  dw_ctx *ctx = NULL;
  dw_options options = {.size = sizeof options,
                        .cache_dir = "",
                        .nvrtc_path = "/nonexistent/libnvrtc.so",
                        .driver_path = "/nonexistent/libcuda.so",
                        .log = note};
  warnings = 0;
  if (dw_ctx_create(&options, &ctx, &error)) fail_msg("%s", error.message);
  return ctx;
}

static dw_status build(dw_ctx *ctx, int width, dw_cubin **cubin, dw_error *error) {
  dw_shape shape = shape_of("mla:h=8,t=1");
  dw_variant variant = variant_of("family=reference");
  shape.width = width;
  return dw_cubin_build(ctx, &shape, &variant, cubin, error);
}

// A bundle of what a context with the stand-in compiler makes for these widths, as of these facts or, with NULL, of this library.
static char *bundle_of_widths(const int *widths, int count, const dw__bundle_facts *given, size_t *size) {
  char *bytes;
  dw__nvrtc *nvrtc = NULL;
  dw__bundle_facts here;
  dw_ctx *ctx = bare_ctx();
  fake_nvrtc_reset(13, 0);
  fake_nvrtc.arch_count = 3;
  fake_nvrtc.cubin = read_data("two_sm_120f.cubin", &fake_nvrtc.cubin_size);
  assert_int_equal(dw__nvrtc_open_table(&fake_nvrtc_table, &nvrtc, NULL), DW_OK);
  dw__ctx_use_nvrtc(ctx, nvrtc);
  assert_int_equal(dw__bundle_facts_here(ctx, &here, NULL), DW_OK);
  dw__bundle_writer *writer = dw__bundle_writer_create(given ? given : &here);
  for (int i = 0; i < count; i++) {
    dw_cubin *cubin;
    dw__entry entry = {0};
    dw__digest request;
    assert_int_equal(build(ctx, widths[i], &cubin, NULL), DW_OK);
    sodium_hex2bin(request.bytes, 32, cubin->request_key, 64, NULL, NULL, NULL);
    assert_int_equal(dw__cache_find(dw__ctx_cache(ctx), &request, &entry, NULL), DW_OK);
    assert_int_equal(dw__bundle_writer_add(writer, &entry, cubin->target, NULL), DW_OK);
    dw__entry_free(&entry);
    dw_cubin_free(cubin);
  }
  assert_int_equal(finish(writer, NULL, &bytes, size, NULL), DW_OK);
  dw__bundle_writer_free(writer);
  dw_ctx_destroy(ctx);
  dw__release((void *)fake_nvrtc.cubin);
  fake_nvrtc.cubin = NULL;
  return bytes;
}

static const int two_widths[] = {2, 3};

static void O_c01_a_context_runs_from_a_bundle_alone(void **state) {
  (void)state;
  size_t size, data_size;
  char *bytes = bundle_of_widths(two_widths, 2, NULL, &size), *data = read_data("two_sm_120f.cubin", &data_size);
  dw_error error = {0};
  dw_cubin *cubin;
  dw_stats stats;
  dw_ctx *ctx = bare_ctx();
  if (dw_bundle_add_memory(ctx, bytes, size, NULL, &error)) fail_msg("%s", error.message);
  for (int width = 2; width <= 3; width++) {
    assert_int_equal(build(ctx, width, &cubin, &error), DW_OK);
    assert_true(cubin->from_cache);
    assert_int_equal(cubin->size, data_size);
    assert_memory_equal(cubin->data, data, data_size);
    dw_cubin_free(cubin);
  }
  dw_stats_get(ctx, &stats);
  assert_int_equal(stats.compiles, 0);
  assert_int_equal(stats.misses, 0);
  // What it lacks needs the compiler that is not there; the error names both.
  assert_int_equal(build(ctx, 4, &cubin, &error), DW_NO_COMPILER);
  assert_non_null(strstr(error.message, "/nonexistent/libnvrtc.so"));
  assert_non_null(strstr(error.message, "mla:h=8,t=4"));
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
  dw__release(data);
  dw__release(bytes);
}

static void O_c26_a_first_request_takes_milliseconds(void **state) {
  (void)state;
  size_t size;
  char *bytes = bundle_of_widths(two_widths, 2, NULL, &size);
  dw_cubin *cubin;
  dw_ctx *ctx = bare_ctx();
  assert_int_equal(dw_bundle_add_memory(ctx, bytes, size, NULL, NULL), DW_OK);
  double start = dw__seconds();
  assert_int_equal(build(ctx, 2, &cubin, NULL), DW_OK);
  double took = dw__seconds() - start;
  print_message("first request: %.2f ms\n", took * 1e3);
  assert_true(took < 3 * 50e-3);
  dw_cubin_free(cubin);
  dw_ctx_destroy(ctx);
  dw__release(bytes);
}

// Strict: where bundles have to do, a request that they lack is refused although there is a compiler.
static void O_c34_strict_contexts_do_not_compile(void **state) {
  (void)state;
  size_t size;
  char *bytes = bundle_of_widths(two_widths, 1, NULL, &size), *misses;
  dw_error error = {0};
  dw_ctx *ctx = NULL;
  dw_cubin *cubin;
  dw_stats stats;
  dw__nvrtc *nvrtc = NULL;
  dw_options options = {.size = sizeof options, .cache_dir = "", .no_compile = 1};
  assert_int_equal(dw_ctx_create(&options, &ctx, NULL), DW_OK);
  assert_int_equal(dw__nvrtc_open_table(&fake_nvrtc_table, &nvrtc, NULL), DW_OK);
  dw__ctx_use_nvrtc(ctx, nvrtc);
  assert_int_equal(dw_bundle_add_memory(ctx, bytes, size, NULL, NULL), DW_OK);
  assert_int_equal(build(ctx, 2, &cubin, NULL), DW_OK);
  dw_cubin_free(cubin);
  assert_int_equal(build(ctx, 5, &cubin, &error), DW_NOT_FOUND);
  assert_non_null(strstr(error.message, "mla:h=8,t=5"));
  dw_error_clear(&error);
  assert_int_equal(dw_miss_list(ctx, &misses, NULL, NULL), DW_OK);
  assert_non_null(strstr(misses, "mla:h=8,t=5"));
  assert_null(strstr(misses, "mla:h=8,t=2"));
  dw_free(misses);
  dw_stats_get(ctx, &stats);
  assert_int_equal(stats.compiles, 0);
  dw_ctx_destroy(ctx);
  dw__release(bytes);
}

static void O_c34_another_version_is_told_of(void **state) {
  (void)state;
  size_t size;
  dw_error error = {0};
  dw__bundle_facts other = {"0.0.9", 1, {{7}}};
  char *bytes = bundle_of_widths(two_widths, 1, &other, &size);
  write_bytes("old.dwb", bytes, size);
  dw_ctx *ctx = bare_ctx();
  assert_int_equal(dw_bundle_add_file(ctx, path_of("old.dwb"), NULL, &error), DW_BAD_BUNDLE);
  assert_non_null(strstr(error.message, "0.0.9"));
  assert_non_null(strstr(error.message, dw_version()));
  assert_non_null(strstr(error.message, "old.dwb"));
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
  // By the variable: a warning, with both versions too.
  setenv("DRAFTWOOD_BUNDLES", path_of("old.dwb"), 1);
  ctx = bare_ctx();
  unsetenv("DRAFTWOOD_BUNDLES");
  assert_int_equal(warnings, 1);
  assert_non_null(strstr(warned, "0.0.9"));
  assert_non_null(strstr(warned, dw_version()));
  dw_ctx_destroy(ctx);
  dw__release(bytes);
}

static void O_c35_bundles_by_variable_in_order(void **state) {
  (void)state;
  size_t size;
  char list[600], *bytes = bundle_of_widths(two_widths, 1, NULL, &size);
  dw__layer_place place;
  dw_cubin *cubin;
  assert_int_equal(mkdir(path_of("folder"), 0700), 0);
  write_bytes("z.dwb", bytes, size);
  write_bytes("folder/b.dwb", bytes, size);
  write_bytes("folder/a.dwb", bytes, size);
  write_text("folder/notes.txt", "no bundle");
  assert_int_equal(chmod(path_of("folder"), 0500), 0);
  snprintf(list, sizeof list, "%s::%s:%s", path_of("z.dwb"), path_of("folder"), path_of("absent.dwb"));
  setenv("DRAFTWOOD_BUNDLES", list, 1);
  dw_ctx *ctx = bare_ctx();
  unsetenv("DRAFTWOOD_BUNDLES");
  assert_int_equal(chmod(path_of("folder"), 0700), 0);
  const char *const expected[] = {"z.dwb", "folder/a.dwb", "folder/b.dwb"};
  for (size_t i = 0; i < DW__COUNT(expected); i++) {
    assert_string_equal(dw__cache_layer_name(dw__ctx_cache(ctx), i, &place), path_of(expected[i]));
    assert_int_equal(place, DW__LAYER_BUNDLE);
  }
  assert_int_equal(warnings, 1);
  assert_non_null(strstr(warned, "absent.dwb"));
  assert_int_equal(build(ctx, 2, &cubin, NULL), DW_OK);
  dw_cubin_free(cubin);
  dw_ctx_destroy(ctx);
  // An empty folder, one that cannot be read, a name without end: told of, one warning each.
  char *endless = malloc(5000);
  memset(endless, 'x', 4999);
  endless[4999] = 0;
  assert_int_equal(mkdir(path_of("empty"), 0700), 0);
  assert_int_equal(mkdir(path_of("closed"), 0), 0);
  const char *const places[] = {path_of("empty"), path_of("closed"), endless}, *const reasons[] = {"no file", "denied",
                                                                                                   "too long"};
  for (size_t i = 0; i < DW__COUNT(places); i++) {
    if (i == 1 && geteuid() == 0) continue;  // root reads everything
    setenv("DRAFTWOOD_BUNDLES", places[i], 1);
    ctx = bare_ctx();
    unsetenv("DRAFTWOOD_BUNDLES");
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(warned, reasons[i]));
    dw_ctx_destroy(ctx);
  }
  assert_int_equal(chmod(path_of("closed"), 0700), 0);
  free(endless);
  // Where everybody can put files, somebody will.
  assert_int_equal(chmod(path_of("folder"), 01777), 0);
  setenv("DRAFTWOOD_BUNDLES", path_of("folder"), 1);
  ctx = bare_ctx();
  unsetenv("DRAFTWOOD_BUNDLES");
  assert_null(dw__cache_layer_name(dw__ctx_cache(ctx), 0, &place));
  assert_int_equal(warnings, 1);
  assert_non_null(strstr(warned, "everybody"));
  dw_ctx_destroy(ctx);
  dw__release(bytes);
}

// The first that has it, sound, wins; a damaged one is passed over, and told of.
static void a_damaged_entry_is_taken_from_the_next(void **state) {
  (void)state;
  size_t size;
  char *bytes = bundle_of_widths(two_widths, 1, NULL, &size), *spoilt = malloc(size), build_key[65];
  dw_error error = {0};
  dw_cubin *cubin;
  dw_stats stats;
  memcpy(spoilt, bytes, size);
  spoilt[size - 20] ^= 1;
  dw_ctx *ctx = bare_ctx();
  assert_int_equal(dw_bundle_add_memory(ctx, spoilt, size, NULL, &error), DW_OK);
  assert_int_equal(build(ctx, 2, &cubin, NULL), DW_NO_COMPILER);
  dw_stats_get(ctx, &stats);
  assert_true(stats.damaged >= 1);
  assert_int_equal(warnings, 1);
  assert_non_null(strstr(warned, "damaged"));
  assert_int_equal(dw_bundle_add_memory(ctx, bytes, size, NULL, &error), DW_OK);
  assert_int_equal(build(ctx, 2, &cubin, &error), DW_OK);
  snprintf(build_key, sizeof build_key, "%s", cubin->build_key);
  assert_int_equal(strlen(build_key), 64);
  dw_cubin_free(cubin);
  dw_ctx_destroy(ctx);
  free(spoilt);
  dw__release(bytes);
}

static void arguments_are_checked(void **state) {
  (void)state;
  dw_error error = {0};
  dw_ctx *ctx = bare_ctx();
  assert_int_equal(dw_bundle_add_file(ctx, NULL, NULL, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw_bundle_add_file(NULL, "x", NULL, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw_bundle_add_memory(ctx, NULL, 0, NULL, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw_bundle_add_memory(ctx, "x", 1, NULL, &error), DW_BAD_BUNDLE);
  assert_int_equal(dw_bundle_add_file(ctx, path_of("none.dwb"), NULL, &error), DW_NOT_FOUND);
  assert_non_null(strstr(error.message, "none.dwb"));
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
}

static void frozen_contexts_take_no_more(void **state) {
  (void)state;
  size_t size;
  char *bytes = bundle_of_widths(two_widths, 2, NULL, &size);
  dw_error error = {0};
  dw_cubin *cubin;
  dw_ctx *ctx = bare_ctx();
  assert_int_equal(dw_bundle_add_memory(ctx, bytes, size, NULL, NULL), DW_OK);
  assert_int_equal(build(ctx, 2, &cubin, NULL), DW_OK);
  dw_cubin_free(cubin);
  assert_int_equal(dw_freeze(ctx, NULL), DW_OK);
  assert_int_equal(build(ctx, 2, &cubin, NULL), DW_OK);
  dw_cubin_free(cubin);
  assert_int_equal(build(ctx, 3, &cubin, NULL), DW_FROZEN);  // in the bundle, but nobody asked in time
  assert_int_equal(dw_bundle_add_memory(ctx, bytes, size, NULL, &error), DW_FROZEN);
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
  dw__release(bytes);
}

static void only_so_many_bundles(void **state) {
  (void)state;
  size_t size;
  char *bytes = bundle_of_widths(two_widths, 1, NULL, &size);
  dw_error error = {0};
  dw_ctx *ctx = bare_ctx();
  for (int i = 0; i < DW__LAYERS_MAX; i++) assert_int_equal(dw_bundle_add_memory(ctx, bytes, size, NULL, NULL), DW_OK);
  assert_int_equal(dw_bundle_add_memory(ctx, bytes, size, NULL, &error), DW_BAD_ARGUMENT);
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
  dw__release(bytes);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    TEST(entries_come_back),
    TEST(an_empty_bundle_is_one),
    TEST(order_does_not_show),
    TEST(same_cubins_are_there_once),
    TEST(any_alignment_will_do),
    TEST(parts_make_the_whole),
    TEST(conflicts_are_named),
    TEST(a_full_disk_is_an_error),
    TEST(what_cannot_be_stored_is_refused),
    TEST(truncation_at_every_offset),
    TEST(every_bit_flipped),
    TEST(a_damaged_entry_is_named_and_harms_no_other),
    TEST(a_file_that_shrinks_is_an_error),
    TEST(a_file_that_is_replaced_in_use),
    TEST(sizes_from_a_liar),
    TEST(a_bundle_is_not_mapped),
    TEST(files_that_are_no_bundle_are_refused),
    TEST(signatures_are_checked),
    TEST(every_allocation_may_fail),
    TEST(entries_2000_open_fast_and_small),
    TEST(O_c01_a_context_runs_from_a_bundle_alone),
    TEST(O_c26_a_first_request_takes_milliseconds),
    TEST(O_c34_strict_contexts_do_not_compile),
    TEST(O_c34_another_version_is_told_of),
    TEST(O_c35_bundles_by_variable_in_order),
    TEST(a_damaged_entry_is_taken_from_the_next),
    TEST(arguments_are_checked),
    TEST(frozen_contexts_take_no_more),
    TEST(only_so_many_bundles),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
