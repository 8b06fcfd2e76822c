// Products on AMX tiles in bf16, for steps of many rows: activations and weights are rounded to bf16, sums are f32. Weights of fewer bits are
// dequantized on the way. A tile holds 16 rows of 32 columns of activations, or 32 columns of a block of 16 outputs.
#pragma once
#include "amx.h"
#include "product_f32.h"

namespace mp {

#if defined(MP_AMX)

constexpr int64_t step_count(int64_t k) { return (k + kStepColumns - 1) / kStepColumns; }

// A thread's part. Each thread converts the rows and dequantizes the weights of its part, so the split is the one where that costs least.
template <Fmt F>
MP_INLINE Part amx_partition(int64_t m, int64_t blocks, int64_t k, int tid, int nt) {
  constexpr int64_t kRowCost = 3, kWeightCost = F == Fmt::BF16 ? 0 : 2;  // cycles for 16 numbers, about
  int best = 1;
  int64_t least = INT64_MAX;
  for (int parts = 1; parts <= nt; parts++) {
    if (nt % parts || (parts > 1 && m < parts * 2 * kTileSide)) continue;
    const int64_t rows = (m + parts - 1) / parts, outputs = (blocks / 2 + nt / parts - 1) / (nt / parts) * 2 * kLanes;
    const int64_t again = (rows + amx_row_block(k) - 1) / amx_row_block(k);
    // The product itself: what the part that is rounded up most has to do.
    const int64_t cost = rows * kRowCost + outputs * kWeightCost * again + round_up(rows, 2 * kTileSide) * outputs / 64;
    if (cost < least) least = cost, best = parts;
  }
  const int columns = nt / best;
  const Range r = share((m + kTileSide - 1) / kTileSide, tid / columns, best), b = share((blocks + 1) / 2, tid % columns, columns);
  return Part{{min_of(r.begin * kTileSide, m), min_of(r.end * kTileSide, m)}, {min_of(b.begin * 2, blocks), min_of(b.end * 2, blocks)}};
}

// The place of row r's columns [32*step, +32) among tiles of `steps` steps.
MP_INLINE char* tile_row(char* tiles, int64_t r, int64_t step, int64_t steps) {
  return tiles + (r / kTileSide * steps + step) * kTileBytes + r % kTileSide * kTileRowBytes;
}
template <int N> struct Int { static constexpr int value = N; };
MP_INLINE void store_bf16(char* to, f32x16 low, f32x16 high) { store_as(to, _mm512_cvtne2ps_pbh((__m512)high, (__m512)low)); }

// Row r as bf16, from f32 or from codes and their groups' scales. Columns behind the end are zero.
MP_INLINE void row_tiles(char* tiles, int64_t r, const float* x, int64_t k, int64_t steps) {
  for (int64_t s = 0; s < steps; s++) {
    const int64_t left = k - s * kStepColumns;
    const float* from = x + s * kStepColumns;
    store_bf16(tile_row(tiles, r, s, steps), left > 0 ? load_n(from, left) : splat(0.0f),
               left > kLanes ? load_n(from + kLanes, left - kLanes) : splat(0.0f));
  }
}
template <int GROUP>
MP_INLINE void row_tiles(char* tiles, int64_t r, const int8_t* q, const float* scales, int64_t steps) {
  for (int64_t s = 0; s < steps; s++) {
    const f32x16 scale = splat(scales[GROUP ? s * kStepColumns / GROUP : 0]);
    const f32x16 low = __builtin_convertvector(load_as<i8x16>(q + s * kStepColumns), f32x16);
    const f32x16 high = __builtin_convertvector(load_as<i8x16>(q + s * kStepColumns + kLanes), f32x16);
    store_bf16(tile_row(tiles, r, s, steps), low * scale, high * scale);
  }
}

// Two columns as one register of pairs; `even` and `odd` are f32. Numbers that are bf16 already need no rounding.
template <bool ROUND>
MP_INLINE i32x16 pair_bf16(f32x16 even, f32x16 odd) {
  u32x16 e = (u32x16)even, o = (u32x16)odd;
  if (ROUND) e += 0x8000, o += 0x8000;
  return (i32x16)((e >> 16) | (o & 0xffff0000u));
}

// 32 columns from k0 of a block as bf16 [16][16][2]. Integer formats without groups give the codes less the zero point, exactly.
template <class W>
MP_INLINE void unpack_step(char* to, const char* w, const void* scales, const void* zeros, int64_t block, int64_t groups, int64_t k0, int64_t k) {
  const int64_t g = W::kGroup ? k0 / (W::kGroup ? W::kGroup : 1) : 0;
  const char* p = w + (block * k + k0) * kLanes * W::kBits / 8;
  const f32x16 scale = W::kGroup ? group_scale(block_scales<W>(scales, block, groups), g) : splat(1.0f);
  const f32x16 given = group_zero<W>(zeros, block, groups, g);
  if constexpr (W::kFmt == Fmt::I4) {
    const f32x16 zero = W::kZeros == Zero::Point ? given : splat((float)W::kZero);
    // A nibble at bit b of a mantissa is 1 + q 2^(b-23): one product and sum make (q - zero) * scale of it, exactly.
    const auto number = [&](i32x16 v, auto bit) __attribute__((always_inline)) {
      constexpr int kBit = decltype(bit)::value;
      constexpr float kOne = (float)(1 << (23 - kBit));
      const f32x16 f = (f32x16)((v & (15 << kBit)) | 0x3f800000);
      if constexpr (W::kZeros == Zero::Point) return (f * kOne - (zero + kOne)) * scale;
      else if constexpr (W::kZeros == Zero::Minimum) return (f * kOne - kOne) * scale + given;
      else return f * (scale * kOne) - scale * (zero + kOne);
    };
    for (int i = 0; i < 4; i++) {
      prefetch(p + i * 64 + kAhead);
      const i32x16 v = load_as<i32x16>(p + i * 64), up = v << 12, down = (i32x16)((u32x16)v >> 12);
      store_as(to + i * 256, pair_bf16<true>(number(up, Int<12>()), number(v, Int<8>())));
      store_as(to + i * 256 + 64, pair_bf16<true>(number(v, Int<16>()), number(down, Int<12>())));
      store_as(to + i * 256 + 128, pair_bf16<true>(number(up, Int<16>()), number(v, Int<12>())));
      store_as(to + i * 256 + 192, pair_bf16<true>(number(down, Int<8>()), number(down, Int<16>())));
    }
  } else {
    static_assert(W::kQuantized, "only integers are unpacked");
    // One scale an output: it comes in at the end, and minima then count over it.
    static_assert(W::kGroup || W::kZeros != Zero::Minimum, "minima belong to groups");
    const Columns<W> of = Columns<W>::make();
    const f32x16 zero = (W::kZeros == Zero::Point ? given : splat((float)W::kZero)) - (float)Columns<W>::kOffset;
    MP_UNROLL
    for (int s = 0; s < kUnitSteps; s++) {
      if (s < W::kBits) prefetch(p + s * 64 + kAhead);
      const i32x16 v = Columns<W>::step(of, p, s);
      f32x16 n[4];
      MP_UNROLL
      for (int j = 0; j < 4; j++) {
        n[j] = Columns<W>::column(of, v, j);
        if constexpr (W::kZeros == Zero::Point || Columns<W>::kOffset != W::kZero) n[j] -= zero;
        if constexpr (W::kGroup) n[j] *= scale;
        if constexpr (W::kZeros == Zero::Minimum) n[j] += given;
      }
      store_as(to + s * 128, pair_bf16<W::kGroup != 0>(n[0], n[1]));
      store_as(to + s * 128 + 64, pair_bf16<W::kGroup != 0>(n[2], n[3]));
    }
  }
}

// Weights as the tiles' kernels take them.
struct WeightTiles {
  const char* w;
  const void* scales;
  const void* zeros;
  int64_t k, groups;  // k is padded as the format packs it
};

// c[16*R][32] (+)= R tiles of rows times columns [k0, k1) of two blocks. b[j] are the blocks' tiles; with UNPACK they are made first, one step
// ahead of the product, so that both go on at once. `last` stands for b's tiles of the last step where that is not null.
template <class W, int R, bool UNPACK>
MP_KERNEL void amx_rows(const WeightTiles& p, const int64_t* blocks, const char* a, int64_t steps, int64_t k0, int64_t k1, char* const* b,
                        const char* last, float* c) {
  constexpr int64_t kLd = 2 * kLanes * 4;
  const auto unpack = [&](int64_t at) __attribute__((always_inline)) {
    if constexpr (UNPACK && W::kFmt != Fmt::BF16) {
      MP_UNROLL
      for (int j = 0; j < 2; j++) {
        unpack_step<W>(b[j] + (at - k0) * kLanes * 2, p.w, p.scales, p.zeros, blocks[j], p.groups, at, p.k);
      }
    }
  };
  const char* a1 = a + steps * kTileBytes;
  if (k0 == 0) {
    _tile_zero(0);
    _tile_zero(1);
    if (R > 1) _tile_zero(2);
    if (R > 1) _tile_zero(3);
  } else {
    _tile_loadd(0, c, kLd);
    _tile_loadd(1, c + kLanes, kLd);
    if (R > 1) _tile_loadd(2, c + 2 * kLanes * kTileSide, kLd);
    if (R > 1) _tile_loadd(3, c + 2 * kLanes * kTileSide + kLanes, kLd);
  }
  unpack(k0);
  for (int64_t at = k0; at < k1; at += kStepColumns) {
    if (at + kStepColumns < k1) unpack(at + kStepColumns);
    const char *b0 = b[0] + (at - k0) * kLanes * 2, *b1 = b[1] + (at - k0) * kLanes * 2;
    if (last && at + kStepColumns >= k1) b0 = last, b1 = last + kTileBytes;
    if constexpr (UNPACK && W::kFmt == Fmt::BF16) {
      for (int i = 0; i < kTileBytes; i += 64) prefetch(b0 + i + kAhead), prefetch(b1 + i + kAhead);
    }
    const int64_t step = at / kStepColumns * kTileBytes;
    _tile_loadd(6, b0, kTileRowBytes);
    _tile_loadd(7, b1, kTileRowBytes);
    _tile_loadd(4, a + step, kTileRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (R > 1) {
      _tile_loadd(5, a1 + step, kTileRowBytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, kLd);
  _tile_stored(1, c + kLanes, kLd);
  if (R > 1) _tile_stored(2, c + 2 * kLanes * kTileSide, kLd);
  if (R > 1) _tile_stored(3, c + 2 * kLanes * kTileSide + kLanes, kLd);
}

// Multiplies m rows, as tiles at `a`, by the blocks of `range`. by: what each row's sums are multiplied with, or null.
template <class W, class E>
MP_INLINE void amx_sweep(const WeightTiles& p, const char* a, int64_t m, Range range, const E& e, Arena scratch, const float* by = nullptr) {
  constexpr Fmt F = W::kFmt;
  const int64_t steps = step_count(p.k), columns = steps * kStepColumns;
  char* panel = F == Fmt::BF16 ? nullptr : scratch.take<char>(2 * kAmxChunk * kLanes * 2);
  char* tails = scratch.take<char>(2 * kTileBytes);
  float* c = scratch.take<float>(round_up(m, kTileSide) * 2 * kLanes);
  const bool tail = F == Fmt::BF16 && p.k % kStepColumns;
  if (tail) memset(tails, 0, 2 * kTileBytes);
  for (int64_t b = range.begin; b < range.end; b += 2) {
    const int64_t blocks[2] = {b, min_of(b + 1, range.end - 1)}, count = min_of(2, range.end - b);
    for (int64_t k0 = 0; k0 < columns; k0 += kAmxChunk) {
      const int64_t k1 = min_of(k0 + kAmxChunk, columns);
      char* tiles[2];
      for (int j = 0; j < 2; j++) {
        tiles[j] = F == Fmt::BF16 ? (char*)p.w + (blocks[j] * p.k + k0) * kLanes * 2 : panel + j * kAmxChunk * kLanes * 2;
        const int64_t whole = p.k / kStepColumns * kStepColumns;
        if (tail) memcpy(tails + j * kTileBytes, p.w + (blocks[j] * p.k + whole) * kLanes * 2, (size_t)((p.k - whole) * kLanes * 2));
      }
      const char* last = tail && k1 == columns ? tails : nullptr;
      for (int64_t r = 0; r < m; r += 2 * kTileSide) {
        const int64_t rows = min_of(2 * kTileSide, m - r);
        const char* from = a + r / kTileSide * steps * kTileBytes;
        float* to = c + r * 2 * kLanes;
        if (rows > kTileSide && r == 0) amx_rows<W, 2, true>(p, blocks, from, steps, k0, k1, tiles, last, to);
        else if (rows > kTileSide) amx_rows<W, 2, false>(p, blocks, from, steps, k0, k1, tiles, last, to);
        else if (r == 0) amx_rows<W, 1, true>(p, blocks, from, steps, k0, k1, tiles, last, to);
        else amx_rows<W, 1, false>(p, blocks, from, steps, k0, k1, tiles, last, to);
        if (k1 < columns) continue;
        if (by) {
          for (int64_t i = 0; i < rows * 2; i++) store(to + i * kLanes, load(to + i * kLanes) * splat(by[r + i / 2]));
        }
        if constexpr (W::kBits == 8 && W::kGroup == 0) {
          for (int j = 0; j < 2; j++) {
            const f32x16 scale = group_scale(block_scales<W>(p.scales, blocks[j], 1), 0);
            for (int64_t i = 0; i < rows; i++) store(to + (i * 2 + j) * kLanes, load(to + (i * 2 + j) * kLanes) * scale);
          }
        }
        E::apply(e, to, 2 * kLanes, rows, b, count, r);
      }
    }
  }
}

template <class W>
MP_INLINE WeightTiles weight_tiles(const void* w, const void* scales, const void* zeros, int64_t k) {
  return WeightTiles{(const char*)w, scales, zeros, W::padded(k), W::groups(k)};
}

constexpr bool is_quantized(const LinearArgs&) { return false; }
constexpr bool is_quantized(const LinearQArgs&) { return true; }

// Rows from which tiles are the fastest way.
template <class W>
constexpr int64_t kAmxRows = W::kBits < 8 ? 9 : 5;

// linear and linear_q, of f32 rows or of codes. Rows of 8-bit floats meet their scale in the sums.
template <class W, int K, Act A = Act::F32, class E, class Args>
MP_INLINE void amx_linear(E& e, const Args& a, int64_t blocks, Arena scratch, int tid, int nt) {
  const WeightTiles p = weight_tiles<W>(a.w, a.scales, a.zeros, K);
  const Part part = amx_partition<W::kFmt>(a.m, blocks, p.k, tid, nt);
  if (part.blocks.begin >= part.blocks.end) return;
  AmxTiles<> shape;
  const int64_t steps = step_count(p.k), limit = amx_row_block(p.k);
  Outputs out;
  e.out = &out;
  for (int64_t m0 = part.rows.begin; m0 < part.rows.end; m0 += limit) {
    const int64_t m = min_of(limit, part.rows.end - m0);
    Arena rest = scratch;
    char* tiles = rest.take<char>(round_up(m, kTileSide) * steps * kTileRowBytes);
    float* by = A == Act::E4M3 ? rest.take<float>(m) : nullptr;
    for (int64_t r = 0; r < m; r++) {
      out.y[r] = a.y + (m0 + r) * a.ldy;
      out.residual[r] = a.residual ? a.residual + (m0 + r) * a.ldr : nullptr;
      if constexpr (is_quantized(Args())) row_tiles<W::kGroup>(tiles, r, a.q + (m0 + r) * a.ldq, a.q_scales + (m0 + r) * a.ldg, steps);
      else if constexpr (A == Act::E4M3) {
        alignas(64) float x[round_up(K, kLanes)];
        by[r] = e4m3_row(a.x + (m0 + r) * a.ldx, K, x);
        row_tiles(tiles, r, x, K, steps);
      } else row_tiles(tiles, r, a.x + (m0 + r) * a.ldx, K, steps);
    }
    amx_sweep<W>(p, tiles, m, part.blocks, e, rest, by);
  }
}

#endif

}  // namespace mp
