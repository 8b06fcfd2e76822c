// Products of f32 activations with weights of any format, and of bf16 activations with bf16 weights.
#pragma once
#include "tile.h"

namespace mp {

constexpr bool kNativeBf16 =
#if defined(__AVX512BF16__)
    true;
#else
    false;
#endif

// c[MT][NB] (+)= x[k0..k1) w, w[j] = [k1-k0][16] f32.
template <int MT, int NB>
MP_KERNEL void f32_tile(const float* const* rows, int64_t k0, int64_t kn, const void* const* weights, float* c, int64_t ldc) {
  const float* x[MT];
  const float* w[NB];
  f32x16 acc[MT][NB];
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    x[r] = rows[r] + k0;
    MP_UNROLL
    for (int j = 0; j < NB; j++) acc[r][j] = k0 ? load(c + r * ldc + j * kLanes) : splat(0.0f);
  }
  MP_UNROLL
  for (int j = 0; j < NB; j++) w[j] = (const float*)weights[j];
#pragma clang loop unroll_count(2)
  for (int64_t k = 0; k < kn; k++) {
    f32x16 wk[NB];
    MP_UNROLL
    for (int j = 0; j < NB; j++) {
      prefetch((const char*)(w[j] + k * kLanes) + kAhead);
      wk[j] = load(w[j] + k * kLanes);
    }
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      const f32x16 a = splat(x[r][k]);
      MP_UNROLL
      for (int j = 0; j < NB; j++) acc[r][j] += wk[j] * a;
    }
  }
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NB; j++) store(c + r * ldc + j * kLanes, acc[r][j]);
  }
}

#if defined(__AVX512BF16__)
// The same over pairs of columns: rows hold bf16, w[j] = [kn][16][2] bf16.
template <int MT, int NB>
MP_KERNEL void bf16_tile(const uint16_t* const* rows, int64_t k0, int64_t pairs, const void* const* weights, float* c, int64_t ldc) {
  const uint16_t* x[MT];
  const char* w[NB];
  f32x16 acc[MT][NB];
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    x[r] = rows[r] + k0;
    MP_UNROLL
    for (int j = 0; j < NB; j++) acc[r][j] = k0 ? load(c + r * ldc + j * kLanes) : splat(0.0f);
  }
  MP_UNROLL
  for (int j = 0; j < NB; j++) w[j] = (const char*)weights[j];
#pragma clang loop unroll_count(2)
  for (int64_t k = 0; k < pairs; k++) {
    i32x16 wk[NB];
    MP_UNROLL
    for (int j = 0; j < NB; j++) {
      prefetch(w[j] + k * 64 + kAhead);
      wk[j] = load_as<i32x16>(w[j] + k * 64);
    }
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      const i32x16 a = splat(load_as<int32_t>(x[r] + 2 * k));
      MP_UNROLL
      for (int j = 0; j < NB; j++) acc[r][j] = (f32x16)_mm512_dpbf16_ps((__m512)acc[r][j], (__m512bh)wk[j], (__m512bh)a);
    }
  }
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NB; j++) store(c + r * ldc + j * kLanes, acc[r][j]);
  }
}
#endif

// Packed geometry of a format: bytes of a block's column step, columns in it, zero point of symmetric weights.
template <Fmt F> struct Packed;
template <> struct Packed<Fmt::F32> { static constexpr int kStep = 1, kBits = 32; };
template <> struct Packed<Fmt::BF16> { static constexpr int kStep = 2, kBits = 16; };
template <> struct Packed<Fmt::I8> { static constexpr int kStep = 4, kBits = 8, kZero = 128; };
template <> struct Packed<Fmt::I4> { static constexpr int kStep = 8, kBits = 4, kZero = 8; };
// Every step of a block is 64 bytes.
template <Fmt F>
constexpr int64_t packed_k(int64_t k, int64_t group) {
  return F == Fmt::F32 ? k : F == Fmt::BF16 ? round_up(k, 2) : packed_columns(k, group);
}

