// test_resources SHAPE: the kernels of every variant that the rule table can return for the shape, each once, the main ones also checked
// and without setmaxnreg; test_resources --choice SHAPE...: the rule table's choice for each. Compiled, and their resources held against
// what the design promises: shared memory inside the target's limit (its prediction is a static_assert of the source), no spills, no stack,
// no call into the driver; and, where nvdisasm is on the path, the instructions it is meant to be made of.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "draftwood.h"
#include "plan.h"
#include "runtime.h"

static int failures;

static void expect(bool right, const char *variant, const char *what, long found) {
  if (right) return;
  printf("FAILED %s: %s: found %ld\n", variant, what, found);
  failures++;
}

// Lines of the disassembly that hold `word`, by kernel: only text between the section marks of dw_verify counts.
typedef struct sass {
  long hmma, hmma_f32, hmma_f16, fhadd, qmma, ldsm, ublkcp, ldgsts, local, setmaxreg, warpsync, unpack;
} sass;

static bool have_nvdisasm(void) { return system("command -v nvdisasm >/dev/null 2>&1") == 0; }

static bool disassemble(const dw_cubin *cubin, sass *counts) {
  char path[] = "/tmp/draftwood-sass-XXXXXX", command[128], line[512];
  const int fd = mkstemp(path);
  if (fd < 0) return false;
  const bool written = write(fd, cubin->data, cubin->size) == (ssize_t)cubin->size;
  close(fd);
  snprintf(command, sizeof command, "nvdisasm -c %s", path);
  FILE *text = written ? popen(command, "r") : NULL;
  *counts = (sass){0};
  bool inside = false;
  while (text && fgets(line, sizeof line, text)) {
    if (strstr(line, ".section\t")) inside = strstr(line, ".text.dw_verify") != NULL;  // not .sectioninfo, of sm_80
    counts->local += strstr(line, " LDL") || strstr(line, " STL");
    if (!inside) continue;
    counts->hmma += strstr(line, " HMMA") != NULL;
    counts->hmma_f32 += strstr(line, " HMMA.16816.F32") != NULL;
    counts->hmma_f16 += strstr(line, " HMMA.16816.F16") != NULL;
    counts->fhadd += strstr(line, " FHADD") != NULL;
    counts->qmma += strstr(line, " QMMA") != NULL;
    counts->ldsm += strstr(line, " LDSM") != NULL;
    counts->ublkcp += strstr(line, "UBLKCP") != NULL;
    counts->ldgsts += strstr(line, "LDGSTS") != NULL;
    counts->setmaxreg += strstr(line, "USETMAXREG") != NULL;
    counts->warpsync += strstr(line, "WARPSYNC") != NULL;
    counts->unpack += strstr(line, "F2FP.F16.E4M3.UNPACK") != NULL;
  }
  const int code = text ? pclose(text) : -1;
  unlink(path);
  return code == 0;
}

static void check_sass(const dw_cubin *cubin, const dw_shape *shape, const dw_variant *variant, const char *name, long local) {
  sass s;
  if (!disassemble(cubin, &s)) {
    expect(false, name, "nvdisasm could not read the cubin", 0);
    return;
  }
  expect(s.local <= local, name, "local memory instructions, more than allowed", s.local);
  if (variant->family < DW_ROWSPLIT) return;
  expect((s.hmma > 0) == !variant->e4m3_mma, name, "HMMA, as the variant says", s.hmma);
  expect((s.hmma_f16 > 0) == (variant->accumulate > 0), name, "HMMA in fp16, as the variant says", s.hmma_f16);
  expect(variant->accumulate < DW_ACCUMULATE_FP16 || s.hmma_f32 == 0, name, "HMMA in fp32, none expected", s.hmma_f32);
  expect((s.fhadd > 0) == (variant->accumulate && shape->target >= 100), name, "FHADD, as the variant and the target say",
         s.fhadd);
  expect((s.qmma > 0) == variant->e4m3_mma, name, "QMMA, as the variant says", s.qmma);
  expect(s.ldsm > 0, name, "LDSM, some expected", s.ldsm);
  const bool converts = dw__dtype_size(shape->kv) == 1 && shape->target >= 89;  // before, bits do
  expect((s.unpack > 0) == converts, name, "F2FP, as the KV's type and the target say", s.unpack);
  if (variant->family == DW_GROUPED || variant->family == DW_WARPSPLIT) {  // what sm_80 has, too
    expect(s.ldgsts > 0, name, "LDGSTS, some expected", s.ldgsts);
    expect(s.ublkcp == 0, name, "UBLKCP, none expected", s.ublkcp);
    return;
  }
  expect((s.ublkcp > 0) == !variant->cp_async, name, "UBLKCP, as the variant says", s.ublkcp);
  expect((s.ldgsts > 0) == (variant->family == DW_ROWSPLIT), name, "LDGSTS, as the family says", s.ldgsts);  // q
  expect((s.setmaxreg > 0) == variant->setmaxnreg, name, "USETMAXREG, as the variant says", s.setmaxreg);
  // Dozens are a sign that the compiler holds the roles for divergent branches; such code is a tenth slower.
  expect(s.warpsync <= 16, name, "WARPSYNC, at most 16", s.warpsync);
}

