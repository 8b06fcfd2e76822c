// What all matrix products share: tile sizes per ISA, how work is split over threads, the sweep over blocks and rows, and the epilogues.
//
// A product `P` multiplies a list of activation rows with 16-row blocks of packed weights and writes f32 sums to a panel; an epilogue turns
// the panel into the output. P has:
//   Rows                       pointers of up to kMaxRows rows (padded by kRowPad copies of the last, so that a tile may run over the end)
//   kFused                     whether small<MT, NB>(rows, r, blocks, c, ldc) multiplies straight from the packed bytes,
//   kSmallRows, kSmallTile, kSmallBlocks   for at most that many rows; rows and blocks that it best takes at once
//   kChunk                     columns handled at a time (0: all of them)
//   prepare(panel, blocks, k0, k1, w)   makes w[0..kBlocks) point at these blocks' columns [k0, k1), unpacked to `panel` if need be
//   tile<MT>(rows, r, blocks, k0, k1, w, c, ldc)   MT rows from r times kBlocks blocks; k0 == 0 starts new sums, else c is added to
// Sums run over k in one order whatever the number of rows, so that a token's result does not depend on what else is in the step.
#pragma once
#include "amx.h"
#include "args.h"
#include "vec.h"
#include "vec_math.h"
#include "weight.h"

