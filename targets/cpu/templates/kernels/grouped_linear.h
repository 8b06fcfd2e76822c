// One linear per expert: the step's (token, choice) pairs are grouped by expert, so that each expert's weights are read once.
#pragma once
#include "product_amx.h"
#include "product_f32.h"

namespace mp {

constexpr int64_t grouped_lists(int64_t rows, int64_t experts) { return round_up((rows + experts + 2) * 4 + 64, 64); }
constexpr int64_t grouped_linear_scratch(int threads, int64_t k, int64_t rows, int64_t experts) {
  return threads * (linear_scratch_per_thread(k) + grouped_lists(rows, experts));
}

#if defined(MP_AMX)
// The `count` pairs of one expert on AMX tiles.
template <class W, int K>
MP_INLINE void amx_expert(const GroupedLinearArgs& a, const void* w, const void* scales, const void* zeros, const int32_t* pairs,
                          int64_t count, int64_t blocks, const LinearEpilogue& e, Outputs& out, Arena scratch, int tid, int nt) {
  const WeightTiles p = weight_tiles<W>(w, scales, zeros, K);
  const Part part = amx_partition<W::kFmt>(count, blocks, p.k, tid, nt);
  if (part.blocks.begin >= part.blocks.end) return;
  AmxTiles<> shape;
  const int64_t steps = step_count(p.k), limit = amx_row_block(p.k);
  for (int64_t m0 = part.rows.begin; m0 < part.rows.end; m0 += limit) {
    const int64_t m = min_of(limit, part.rows.end - m0);
    Arena rest = scratch;
    char* tiles = rest.take<char>(round_up(m, kTileSide) * steps * kTileRowBytes);
    for (int64_t r = 0; r < m; r++) {
      const int64_t pair = pairs[m0 + r];
      out.y[r] = a.y + pair * a.n;
      out.residual[r] = nullptr;
      row_tiles(tiles, r, a.x + pair / a.j * a.ldx_t + pair % a.j * a.ldx_j, K, steps);
    }
    amx_sweep<W>(p, tiles, m, part.blocks, e, rest);
  }
}
#endif

template <class W, int K>
MP_TASK void grouped_linear(const GroupedLinearArgs& a, int tid, int nt) {
  using P = ProductF32<W, Act::F32>;
  const int64_t rows = a.t * a.j, blocks = (a.n + kLanes - 1) / kLanes;
  Arena scratch{(char*)a.scratch + tid * (linear_scratch_per_thread(K) + grouped_lists(rows, a.experts))};
  // A counting sort of the pairs by expert. Every thread makes its own: it is short, and saves a barrier.
  int32_t* first = scratch.take<int32_t>(a.experts + 1);
  int32_t* order = scratch.take<int32_t>(rows);
  memset(first, 0, (a.experts + 1) * sizeof(int32_t));
  for (int64_t r = 0; r < rows; r++) {
    const int64_t id = a.ids[r];
    if (id >= 0 && id < a.experts) first[id + 1]++;
    else if (r % nt == tid) memset(a.y + r * a.n, 0, a.n * sizeof(float));
  }
  for (int64_t e = 0; e < a.experts; e++) first[e + 1] += first[e];
  for (int64_t r = 0; r < rows; r++) {
    const int64_t id = a.ids[r];
    if (id >= 0 && id < a.experts) order[first[id]++] = (int32_t)r;
  }
  // first[e] is now where expert e ends.
  const int64_t limit = row_block(4 * W::padded(K));
  Outputs out;
  for (int64_t e = 0, begin = 0; e < a.experts; begin = first[e], e++) {
    const int64_t count = first[e] - begin;
    if (count == 0) continue;
    const auto of_expert = [&](const void* all, int64_t block_bytes) __attribute__((always_inline)) {
      return all ? (const char*)all + e * blocks * block_bytes : nullptr;
    };
    const P p{of_expert(a.w, W::block_bytes(K)), of_expert(a.scales, W::scale_bytes(K)), of_expert(a.zeros, W::zero_bytes(K)), K};
    const LinearEpilogue epilogue{&out, a.bias ? a.bias + e * a.n : nullptr, false, a.n};
#if defined(MP_AMX)
    if constexpr (W::kFmt != Fmt::F32) {
      if (count >= kAmxRows<W>) {
        amx_expert<W, K>(a, p.w, p.scales, p.zeros, order + begin, count, blocks, epilogue, out, scratch, tid, nt);
        continue;
      }
    }
#endif
    const Part part = partition(count, blocks, unit_of<P, LinearEpilogue>(count), tid, nt);
    if (part.blocks.begin >= part.blocks.end) continue;
    for (int64_t m0 = part.rows.begin; m0 < part.rows.end; m0 += limit) {
      const int64_t m = min_of(limit, part.rows.end - m0);
      const float* x[kMaxRows];
      for (int64_t r = 0; r < m; r++) {
        const int64_t pair = order[begin + m0 + r];
        x[r] = a.x + pair / a.j * a.ldx_t + pair % a.j * a.ldx_j;
        out.y[r] = a.y + pair * a.n;
        out.residual[r] = nullptr;
      }
      typename P::Rows list;
      Arena rest = scratch;
      P::set_rows(p, list, x, m, rest);
      sweep(p, list, m, part.blocks, epilogue, rest);
    }
  }
}

}  // namespace mp