// A step's columns as f32: q - kOffset for the integer formats.
template <Fmt F>
struct Unpack {
  static constexpr int kStep = Packed<F>::kStep;
#if defined(__AVX512F__)
  static constexpr int kOffset = F == Fmt::I8 ? 128 : F == Fmt::I4 ? 8 : 0;
#else
  static constexpr int kOffset = F == Fmt::I8 ? 128 : 0;
#endif
  MP_INLINE f32x16 column(i32x16 v, int i, [[maybe_unused]] f32x16 table) {
    if constexpr (F == Fmt::F32) return (f32x16)v;
    else if constexpr (F == Fmt::BF16) return (f32x16)(i ? v & (int32_t)0xffff0000 : v << 16);
    else if constexpr (F == Fmt::I8) return to_float((v << (24 - 8 * i)) >> 24);  // the sign bit was flipped by load()
    else {
      const int shift = i < 4 ? 8 * i : 8 * (i - 4) + 4;
#if defined(__AVX512F__)
      return (f32x16)_mm512_permutexvar_ps((__m512i)((u32x16)v >> shift), (__m512)table);
#else
      return to_float((i32x16)((u32x16)v >> shift) & 15);
#endif
    }
  }
  MP_INLINE i32x16 step(const char* p) {
    i32x16 v = load_as<i32x16>(p);
    if constexpr (F == Fmt::I8) v ^= (int32_t)0x80808080;
    return v;
  }
  MP_INLINE f32x16 table() { return to_float(lane_numbers()) - 8.0f; }
};

// Group g's scale and zero point of a block.
template <int GROUP>
MP_INLINE f32x16 group_scale(const void* scales, int64_t block, int64_t groups, int64_t g) {
  if constexpr (GROUP == 0) return load((const float*)scales + block * kLanes);
  else return load_f16((const uint16_t*)scales + (block * groups + g) * kLanes);
}
MP_INLINE f32x16 group_zero(const uint8_t* zeros, int64_t block, int64_t groups, int64_t g) {
  return __builtin_convertvector(load_as<u8x16>(zeros + (block * groups + g) * kLanes), f32x16);
}

// c = x w straight from packed bytes: the sums of a group are scaled once. `sums` are x's sums per group.
template <Fmt F, bool ASYM, int GROUP, int MT, int NB>
MP_KERNEL void packed_small(const float* const* x, const float* const* sums, const void* w, const void* scales, const uint8_t* zeros, int64_t k,
                            const int64_t* blocks, float* c, int64_t ldc) {
  using U = Unpack<F>;
  constexpr bool kQuantized = F == Fmt::I8 || F == Fmt::I4;
  const int64_t kp = packed_k<F>(k, GROUP), steps = kp / U::kStep, groups = GROUP ? kp / (GROUP ? GROUP : 1) : 1, per_group = steps / groups;
  const char* p[NB];
  MP_UNROLL
  for (int j = 0; j < NB; j++) p[j] = (const char*)w + blocks[j] * steps * 64;
  const f32x16 table = U::table();
  f32x16 total[MT][NB];
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NB; j++) total[r][j] = splat(0.0f);
  }
  int64_t at = 0;
  for (int64_t g = 0; g < groups; g++) {
    f32x16 acc[MT][NB];
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      MP_UNROLL
      for (int j = 0; j < NB; j++) acc[r][j] = splat(0.0f);
    }
    for (int64_t s = 0; s < per_group; s++, at++) {
      MP_UNROLL
      for (int j = 0; j < NB; j++) {
        prefetch(p[j] + at * 64 + kAhead);
        const i32x16 v = U::step(p[j] + at * 64);
        for (int i = 0; i < U::kStep; i++) {
          const f32x16 wk = U::column(v, i, table);
          MP_UNROLL
          for (int r = 0; r < MT; r++) acc[r][j] += wk * splat(x[r][at * U::kStep + i]);
        }
      }
    }
    MP_UNROLL
    for (int j = 0; j < NB; j++) {
      if constexpr (!kQuantized) {
        MP_UNROLL
        for (int r = 0; r < MT; r++) total[r][j] = acc[r][j];
      } else {
        const f32x16 scale = group_scale<GROUP>(scales, blocks[j], groups, g);
        if constexpr (ASYM) {
          const f32x16 zero = group_zero(zeros, blocks[j], groups, g) - (float)U::kOffset;
          MP_UNROLL
          for (int r = 0; r < MT; r++) acc[r][j] -= zero * splat(sums[r][g]);
        } else if constexpr (U::kOffset != Packed<F>::kZero) {
          MP_UNROLL
          for (int r = 0; r < MT; r++) acc[r][j] -= splat((float)(Packed<F>::kZero - U::kOffset) * sums[r][g]);
        }
        MP_UNROLL
        for (int r = 0; r < MT; r++) total[r][j] += scale * acc[r][j];
      }
    }
  }
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NB; j++) store(c + r * ldc + j * kLanes, total[r][j]);
  }
}

