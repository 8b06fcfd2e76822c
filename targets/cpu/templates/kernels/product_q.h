// Products of int8 activations with 8-bit or 4-bit weights. The integer sum of a group is exact; the groups' scaled sums are added in order,
// by the same expression in every variant, so a row's result is the same whatever rows it is computed with.
#pragma once
#include "product_f32.h"

namespace mp {

// Adds one group's scaled sum to `total`. For symmetric weights `dot` already holds the sum with the zero point taken off.
template <bool ASYM>
MP_INLINE f32x16 add_group(f32x16 total, i32x16 dot, f32x16 w_scale, f32x16 zero, float x_scale, float x_sum) {
  if constexpr (ASYM) return total + w_scale * (to_float(dot) * splat(x_scale) - zero * splat(x_sum));
  else return total + to_float(dot) * (w_scale * splat(x_scale));
}

// The sum of k codes; k is a multiple of 32.
MP_INLINE int32_t code_sum(const int8_t* q, int64_t k) {
  i32x16 s = splat(0);
  for (int64_t i = 0; i < k; i += kLanes) s += __builtin_convertvector(load_as<i8x16>(q + i), i32x16);
  return sum(s);
}

struct RowsQ {
  const int8_t* q[kMaxRows + kRowPad];
  const float* scales[kMaxRows + kRowPad];
  const float* sums[kMaxRows + kRowPad];
  const int32_t* start[kMaxRows + kRowPad];  // symmetric: -zero point * sum(q) per group, where the integer sums start
};

// c[MT][NB] (+)= rows times columns [k0, k0 + kn) of unpacked weights, w[j] = u8 [kn/4][16][4].
template <int BITS, bool ASYM, int GROUP, int MT, int NB>
MP_KERNEL void q_tile(const RowsQ& rows, int64_t r0, int64_t k0, int64_t kn, const void* const* weights, const void* scales, const uint8_t* zeros,
                      const int64_t* blocks, int64_t groups, float* c, int64_t ldc) {
  const int8_t* x[MT];
  const char* w[NB];
  MP_UNROLL
  for (int r = 0; r < MT; r++) x[r] = rows.q[r0 + r] + k0;
  MP_UNROLL
  for (int j = 0; j < NB; j++) w[j] = (const char*)weights[j];
  f32x16 total[MT][NB];
  if constexpr (GROUP != 0) {
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      MP_UNROLL
      for (int j = 0; j < NB; j++) {
        total[r][j] = k0 ? load(c + r * ldc + j * kLanes) : splat(0.0f);
      }
    }
  }
  const int64_t width = GROUP ? GROUP : kn, count = GROUP ? kn / width : 1, first = GROUP ? k0 / width : 0;
  for (int64_t i = 0; i < count; i++) {
    const int64_t g = first + i;
    i32x16 dot[MT][NB];
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      const i32x16 start = splat(ASYM ? 0 : rows.start[r0 + r][g]);
      MP_UNROLL
      for (int j = 0; j < NB; j++) dot[r][j] = start;
    }
#if defined(__AVX2__)
    if constexpr (kNarrowSums && BITS == 4) {
      for (int64_t s = 0; s < width / 4; s += 8) {
        i16x32 part[MT][NB] = {};
        for (int64_t at = i * (width / 4) + s, end = at + 8; at < end; at++) {
          i32x16 wk[NB];
          MP_UNROLL
          for (int j = 0; j < NB; j++) wk[j] = load_as<i32x16>(w[j] + at * 64);
          MP_UNROLL
          for (int r = 0; r < MT; r++) {
            const i32x16 a = splat_bytes(x[r] + 4 * at);
            MP_UNROLL
            for (int j = 0; j < NB; j++) part[r][j] = dot_narrow(part[r][j], wk[j], a);
          }
        }
        MP_UNROLL
        for (int r = 0; r < MT; r++) {
          MP_UNROLL
          for (int j = 0; j < NB; j++) dot[r][j] = add_narrow(dot[r][j], part[r][j]);
        }
      }
    }
#endif
#pragma clang loop unroll_count(2)
    for (int64_t s = 0; s < (kNarrowSums && BITS == 4 ? 0 : width / 4); s++) {
      const int64_t at = i * (width / 4) + s;
      i32x16 wk[NB];
      MP_UNROLL
      for (int j = 0; j < NB; j++) {
        if (BITS == 8) prefetch(w[j] + at * 64 + kAhead);
        wk[j] = load_as<i32x16>(w[j] + at * 64);
      }
      MP_UNROLL
      for (int r = 0; r < MT; r++) {
        const i32x16 a = splat_bytes(x[r] + 4 * at);
        MP_UNROLL
        for (int j = 0; j < NB; j++) dot[r][j] = dot_u8s8<BITS>(dot[r][j], wk[j], a);
      }
    }
    MP_UNROLL
    for (int j = 0; j < NB; j++) {
      const f32x16 scale = group_scale<GROUP>(scales, blocks[j], groups, g);
      const f32x16 zero = ASYM ? group_zero(zeros, blocks[j], groups, g) : splat(0.0f);
      MP_UNROLL
      for (int r = 0; r < MT; r++) {
        const f32x16 before = GROUP ? total[r][j] : splat(0.0f);
        total[r][j] = add_group<ASYM>(before, dot[r][j], scale, zero, rows.scales[r0 + r][g], ASYM ? rows.sums[r0 + r][g] : 0.0f);
      }
    }
  }
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NB; j++) store(c + r * ldc + j * kLanes, total[r][j]);
  }
}