namespace mp {

#if defined(__AVX512F__)
constexpr int kRows = 8, kGroupRows = 4, kBlocks = 3;
#elif defined(__AVX2__) || defined(__aarch64__)
constexpr int kRows = 4, kGroupRows = 4, kBlocks = 1;
#else
constexpr int kRows = 2, kGroupRows = 2, kBlocks = 1;
#endif
constexpr int kSmall = 4;  // rows up to which memory is the limit
constexpr int kMostSplit = 16;  // rows up to which integers are the faster way to multiply f32 by integer weights (product_digits.h)
// Weights that are read once from memory are asked for this far ahead, across the ends of blocks and ops: the hardware's own prefetching
// stops at pages and starts anew for each stream.
constexpr int64_t kAhead = 8192;
constexpr int kMaxRows = 256, kRowPad = 8;
constexpr int64_t kPanelBytes = 3 * 16 * 2048;               // kBlocks blocks of kChunk columns
constexpr int64_t kSumsBytes = (kMaxRows + kRowPad) * 6 * 16 * 4;  // a panel of sums: 2 * kBlocks blocks wide for gated products
constexpr int64_t kActivationBytes = 512 * 1024;             // converted activations of a block of rows: half of a usual L2

// Rows are taken in blocks whose activations stay in the L2 cache.
constexpr int64_t row_block(int64_t bytes_per_row) {
  int64_t rows = kActivationBytes / (bytes_per_row > 0 ? bytes_per_row : 1) / 8 * 8;
  return rows < 8 ? 8 : rows > kMaxRows ? kMaxRows : rows;
}
#if defined(MP_AMX)
constexpr int64_t kStepColumns = 32;     // bf16 columns in an AMX tile
constexpr int64_t kAmxChunk = 2048;      // columns whose weights, of two blocks, are kept as bf16
constexpr int64_t kAmxActivations = 1 << 20, kAmxLeastRows = 128;
// Rows whose activations are kept as bf16: they should stay in the L2 cache, but weights are dequantized anew for each block of rows.
constexpr int64_t amx_row_block(int64_t k) {
  const int64_t rows = kAmxActivations / (2 * round_up(k, kStepColumns)) / 32 * 32;
  return rows < kAmxLeastRows ? kAmxLeastRows : rows > kMaxRows ? kMaxRows : rows;
}
constexpr int64_t amx_scratch_per_thread(int64_t k) {
  const int64_t rows = amx_row_block(k) * 2 * round_up(k, 128);
  return round_up(rows + 2 * kAmxChunk * kLanes * 2 + kMaxRows * 2 * kLanes * 4 + 2 * kTileBytes + 4096, 4096);
}
#else
constexpr int64_t amx_scratch_per_thread(int64_t) { return 0; }
#endif
constexpr int64_t linear_scratch_per_thread(int64_t k) {
  // Converted rows take at most 4 bytes a column, group sums 4 bytes for each 32 columns; few rows in digits less than 64 for all of them.
  int64_t kp = round_up(k, 128);
  int64_t converted = kActivationBytes > 64 * kp ? kActivationBytes : 64 * kp;
  int64_t sums = kMaxRows * 4 * 64 + converted / 8 + 8 * 4 * (kp / 32 + 1);
  const int64_t vector = round_up(kPanelBytes + kSumsBytes + converted + sums + 4096, 4096), tiles = amx_scratch_per_thread(k);
  return vector > tiles ? vector : tiles;
}
constexpr int64_t linear_scratch(int threads, int64_t k) { return threads * linear_scratch_per_thread(k); }

// A thread's part of an m x blocks product. Blocks are split first, since then each thread reads only its own weights; rows are split where
// there are too few blocks to go round.
struct Part { Range rows, blocks; };
MP_INLINE Part partition(int64_t m, int64_t blocks, int64_t unit, int tid, int nt) {
  int64_t units = (blocks + unit - 1) / unit;
  int row_parts = 1;
  while (nt % (row_parts * 2) == 0 && units < 4 * (nt / row_parts) && m >= 64 * row_parts * 2) row_parts *= 2;
  int column_parts = nt / row_parts;
  Range r = share((m + 7) / 8, tid / column_parts, row_parts), b = share(units, tid % column_parts, column_parts);
  return Part{{min_of(r.begin * 8, m), min_of(r.end * 8, m)}, {min_of(b.begin * unit, blocks), min_of(b.end * unit, blocks)}};
}

// Blocks that a thread's share is counted in.
template <class P, class E>
MP_INLINE int64_t unit_of(int64_t m) { return P::kFused && m <= P::kSmallRows ? 2 : kBlocks * E::kUnit; }

struct Outputs {
  float* y[kMaxRows];
  const float* residual[kMaxRows];
};

// y = sums + bias + residual.
struct LinearEpilogue {
  const Outputs* out;
  const float* bias;
  bool residual;
  int64_t n;
  static constexpr int kUnit = 1;  // blocks that belong together
  MP_INLINE void apply(const LinearEpilogue& e, const float* c, int64_t ldc, int64_t m, int64_t block, int64_t count, int64_t row = 0) {
    for (int64_t r = 0; r < m; r++) {
      for (int64_t j = 0; j < count; j++) {
        const int64_t n0 = (block + j) * kLanes, left = e.n - n0;
        f32x16 v = load(c + r * ldc + j * kLanes);
        if (e.bias) v += load_n(e.bias + n0, left);
        if (e.residual) v += load_n(e.out->residual[row + r] + n0, left);
        store_n(e.out->y[row + r] + n0, v, left);
      }
    }
  }
};

// Blocks alternate gate, up: y = FN(gate + bias[0]) * (up + bias[1]).
template <Fn FN>
struct GatedEpilogue {
  const Outputs* out;
  const float* bias;
  int64_t n;
  static constexpr int kUnit = 2;
  MP_INLINE void apply(const GatedEpilogue& e, const float* c, int64_t ldc, int64_t m, int64_t block, int64_t count, int64_t row = 0) {
    for (int64_t r = 0; r < m; r++) {
      for (int64_t j = 0; j < count; j += 2) {
        const int64_t n0 = (block + j) / 2 * kLanes, left = e.n - n0;
        f32x16 gate = load(c + r * ldc + j * kLanes), up = load(c + r * ldc + (j + 1) * kLanes);
        if (e.bias) gate += load_n(e.bias + n0, left), up += load_n(e.bias + e.n + n0, left);
        store_n(e.out->y[row + r] + n0, activate<FN>(gate) * up, left);
      }
    }
  }
};

template <class P, int MT>
MP_INLINE void tile_rows(const P& p, const typename P::Rows& rows, int64_t& r, int64_t m, const int64_t* blocks, int64_t k0, int64_t k1,
                         const void* const* w, float* c, int64_t ldc) {
  while (r < m && (MT == 1 || m - r > MT / 2)) {
    p.template tile<MT>(rows, r, blocks, k0, k1, w, c + r * ldc, ldc);
    r += MT;
  }
}

// Few rows, straight from packed weights, MT at a time: a block's bytes come from memory once, and from the L1 cache after that.
template <class P, class E, int MT>
MP_INLINE void sweep_small(const P& p, const typename P::Rows& rows, int64_t m, Range range, const E& e) {
  // More rows of two blocks would not fit the registers.
  constexpr int kAtOnce = kBlocks > 1 && MT < 4 ? P::kSmallBlocks : 1, kUnit = kAtOnce > E::kUnit ? kAtOnce : E::kUnit, kLd = kUnit * kLanes;
  alignas(64) float c[(P::kSmallRows + kRowPad) * kLd];
  for (int64_t b = range.begin; b < range.end; b += kUnit) {
    for (int64_t i = 0; i < kUnit; i += kAtOnce) {
      int64_t blocks[kAtOnce];
      for (int j = 0; j < kAtOnce; j++) blocks[j] = min_of(b + i + j, range.end - 1);
      for (int64_t r = 0; r < m; r += MT) p.template small<MT, kAtOnce>(rows, r, blocks, c + r * kLd + i * kLanes, kLd);
    }
    E::apply(e, c, kLd, m, b, min_of(kUnit, range.end - b));
  }
}

// Multiplies m <= kMaxRows rows by blocks [range.begin, range.end), all of them below `blocks`.
template <class P, class E>
MP_INLINE void sweep(const P& p, const typename P::Rows& rows, int64_t m, Range range, const E& e, Arena scratch) {
  const int64_t last = range.end - 1;
  if constexpr (P::kFused) {
    if (m <= P::kSmallRows) {
      if (m == 1) sweep_small<P, E, 1>(p, rows, m, range, e);
      else if (m == 2) sweep_small<P, E, 2>(p, rows, m, range, e);
      else if (m <= 4 || P::kSmallTile <= 4) sweep_small<P, E, 4>(p, rows, m, range, e);
      else if constexpr (P::kSmallTile > 4) sweep_small<P, E, 8>(p, rows, m, range, e);
      return;
    }
  }
  constexpr int kUnit = kBlocks * E::kUnit, kLd = kUnit * kLanes;
  char* panel = scratch.take<char>(kPanelBytes);
  float* c = scratch.take<float>((kMaxRows + kRowPad) * kLd);
  const int64_t chunk = P::kChunk ? P::kChunk : p.k;
  for (int64_t b = range.begin; b < range.end; b += kUnit) {
    for (int64_t i = 0; i < kUnit && b + i < range.end; i += kBlocks) {
      int64_t blocks[kBlocks];
      for (int j = 0; j < kBlocks; j++) blocks[j] = min_of(b + i + j, last);
      for (int64_t k0 = 0; k0 < p.k; k0 += chunk) {
        const int64_t k1 = min_of(k0 + chunk, p.k);
        const void* w[kBlocks];
        p.prepare(panel, blocks, k0, k1, w);
        int64_t r = 0;
        float* to = c + i * kLanes;
        if constexpr (P::kTileRows >= 8) tile_rows<P, 8>(p, rows, r, m, blocks, k0, k1, w, to, kLd);
        if constexpr (P::kTileRows >= 4) tile_rows<P, 4>(p, rows, r, m, blocks, k0, k1, w, to, kLd);
        tile_rows<P, 2>(p, rows, r, m, blocks, k0, k1, w, to, kLd);
        tile_rows<P, 1>(p, rows, r, m, blocks, k0, k1, w, to, kLd);
      }
    }
    E::apply(e, c, kLd, m, b, min_of(kUnit, range.end - b));
  }
}

}  // namespace mp