// panel = columns [k0, k1) of a block as f32 [k1-k0][16], scale and zero applied. k0 lies on a group.
template <Fmt F, bool ASYM, int GROUP>
MP_KERNEL void unpack_f32(float* panel, const void* w, const void* scales, const uint8_t* zeros, int64_t k, int64_t block, int64_t k0,
                          int64_t k1) {
  using U = Unpack<F>;
  const int64_t kp = packed_k<F>(k, GROUP), groups = GROUP ? kp / (GROUP ? GROUP : 1) : 1;
  const char* p = (const char*)w + (block * kp + k0) / U::kStep * 64;
  const f32x16 table = U::table();
  f32x16 scale = splat(1.0f), zero = splat(0.0f);
  int64_t next_group = k0;
  for (int64_t s = k0; s < k1; s += U::kStep, p += 64) {
    if constexpr (F == Fmt::I8 || F == Fmt::I4) {
      if (s == next_group) {
        const int64_t g = GROUP ? s / (GROUP ? GROUP : 1) : 0;
        next_group = GROUP ? s + GROUP : -1;
        scale = group_scale<GROUP>(scales, block, groups, g);
        if constexpr (ASYM) zero = group_zero(zeros, block, groups, g) - (float)U::kOffset;
        else zero = splat((float)(Packed<F>::kZero - U::kOffset));
      }
    }
    prefetch(p + kAhead);
    const i32x16 v = U::step(p);
    for (int i = 0; i < U::kStep; i++) {
      f32x16 wk = U::column(v, i, table);
      if constexpr (F == Fmt::I8 || F == Fmt::I4) {
        if constexpr (ASYM || U::kOffset != Packed<F>::kZero) wk -= zero;
        wk *= scale;
      }
      store(panel, wk);  // the panel has room for the last step's columns beyond k1
      panel += kLanes;
    }
  }
}

template <Fmt F, bool ASYM, int GROUP, Act A>
struct ProductF32 {
  static constexpr Fmt kFormat = F;
  static constexpr bool kAsymmetric = ASYM;
  static constexpr int kGroup = GROUP;
  static constexpr bool kBf16 = kNativeBf16 && F == Fmt::BF16 && A == Act::BF16;
  static constexpr bool kFused = F != Fmt::F32 && !kBf16;
  static constexpr int kSmallRows = kBlocks > 1 ? 8 : kSmall, kSmallBlocks = 2;
  static constexpr int64_t kChunk = kBf16 ? 1024 : 384;
  static constexpr int kTileRows = kRows;
  const void* w;
  const void* scales;
  const uint8_t* zeros;
  int64_t k;

  struct Rows {
    const float* x[kMaxRows + kRowPad];  // bf16 where kBf16
    const float* sums[kSmallRows];
  };

