// What the management library tells, and what of it is no state to measure in.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "nvml.h"

#define LIBRARY TEST_BINARY_DIR "/libfake_nvml.so"
#define BUS "0000:65:00.0"

static dw__gpu_facts facts_of(const char *settings) {
  dw__gpu_facts facts;
  setenv("FAKE_NVML", settings, 1);
  dw__gpu_facts_read(LIBRARY, BUS, &facts);
  return facts;
}

static void all_facts(void **state) {
  (void)state;
  const dw__gpu_facts f =
    facts_of("sm=1980 memory=3201 now=1200 limit=300 normal=600 held=0x44 mig=1 ecc=1 errors=2 processes=3");
  assert_int_equal(f.sm_mhz, 1980);
  assert_int_equal(f.memory_mhz, 3201);
  assert_int_equal(f.sm_mhz_now, 1200);
  assert_int_equal(f.power_watts, 300);
  assert_int_equal(f.power_watts_normal, 600);
  assert_int_equal(f.held_down, 0x44);
  assert_int_equal(f.mig, 1);
  assert_int_equal(f.ecc, 1);
  assert_int_equal(f.ecc_errors, 2);
  assert_int_equal(f.processes, 3);
  assert_int_equal(facts_of("mig=0 ecc=0").mig, 0);
  assert_int_equal(facts_of("mig=0 ecc=0").ecc, 0);
  assert_int_equal(facts_of("processes=500").processes, 500);  // more than there is room for
}

static void nothing_is_known(const dw__gpu_facts *f) {
  char text[256] = "x";
  assert_int_equal(f->sm_mhz | f->memory_mhz | f->sm_mhz_now | f->power_watts | f->power_watts_normal, 0);
  assert_int_equal(f->held_down | f->ecc_errors, 0);
  assert_int_equal(f->mig, -1);
  assert_int_equal(f->ecc, -1);
  assert_int_equal(f->processes, -1);
  dw__gpu_conditions(f, 1, text, sizeof text);
  assert_string_equal(text, "");
}

static void what_is_missing_is_not_known(void **state) {
  (void)state;
  dw__gpu_facts f = facts_of("");
  nothing_is_known(&f);
  f = facts_of("broken=1 mig=1");
  nothing_is_known(&f);
  setenv("FAKE_NVML", "mig=1", 1);
  dw__gpu_facts_read("/nowhere/libnvidia-ml.so.1", BUS, &f);
  nothing_is_known(&f);
  dw__gpu_facts_read("libm.so.6", BUS, &f);
  nothing_is_known(&f);
  dw__gpu_facts_read(LIBRARY, "0000:01:00.0", &f);
  nothing_is_known(&f);
  dw__gpu_facts_read(LIBRARY, NULL, &f);
  nothing_is_known(&f);
  setenv("DRAFTWOOD_NVML", LIBRARY, 1);
  dw__gpu_facts_read(NULL, BUS, &f);
  assert_int_equal(f.mig, 1);
  unsetenv("DRAFTWOOD_NVML");
}

static void conditions_in_words(void **state) {
  (void)state;
  static const struct {
    const char *settings, *text;
  } cases[] = {
    {"sm=1980 limit=700 normal=700 held=0x1 mig=0 ecc=1 errors=0 processes=1", ""},  // idle is nothing
    {"held=0x2", "clocks set lower"},
    {"held=0x24", "clocks held down by the power limit; clocks held down by heat"},
    {"held=0xc8",
     "clocks held down by the hardware; clocks held down by heat (hardware); clocks held down by the power supply"},
    {"limit=300 normal=600", "power limit 300 W of 600 W"},
    {"limit=600 normal=300", ""},
    {"mig=1", "MIG is on"},
    {"errors=3", "3 memory errors that ECC did not correct"},
    {"processes=3", "2 other processes compute on the GPU"},
    {"limit=300 normal=600 mig=1 processes=2", "power limit 300 W of 600 W; MIG is on; 1 other processes compute on the GPU"},
  };
  for (size_t i = 0; i < DW__COUNT(cases); i++) {
    char text[256];
    const dw__gpu_facts f = facts_of(cases[i].settings);
    dw__gpu_conditions(&f, 1, text, sizeof text);
    assert_string_equal(text, cases[i].text);
  }
  // Whatever the room, the text is closed.
  const dw__gpu_facts f = facts_of("held=0xee limit=1 normal=2 mig=1 errors=1 processes=9");
  for (size_t n = 1; n < 300; n++) {
    char text[301];
    memset(text, 'x', sizeof text);
    dw__gpu_conditions(&f, 1, text, n);
    assert_true(strlen(text) < n);
    assert_int_equal(text[n], 'x');
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(all_facts), cmocka_unit_test(what_is_missing_is_not_known),
                                     cmocka_unit_test(conditions_in_words)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
