// Products of int8 activations with 8-bit weights on AMX tiles: 16 rows of activations times a block of 16 outputs at a time. The sums
// are those of product_q.h, bit for bit: integers are exact, and groups are scaled and added by the same expression in the same order.
#pragma once
#include "amx.h"
#include "product_q.h"

namespace mp {

#if defined(MP_AMX)

// 16 rows of activations at even strides.
struct CodeRows {
  const int8_t* q;
  const float *scales, *sums;
  int64_t ldq, ldg;
};

// The rows' tiles. The last ones, where they are fewer than 16, are copied to scratch, so that all 16 can be read.
MP_INLINE void tile_rows_q(CodeRows* tiles, const LinearQArgs& a, int64_t m0, int64_t m, int64_t k, int64_t groups, Arena& scratch) {
  for (int64_t r = 0; r < m; r += kTileSide) {
    CodeRows& t = tiles[r / kTileSide];
    t = CodeRows{a.q + (m0 + r) * a.ldq, a.q_scales + (m0 + r) * a.ldg, a.q_sums + (m0 + r) * a.ldg, a.ldq, a.ldg};
    const int64_t left = m - r;
    if (left >= kTileSide) continue;
    int8_t* q = scratch.take<int8_t>(kTileSide * k);
    float* scales = scratch.take<float>(kTileSide * groups);
    float* sums = scratch.take<float>(kTileSide * groups);
    for (int64_t i = 0; i < kTileSide; i++) {
      const int64_t from = min_of(i, left - 1);
      memcpy(q + i * k, t.q + from * a.ldq, (size_t)k);
      memcpy(scales + i * groups, t.scales + from * a.ldg, (size_t)groups * sizeof(float));
      memcpy(sums + i * groups, t.sums + from * a.ldg, (size_t)groups * sizeof(float));
    }
    t = CodeRows{q, scales, sums, k, groups};
  }
}

// sums[16][16] = one group's rows times weights [GROUP/4][16][4], in tile T.
template <int T, bool SIGNED, int GROUP, int DEPTH>
MP_INLINE void amx_group(const int8_t* a, int64_t lda, const char* w, int32_t* sums) {
  _tile_zero(T);
  for (int s = 0; s < GROUP / DEPTH; s++) {
    _tile_loadd(4 + T, a + s * DEPTH, lda);
    _tile_loadd(6 + T, w + s * DEPTH * kLanes, kTileRowBytes);
    if constexpr (SIGNED) _tile_dpbssd(T, 4 + T, 6 + T);
    else _tile_dpbsud(T, 4 + T, 6 + T);
  }
  _tile_stored(T, sums, kTileRowBytes);
}

// c[MT][16] (+)= MT of a tile's rows times `count` groups from group g0 of a block, whose bytes are at `w`. Weights of symmetric formats are
// signed here. A group's integer sums go through memory; those of two groups ahead are on their way meanwhile.
template <class W, int MT>
MP_KERNEL void amx_groups(const CodeRows& t, const char* w, const void* scales, const void* zeros, int64_t block, int64_t groups, int64_t g0,
                          int64_t count, float* c, int64_t ldc) {
  constexpr int GROUP = W::kGroup;
  const Scales<W> scale_of = block_scales<W>(scales, block, groups);
  constexpr int kDepth = GROUP < kTileRowBytes ? GROUP : kTileRowBytes;
  alignas(64) int32_t sums[4][kTileSide * kLanes];
  const int8_t* q = t.q + g0 * GROUP;
  f32x16 total[MT];
  MP_UNROLL
  for (int r = 0; r < MT; r++) total[r] = g0 ? load(c + r * ldc) : splat(0.0f);
  const auto start = [&](int64_t i) __attribute__((always_inline)) {
    if (i >= count) return;
    if (i & 1) amx_group<1, W::kSymmetric, GROUP, kDepth>(q + i * GROUP, t.ldq, w + i * GROUP * kLanes, sums[i & 3]);
    else amx_group<0, W::kSymmetric, GROUP, kDepth>(q + i * GROUP, t.ldq, w + i * GROUP * kLanes, sums[i & 3]);
  };
  start(0);
  start(1);
  for (int64_t i = 0; i < count; i++) {
    start(i + 2);
    const int64_t g = g0 + i;
    const f32x16 scale = group_scale(scale_of, g);
    const f32x16 zero = group_zero<W>(zeros, block, groups, g);
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      total[r] = add_group<W>(total[r], load_as<i32x16>(sums[i & 3] + r * kLanes), scale, zero, t.scales[r * t.ldg + g],
                                 W::kSymmetric ? 0.0f : t.sums[r * t.ldg + g]);
    }
  }
  MP_UNROLL
  for (int r = 0; r < MT; r++) store(c + r * ldc, total[r]);
}

