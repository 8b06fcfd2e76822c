// Few f32 rows by integer weights, in integers: a group of activations becomes 24-bit fixed-point numbers of three signed bytes each, and
// each byte's products with a step of weights take one instruction for four columns and 16 outputs, where f32 takes a conversion and a
// product for each. Sums are exact until a group is scaled, and a number is off by at most 2^-24 of its group's largest: no more than in f32.
#pragma once
#include "tile.h"

namespace mp {

#if defined(__AVX512VNNI__)
constexpr bool kDigits = true;
#else
constexpr bool kDigits = false;
#endif
constexpr float kMostDigits = 127.0f * 65536.0f;

// A row: bytes [3][Kp], the lowest first; for each group its scale, its sum as f32, and where the three integer sums start.
struct DigitRow {
  const int8_t* digits;
  const float *scales, *sums;
  const int32_t* starts;  // [G][3]: -zero * sum of the bytes, for symmetric weights
};

template <class W, Act A>
MP_KERNEL void split_row(const float* x, int64_t k, DigitRow& row, Arena& scratch) {
  const int64_t kp = W::padded(k), groups = W::groups(k), width = kp / groups;
  int8_t* digits = scratch.take<int8_t>(3 * kp);
  float *scales = scratch.take<float>(groups), *sums = scratch.take<float>(groups);
  int32_t* starts = scratch.take<int32_t>(3 * groups);
  const auto number = [&](int64_t i) __attribute__((always_inline)) {
    const f32x16 v = i < k ? load_n(x + i, k - i) : splat(0.0f);
    return A == Act::BF16 ? round_bf16(v) : v;
  };
  for (int64_t g = 0; g < groups; g++) {
    f32x16 most = splat(0.0f);
    i32x16 none = splat(0);
    for (int64_t i = g * width; i < (g + 1) * width; i += kLanes) {
      const f32x16 v = number(i);
      most = vmax(most, vabs(v));
      none |= v != v;
    }
    // Infinities and NaN make the scale so, and with it the sums. Below 2^-100 all is 0.
    const float largest = sum(none) ? NAN : max_lane(most), inverse = largest > 7.9e-31f ? kMostDigits / largest : 0.0f;
    scales[g] = inverse == 0.0f && largest == largest && largest < 1.0f ? 0.0f : largest / kMostDigits;
    i32x16 total[3] = {splat(0), splat(0), splat(0)};
    for (int64_t i = g * width; i < (g + 1) * width; i += kLanes) {
      i32x16 v = to_int(round_even(number(i) * splat(inverse)));
      MP_UNROLL
      for (int d = 0; d < 3; d++) {
        const i32x16 low = (v << 24) >> 24;
        v = (v - low) >> 8;
        total[d] += low;
        store_as(digits + d * kp + i, __builtin_convertvector(low, i8x16));
      }
    }
    for (int d = 0; d < 3; d++) starts[3 * g + d] = sum(total[d]);
    sums[g] = scales[g] * ((float)starts[3 * g + 2] * 65536.0f + (float)starts[3 * g + 1] * 256.0f + (float)starts[3 * g]);
    for (int d = 0; d < 3; d++) starts[3 * g + d] *= W::kSymmetric ? -W::kZero : 0;
  }
  row = DigitRow{digits, scales, sums, starts};
}

template <class W, int MT, int NB>
MP_KERNEL void digits_small(const DigitRow* rows, const void* weights, const void* scales, const void* zeros, const int64_t* blocks, int64_t k,
                            float* c, int64_t ldc) {
  constexpr int64_t kUnitBytes = kUnitColumns * kLanes * W::kBits / 8;
  const int64_t kp = W::padded(k), groups = W::groups(k), units = kp / groups / kUnitColumns;
  const Operands<W> book = make_book<W, -128>();
  const char* w[NB];
  Scales<W> scale_of[NB];
  f32x16 total[MT][NB];
  MP_UNROLL
  for (int j = 0; j < NB; j++) {
    w[j] = (const char*)weights + blocks[j] * W::block_bytes(k);
    scale_of[j] = block_scales<W>(scales, blocks[j], groups);
    MP_UNROLL
    for (int r = 0; r < MT; r++) total[r][j] = splat(0.0f);
  }
  int64_t u = 0;
  for (int64_t g = 0; g < groups; g++) {
    i32x16 dot[MT][3][NB];
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      MP_UNROLL
      for (int d = 0; d < 3; d++) {
        MP_UNROLL
        for (int j = 0; j < NB; j++) dot[r][d][j] = splat(rows[r].starts[3 * g + d]);
      }
    }
    for (const int64_t end = u + units; u < end; u++) {
      MP_UNROLL
      for (int s = 0; s < kUnitSteps; s++) {
        MP_UNROLL
        for (int j = 0; j < NB; j++) {
          if (s < W::kBits) prefetch(w[j] + u * kUnitBytes + s * 64 + kAhead);
          const i32x16 v = operands<W>(w[j] + u * kUnitBytes, s, book);
          MP_UNROLL
          for (int r = 0; r < MT; r++) {
            MP_UNROLL
            for (int d = 0; d < 3; d++) {
              dot[r][d][j] = dot_u8s8<W::kOperandBits>(dot[r][d][j], v, splat_bytes(rows[r].digits + d * kp + u * kUnitColumns + s * 4));
            }
          }
        }
      }
    }
    MP_UNROLL
    for (int j = 0; j < NB; j++) {
      const f32x16 scale = group_scale(scale_of[j], g), zero = group_zero<W>(zeros, blocks[j], groups, g);
      MP_UNROLL
      for (int r = 0; r < MT; r++) {
        f32x16 f = to_float(dot[r][2][j]) * 65536.0f + to_float(dot[r][1][j]) * 256.0f + to_float(dot[r][0][j]);
        f *= splat(rows[r].scales[g]);
        if constexpr (W::kZeros == Zero::Point) f -= zero * splat(rows[r].sums[g]);
        total[r][j] += scale * f;
        if constexpr (W::kZeros == Zero::Minimum) total[r][j] += zero * splat(rows[r].sums[g]);
      }
    }
  }
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NB; j++) store(c + r * ldc + j * kLanes, total[r][j]);
  }
}

}  // namespace mp
