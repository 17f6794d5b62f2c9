// Number formats of tensors on the host. Rounding goes from double straight to the format, to nearest even, so that nothing is
// rounded twice.
#include <math.h>
#include <string.h>

#include "problem.h"

typedef struct format {
  int exponent_bits, mantissa_bits;
  uint32_t most, nan;  // what is greater than all finite numbers becomes `most`: infinity, or in e4m3, which has none, 448
} format;

static format format_of(dw_dtype type) {
  switch (type) {
    case DW_BF16: return (format){8, 7, 0x7F80, 0x7FC0};
    case DW_F16: return (format){5, 10, 0x7C00, 0x7E00};
    case DW_E4M3: return (format){4, 3, 0x7E, 0x7F};
    default: return (format){8, 23, 0x7F800000, 0x7FC00000};
  }
}

size_t dw__dtype_size(dw_dtype type) { return type == DW_F32 ? 4 : type == DW_E4M3 ? 1 : 2; }

// Works on the bits: subnormals, overflow to infinity and ties need no care of their own, since a carry out of the mantissa is
// a step of the exponent.
static uint32_t encode(double value, format to) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  int exponent = (int)(bits >> 52 & 0x7FF);
  uint64_t mantissa = bits & ((1ull << 52) - 1);
  uint32_t sign = (uint32_t)(bits >> 63) << (to.exponent_bits + to.mantissa_bits);
  if (exponent == 0x7FF) return sign | (mantissa ? to.nan : to.most);
  int biased = exponent - 1023 + (1 << (to.exponent_bits - 1)) - 1;
  int shift = 52 - to.mantissa_bits + (biased <= 0 ? 1 - biased : 0);
  if (exponent == 0 || shift > 54) return sign;  // below half of the smallest subnormal
  mantissa |= 1ull << 52;
  uint64_t kept = mantissa >> shift, rest = mantissa & ((1ull << shift) - 1), half = 1ull << (shift - 1);
  kept += rest > half || (rest == half && (kept & 1));
  if (biased > 0) kept += (uint64_t)(biased - 1) << to.mantissa_bits;
  return sign | (kept < to.most ? (uint32_t)kept : to.most);
}

void dw__from_float(dw_dtype type, double value, void *element) {
  uint32_t bits = encode(value, format_of(type));
  uint16_t half = (uint16_t)bits;
  uint8_t byte = (uint8_t)bits;
  if (type == DW_F32) memcpy(element, &bits, sizeof bits);
  else if (type == DW_E4M3) memcpy(element, &byte, sizeof byte);
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

static float from_e4m3(uint8_t byte) {
  int exponent = byte >> 3 & 15, mantissa = byte & 7;
  float size = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
  if (exponent == 15 && mantissa == 7) size = NAN;
  return byte & 0x80 ? -size : size;
}

float dw__to_float(dw_dtype type, const void *element) {
  float value;
  uint16_t half;
  if (type == DW_F32) {
    memcpy(&value, element, sizeof value);
    return value;
  }
  if (type == DW_E4M3) return from_e4m3(*(const uint8_t *)element);
  memcpy(&half, element, sizeof half);
  if (type == DW_F16) return from_half(half);
  uint32_t bits = (uint32_t)half << 16;
  memcpy(&value, &bits, sizeof value);
  return value;
}