// panel = 8-bit weights' bytes, signed where the format is symmetric.
template <class W>
MP_KERNEL void unpack_bytes(char* panel, const char* packed, int64_t columns) {
  for (int64_t s = 0; s < columns / 4; s++) {
    prefetch(packed + s * 64 + kAhead);
    const i32x16 v = load_as<i32x16>(packed + s * 64);
    store_as(panel + s * 64, W::kSymmetric ? v ^ (int32_t)0x80808080 : v);
  }
}

// dots[16*R][32] = R tiles of rows times two blocks. `tail` holds the blocks' last 32 columns behind 32 columns of zeros, where the columns
// are no multiple of 64.
template <int R, bool FIRST>
MP_KERNEL void amx_dots(const CodeRows* t, const char* const* w, const char* const* tail, int64_t k, int32_t* dots) {
  constexpr int64_t kLd = 2 * kTileRowBytes;
  _tile_zero(0);
  _tile_zero(1);
  if (R > 1) _tile_zero(2);
  if (R > 1) _tile_zero(3);
  const auto step = [&](int64_t at, const char* w0, const char* w1) __attribute__((always_inline)) {
    _tile_loadd(6, w0, kTileRowBytes);
    _tile_loadd(7, w1, kTileRowBytes);
    _tile_loadd(4, t[0].q + at, t[0].ldq);
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    if constexpr (R > 1) {
      _tile_loadd(5, t[1].q + at, t[1].ldq);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
  };
  for (int64_t at = 0; at + kTileRowBytes <= k; at += kTileRowBytes) {
    const char *w0 = w[0] + at * kLanes, *w1 = w[1] + at * kLanes;
    if (FIRST) {
      for (int i = 0; i < kTileBytes; i += 64) prefetch(w0 + i + kAhead), prefetch(w1 + i + kAhead);
    }
    step(at, w0, w1);
  }
  if (k % kTileRowBytes) step(k - kTileRowBytes, tail[0], tail[1]);
  _tile_stored(0, dots, kLd);
  _tile_stored(1, dots + kLanes, kLd);
  if (R > 1) _tile_stored(2, dots + 2 * kLanes * kTileSide, kLd);
  if (R > 1) _tile_stored(3, dots + 2 * kLanes * kTileSide + kLanes, kLd);
}

// Weights with one scale an output: all columns are one integer sum.
template <class W, class E>
MP_INLINE void amx_channels(const E& e, const LinearQArgs& a, const CodeRows* tiles, int64_t m, int64_t k, Range range, Arena scratch) {
  char* tails = scratch.take<char>(2 * kTileBytes);
  int32_t* dots = scratch.take<int32_t>(2 * kTileSide * 2 * kLanes);
  float* c = scratch.take<float>(2 * kTileSide * 2 * kLanes);
  int32_t starts[kMaxRows];
  for (int64_t r = 0; r < m; r++) {
    const CodeRows& t = tiles[r / kTileSide];
    starts[r] = W::kSymmetric ? code_sum(t.q + r % kTileSide * t.ldq, k) * -W::kZero : 0;
  }
  memset(tails, 0, 2 * kTileBytes);
  const char* tail[2] = {tails, tails + kTileBytes};
  for (int64_t b = range.begin; b < range.end; b += 2) {
    const int64_t blocks[2] = {b, min_of(b + 1, range.end - 1)};
    const char* w[2];
    f32x16 scale[2], zero[2];
    for (int j = 0; j < 2; j++) {
      w[j] = (const char*)a.w + blocks[j] * k * kLanes;
      scale[j] = group_scale(block_scales<W>(a.scales, blocks[j], 1), 0);
      zero[j] = group_zero<W>(a.zeros, blocks[j], 1, 0);
      if (k % kTileRowBytes) memcpy(tails + j * kTileBytes + kTileBytes / 2, w[j] + (k - 32) * kLanes, kTileBytes / 2);
    }
    for (int64_t r0 = 0; r0 < m; r0 += 2 * kTileSide) {
      const CodeRows* t = tiles + r0 / kTileSide;
      const int64_t rows = min_of(m - r0, 2 * kTileSide);
      if (rows <= kTileSide) amx_dots<1, true>(t, w, tail, k, dots);
      else if (r0 == 0) amx_dots<2, true>(t, w, tail, k, dots);
      else amx_dots<2, false>(t, w, tail, k, dots);
      for (int64_t r = 0; r < rows; r++) {
        const CodeRows& of = t[r / kTileSide];
        const float x_scale = of.scales[r % kTileSide * of.ldg], x_sum = of.sums[r % kTileSide * of.ldg];
        for (int j = 0; j < 2; j++) {
          const i32x16 dot = load_as<i32x16>(dots + (r * 2 + j) * kLanes) + splat(starts[r0 + r]);
          store(c + (r * 2 + j) * kLanes, add_group<W>(splat(0.0f), dot, scale[j], zero[j], x_scale, x_sum));
        }
      }
      E::apply(e, c, 2 * kLanes, rows, b, min_of(2, range.end - b), r0);
    }
  }
}

// Weights with groups: a panel of a block's bytes is swept over all rows.
template <class W, class E>
MP_INLINE void amx_grouped(const E& e, const LinearQArgs& a, const CodeRows* tiles, int64_t m, int64_t k, Range range, Arena scratch) {
  constexpr int64_t kChunk = 1536, kLd = 2 * kLanes;
  constexpr int GROUP = W::kGroup;
  const int64_t groups = k / GROUP;
  char* panel = scratch.take<char>(kChunk * kLanes);
  float* c = scratch.take<float>(round_up(m, kTileSide) * kLd);
  for (int64_t b = range.begin; b < range.end; b += 2) {
    const int64_t count = min_of(2, range.end - b);
    for (int64_t j = 0; j < count; j++) {
      for (int64_t k0 = 0; k0 < k; k0 += kChunk) {
        const int64_t columns = min_of(kChunk, k - k0);
        unpack_bytes<W>(panel, (const char*)a.w + ((b + j) * k + k0) * kLanes, columns);
        for (int64_t r = 0; r < m; r += kTileSide) {
          float* to = c + r * kLd + j * kLanes;
          const CodeRows& t = tiles[r / kTileSide];
          if (m - r > 8) amx_groups<W, 16>(t, panel, a.scales, a.zeros, b + j, groups, k0 / GROUP, columns / GROUP, to, kLd);
          else amx_groups<W, 8>(t, panel, a.scales, a.zeros, b + j, groups, k0 / GROUP, columns / GROUP, to, kLd);
        }
      }
    }
    E::apply(e, c, kLd, m, b, count, 0);
  }
}

// Rows are taken in blocks whose bytes stay in the L2 cache beside the weights.
constexpr int64_t amx_q_row_block(int64_t k) {
  const int64_t rows = (1 << 20) / k / 32 * 32;
  return rows < 64 ? 64 : rows > kMaxRows ? kMaxRows : rows;
}

template <class W, class E>
MP_INLINE void amx_linear_q(E& e, const LinearQArgs& a, int64_t k, int64_t blocks, Arena scratch, int tid, int nt) {
  constexpr int GROUP = W::kGroup, kDepth = GROUP && GROUP < kTileRowBytes ? GROUP : kTileRowBytes;
  const Part part = partition(a.m, blocks, 2, tid, nt);
  if (part.blocks.begin >= part.blocks.end) return;
  AmxTiles<kDepth> shape;
  Outputs out;
  e.out = &out;
  for (int64_t m0 = part.rows.begin, limit = amx_q_row_block(k); m0 < part.rows.end; m0 += limit) {
    const int64_t m = min_of(limit, part.rows.end - m0);
    for (int64_t r = 0; r < m; r++) {
      out.y[r] = a.y + (m0 + r) * a.ldy;
      out.residual[r] = a.residual ? a.residual + (m0 + r) * a.ldr : nullptr;
    }
    CodeRows tiles[kMaxRows / kTileSide];
    Arena rest = scratch;
    tile_rows_q(tiles, a, m0, m, k, W::groups(k), rest);
    if constexpr (GROUP == 0) amx_channels<W>(e, a, tiles, m, k, part.blocks, rest);
    else amx_grouped<W>(e, a, tiles, m, k, part.blocks, rest);
  }
}

#endif

}  // namespace mp
