// Products of int8 activations with integer weights. The integer sum of a group is exact; the groups' scaled sums are added in order,
// by the same expression in every variant, so a row's result is the same whatever rows it is computed with.
#pragma once
#include "product_f32.h"

namespace mp {

// Adds one group's scaled sum to `total`. For symmetric weights `dot` already holds the sum with the zero point taken off.
template <class W>
MP_INLINE f32x16 add_group(f32x16 total, i32x16 dot, f32x16 w_scale, f32x16 zero, float x_scale, float x_sum) {
  if constexpr (W::kZeros == Zero::Point) return total + w_scale * (to_float(dot) * splat(x_scale) - zero * splat(x_sum));
  else if constexpr (W::kZeros == Zero::Minimum) return total + to_float(dot) * (w_scale * splat(x_scale)) + zero * splat(x_sum);
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
template <class W, int MT, int NB>
MP_KERNEL void q_tile(const RowsQ& rows, int64_t r0, int64_t k0, int64_t kn, const void* const* weights, const void* scales, const void* zeros,
                      const int64_t* blocks, int64_t groups, float* c, int64_t ldc) {
  constexpr int GROUP = W::kGroup;
  const int8_t* x[MT];
  const char* w[NB];
  MP_UNROLL
  for (int r = 0; r < MT; r++) x[r] = rows.q[r0 + r] + k0;
  MP_UNROLL
  for (int j = 0; j < NB; j++) w[j] = (const char*)weights[j];
  Scales<W> scale_of[NB];
  MP_UNROLL
  for (int j = 0; j < NB; j++) scale_of[j] = block_scales<W>(scales, blocks[j], groups);
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
  constexpr bool kNarrow = kNarrowSums && W::kNarrowSteps > 0;
  const int64_t width = GROUP ? GROUP : kn, count = GROUP ? kn / width : 1, first = GROUP ? k0 / width : 0;
  for (int64_t i = 0; i < count; i++) {
    const int64_t g = first + i;
    i32x16 dot[MT][NB];
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      const i32x16 start = splat(W::kSymmetric ? rows.start[r0 + r][g] : 0);
      MP_UNROLL
      for (int j = 0; j < NB; j++) dot[r][j] = start;
    }
#if defined(__AVX2__)
    if constexpr (kNarrow) {
      for (int64_t s = 0; s < width / 4; s += W::kNarrowSteps) {
        i16x32 part[MT][NB] = {};
        for (int64_t at = i * (width / 4) + s, end = at + W::kNarrowSteps; at < end; at++) {
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
    for (int64_t s = 0; s < (kNarrow ? 0 : width / 4); s++) {
      const int64_t at = i * (width / 4) + s;
      i32x16 wk[NB];
      MP_UNROLL
      for (int j = 0; j < NB; j++) {
        if (W::kBits == 8) prefetch(w[j] + at * 64 + kAhead);
        wk[j] = load_as<i32x16>(w[j] + at * 64);
      }
      MP_UNROLL
      for (int r = 0; r < MT; r++) {
        const i32x16 a = splat_bytes(x[r] + 4 * at);
        MP_UNROLL
        for (int j = 0; j < NB; j++) dot[r][j] = dot_u8s8<W::kOperandBits>(dot[r][j], wk[j], a);
      }
    }
    MP_UNROLL
    for (int j = 0; j < NB; j++) {
      const f32x16 scale = group_scale(scale_of[j], g);
      const f32x16 zero = group_zero<W>(zeros, blocks[j], groups, g);
      MP_UNROLL
      for (int r = 0; r < MT; r++) {
        const f32x16 before = GROUP ? total[r][j] : splat(0.0f);
        total[r][j] = add_group<W>(before, dot[r][j], scale, zero, rows.scales[r0 + r][g], W::kSymmetric ? 0.0f : rows.sums[r0 + r][g]);
      }
    }
  }
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NB; j++) store(c + r * ldc + j * kLanes, total[r][j]);
  }
}

// Few rows, weights in groups: codes are taken apart in registers, so that weights go from memory straight into the product.
template <class W, int MT, int NB>
MP_KERNEL void q_small(const RowsQ& rows, const void* weights, const void* scales, const void* zeros, const int64_t* blocks, int64_t k,
                       int64_t r0, float* c, int64_t ldc) {
  constexpr int64_t kUnitBytes = kUnitColumns * kLanes * W::kBits / 8;
  const int64_t groups = W::groups(k);
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
  for (int64_t g = 0; g < groups; g++) {
    i32x16 dot[MT][NB];
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      const i32x16 start = splat(W::kSymmetric ? rows.start[r0 + r][g] : 0);
      MP_UNROLL
      for (int j = 0; j < NB; j++) dot[r][j] = start;
    }
    for (int64_t u = g * (W::kGroup / kUnitColumns), end = u + W::kGroup / kUnitColumns; u < end; u++) {
#if defined(__AVX2__)
      if constexpr (kNarrowSums && W::kNarrowSteps > 0) {
        MP_UNROLL
        for (int j = 0; j < NB; j++) {
          i16x32 part[MT];
          MP_UNROLL
          for (int s = 0; s < kUnitSteps; s++) {
            if (s < W::kBits) prefetch(w[j] + u * kUnitBytes + s * 64 + kAhead);
            const i32x16 v = operands<W>(w[j] + u * kUnitBytes, s, book);
            MP_UNROLL
            for (int r = 0; r < MT; r++) {
              part[r] = dot_narrow(s % W::kNarrowSteps ? part[r] : i16x32{}, v, splat_bytes(rows.q[r0 + r] + u * kUnitColumns + s * 4));
              if ((s + 1) % W::kNarrowSteps == 0) dot[r][j] = add_narrow(dot[r][j], part[r]);
            }
          }
        }
        continue;
      }
#endif
      MP_UNROLL
      for (int s = 0; s < kUnitSteps; s++) {
        MP_UNROLL
        for (int j = 0; j < NB; j++) {
          if (s < W::kBits) prefetch(w[j] + u * kUnitBytes + s * 64 + kAhead);
          const i32x16 v = operands<W>(w[j] + u * kUnitBytes, s, book);
          MP_UNROLL
          for (int r = 0; r < MT; r++) dot[r][j] = dot_u8s8<W::kOperandBits>(dot[r][j], v, splat_bytes(rows.q[r0 + r] + u * kUnitColumns + s * 4));
        }
      }
    }
    MP_UNROLL
    for (int j = 0; j < NB; j++) {
      const f32x16 scale = group_scale(scale_of[j], g);
      const f32x16 zero = group_zero<W>(zeros, blocks[j], groups, g);
      MP_UNROLL
      for (int r = 0; r < MT; r++) {
        total[r][j] = add_group<W>(total[r][j], dot[r][j], scale, zero, rows.scales[r0 + r][g], W::kSymmetric ? 0.0f : rows.sums[r0 + r][g]);
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
template <class W, int MT, int NB>
MP_KERNEL void q8_small(const RowsQ& rows, const void* weights, const void* scales, const void* zeros, const int64_t* blocks, int64_t k,
                        float* c, int64_t ldc) {
  constexpr int kSums = MT == 1 ? 4 : MT == 2 ? 2 : 1;
  MP_UNROLL
  for (int j = 0; j < NB; j++) {
    const char* w = (const char*)weights + blocks[j] * k * kLanes;
    i32x16 dot[MT][kSums];
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      for (int i = 0; i < kSums; i++) dot[r][i] = splat(!W::kSymmetric || i ? 0 : rows.start[r][0]);
    }
    for (int64_t s = 0; s < k / 4; s += 4) {  // k is a multiple of 32
      for (int i = 0; i < 4; i++) {
        prefetch(w + (s + i) * 64 + kAhead);
        const i32x16 v = load_as<i32x16>(w + (s + i) * 64);
        MP_UNROLL
        for (int r = 0; r < MT; r++) dot[r][i % kSums] = dot_u8s8<8>(dot[r][i % kSums], v, splat_bytes(rows.q[r] + 4 * (s + i)));
      }
    }
    const f32x16 scale = group_scale(block_scales<W>(scales, blocks[j], 1), 0);
    const f32x16 zero = group_zero<W>(zeros, blocks[j], 1, 0);
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      for (int i = 1; i < kSums; i++) dot[r][0] += dot[r][i];
      store(c + r * ldc + j * kLanes,
            add_group<W>(splat(0.0f), dot[r][0], scale, zero, rows.scales[r][0], W::kSymmetric ? 0.0f : rows.sums[r][0]));
    }
  }
}

// panel = columns of a block, from `packed` on, as operands [columns/4][16][4].
template <class W>
MP_KERNEL void unpack_operands(char* panel, const char* packed, int64_t columns) {
  const Operands<W> book = make_book<W, -128>();
  for (int64_t at = 0; at < columns; at += kUnitColumns, packed += kUnitColumns * kLanes * W::kBits / 8, panel += kUnitColumns * kLanes) {
    MP_UNROLL
    for (int s = 0; s < kUnitSteps; s++) {
      if (s < W::kBits) prefetch(packed + s * 64 + kAhead);
      store_as(panel + s * 64, operands<W>(packed, s, book));
    }
  }
}

template <class W>
struct ProductQ {
  static_assert(W::kQuantized, "int8 activations need integer weights");
  using Packed = W;
  static constexpr int GROUP = W::kGroup;
  static constexpr bool kFused = true;
  // 8-bit weights need no unpacking, so more rows go to the tiles at once.
  static constexpr int kSmallRows = W::kBits < 8 && kBlocks > 1 ? 24 : kSmall, kSmallTile = kSmallRows > 4 ? 8 : 4, kSmallBlocks = 1;
  static constexpr int64_t kChunk = W::kBits < 8 ? 1536 : 0;
  static constexpr int kTileRows = GROUP ? kGroupRows : kRows;
  const void* w;
  const void* scales;
  const void* zeros;
  int64_t k;  // padded

  using Rows = RowsQ;

  // Fills the starting sums of m rows whose pointers are set, and pads the lists.
  MP_INLINE void finish_rows(const ProductQ& p, Rows& rows, int64_t m, Arena& scratch) {
    const int64_t groups = W::groups(p.k);
    for (int64_t r = 0; r < m; r++) {
      rows.start[r] = nullptr;
      if constexpr (W::kSymmetric) {
        int32_t* start = scratch.take<int32_t>(groups);
        rows.start[r] = start;
        if constexpr (GROUP == 0) {
          start[0] = -W::kZero * code_sum(rows.q[r], p.k);
        } else {
          // sums / scales is the integer sum again, exactly: it is below 2^15 and the two roundings move it by less than 2^-7.
          for (int64_t g = 0; g < groups; g += kLanes) {
            const int64_t left = groups - g;
            const f32x16 one = splat(1.0f), scale = load_n(rows.scales[r] + g, left);
            const f32x16 n = round_even(load_n(rows.sums[r] + g, left) / select(scale == splat(0.0f), one, scale));
            store_as(start + g, to_int(n) * -W::kZero);
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
    if constexpr (GROUP) q_small<W, MT, NB>(rows, w, scales, zeros, blocks, k, r, c, ldc);
    else q8_small<W, MT, NB>(rows, w, scales, zeros, blocks, k, c, ldc);
  }
  __attribute__((always_inline)) void prepare(char* panel, const int64_t* blocks, int64_t k0, int64_t k1, const void** to) const {
    for (int j = 0; j < kBlocks; j++) {
      if constexpr (W::kBits == 8) {
        to[j] = (const char*)w + (blocks[j] * k + k0) * kLanes;
      } else {
        char* at = panel + j * kChunk * kLanes;
        unpack_operands<W>(at, (const char*)w + blocks[j] * W::block_bytes(k) + k0 * kLanes * W::kBits / 8, k1 - k0);
        to[j] = at;
      }
    }
  }
  template <int MT>
  __attribute__((always_inline)) void tile(const Rows& rows, int64_t r, const int64_t* blocks, int64_t k0, int64_t k1, const void* const* w_,
                                           float* c, int64_t ldc) const {
    q_tile<W, MT, kBlocks>(rows, r, k0, k1 - k0, w_, scales, zeros, blocks, W::groups(k), c, ldc);
  }
};

}  // namespace mp
