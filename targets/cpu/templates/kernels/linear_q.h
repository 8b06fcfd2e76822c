// linear_q and gated_linear_q: int8 activations, quantized beforehand.
#pragma once
#include "product_q.h"

namespace mp {

template <class P, class E>
MP_INLINE void linear_q_rows(const P& p, E& e, const LinearQArgs& a, int64_t blocks, int tid, int nt) {
  Arena scratch{(char*)a.scratch + tid * linear_scratch_per_thread(p.k)};
  const Part part = partition(a.m, blocks, unit_of<P, E>(a.m), tid, nt);
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

template <Fmt F, bool ASYM, int K, int GROUP>
MP_TASK void linear_q(const LinearQArgs& a, int tid, int nt) {
  ProductQ<F, ASYM, GROUP> p{a.w, a.scales, a.zeros, packed_columns(K, GROUP)};
  LinearEpilogue e{nullptr, a.bias, a.residual != nullptr, a.n};
  linear_q_rows(p, e, a, (a.n + kLanes - 1) / kLanes, tid, nt);
}

template <Fmt F, bool ASYM, int K, int GROUP, Fn FN>
MP_TASK void gated_linear_q(const LinearQArgs& a, int tid, int nt) {
  ProductQ<F, ASYM, GROUP> p{a.w, a.scales, a.zeros, packed_columns(K, GROUP)};
  GatedEpilogue<FN> e{nullptr, a.bias, a.n};
  linear_q_rows(p, e, a, (a.n + kLanes - 1) / kLanes * 2, tid, nt);
}

}  // namespace mp
