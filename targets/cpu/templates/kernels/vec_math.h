// exp, tanh, sigmoid, erf and the activations built on them, for 16 lanes of f32. Relative error at most 2e-6 (checked by the tests).
#pragma once
#include "args.h"
#include "vec.h"

namespace mp {

// exp by 2^n * p(r), |r| <= ln(2)/2. Below -103 the result is 0, above 88.72 infinity; NaN stays NaN.
MP_INLINE f32x16 vexp(f32x16 x) {
  const f32x16 hi = splat(88.72283f), lo = splat(-103.97f);
  f32x16 t = vmin(vmax(x, lo), hi);  // a NaN in x is put back at the end
  f32x16 n = round_even(t * 1.44269504088896341f);
  f32x16 r = t - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  // (exp(r) - 1 - r) / r^2, a Chebyshev fit of degree 5.
  f32x16 p = splat(1.989958718e-4f);
  p = p * r + 1.393388348e-3f;
  p = p * r + 8.333298106e-3f;
  p = p * r + 4.166646281e-2f;
  p = p * r + 1.666666672e-1f;
  p = p * r + 5.000000014e-1f;
  p = p * (r * r) + r + 1.0f;
#if defined(__AVX512F__)
  f32x16 y = (f32x16)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  // 2^n in two factors, since n reaches -150 and 128.
  i32x16 k = to_int(n), half = k >> 1;
  f32x16 a = (f32x16)((half + 127) << 23), b = (f32x16)((k - half + 127) << 23);
  f32x16 y = p * a * b;
#endif
  y = select(x > hi, splat(__builtin_inff()), y);
  y = select(x < lo, splat(0.0f), y);
  return select(x == x, y, x);
}

// exp for x <= 0 in softmax: results below the normal range become 0.
MP_INLINE f32x16 vexp_negative(f32x16 x) {
  const f32x16 lo = splat(-87.3f);
  f32x16 t = vmax(lo, x);  // in this order a NaN passes
  f32x16 n = round_even(t * 1.44269504088896341f);
  f32x16 r = t - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  f32x16 p = splat(1.989958718e-4f);
  p = p * r + 1.393388348e-3f;
  p = p * r + 8.333298106e-3f;
  p = p * r + 4.166646281e-2f;
  p = p * r + 1.666666672e-1f;
  p = p * r + 5.000000014e-1f;
  p = p * (r * r) + r + 1.0f;
  f32x16 y = p * (f32x16)((to_int(n) + 127) << 23);
  return (f32x16)(~(i32x16)(x < lo) & (i32x16)y);
}

// 1 + exp(-x). Where exp would be subnormal it does not count beside the 1, and the processor would take a slow path for it.
MP_INLINE f32x16 one_plus_exp(f32x16 x) { return 1.0f + vexp(vmax(splat(-87.0f), -x)); }
MP_INLINE f32x16 vsigmoid(f32x16 x) { return 1.0f / one_plus_exp(x); }

// exp(x) - 1, accurate near 0, for x <= 0.
MP_INLINE f32x16 vexpm1_negative(f32x16 x) {
  // Taylor series for small |x|; exp's own result elsewhere, where the subtraction loses less than two bits.
  f32x16 p = splat(1.0f / 40320.0f);
  p = p * x + 1.0f / 5040.0f;
  p = p * x + 1.0f / 720.0f;
  p = p * x + 1.0f / 120.0f;
  p = p * x + 1.0f / 24.0f;
  p = p * x + 1.0f / 6.0f;
  p = p * x + 0.5f;
  f32x16 series = x + x * x * p;
  return select(x > splat(-0.5f), series, vexp(x) - 1.0f);
}

MP_INLINE f32x16 vtanh(f32x16 x) {
  f32x16 a = vabs(x);
  f32x16 e = vexpm1_negative(a * -2.0f);  // in (-1, 0]
  f32x16 t = -e / (e + 2.0f);
  i32x16 sign = (i32x16)x & (int32_t)0x80000000;
  f32x16 y = (f32x16)((i32x16)t | sign);
  return select(x == x, y, x);
}

// erfc(a) = t exp(-a^2 + p(t)) with t = 1 / (1 + a/2), for a in [0.67, 12]; p is a Chebyshev fit of degree 9.
MP_INLINE f32x16 verfc_positive(f32x16 a) {
  f32x16 t = 1.0f / (1.0f + a * 0.5f);
  f32x16 p = splat(2.336591756e-1f);
  p = p * t - 1.110160931f;
  p = p * t + 2.049271174f;
  p = p * t - 1.740343445f;
  p = p * t + 6.752784808e-1f;
  p = p * t - 3.485726620e-1f;
  p = p * t + 1.379762086e-1f;
  p = p * t + 3.678870138e-1f;
  p = p * t + 1.000524867f;
  p = p * t - 1.265528824f;
  // exp(-a^2) with a^2 in two parts, so that its rounding does not grow with a.
  f32x16 head = (f32x16)((i32x16)a & (int32_t)0xfffff000);
  return t * vexp(-head * head + p) * vexp((head - a) * (head + a));
}

MP_INLINE f32x16 verf(f32x16 x) {
  f32x16 a = vabs(x), s = x * x;
  // Taylor series of erf below 0.75, where 1 - erfc would lose relative accuracy.
  f32x16 p = splat(-1.0f / 75600.0f);
  p = p * s + 1.0f / 9360.0f;
  p = p * s - 1.0f / 1320.0f;
  p = p * s + 1.0f / 216.0f;
  p = p * s - 1.0f / 42.0f;
  p = p * s + 0.1f;
  p = p * s - 1.0f / 3.0f;
  p = p * s + 1.0f;
  f32x16 small = x * p * 1.1283791670955126f;
  f32x16 big = (f32x16)((i32x16)(1.0f - verfc_positive(vmin(a, splat(10.0f)))) | ((i32x16)x & (int32_t)0x80000000));
  f32x16 y = select(a < splat(0.75f), small, big);
  return select(x == x, y, x);
}

// x * Phi(x); for negative x through erfc, so that the tail keeps its relative accuracy.
MP_INLINE f32x16 vgelu(f32x16 x) {
  f32x16 z = x * 0.70710678118654752f;
  f32x16 tail = 0.5f * verfc_positive(vmin(vabs(z), splat(10.5f)));
  f32x16 near = 0.5f + 0.5f * verf(z);
  f32x16 phi = select(x < splat(-1.1f), tail, near);
  return x * phi;
}
// 0.5 x (1 + tanh u) = x * sigmoid(2u).
MP_INLINE f32x16 vgelu_tanh(f32x16 x) {
  f32x16 u = 0.79788456080286536f * (x + 0.044715f * x * x * x);
  return select(x < splat(-12.0f), splat(-0.0f), x * vsigmoid(2.0f * u));
}
MP_INLINE f32x16 vsilu(f32x16 x) { return x / one_plus_exp(x); }

template <Fn F>
MP_INLINE f32x16 activate(f32x16 x) {
  if constexpr (F == Fn::Silu) return vsilu(x);
  else if constexpr (F == Fn::Gelu) return vgelu(x);
  else if constexpr (F == Fn::GeluTanh) return vgelu_tanh(x);
  else if constexpr (F == Fn::Relu) return select(x > splat(0.0f), x, select(x == x, splat(0.0f), x));
  else if constexpr (F == Fn::Relu2) { f32x16 r = vmax(x, splat(0.0f)); return select(x == x, r * r, x); }
  else if constexpr (F == Fn::Sigmoid) return vsigmoid(x);
  else if constexpr (F == Fn::Tanh) return vtanh(x);
  else return x;
}

}  // namespace mp
