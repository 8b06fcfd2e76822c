// Products of f32 activations with weights of any format, and of bf16 activations with bf16 weights. Activations in 8-bit floats are rounded,
// and multiplied as f32.
#pragma once
#include "product_digits.h"
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

// c = x w straight from packed bytes: the sums of a group are scaled once. `sums` are x's sums per group.
template <class W, int MT, int NB>
MP_KERNEL void packed_small(const float* const* x, const float* const* sums, const void* w, const void* scales, const void* zeros, int64_t k,
                            const int64_t* blocks, float* c, int64_t ldc) {
  const int64_t groups = W::groups(k), width = W::padded(k) / groups, group_bytes = width * kLanes * W::kBits / 8;
  const char* p[NB];
  Scales<W> scale[NB];
  MP_UNROLL
  for (int j = 0; j < NB; j++) {
    p[j] = (const char*)w + blocks[j] * W::block_bytes(k);
    scale[j] = block_scales<W>(scales, blocks[j], groups);
  }
  const Columns<W> of = Columns<W>::make();
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
    for (int64_t unit = 0; unit < width; unit += kUnitColumns, at += kUnitColumns) {
      MP_UNROLL
      for (int s = 0; s < kUnitSteps; s++) {
        MP_UNROLL
        for (int j = 0; j < NB; j++) {
          const char* from = p[j] + unit * kLanes * W::kBits / 8;
          if (s < W::kBits) prefetch(from + s * 64 + kAhead);
          const i32x16 v = Columns<W>::step(of, from, s);
          MP_UNROLL
          for (int i = 0; i < 4; i++) {
            const f32x16 wk = Columns<W>::column(of, v, i);
            MP_UNROLL
            for (int r = 0; r < MT; r++) acc[r][j] += wk * splat(x[r][at + s * 4 + i]);
          }
        }
      }
    }
    MP_UNROLL
    for (int j = 0; j < NB; j++) {
      p[j] += group_bytes;
      const f32x16 by = group_scale(scale[j], g);
      if constexpr (W::kZeros == Zero::Point) {
        const f32x16 zero = group_zero<W>(zeros, blocks[j], groups, g) - (float)Columns<W>::kOffset;
        MP_UNROLL
        for (int r = 0; r < MT; r++) acc[r][j] -= zero * splat(sums[r][g]);
      } else if constexpr (Columns<W>::kOffset != W::kZero) {
        MP_UNROLL
        for (int r = 0; r < MT; r++) acc[r][j] -= splat((float)(W::kZero - Columns<W>::kOffset) * sums[r][g]);
      }
      MP_UNROLL
      for (int r = 0; r < MT; r++) {
        total[r][j] += by * acc[r][j];
        if constexpr (W::kZeros == Zero::Minimum) total[r][j] += group_zero<W>(zeros, blocks[j], groups, g) * splat(sums[r][g]);
      }
    }
  }
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NB; j++) store(c + r * ldc + j * kLanes, total[r][j]);
  }
}

// Two columns of bf16 weights as f32.
MP_INLINE f32x16 bf16_column(i32x16 v, int i) { return (f32x16)(i ? v & (int32_t)0xffff0000 : v << 16); }

// The same for bf16 weights.
template <int MT, int NB>
MP_KERNEL void bf16_small(const float* const* x, const void* w, int64_t pairs, const int64_t* blocks, float* c, int64_t ldc) {
  f32x16 acc[MT][NB];
  const char* p[NB];
  MP_UNROLL
  for (int j = 0; j < NB; j++) {
    p[j] = (const char*)w + blocks[j] * pairs * 64;
    MP_UNROLL
    for (int r = 0; r < MT; r++) acc[r][j] = splat(0.0f);
  }
  for (int64_t at = 0; at < pairs; at++) {
    MP_UNROLL
    for (int j = 0; j < NB; j++) {
      prefetch(p[j] + at * 64 + kAhead);
      const i32x16 v = load_as<i32x16>(p[j] + at * 64);
      MP_UNROLL
      for (int i = 0; i < 2; i++) {
        const f32x16 wk = bf16_column(v, i);
        MP_UNROLL
        for (int r = 0; r < MT; r++) acc[r][j] += wk * splat(x[r][2 * at + i]);
      }
    }
  }
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NB; j++) store(c + r * ldc + j * kLanes, acc[r][j]);
  }
}

