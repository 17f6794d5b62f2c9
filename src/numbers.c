// Number formats of tensors on the host. Rounding goes from double straight to the format, to nearest even, so that nothing is
// rounded twice.
#include <string.h>

#include "problem.h"

typedef struct format {
  int exponent_bits, mantissa_bits;
} format;

static format format_of(dw_dtype type) {
  switch (type) {
    case DW_BF16: return (format){8, 7};
    case DW_F16: return (format){5, 10};
    default: return (format){8, 23};
  }
}

size_t dw__dtype_size(dw_dtype type) { return type == DW_F32 ? 4 : 2; }

// Works on the bits: subnormals, overflow to infinity and ties need no care of their own, since a carry out of the mantissa is
// a step of the exponent.
static uint32_t encode(double value, format to) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  int exponent = (int)(bits >> 52 & 0x7FF);
  uint64_t mantissa = bits & ((1ull << 52) - 1);
  uint32_t sign = (uint32_t)(bits >> 63) << (to.exponent_bits + to.mantissa_bits);
  uint64_t infinity = ((1ull << to.exponent_bits) - 1) << to.mantissa_bits;
  if (exponent == 0x7FF) return sign | (uint32_t)infinity | (mantissa ? 1u << (to.mantissa_bits - 1) : 0);
  int biased = exponent - 1023 + (1 << (to.exponent_bits - 1)) - 1;
  int shift = 52 - to.mantissa_bits + (biased <= 0 ? 1 - biased : 0);
  if (exponent == 0 || shift > 54) return sign;  // below half of the smallest subnormal
  mantissa |= 1ull << 52;
  uint64_t kept = mantissa >> shift, rest = mantissa & ((1ull << shift) - 1), half = 1ull << (shift - 1);
  kept += rest > half || (rest == half && (kept & 1));
  if (biased > 0) kept += (uint64_t)(biased - 1) << to.mantissa_bits;
  return sign | (uint32_t)(kept < infinity ? kept : infinity);
}

void dw__from_float(dw_dtype type, double value, void *element) {
  uint32_t bits = encode(value, format_of(type));
  uint16_t half = (uint16_t)bits;
  if (type == DW_F32) memcpy(element, &bits, sizeof bits);
  else memcpy(element, &half, sizeof half);
}

// fp16 moved into a float's fields is too small by 2^112, subnormals included; infinity and NaN need the top exponent.
static float from_half(uint16_t half) {
  uint32_t bits = (uint32_t)(half & 0x7FFF) << 13;
  float value;
  memcpy(&value, &bits, sizeof value);
  value *= 0x1p112f;
  memcpy(&bits, &value, sizeof bits);
  if ((half & 0x7C00) == 0x7C00) bits = 0x7F800000u | (uint32_t)(half & 0x3FF) << 13;
  bits |= (uint32_t)(half & 0x8000) << 16;
  memcpy(&value, &bits, sizeof value);
  return value;
}

float dw__to_float(dw_dtype type, const void *element) {
  float value;
  uint16_t half;
  if (type == DW_F32) {
    memcpy(&value, element, sizeof value);
    return value;
  }
  memcpy(&half, element, sizeof half);
  if (type == DW_F16) return from_half(half);
  uint32_t bits = (uint32_t)half << 16;
  memcpy(&value, &bits, sizeof value);
  return value;
}