// Few rows, 4-bit weights: nibbles are taken apart in registers, so that weights go from memory straight into the product.
template <bool ASYM, int GROUP, int MT, int NB>
MP_KERNEL void q4_small(const RowsQ& rows, const void* weights, const void* scales, const uint8_t* zeros, const int64_t* blocks, int64_t groups,
                        int64_t r0, float* c, int64_t ldc) {
  const char* w[NB];
  f32x16 total[MT][NB];
  MP_UNROLL
  for (int j = 0; j < NB; j++) w[j] = (const char*)weights + blocks[j] * groups * (GROUP / 8) * 64;
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NB; j++) total[r][j] = splat(0.0f);
  }
  for (int64_t g = 0; g < groups; g++) {
    i32x16 dot[MT][NB];
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      const i32x16 start = splat(ASYM ? 0 : rows.start[r0 + r][g]);
      MP_UNROLL
      for (int j = 0; j < NB; j++) dot[r][j] = start;
    }
#if defined(__AVX2__)
    if constexpr (kNarrowSums) {
      for (int64_t at = g * (GROUP / 8), end = at + GROUP / 8; at < end; at += 4) {
        MP_UNROLL
        for (int j = 0; j < NB; j++) {
          i16x32 part[MT] = {};
          for (int i = 0; i < 4; i++) {
            prefetch(w[j] + (at + i) * 64 + kAhead);
            const i32x16 v = load_as<i32x16>(w[j] + (at + i) * 64), low = v & 0x0f0f0f0f, high = (v >> 4) & 0x0f0f0f0f;
            MP_UNROLL
            for (int r = 0; r < MT; r++) {
              part[r] = dot_narrow(part[r], low, splat_bytes(rows.q[r0 + r] + 8 * (at + i)));
              part[r] = dot_narrow(part[r], high, splat_bytes(rows.q[r0 + r] + 8 * (at + i) + 4));
            }
          }
          MP_UNROLL
          for (int r = 0; r < MT; r++) dot[r][j] = add_narrow(dot[r][j], part[r]);
        }
      }
    }