static void check_variant(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, bool disassembler) {
  char name[DW_TEXT_MAX], call[64];
  dw_error error = {0};
  dw_cubin *cubin = NULL;
  dw_variant_print(variant, name, sizeof name);
  if (dw_cubin_build(ctx, shape, variant, &cubin, &error) != DW_OK) {
    printf("FAILED %s: %s\n", name, error.message);
    failures++;
    dw_error_clear(&error);
    return;
  }
  // Five tiles without setmaxnreg on sm_90: nothing chooses that, it only proves sm_120's code, which does not spill.
  // Nor products in e4m3, whose few spills are outside the loops.
  const bool proof = variant->family == DW_ROWSPLIT && shape->target == 90 && variant->n_tiles == 5 && !variant->setmaxnreg;
  // Of records one register of five tiles on sm_89 is kept in memory, read once a tile.
  const bool one_word = shape->kv == DW_RECORD656 && variant->cp_async && variant->n_tiles == 5;
  // Checked, with a window and a cap, nine row tiles of a pair keep a word of 4 bytes on sm_90.
  const bool checked_pair =
    variant->family == DW_DIMSPLIT && variant->checked && variant->window && variant->soft_cap && shape->target == 90;
  // Sums in fp16 are there for sm_120, whose code does not spill; on sm_90 each takes twice the instructions.
  const bool no_gain = variant->accumulate && shape->target == 90 && variant->n_tiles == 5;
  const int spills = no_gain ? 40 : variant->e4m3_mma ? 32 : proof || one_word ? 16 : checked_pair ? 8 : 0;
  const long shared = (long)dw_shared_bytes(shape, variant);
  expect(shared <= 101376, name, "shared memory, at most 101376", shared);
  expect(!dw__cubin_calls_driver(cubin->data, cubin->size, call), name, "a __cuda_syscall symbol", 1);
  for (int i = 0; i < cubin->kernel_count; i++) {
    const dw_resources *k = &cubin->kernels[i];
    printf("  %-8s %-12s %3d registers %4d stack %4d spills  %s\n", cubin->target, k->name, k->registers, k->stack_bytes,
           k->spill_stores, i ? "" : name);
    expect(k->spill_stores <= spills && k->spill_loads <= spills, name, "spilled bytes, more than allowed",
           k->spill_stores + k->spill_loads);
    expect(k->stack_bytes <= spills, name, "stack bytes, more than allowed", k->stack_bytes);
    expect(k->registers <=
             (strcmp(k->name, "dw_verify") || (variant->family != DW_ROWSPLIT && variant->family != DW_DIMSPLIT) ? 255 : 128),
           name, "registers", k->registers);
  }
  if (disassembler) check_sass(cubin, shape, variant, name, spills / 2);
  dw_cubin_free(cubin);
}

static void check_sums_in_fp16(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, bool disassembler) {
  dw_variant other = *variant;
  for (other.accumulate = 1; other.accumulate <= DW_ACCUMULATE_FP16; other.accumulate++)
    if (dw_variant_applicable(shape, &other, NULL) == DW_OK) check_variant(ctx, shape, &other, disassembler);
}