  // Points `rows` at the m given rows, converted, padded and summed where the product needs it.
  MP_INLINE void set_rows(const ProductF32& p, Rows& rows, const float* const* x, int64_t m, Arena& scratch) {
    const int64_t k = p.k, kp = packed_k<F>(k, GROUP);
    const bool small = kFused && m <= kSmallRows;
    if constexpr (kBf16) {
      for (int64_t r = 0; r < m; r++) {
        uint16_t* to = scratch.take<uint16_t>(kp);
        int64_t i = 0;
        for (; i + kLanes <= k; i += kLanes) store_as(to + i, __builtin_convertvector((u32x16)round_bf16(load(x[r] + i)) >> 16, u16x16));
        for (; i < kp; i++) to[i] = i < k ? (uint16_t)bf16_bits(x[r][i]) : 0;
        rows.x[r] = (const float*)to;
      }
    } else if (A == Act::BF16 || (small && k != kp)) {
      for (int64_t r = 0; r < m; r++) {
        float* to = scratch.take<float>(kp);
        for (int64_t i = 0; i < k; i += kLanes) {
          f32x16 v = load_n(x[r] + i, k - i);
          store_n(to + i, A == Act::BF16 ? round_bf16(v) : v, kp - i);
        }
        for (int64_t i = round_up(k, kLanes); i < kp; i++) to[i] = 0.0f;
        rows.x[r] = to;
      }
    } else {
      for (int64_t r = 0; r < m; r++) rows.x[r] = x[r];
    }
    for (int64_t r = m; r < m + kRowPad; r++) rows.x[r] = rows.x[m - 1];
    if constexpr (kFused && (F == Fmt::I8 || F == Fmt::I4)) {
      if (!small) return;
      const int64_t groups = GROUP ? kp / (GROUP ? GROUP : 1) : 1, width = kp / groups;
      for (int64_t r = 0; r < kSmallRows; r++) {
        if (r >= m) {
          rows.sums[r] = rows.sums[m - 1];
          continue;
        }
        float* to = scratch.take<float>(groups);
        for (int64_t g = 0; g < groups; g++) {
          f32x16 s = splat(0.0f);
          for (int64_t i = 0; i < width; i += kLanes) s += load(rows.x[r] + g * width + i);
          to[g] = sum(s);
        }
        rows.sums[r] = to;
      }
    }
  }

  template <int MT, int NB>
  __attribute__((always_inline)) void small(const Rows& rows, int64_t, const int64_t* blocks, float* c, int64_t ldc) const {
    packed_small<F, ASYM, GROUP, MT, NB>(rows.x, rows.sums, w, scales, zeros, k, blocks, c, ldc);
  }
  __attribute__((always_inline)) void prepare(char* panel, const int64_t* blocks, int64_t k0, int64_t k1, const void** to) const {
    for (int j = 0; j < kBlocks; j++) {
      if constexpr (F == Fmt::F32 || kBf16) {
        constexpr int64_t kBytes = F == Fmt::F32 ? 4 : 2;
        to[j] = (const char*)w + (blocks[j] * packed_k<F>(k, 0) + k0) * kLanes * kBytes;
      } else {
        float* at = (float*)panel + j * (kChunk + 8) * kLanes;
        unpack_f32<F, ASYM, GROUP>(at, w, scales, zeros, k, blocks[j], k0, k1);
        to[j] = at;
      }
    }
  }
  template <int MT>
  __attribute__((always_inline)) void tile(const Rows& rows, int64_t r, const int64_t*, int64_t k0, int64_t k1, const void* const* w_, float* c,
                                           int64_t ldc) const {
#if defined(__AVX512BF16__)
    if constexpr (kBf16) return bf16_tile<MT, kBlocks>((const uint16_t* const*)rows.x + r, k0, (k1 - k0 + 1) / 2, w_, c, ldc);
#endif
    f32_tile<MT, kBlocks>(rows.x + r, k0, k1 - k0, w_, c, ldc);
  }
};
static_assert((384 + 8) * 16 * 4 * 3 <= kPanelBytes, "the panel holds three blocks of a chunk");

}  // namespace mp