#endif
#pragma clang loop unroll_count(4)
    for (int64_t s = 0; s < (kNarrowSums ? 0 : GROUP / 8); s++) {
      const int64_t at = g * (GROUP / 8) + s;
      MP_UNROLL
      for (int j = 0; j < NB; j++) {
        prefetch(w[j] + at * 64 + kAhead);
        const i32x16 v = load_as<i32x16>(w[j] + at * 64), low = v & 0x0f0f0f0f, high = (v >> 4) & 0x0f0f0f0f;
        MP_UNROLL
        for (int r = 0; r < MT; r++) {
          dot[r][j] = dot_u8s8<4>(dot[r][j], low, splat_bytes(rows.q[r0 + r] + 8 * at));
          dot[r][j] = dot_u8s8<4>(dot[r][j], high, splat_bytes(rows.q[r0 + r] + 8 * at + 4));
        }
      }
    }
    MP_UNROLL
    for (int j = 0; j < NB; j++) {
      const f32x16 scale = group_scale<GROUP>(scales, blocks[j], groups, g);
      const f32x16 zero = ASYM ? group_zero(zeros, blocks[j], groups, g) : splat(0.0f);
      MP_UNROLL
      for (int r = 0; r < MT; r++) {
        total[r][j] = add_group<ASYM>(total[r][j], dot[r][j], scale, zero, rows.scales[r0 + r][g], ASYM ? rows.sums[r0 + r][g] : 0.0f);
      }
    }
  }
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NB; j++) store(c + r * ldc + j * kLanes, total[r][j]);
  }
}

// Few rows, one group for the whole row: several integer sums run side by side, since one would wait for its own last product.
template <bool ASYM, int MT, int NB>
MP_KERNEL void q8_small(const RowsQ& rows, const void* weights, const void* scales, const uint8_t* zeros, const int64_t* blocks, int64_t k,
                        float* c, int64_t ldc) {
  constexpr int kSums = MT == 1 ? 4 : MT == 2 ? 2 : 1;
  MP_UNROLL
  for (int j = 0; j < NB; j++) {
    const char* w = (const char*)weights + blocks[j] * k * kLanes;
    i32x16 dot[MT][kSums];
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      for (int i = 0; i < kSums; i++) dot[r][i] = splat(ASYM || i ? 0 : rows.start[r][0]);
    }
    for (int64_t s = 0; s < k / 4; s += 4) {  // k is a multiple of 32
      for (int i = 0; i < 4; i++) {
        prefetch(w + (s + i) * 64 + kAhead);
        const i32x16 v = load_as<i32x16>(w + (s + i) * 64);
        MP_UNROLL
        for (int r = 0; r < MT; r++) dot[r][i % kSums] = dot_u8s8<8>(dot[r][i % kSums], v, splat_bytes(rows.q[r] + 4 * (s + i)));
      }
    }
    const f32x16 scale = group_scale<0>(scales, blocks[j], 1, 0);
    const f32x16 zero = ASYM ? group_zero(zeros, blocks[j], 1, 0) : splat(0.0f);
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      for (int i = 1; i < kSums; i++) dot[r][0] += dot[r][i];
      store(c + r * ldc + j * kLanes,
            add_group<ASYM>(splat(0.0f), dot[r][0], scale, zero, rows.scales[r][0], ASYM ? rows.sums[r][0] : 0.0f));
    }
  }
}

// panel = columns [k0, k1) of a block of 4-bit weights as bytes [(k1-k0)/4][16][4].
template <int STEP>
MP_KERNEL void unpack_nibbles(char* panel, const char* packed, int64_t columns) {
  for (int64_t s = 0; s < columns / STEP; s++) {
    prefetch(packed + s * 64 + kAhead);
    const i32x16 v = load_as<i32x16>(packed + s * 64);
    store_as(panel + s * 128, v & 0x0f0f0f0f);
    store_as(panel + s * 128 + 64, (v >> 4) & 0x0f0f0f0f);
  }
}

