// One-element functions of the pointwise ops. The frequent ones are branch-free, so that the compiler turns loops over them into vector code;
// polynomials are least-squares fits at Chebyshev nodes, good to a few units in the last place. The rare ones call libm.
#pragma once
#include <math.h>
#include <stdint.h>

#define MP_INLINE static inline __attribute__((always_inline))

namespace mp {

template <class To, class From>
MP_INLINE To bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "");
  return __builtin_bit_cast(To, x);
}

MP_INLINE float exp_f(float x) {
  // Outside these bounds the result is infinite or 0. NaN passes both comparisons.
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const float t = x * 1.44269504f + magic;
  const int32_t n = bits<int32_t>(t) - bits<int32_t>(magic);
  const float k = t - magic;
  const float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  float p = 0.00139485905f;
  p = p * r + 0.00837513525f;
  p = p * r + 0.0416662171f;
  p = p * r + 0.166664153f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n in two factors, so that neither leaves the normal range.
  const int32_t h = n >> 1;
  return p * bits<float>((h + 127) << 23) * bits<float>((n - h + 127) << 23);
}
MP_INLINE float sigmoid_f(float x) { return 1.0f / (1.0f + exp_f(-x)); }
MP_INLINE float silu_f(float x) { return x / (1.0f + exp_f(-x)); }
MP_INLINE float tanh_f(float x) {
  const float a = fabsf(x), s = x * x;
  float p = 0.00227270485f;
  p = p * s + -0.00832640193f;
  p = p * s + 0.0217636339f;
  p = p * s + -0.0539586246f;
  p = p * s + 0.133333012f;
  p = p * s + -0.333333343f;
  const float small = x + x * s * p;
  const float large = copysignf(1.0f - 2.0f / (exp_f(2.0f * a) + 1.0f), x);
  return a < 0.625f ? small : large;
}
MP_INLINE float erf_f(float x) {
  const float a = fabsf(x), s = x * x;
  float p = -9.67359119e-06f;
  p = p * s + 0.000112682545f;
  p = p * s + -0.000848439639f;
  p = p * s + 0.00522105349f;
  p = p * s + -0.0268654376f;
  p = p * s + 0.112837829f;
  p = p * s + -0.376126379f;
  p = p * s + 1.12837923f;
  const float t = a > 4.0f ? 4.0f : a;
  float q = -1.72082437e-05f;
  q = q * t + 0.000381189806f;
  q = q * t + -0.00386752118f;
  q = q * t + 0.0241870154f;
  q = q * t + -0.106611535f;
  q = q * t + -0.635087729f;
  q = q * t + -1.12853360f;
  q = q * t + -5.61835332e-05f;
  return a < 1.0f ? x * p : copysignf(1.0f - exp_f(q), x);
}
MP_INLINE float gelu_f(float x) { return 0.5f * x * (1.0f + erf_f(x * 0.707106781f)); }
MP_INLINE float gelu_tanh_f(float x) { return 0.5f * x * (1.0f + tanh_f(0.797884561f * (x + 0.044715f * x * x * x))); }
MP_INLINE float softplus_f(float x, float beta, float threshold) {
  const float z = x * beta;
  return z > threshold ? x : log1pf(exp_f(z)) / beta;
}
MP_INLINE float log_sigmoid_f(float x) { return (x < 0.0f ? x : 0.0f) - log1pf(exp_f(-fabsf(x))); }
MP_INLINE float relu_f(float x) { return x < 0.0f ? 0.0f : x; }
MP_INLINE float sign_f(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }
// As numpy: a NaN in either operand wins.
MP_INLINE float max_f(float a, float b) { return a != a || a > b ? a : b; }
MP_INLINE float min_f(float a, float b) { return a != a || a < b ? a : b; }
// Python's rules: the result of the division rounds down, the remainder has the divisor's sign.
MP_INLINE float remainder_f(float a, float b) {
  const float r = fmodf(a, b);
  return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : r != 0.0f ? r : copysignf(0.0f, b);
}
MP_INLINE float floor_div_f(float a, float b) {
  if (b == 0.0f) return a / b;
  const float r = fmodf(a, b);
  // A quotient whose remainder has the other sign is one too large.
  const float q = (a - r) / b - (r != 0.0f && (r < 0.0f) != (b < 0.0f) ? 1.0f : 0.0f);
  const float f = floorf(q);
  return q == 0.0f ? copysignf(0.0f, a / b) : q - f > 0.5f ? f + 1.0f : f;
}
// Integer division by zero gives 0, and never traps.
template <class I>
MP_INLINE I floor_div_i(I a, I b) {
  if (b == 0) return 0;
  if (b == (I)-1) return (I)(0 - a);
  const I q = a / b;
  return a % b != 0 && (a % b < 0) != (b < 0) ? q - 1 : q;
}
template <class I>
MP_INLINE I remainder_i(I a, I b) {
  if (b == 0 || b == (I)-1) return 0;
  const I r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
template <class I>
MP_INLINE I fmod_i(I a, I b) {
  return b == 0 || b == (I)-1 ? 0 : a % b;
}
template <class I>
MP_INLINE I pow_i(I a, I b) {
  if (b < 0) return a == 1 ? 1 : a == (I)-1 ? (b % 2 ? (I)-1 : 1) : 0;
  I out = 1;
  for (; b; b >>= 1, a *= a) {
    if (b & 1) out *= a;
  }
  return out;
}
// Shifts by the width or more give 0 (or -1 for a negative number shifted right), as in numpy.
template <class I>
MP_INLINE I shift_left_i(I a, I b) {
  return b < 0 || b >= (I)(8 * sizeof(I)) ? 0 : (I)((uint64_t)a << b);
}
template <class I>
MP_INLINE I shift_right_i(I a, I b) {
  return b < 0 || b >= (I)(8 * sizeof(I)) ? (a < 0 ? (I)-1 : 0) : (I)(a >> b);
}
// Truncation that is defined for every float: NaN gives 0, the rest is clamped.
MP_INLINE int64_t to_i64(float x) { return x != x ? 0 : x >= 9.2233715e18f ? INT64_MAX : x <= -9.2233715e18f ? INT64_MIN : (int64_t)x; }
MP_INLINE int32_t to_i32(float x) { return x != x ? 0 : x >= 2147483648.0f ? INT32_MAX : x <= -2147483648.0f ? INT32_MIN : (int32_t)x; }

MP_INLINE float bf16_to_float(uint16_t x) { return bits<float>((uint32_t)x << 16); }
MP_INLINE uint16_t float_to_bf16(float x) {
  const uint32_t u = bits<uint32_t>(x);
  return x != x ? 0x7FC0 : (uint16_t)((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}
MP_INLINE float round_bf16(float x) { return bf16_to_float(float_to_bf16(x)); }
MP_INLINE float f16_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7FFF;
  // Scaling by 2^112 moves the exponent's bias and normalises subnormals at once.
  const float scaled = bits<float>(rest << 13) * 0x1p112f;
  return bits<float>((rest >= 0x7C00 ? (rest << 13) | 0x7F800000 : bits<uint32_t>(scaled)) | sign);
}
MP_INLINE uint16_t float_to_f16(float x) {
  const uint32_t u = bits<uint32_t>(x), sign = (u >> 16) & 0x8000, a = u & 0x7FFFFFFF;
  const uint32_t normal = (a - 0x38000000 + 0xFFF + ((a >> 13) & 1)) >> 13;
  // Below 2^-14: let the addition of 0.5 round to the subnormal's last bit.
  const uint32_t tiny = bits<uint32_t>(bits<float>(a) + 0.5f) - 0x3F000000;
  const uint32_t finite = a < 0x38800000 ? tiny : normal > 0x7C00 ? 0x7C00 : normal;
  return (uint16_t)(sign | (a > 0x7F800000 ? 0x7E00 : a >= 0x47800000 ? 0x7C00 : finite));
}
MP_INLINE float round_f16(float x) { return f16_to_float(float_to_f16(x)); }

}  // namespace mp
