// See model.h.
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan.h"

// Rates of the H200 were measured at leisure (4617 GB/s, 649 TFLOP/s by mma.sync). Of the others nothing was: bandwidths are 0.96 of the
// data sheet's, as on the H200; GeForce boards accumulate in fp32 at half rate.
const dw__machine dw__machines[] = {
  {"H200", "H200", "NVIDIA H200", 90, 132, 60, 1980, 4617, 2483, 2483, false},
  {"RTX PRO 6000 Blackwell Max-Q", "RTX PRO 6000 Max-Q", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 120, 188,
   128, 2288, 1792 * 0.96, 1024, 1024, true},
  {"RTX PRO 6000 Blackwell Server", "RTX PRO 6000 Server", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 120, 188, 128, 2494,
   1597 * 0.96, 1024, 1024, true},
  {"RTX PRO 6000 Blackwell", "RTX PRO 6000 Workstation", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 120, 188, 128,
   2617, 1792 * 0.96, 1024, 1024, true},
  {"RTX 5090", "RTX 5090", "NVIDIA GeForce RTX 5090", 120, 170, 96, 2407, 1792 * 0.96, 512, 1024, true},
};
const size_t dw__machine_count = DW__COUNT(dw__machines);

dw__machine dw__machine_of(const dw__board *board) {
  dw__machine found = {.name = board->name,
                       .label = board->name,
                       .device = board->name,
                       .cc = board->cc,
                       .sm_count = board->sm_count,
                       .mhz = 2000,
                       .read_gbs = 10.0 * board->sm_count,
                       .mma_flop = 1024,
                       .mma_f16_flop = 1024,
                       .assumed = true};
  for (size_t i = 0; i < dw__machine_count; i++) {
    if (!strstr(board->name, dw__machines[i].name)) continue;
    found = dw__machines[i];
    break;
  }
  if (board->sm_count > 0) found.sm_count = board->sm_count;
  return found;
}

const dw__model dw__model_first = {
#define X(name, first, fitted, meaning) .name = first,
  DW__MODEL_TERMS(X)
#undef X
};
const dw__model dw__model_fitted = {
#define X(name, first, fitted, meaning) .name = fitted,
  DW__MODEL_TERMS(X)
#undef X
};

// A call is a start, the main kernel's loop and the merge.
//
//   loop  = the greater of products and memory
//   products = waves x tiles of a range x (tile_clk + row tiles x (row_tile_clk + mma_share x dw__product_clocks)) / clock
//   memory = the greater of  KV bytes / (read_share x bandwidth): row groups that share a range read it once (measured)
//            and  KV bytes x row groups / (l2_bytes_clk x multiprocessors in use x clock)
//   merge = few_us or many_us + bytes of partial results / merge_gbs + step_us x combine_splits + round_us x further rounds
// Clocks of a tile of 8 rows and 16 tokens: products by what they accumulate in, and the additions of sums in fp16 to those in fp32 (a
// sub-core has a quarter; a score's chain is two steps of 16 dimensions, the output's one of 16 tokens).
double dw__product_clocks(const dw__machine *b, const dw_shape *shape, const dw_variant *variant) {
  const double score = 16.0 * 8 * 2 * shape->head_dim_qk, output = 16.0 * 8 * 2 * shape->head_dim_v;
  const double add = b->cc >= 100 ? 4 : 8;  // instructions of a product's four values
  double clocks = 0;
  if (variant->accumulate == DW_ACCUMULATE_FP16) clocks += score / b->mma_f16_flop + add * ceil(shape->head_dim_qk / 128.0);
  else clocks += score / b->mma_flop;
  if (variant->accumulate) clocks += output / b->mma_f16_flop + add * shape->head_dim_v / 64.0;
  else clocks += output / b->mma_flop;
  return clocks;
}