template <Fmt F, bool ASYM, int GROUP>
struct ProductQ {
  static_assert(F == Fmt::I4 ? GROUP > 0 && GROUP % 32 == 0 : F == Fmt::I8, "int8 activations need integer weights; 4-bit ones have groups");
  static constexpr Fmt kFormat = F;
  static constexpr bool kAsymmetric = ASYM;
  static constexpr bool kFused = F == Fmt::I4 || GROUP == 0;
  // 8-bit weights need no unpacking, so more rows go to the tiles at once.
  static constexpr int kSmallRows = F == Fmt::I4 && kBlocks > 1 ? 24 : kSmall, kSmallBlocks = 1;
  static constexpr int64_t kChunk = F == Fmt::I4 ? 1536 : 0;
  static constexpr int kTileRows = GROUP ? kGroupRows : kRows;
  const void* w;
  const void* scales;
  const uint8_t* zeros;
  int64_t k;  // padded

  using Rows = RowsQ;
  MP_INLINE int64_t block_bytes(int64_t k) { return k * kLanes * Packed<F>::kBits / 8; }
  MP_INLINE int64_t groups_of(int64_t k) { return GROUP ? k / (GROUP ? GROUP : 1) : 1; }

  // Fills the starting sums of m rows whose pointers are set, and pads the lists.
  MP_INLINE void finish_rows(const ProductQ& p, Rows& rows, int64_t m, Arena& scratch) {
    const int64_t groups = groups_of(p.k);
    for (int64_t r = 0; r < m; r++) {
      rows.start[r] = nullptr;
      if constexpr (!ASYM) {
        int32_t* start = scratch.take<int32_t>(groups);
        rows.start[r] = start;
        if constexpr (GROUP == 0) {
          start[0] = -Packed<F>::kZero * code_sum(rows.q[r], p.k);
        } else {
          // sums / scales is the integer sum again, exactly: it is below 2^15 and the two roundings move it by less than 2^-7.
          for (int64_t g = 0; g < groups; g += kLanes) {
            const int64_t left = groups - g;
            const f32x16 one = splat(1.0f), scale = load_n(rows.scales[r] + g, left);
            const f32x16 n = round_even(load_n(rows.sums[r] + g, left) / select(scale == splat(0.0f), one, scale));
            store_as(start + g, to_int(n) * -Packed<F>::kZero);
          }
        }
      }
    }
    for (int64_t r = m; r < m + kRowPad; r++) {
      rows.q[r] = rows.q[m - 1];
      rows.scales[r] = rows.scales[m - 1];
      rows.sums[r] = rows.sums[m - 1];
      rows.start[r] = rows.start[m - 1];
    }
  }

  template <int MT, int NB>
  __attribute__((always_inline)) void small(const Rows& rows, [[maybe_unused]] int64_t r, const int64_t* blocks, float* c, int64_t ldc) const {
    if constexpr (F == Fmt::I4) q4_small<ASYM, GROUP, MT, NB>(rows, w, scales, zeros, blocks, groups_of(k), r, c, ldc);
    else q8_small<ASYM, MT, NB>(rows, w, scales, zeros, blocks, k, c, ldc);
  }
  __attribute__((always_inline)) void prepare(char* panel, const int64_t* blocks, int64_t k0, int64_t k1, const void** to) const {
    for (int j = 0; j < kBlocks; j++) {
      if constexpr (F == Fmt::I8) {
        to[j] = (const char*)w + (blocks[j] * k + k0) * kLanes;
      } else {
        char* at = panel + j * kChunk * kLanes;
        unpack_nibbles<8>(at, (const char*)w + (blocks[j] * k + k0) * (kLanes / 2), k1 - k0);
        to[j] = at;
      }
    }
  }
  template <int MT>
  __attribute__((always_inline)) void tile(const Rows& rows, int64_t r, const int64_t* blocks, int64_t k0, int64_t k1, const void* const* w_,
                                           float* c, int64_t ldc) const {
    q_tile<Packed<F>::kBits, ASYM, GROUP, MT, kBlocks>(rows, r, k0, k1 - k0, w_, scales, zeros, blocks, groups_of(k), c, ldc);
  }
};

}  // namespace mp
