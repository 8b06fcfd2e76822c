// linear_q and gated_linear_q: int8 activations, quantized beforehand.
#pragma once
#include "product_amx.h"
#include "product_q.h"
#include "product_q_amx.h"
#include "quantize.h"

namespace mp {

// Quantizes all rows of x to this thread's scratch and points `a` there; meanwhile the first of the thread's weights are on their way.
template <Pre PRE, int K, int GROUP>
MP_KERNEL void quantize_few(LinearQArgs& a, Arena& scratch, LinesAhead ahead) {
  constexpr int64_t kPadded = packed_columns(K, GROUP), kGroups = GROUP ? kPadded / (GROUP ? GROUP : 1) : 1;
  int8_t* q = scratch.take<int8_t>(a.m * kPadded);
  float* scales = scratch.take<float>(a.m * kGroups);
  float* sums = scratch.take<float>(a.m * kGroups);
  for (int64_t r = 0; r < a.m; r++) {
    const float* x = a.x + r * a.ldx;
    if constexpr (PRE == Pre::Plain) {
      quantize_row<K, GROUP>(x, q + r * kPadded, scales + r * kGroups, sums + r * kGroups, ahead);
    } else {
      alignas(64) float y[K];
      if constexpr (PRE == Pre::Rms) rms_norm_row<K>(x, a.norm_weight, a.eps, y, ahead);
      else layer_norm_row<K>(x, a.norm_weight, a.norm_bias, a.eps, y);
      quantize_row<K, GROUP>(y, q + r * kPadded, scales + r * kGroups, sums + r * kGroups, ahead);
    }
  }
  a.q = q;
  a.ldq = kPadded;
  a.q_scales = scales;
  a.q_sums = sums;
  a.ldg = kGroups;
}

template <class P, class E, Pre PRE, int K>
MP_INLINE void linear_q_rows(const P& p, E& e, LinearQArgs a, int64_t blocks, int tid, int nt) {
  constexpr int GROUP = P::Packed::kGroup;
  Arena scratch{(char*)a.scratch + tid * linear_scratch_per_thread(p.k)};
  const Part part = partition(a.m, blocks, unit_of<P, E>(a.m), tid, nt);
  if constexpr (PRE != Pre::None) {
    const char* first = (const char*)p.w + part.blocks.begin * P::Packed::block_bytes(p.k);
    if (a.m <= a.few) quantize_few<PRE, K, GROUP>(a, scratch, LinesAhead{first, first + kAhead});
  }
#if defined(MP_AMX)
  using W = typename P::Packed;
  if (a.m >= kAmxRows<W>) {
    if constexpr (W::kBits < 8) return amx_linear<W, K>(e, a, blocks, scratch, tid, nt);
    else if constexpr (packed_columns(K, GROUP) >= kTileRowBytes) return amx_linear_q<W>(e, a, p.k, blocks, scratch, tid, nt);
  }
#endif
  if (part.blocks.begin >= part.blocks.end) return;
  const int64_t limit = row_block(p.k);
  Outputs out;
  e.out = &out;
  for (int64_t m0 = part.rows.begin; m0 < part.rows.end; m0 += limit) {
    const int64_t m = min_of(limit, part.rows.end - m0);
    typename P::Rows rows;
    for (int64_t r = 0; r < m; r++) {
      rows.q[r] = a.q + (m0 + r) * a.ldq;
      rows.scales[r] = a.q_scales + (m0 + r) * a.ldg;
      rows.sums[r] = a.q_sums + (m0 + r) * a.ldg;
      out.y[r] = a.y + (m0 + r) * a.ldy;
      out.residual[r] = a.residual ? a.residual + (m0 + r) * a.ldr : nullptr;
    }
    Arena rest = scratch;
    P::finish_rows(p, rows, m, rest);
    sweep(p, rows, m, part.blocks, e, rest);
  }
}

template <class W, int K, Pre PRE = Pre::None>
MP_TASK void linear_q(const LinearQArgs& a, int tid, int nt) {
  ProductQ<W> p{a.w, a.scales, a.zeros, W::padded(K)};
  LinearEpilogue e{nullptr, a.bias, a.residual != nullptr, a.n};
  linear_q_rows<decltype(p), decltype(e), PRE, K>(p, e, a, (a.n + kLanes - 1) / kLanes, tid, nt);
}

template <class W, int K, Fn FN, Pre PRE = Pre::None>
MP_TASK void gated_linear_q(const LinearQArgs& a, int tid, int nt) {
  ProductQ<W> p{a.w, a.scales, a.zeros, W::padded(K)};
  GatedEpilogue<FN> e{nullptr, a.bias, a.n};
  linear_q_rows<decltype(p), decltype(e), PRE, K>(p, e, a, (a.n + kLanes - 1) / kLanes * 2, tid, nt);
}

}  // namespace mp