// panel = columns [k0, k1) of a block as f32 [k1-k0][16], scale and zero applied. k0 lies on a group.
template <class W>
MP_KERNEL void unpack_f32(float* panel, const void* w, const void* scales, const void* zeros, int64_t k, int64_t block, int64_t k0, int64_t k1) {
  const char* p = (const char*)w + block * W::block_bytes(k) + k0 * kLanes * W::kBits / 8;
  if constexpr (W::kFmt == Fmt::BF16) {
    for (int64_t at = k0; at < k1; at += 2, p += 64, panel += 2 * kLanes) {
      prefetch(p + kAhead);
      const i32x16 v = load_as<i32x16>(p);
      store(panel, bf16_column(v, 0));
      store(panel + kLanes, bf16_column(v, 1));
    }
  } else {
    const int64_t groups = W::groups(k);
    const Scales<W> scale = block_scales<W>(scales, block, groups);
    const Columns<W> of = Columns<W>::make();
    for (int64_t unit = k0; unit < k1; unit += kUnitColumns, p += kUnitColumns * kLanes * W::kBits / 8) {
      const int64_t g = W::kGroup ? unit / (W::kGroup ? W::kGroup : 1) : 0;
      const f32x16 by = group_scale(scale, g);
      const f32x16 given = group_zero<W>(zeros, block, groups, g);
      const f32x16 zero = (W::kZeros == Zero::Point ? given : splat((float)W::kZero)) - (float)Columns<W>::kOffset;
      MP_UNROLL
      for (int s = 0; s < kUnitSteps; s++) {
        if (s < W::kBits) prefetch(p + s * 64 + kAhead);
        const i32x16 v = Columns<W>::step(of, p, s);
        MP_UNROLL
        for (int i = 0; i < 4; i++) {
          f32x16 wk = Columns<W>::column(of, v, i);
          if constexpr (W::kZeros == Zero::Point || Columns<W>::kOffset != W::kZero) wk -= zero;
          wk *= by;
          if constexpr (W::kZeros == Zero::Minimum) wk += given;
          store(panel, wk);  // the panel has room for the last unit's columns beyond k1
          panel += kLanes;
        }
      }
    }
  }
}

template <class W, Act A>
struct ProductF32 {
  using Packed = W;
  static constexpr Fmt F = W::kFmt;
  static constexpr bool kBf16 = kNativeBf16 && F == Fmt::BF16 && A == Act::BF16;
  static constexpr bool kFused = F != Fmt::F32 && !kBf16;
  static constexpr bool kSplit = kDigits && W::kQuantized && !W::kFloats && A != Act::E4M3;
  static constexpr int kSmallRows = kSplit ? kMostSplit : kBlocks > 1 ? 8 : kSmall, kSmallTile = kSplit || kBlocks == 1 ? 4 : 8;
  static constexpr int kSmallBlocks = 2;
  static constexpr int64_t kChunk = kBf16 ? 1024 : 384;
  static constexpr int kTileRows = kRows;
  const void* w;
  const void* scales;
  const void* zeros;
  int64_t k;

  struct Rows {
    const float* x[kMaxRows + kRowPad];  // bf16 where kBf16
    const float* sums[kSmallRows];
    DigitRow split[kSplit ? kSmallRows + kRowPad : 1];  // few rows, by integer weights
  };

  // Points `rows` at the m given rows, converted, padded and summed where the product needs it.
  MP_INLINE void set_rows(const ProductF32& p, Rows& rows, const float* const* x, int64_t m, Arena& scratch) {
    const int64_t k = p.k, kp = W::padded(k);
    const bool small = kFused && m <= kSmallRows;
    if constexpr (kSplit) {
      if (small) {
        for (int64_t r = 0; r < m; r++) split_row<W, A>(x[r], k, rows.split[r], scratch);
        for (int64_t r = m; r < m + kRowPad; r++) rows.split[r] = rows.split[m - 1];
        return;
      }
    }
    if constexpr (kBf16) {
      for (int64_t r = 0; r < m; r++) {
        uint16_t* to = scratch.take<uint16_t>(kp);
        int64_t i = 0;
        for (; i + kLanes <= k; i += kLanes) store_as(to + i, __builtin_convertvector((u32x16)round_bf16(load(x[r] + i)) >> 16, u16x16));
        for (; i < kp; i++) to[i] = i < k ? (uint16_t)bf16_bits(x[r][i]) : 0;
        rows.x[r] = (const float*)to;
      }
    } else if constexpr (A == Act::E4M3) {
      for (int64_t r = 0; r < m; r++) {
        float* to = scratch.take<float>(round_up(kp, kLanes));
        const f32x16 scale = splat(e4m3_row(x[r], k, to));
        for (int64_t i = 0; i < k; i += kLanes) store(to + i, load(to + i) * scale);
        for (int64_t i = round_up(k, kLanes); i < kp; i++) to[i] = 0.0f;
        rows.x[r] = to;
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
    if constexpr (kFused && W::kQuantized && !W::kFloats && !kSplit) {
      if (!small) return;
      const int64_t groups = W::groups(k), width = kp / groups;
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
  __attribute__((always_inline)) void small(const Rows& rows, [[maybe_unused]] int64_t r, const int64_t* blocks, float* c, int64_t ldc) const {
    if constexpr (F == Fmt::BF16) bf16_small<MT, NB>(rows.x, w, W::padded(k) / 2, blocks, c, ldc);
    else if constexpr (kSplit) digits_small<W, MT, NB>(rows.split + r, w, scales, zeros, blocks, k, c, ldc);
    else packed_small<W, MT, NB>(rows.x, rows.sums, w, scales, zeros, k, blocks, c, ldc);
  }
  __attribute__((always_inline)) void prepare(char* panel, const int64_t* blocks, int64_t k0, int64_t k1, const void** to) const {
    for (int j = 0; j < kBlocks; j++) {
      if constexpr (F == Fmt::F32 || kBf16) {
        constexpr int64_t kBytes = F == Fmt::F32 ? 4 : 2;
        to[j] = (const char*)w + (blocks[j] * W::padded(k) + k0) * kLanes * kBytes;
      } else {
        float* at = (float*)panel + j * (kChunk + kUnitColumns) * kLanes;
        unpack_f32<W>(at, w, scales, zeros, k, blocks[j], k0, k1);
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
static_assert((384 + kUnitColumns) * 16 * 4 * 3 <= kPanelBytes, "the panel holds three blocks of a chunk");

}  // namespace mp