// The kernels of every variant that the rule table can return.
static void check_variants(dw_ctx *ctx, const dw_shape *shape, const char *name, bool disassembler) {
  dw_variant variant;
  // The main kernel's code does not depend on how partial results are merged, nor the merge's on the main kernel: a variant is left
  // out if both of its kernels were looked at in others.
  size_t count = 0, looked_at = 0;
  uint64_t mains = 0, others = 0;  // bit n_tiles + 10 x call, 32 more of warpsplit and dimsplit; bit n_tiles, likewise
  uint64_t merges[2] = {0, 0};     // of each call; bit splits / 8 + 20, or 40 + splits for few
  while (dw_variant_enumerate(shape, count, &variant) == DW_OK) {
    const int tiles_at = variant.n_tiles + (variant.family > DW_GROUPED ? 32 : 0);
    const uint64_t main_bit = 1ULL << (tiles_at + 10 * variant.call), tiles_bit = 1ULL << tiles_at;
    const int few = variant.combine == DW_COMBINE_FEW;
    const uint64_t merge_bit = 1ULL << (few ? 40 + variant.combine_splits : 20 + variant.combine_splits / 8);
    count++;
    if (mains & main_bit && merges[variant.call] & merge_bit) continue;
    mains |= main_bit;
    merges[variant.call] |= merge_bit;
    check_variant(ctx, shape, &variant, disassembler);
    looked_at++;
    if (others & tiles_bit) continue;
    others |= tiles_bit;
    // The same checked, and, for plain sm_120, without setmaxnreg.
    dw_variant other = variant;
    other.checked = 1;
    if (variant.family != DW_WARPSPLIT) check_variant(ctx, shape, &other, disassembler);
    if (variant.family > DW_ROWSPLIT) {  // what takes the most registers
      other.window = other.soft_cap = 1;
      check_variant(ctx, shape, &other, disassembler);
    }
    other = variant;
    other.e4m3_mma = other.wide_tile && shape->kv == DW_E4M3 && shape->target >= 120;
    if (other.e4m3_mma) check_variant(ctx, shape, &other, disassembler);
    check_sums_in_fp16(ctx, shape, &variant, disassembler);
    other = variant;
    other.setmaxnreg = 0;
    other.wide_tile &= other.n_tiles < 5;  // as the rule table has it
    if (variant.setmaxnreg && dw_variant_applicable(shape, &other, NULL) == DW_OK)
      check_variant(ctx, shape, &other, disassembler);
  }
  expect(looked_at > 1, name, "variants", (long)looked_at);
  printf("%s: %zu of %zu variants, %d failures\n", name, looked_at, count, failures);
}

static void check_choice(dw_ctx *ctx, const dw_shape *shape, const char *name, bool disassembler) {
  const dw_bounds bounds = {.size = sizeof bounds, .batch = 8, .kv_len = 200000};
  dw_variant variant;
  dw_error error = {0};
  printf("%s\n", name);
  if (dw_variant_choose(shape, &bounds, &variant, &error) != DW_OK) {
    expect(false, name, error.message, 0);
    dw_error_clear(&error);
    return;
  }
  check_variant(ctx, shape, &variant, disassembler);
  check_sums_in_fp16(ctx, shape, &variant, disassembler);
}

int main(int argc, char **argv) {
  const bool choice = argc > 1 && strcmp(argv[1], "--choice") == 0;
  dw_options options = {.size = sizeof options, .cache_dir = TEST_BINARY_DIR "/test_resources_cache"};
  dw_error error = {0};
  dw_ctx *ctx = NULL;
  dw__nvrtc *nvrtc = NULL;
  if (argc < 2 + choice) return 2;
  if (dw_ctx_create(&options, &ctx, &error)) {
    printf("%s\n", error.message);
    return 1;
  }
  if (dw__nvrtc_open(NULL, &nvrtc, &error) != DW_OK) {
    printf("SKIP test_resources: %s\n", error.message);
    dw_error_clear(&error);
    dw_ctx_destroy(ctx);
    return 77;
  }
  dw__nvrtc_close(nvrtc);
  const bool disassembler = have_nvdisasm();
  if (!disassembler) printf("SKIP test_resources/sass: no nvdisasm on the path\n");
  for (int i = 1 + choice; i < argc; i++) {
    dw_shape shape;
    if (dw_shape_parse(argv[i], &shape, &error)) expect(false, argv[i], error.message, 0);
    else (choice ? check_choice : check_variants)(ctx, &shape, argv[i], disassembler);
    dw_error_clear(&error);
  }
  dw_ctx_destroy(ctx);
  return failures != 0;
}
