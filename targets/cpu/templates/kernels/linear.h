// linear and gated_linear with activations in f32, or rounded to bf16 or e4m3.
#pragma once
#include "product_amx.h"
#include "product_f32.h"

namespace mp {

template <class P, int K, Act A, class E>
MP_INLINE void linear_rows(const P& p, E& e, const LinearArgs& a, int64_t blocks, int tid, int nt) {
  Arena scratch{(char*)a.scratch + tid * linear_scratch_per_thread(p.k)};
#if defined(MP_AMX)
  using W = typename P::Packed;
  if constexpr (W::kFmt != Fmt::F32) {
    if (a.m >= kAmxRows<W>) return amx_linear<W, K, A>(e, a, blocks, scratch, tid, nt);
  }
#endif
  const Part part = partition(a.m, blocks, unit_of<P, E>(a.m), tid, nt);
  if (part.blocks.begin >= part.blocks.end) return;
  const int64_t limit = row_block(4 * p.k);
  Outputs out;
  e.out = &out;
  for (int64_t m0 = part.rows.begin; m0 < part.rows.end; m0 += limit) {
    const int64_t m = min_of(limit, part.rows.end - m0);
    const float* x[kMaxRows];
    for (int64_t r = 0; r < m; r++) {
      x[r] = a.x + (m0 + r) * a.ldx;
      out.y[r] = a.y + (m0 + r) * a.ldy;
      out.residual[r] = a.residual ? a.residual + (m0 + r) * a.ldr : nullptr;
    }
    typename P::Rows rows;
    Arena rest = scratch;
    P::set_rows(p, rows, x, m, rest);
    sweep(p, rows, m, part.blocks, e, rest);
  }
}

template <class W, int K, Act A>
MP_TASK void linear(const LinearArgs& a, int tid, int nt) {
  ProductF32<W, A> p{a.w, a.scales, a.zeros, K};
  LinearEpilogue e{nullptr, a.bias, a.residual != nullptr, a.n};
  linear_rows<decltype(p), K, A>(p, e, a, (a.n + kLanes - 1) / kLanes, tid, nt);
}

template <class W, int K, Act A, Fn FN>
MP_TASK void gated_linear(const LinearArgs& a, int tid, int nt) {
  ProductF32<W, A> p{a.w, a.scales, a.zeros, K};
  GatedEpilogue<FN> e{nullptr, a.bias, a.n};
  linear_rows<decltype(p), K, A>(p, e, a, (a.n + kLanes - 1) / kLanes * 2, tid, nt);
}

}  // namespace mp
