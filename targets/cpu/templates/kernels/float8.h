// 8-bit floats, e4m3 as runtime/float8.py defines it: codes as f32, and rows of f32 rounded to them.
#pragma once
#include "vec.h"

namespace mp {

constexpr float kLargestE4m3 = 448.0f;
// Rows of which only zeros are kept: below 2^-100 the reciprocal of the scale nears the end of f32's range.
constexpr float kLeastMagnitude = 7.888609052210118e-31f;

// Byte j of each lane. A code's exponent and mantissa at those of a bf16 are a number that is 2^120 times too small, subnormals too. Two
// columns are moved there at once. NaN reads as 480.
MP_INLINE f32x16 e4m3_column(i32x16 v, int j) {
  const i16x32 at = (j & 1 ? (i16x32)v : (i16x32)v << 8) >> 4 & (int16_t)0x87f0;
  return (f32x16)(j & 2 ? (i32x16)at & (int32_t)0xffff0000 : (i32x16)at << 16) * splat(0x1p120f);
}
MP_INLINE float e4m3_number(uint8_t code) {
  const uint32_t bits = (uint32_t)(code & 0x80) << 24 | (uint32_t)(code & 0x7f) << 20;
  float f;
  memcpy(&f, &bits, 4);
  return f * 0x1p120f;
}

// The nearest number, half to even, saturating; held as f32.
MP_INLINE f32x16 round_e4m3(f32x16 v) {
  const f32x16 size = vmin(vabs(v), splat(kLargestE4m3));
  const u32x16 bits = (u32x16)size;
  const f32x16 normal = (f32x16)((bits + 0x7ffff + (bits >> 20 & 1)) & 0xfff00000u);
  const f32x16 small = round_even(size * 512.0f) * (1.0f / 512.0f);
  return (f32x16)((i32x16)select(size < 0x1p-6f, small, normal) | ((i32x16)v & splat((int32_t)0x80000000)));
}

// The codes of the nearest numbers.
MP_INLINE u8x16 e4m3_codes(f32x16 v) {
  const u32x16 bits = (u32x16)round_e4m3(v), size = bits & 0x7fffffff;
  const u32x16 small = (u32x16)to_int((f32x16)size * 512.0f), normal = (size >> 20) - (120 << 3), is_small = (u32x16)((f32x16)size < 0x1p-6f);
  return __builtin_convertvector((is_small & small) | (~is_small & normal) | (bits >> 24 & 0x80), u8x16);
}

// A row's numbers before its scale, to y [k up to 16]; returns the scale. A NaN in x makes it NaN: magnitudes are compared as integers.
MP_INLINE float e4m3_row(const float* x, int64_t k, float* y) {
  i32x16 m = splat(0);
  for (int64_t i = 0; i < k; i += kLanes) {
    const i32x16 v = (i32x16)vabs(load_n(x + i, k - i));
    m = m > v ? m : v;
  }
  int32_t most = 0;
  for (int i = 0; i < kLanes; i++) most = m[i] > most ? m[i] : most;
  float largest;
  memcpy(&largest, &most, 4);
  const float scale = largest < kLeastMagnitude ? 1.0f : largest / kLargestE4m3;
  const f32x16 inverse = splat(1.0f / scale);
  for (int64_t i = 0; i < k; i += kLanes) store(y + i, round_e4m3(load_n(x + i, k - i) * inverse));
  return scale;
}

}  // namespace mp