double dw__predict_ranges(const dw__model *m, const dw__machine *b, const dw_shape *shape, const dw_variant *variant,
                          const dw_bounds *given, int ranges) {
  dw__plan plan;
  dw_bounds bounds = *given;
  bounds.size = sizeof bounds;
  if (!bounds.sm_count) bounds.sm_count = b->sm_count;
  if (dw__plan_make(shape, variant, &bounds, &plan, NULL)) return 0;
  dw__plan_set_ranges(shape, variant, &bounds, &plan, ranges);
  const unsigned *grid = plan.kernels[0].grid;
  const double ctas = (double)grid[0] * grid[1] * grid[2], sms = b->sm_count, used = fmin(ctas, sms);
  const double waves = ceil(ctas / sms), tiles = ceil(bounds.kv_len / 16.0), each = ceil(tiles / plan.ranges);
  const double rows = shape->width * shape->heads / (double)shape->kv_heads;
  const double ctas_a_tile =
    variant->family == DW_DIMSPLIT ? 2 : 1;  // that share a row tile's products, half of the dimensions each
  const double row_tiles = fmin(variant->n_tiles, ceil(rows / 8)) / ctas_a_tile;
  const double wide = variant->n_tiles > 2 && !variant->setmaxnreg ? m->wide_factor : 1;
  // Kernels without matrix instructions: 256 FLOP a clock, a quarter of that in sight of memory.
  const bool plain = variant->family == DW_REFERENCE || variant->family == DW_SPLIT;
  const double plain_clk = 16.0 * 8 * 2 * (shape->head_dim_qk + shape->head_dim_v) / 256;  // of a row tile
  const double mma_clk = dw__product_clocks(b, shape, variant);
  const double clk = plain ? 4 * rows / fmax(1, plan.groups) / 8 * plain_clk
                           : (m->tile_clk + row_tiles * (m->row_tile_clk + m->mma_share * mma_clk)) * wide;
  const double products = waves * each * clk / b->mhz;
  const double bytes = (double)bounds.batch * bounds.kv_len * (double)dw__kv_token_bytes(shape), groups = plan.groups;
  const double from_memory = bytes / (m->read_share * b->read_gbs) * 1e-3;
  const double to_sms = bytes * groups / (m->l2_bytes_clk * used * b->mhz);
  const double memory = fmax(from_memory, to_sms);
  double us = m->start_us + fmax(products, memory);
  if (plan.count > 1) {
    us += variant->combine == DW_COMBINE_FEW ? m->few_us : m->many_us;
    us += 2.0 * (double)plan.partial_bytes / m->merge_gbs * 1e-3 + m->step_us * variant->combine_splits;
    us += m->round_us * (ceil((double)plan.ranges / variant->combine_splits) - 1);
  }
  return us;
}

double dw__predict(const dw__model *model, const dw__machine *machine, const dw_shape *shape, const dw_variant *variant,
                   const dw_bounds *bounds) {
  return dw__predict_ranges(model, machine, shape, variant, bounds, 0);
}

double dw__predict_on(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds, const dw__board *board) {
  const dw__machine machine = dw__machine_of(board);
  return dw__predict(&dw__model_fitted, &machine, shape, variant, bounds);
}

dw_status dw__choice_predict(const dw__model *model, const dw__machine *machine, const dw_shape *shape, const dw_bounds *bounds,
                             dw__plan_choice *choice, dw_error *error) {
  dw__candidate *list = dw__calloc(DW__CANDIDATES_MAX, sizeof *list);
  size_t count = 0, normal = 0, best = 0;
  dw_status status = list ? dw__candidates(shape, bounds, false, list, &count, error)
                          : dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  for (size_t i = 0; i < count; i++) {
    list[i].predicted_us = dw__predict(model, machine, shape, &list[i].variant, bounds);
    if (list[i].is_default) normal = i;
    if (list[i].predicted_us > 0 && list[i].predicted_us < list[best].predicted_us) best = i;
  }
  if (!status) {
    if (list[best].predicted_us >= DW__MODEL_GAIN * list[normal].predicted_us) best = normal;
    const int64_t l2_bytes = (int64_t)machine->l2_mb << 20;
    *choice = (dw__plan_choice){.key = dw__tune_key_of(shape, bounds, l2_bytes),
                                .board = {.cc = machine->cc, .sm_count = machine->sm_count, .l2_bytes = l2_bytes},
                                .batch = bounds->batch,
                                .kv_len = bounds->kv_len,
                                .variant = list[best].variant,
                                .predicted = true,
                                .us = list[best].predicted_us,
                                .default_us = list[normal].predicted_us,
                                .ratio = list[best].predicted_us / list[normal].predicted_us};
    snprintf(choice->board.name, sizeof choice->board.name, "%s", machine->device);
    dw__numerics_class(&choice->variant, bounds->split_tokens, choice->numerics);
  }
  dw__release(list);
  return status;
}

// ---- fitting --------------------------------------------------------------------------------------------------

static double error_of(const dw__fit_row *rows, size_t count, int leave_out, const dw__model *model) {
  double sum = 0;
  for (size_t i = 0; i < count; i++) {
    if (rows[i].problem == leave_out) continue;
    const dw__fit_row *r = &rows[i];
    const double us = dw__predict_ranges(model, r->machine, &r->shape, &r->variant, &r->bounds, r->ranges);
    sum += us > 0 ? fabs(log(us / rows[i].us)) : 10;
  }
  return sum;
}

// One coefficient at a time, up and down by a factor that gets smaller where nothing is better. No random numbers.
void dw__model_fit(const dw__fit_row *rows, size_t count, int leave_out, dw__model *model) {
  double *terms = (double *)model, best = error_of(rows, count, leave_out, model);
  const size_t number = sizeof *model / sizeof(double);
  for (double factor = 1.5; factor > 1.002;) {
    bool better = false;
    for (size_t t = 0; t < number; t++) {
      const double kept = terms[t];
      for (int up = 0; up < 2; up++) {
        terms[t] = up ? kept * factor : kept / factor;
        const double found = error_of(rows, count, leave_out, model);
        if (found < best * (1 - 1e-6)) {
          best = found;
          better = true;
          break;
        }
        terms[t] = kept;
      }
    }
    if (!better) factor = sqrt(factor);
  }
}
