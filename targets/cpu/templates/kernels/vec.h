// 16-lane vectors in plain C++: one type for every ISA. Where the machine's registers are narrower, the compiler splits a vector into two
// or four of them; intrinsics appear only where the language can't say what the machine can do, behind that machine's feature macro.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace mp {

#if defined(__AVX512F__)
// Without the attribute a compiler tuned to prefer 256-bit registers would split these vectors in two.
#define MP_INLINE static inline __attribute__((always_inline, min_vector_width(512)))
#define MP_KERNEL static __attribute__((noinline, min_vector_width(512)))
#define MP_TASK static __attribute__((min_vector_width(512)))
#else
#define MP_INLINE static inline __attribute__((always_inline))
#define MP_KERNEL static __attribute__((noinline))
#define MP_TASK static
#endif
#if !defined(__AVX512F__) && defined(__x86_64__)
#pragma clang diagnostic ignored "-Wpsabi"  // everything that takes such a vector is inlined
#endif

// Loops over a tile's rows and blocks must be gone before the compiler decides which arrays live in registers.
#define MP_UNROLL _Pragma("clang loop unroll(full)")

constexpr int kLanes = 16;

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef int16_t i16x16 __attribute__((vector_size(32)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef uint8_t u8x16 __attribute__((vector_size(16)));

template <class V, class P>
MP_INLINE V load_as(const P* p) {
  struct __attribute__((packed, may_alias)) Unaligned { V v; };
  return reinterpret_cast<const Unaligned*>(p)->v;
}
template <class V, class P>
MP_INLINE void store_as(P* p, V v) {
  struct __attribute__((packed, may_alias)) Unaligned { V v; };
  reinterpret_cast<Unaligned*>(p)->v = v;
}
MP_INLINE f32x16 load(const float* p) { return load_as<f32x16>(p); }
MP_INLINE void store(float* p, f32x16 v) { store_as(p, v); }

MP_INLINE f32x16 splat(float s) { return f32x16{s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s}; }
MP_INLINE i32x16 splat(int32_t s) { return i32x16{s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s}; }
MP_INLINE i32x16 splat_bytes(const int8_t* p) { return splat(load_as<int32_t>(p)); }
MP_INLINE i32x16 lane_numbers() { return i32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

// The first n (0..16) of 16 elements; the rest read as zero, and are not touched in memory.
MP_INLINE f32x16 load_n(const float* p, int64_t n) {
  if (n >= kLanes) return load(p);
#if defined(__AVX512F__)
  return (f32x16)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
  float t[kLanes] = {};
  for (int64_t i = 0; i < n; i++) t[i] = p[i];
  return load(t);
#endif
}
MP_INLINE void store_n(float* p, f32x16 v, int64_t n) {
  if (n >= kLanes) return store(p, v);
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#else
  float t[kLanes];
  store(t, v);
  for (int64_t i = 0; i < n; i++) p[i] = t[i];
#endif
}

// mask ? a : b, lane by lane; a mask lane is 0 or -1, as comparisons give it.
MP_INLINE f32x16 select(i32x16 mask, f32x16 a, f32x16 b) { return (f32x16)((mask & (i32x16)a) | (~mask & (i32x16)b)); }
MP_INLINE f32x16 vmax(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return select(a > b, a, b);
#endif
}
MP_INLINE f32x16 vmin(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_min_ps((__m512)a, (__m512)b);
#else
  return select(a < b, a, b);
#endif
}
MP_INLINE f32x16 vabs(f32x16 a) { return (f32x16)((i32x16)a & splat(0x7fffffff)); }

MP_INLINE float sum(f32x16 v) {
  typedef float f32x8 __attribute__((vector_size(32)));
  typedef float f32x4 __attribute__((vector_size(16)));
  f32x8 a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  f32x4 b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
  return (b[0] + b[2]) + (b[1] + b[3]);
}
MP_INLINE int32_t sum(i32x16 v) {
  typedef int32_t i32x8 __attribute__((vector_size(32)));
  typedef int32_t i32x4 __attribute__((vector_size(16)));
  i32x8 a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  i32x4 b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
  return (b[0] + b[2]) + (b[1] + b[3]);
}
MP_INLINE float max_lane(f32x16 v) {
  typedef float f32x8 __attribute__((vector_size(32)));
  typedef float f32x4 __attribute__((vector_size(16)));
  f32x8 lo = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7), hi = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  f32x8 a = lo > hi ? lo : hi;
  f32x4 l4 = __builtin_shufflevector(a, a, 0, 1, 2, 3), h4 = __builtin_shufflevector(a, a, 4, 5, 6, 7);
  f32x4 b = l4 > h4 ? l4 : h4;
  float m = b[0] > b[1] ? b[0] : b[1], n = b[2] > b[3] ? b[2] : b[3];
  return m > n ? m : n;
}

MP_INLINE f32x16 to_float(i32x16 v) { return __builtin_convertvector(v, f32x16); }
// To the nearest integer, ties to even, for |v| < 2^22.
MP_INLINE f32x16 round_even(f32x16 v) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_roundscale_ps((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23: the sum has no room for a fraction
  f32x16 t = v + magic;
  __asm__("" : "+m"(t));  // keep the compiler from cancelling the pair where it may reassociate
  return t - magic;
#endif
}
MP_INLINE i32x16 to_int(f32x16 v) { return __builtin_convertvector(v, i32x16); }
// The nearest integer, ties to even, for |v| < 2^22.
MP_INLINE i32x16 round_to_int(f32x16 v) {
#if defined(__AVX512F__)
  return (i32x16)_mm512_cvtps_epi32((__m512)v);
#elif defined(__AVX2__)
  union { f32x16 v; __m256 h[2]; } s = {v};
  union { i32x16 v; __m256i h[2]; } r;
  for (int i = 0; i < 2; i++) r.h[i] = _mm256_cvtps_epi32(s.h[i]);
  return r.v;
#elif defined(__SSE2__)
  union { f32x16 v; __m128 h[4]; } s = {v};
  union { i32x16 v; __m128i h[4]; } r;
  for (int i = 0; i < 4; i++) r.h[i] = _mm_cvtps_epi32(s.h[i]);
  return r.v;
#else
  return to_int(round_even(v));
#endif
}

MP_INLINE f32x16 f16_to_f32(u16x16 h) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
  union { f32x16 v; __m256 h[2]; } r;
  union { u16x16 v; __m128i h[2]; } s = {h};
  r.h[0] = _mm256_cvtph_ps(s.h[0]);
  r.h[1] = _mm256_cvtph_ps(s.h[1]);
  return r.v;
#else
  u32x16 w = __builtin_convertvector(h, u32x16);
  u32x16 magnitude = (w & 0x7fff) << 13;
  // 2^112 moves the exponent's bias from 15 to 127 and makes subnormals right; infinities and NaN need their exponent filled.
  u32x16 value = (u32x16)((f32x16)magnitude * splat(5.192296858534828e+33f));
  u32x16 special = magnitude | 0x7f800000;
  u32x16 is_special = (u32x16)(magnitude >= (0x7c00u << 13));
  return (f32x16)((is_special & special) | (~is_special & value) | ((w & 0x8000) << 16));
#endif
}
MP_INLINE u16x16 f32_to_f16(f32x16 v) {
#if defined(__AVX512F__)
  return (u16x16)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
  union { f32x16 v; __m256 h[2]; } s = {v};
  union { u16x16 v; __m128i h[2]; } r;
  r.h[0] = _mm256_cvtps_ph(s.h[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  r.h[1] = _mm256_cvtps_ph(s.h[1], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return r.v;
#else
  u32x16 bits = (u32x16)v, sign = (bits >> 16) & 0x8000, a = bits & 0x7fffffff;
  // Subnormal results: adding 0.5 leaves the rounded value in the low bits, since ulp(0.5) is f16's smallest step.
  u32x16 small = (u32x16)((f32x16)a + splat(0.5f)) - 0x3f000000;
  u32x16 normal = (a - (112u << 23) + 0xfff + ((a >> 13) & 1)) >> 13;
  u32x16 r = ((u32x16)(a < (113u << 23)) & small) | ((u32x16)(a >= (113u << 23)) & normal);
  u32x16 over = (u32x16)(a >= 0x477ff000u), nan = (u32x16)(a > 0x7f800000u);
  r = (~over & r) | (over & 0x7c00);
  r = (~nan & r) | (nan & 0x7e00);
  return __builtin_convertvector(r | sign, u16x16);
#endif
}
MP_INLINE f32x16 load_f16(const void* p) { return f16_to_f32(load_as<u16x16>((const uint16_t*)p)); }

// Round to bf16 (nearest even), result in the upper half of each lane. NaN stays NaN.
MP_INLINE f32x16 round_bf16(f32x16 v) {
  u32x16 b = (u32x16)v;
  u32x16 r = (b + 0x7fff + ((b >> 16) & 1)) & 0xffff0000u;
  u32x16 nan = (u32x16)((b & 0x7fffffff) > 0x7f800000u);
  return (f32x16)((~nan & r) | (nan & (b | 0x400000) & 0xffff0000u));
}
MP_INLINE uint32_t bf16_bits(float v) {
  uint32_t b;
  memcpy(&b, &v, 4);
  if ((b & 0x7fffffff) > 0x7f800000u) return (b >> 16) | 0x40;
  return (b + 0x7fff + ((b >> 16) & 1)) >> 16;
}

// acc[lane] += sum over j of w[4*lane+j] (unsigned) * a[4*lane+j] (signed). BITS is the width of the weights: up to 7 bits can't saturate the
// 16-bit intermediate of maddubs, 8 can.
template <int BITS>
MP_INLINE i32x16 dot_u8s8(i32x16 acc, i32x16 w, i32x16 a) {
#if defined(__AVX512VNNI__)
  return (i32x16)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)a);
#elif defined(__AVX2__)
  union U { i32x16 v; __m256i h[2]; };
  U c = {acc}, x = {w}, y = {a};
  for (int i = 0; i < 2; i++) {
#if defined(__AVXVNNI__)
    c.h[i] = _mm256_dpbusd_avx_epi32(c.h[i], x.h[i], y.h[i]);
#else
    if constexpr (BITS < 8) {
      c.h[i] = _mm256_add_epi32(c.h[i], _mm256_madd_epi16(_mm256_maddubs_epi16(x.h[i], y.h[i]), _mm256_set1_epi16(1)));
    } else {
      const __m256i we = _mm256_and_si256(x.h[i], _mm256_set1_epi16(0xff)), wo = _mm256_srli_epi16(x.h[i], 8);
      const __m256i ae = _mm256_srai_epi16(_mm256_slli_epi16(y.h[i], 8), 8), ao = _mm256_srai_epi16(y.h[i], 8);
      c.h[i] = _mm256_add_epi32(c.h[i], _mm256_add_epi32(_mm256_madd_epi16(we, ae), _mm256_madd_epi16(wo, ao)));
    }
#endif
  }
  return c.v;
#elif defined(__SSE2__)
  union U { i32x16 v; __m128i h[4]; };
  U c = {acc}, x = {w}, y = {a};
  for (int i = 0; i < 4; i++) {
    const __m128i we = _mm_and_si128(x.h[i], _mm_set1_epi16(0xff)), wo = _mm_srli_epi16(x.h[i], 8);
    const __m128i ae = _mm_srai_epi16(_mm_slli_epi16(y.h[i], 8), 8), ao = _mm_srai_epi16(y.h[i], 8);
    c.h[i] = _mm_add_epi32(c.h[i], _mm_add_epi32(_mm_madd_epi16(we, ae), _mm_madd_epi16(wo, ao)));
  }
  return c.v;
#elif defined(__ARM_FEATURE_MATMUL_INT8)
  union U { i32x16 v; int32x4_t s[4]; };
  U c = {acc}, x = {w}, y = {a};
  for (int i = 0; i < 4; i++) c.s[i] = vusdotq_s32(c.s[i], vreinterpretq_u8_s32(x.s[i]), vreinterpretq_s8_s32(y.s[i]));
  return c.v;
#elif defined(__ARM_FEATURE_DOTPROD)
  union U { i32x16 v; int32x4_t s[4]; };
  U c = {acc}, x = {w}, y = {a};
  for (int i = 0; i < 4; i++) {
    const int8x16_t ws = vreinterpretq_s8_s32(x.s[i]), as = vreinterpretq_s8_s32(y.s[i]);
    if constexpr (BITS < 8) {
      c.s[i] = vdotq_s32(c.s[i], ws, as);
    } else {  // u = (u ^ 0x80) + 128, and 128 = 2 * 64
      int32x4_t t = vdotq_s32(c.s[i], veorq_s8(ws, vdupq_n_s8((int8_t)0x80)), as);
      c.s[i] = vdotq_s32(vdotq_s32(t, vdupq_n_s8(64), as), vdupq_n_s8(64), as);
    }
  }
  return c.v;
#else
  for (int j = 0; j < 4; j++) acc += ((w >> (8 * j)) & 0xff) * ((a << (24 - 8 * j)) >> 24);
  return acc;
#endif
}

// Where there is no VNNI, some products with narrow weights fit 16-bit sums, which are widened once (Weight::kNarrowSteps).
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
constexpr bool kNarrowSums = true;
#else
constexpr bool kNarrowSums = false;
#endif
typedef int16_t i16x32 __attribute__((vector_size(64)));
#if defined(__AVX2__)
MP_INLINE i16x32 dot_narrow(i16x32 acc, i32x16 w, i32x16 a) {
  union U { i32x16 v; i16x32 n; __m256i h[2]; };
  U c, x = {w}, y = {a};
  c.n = acc;
  for (int i = 0; i < 2; i++) c.h[i] = _mm256_add_epi16(c.h[i], _mm256_maddubs_epi16(x.h[i], y.h[i]));
  return c.n;
}
MP_INLINE i32x16 add_narrow(i32x16 acc, i16x32 narrow) {
  union U { i32x16 v; i16x32 n; __m256i h[2]; };
  U c = {acc}, x;
  x.n = narrow;
  for (int i = 0; i < 2; i++) c.h[i] = _mm256_add_epi32(c.h[i], _mm256_madd_epi16(x.h[i], _mm256_set1_epi16(1)));
  return c.v;
}
#endif

MP_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

MP_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
MP_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

// Thread tid's share [begin, end) of n items.
struct Range { int64_t begin, end; };
MP_INLINE Range share(int64_t n, int tid, int nt) { return Range{n * tid / nt, n * (tid + 1) / nt}; }

// Scratch is cut from the front in 64-byte pieces.
struct Arena {
  char* at;
  template <class T>
  T* take(int64_t n) {
    T* p = reinterpret_cast<T*>(at);
    at += (n * (int64_t)sizeof(T) + 63) / 64 * 64;
    return p;
  }
};

}  // namespace mp
