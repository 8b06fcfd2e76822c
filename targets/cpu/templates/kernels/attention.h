// Attention of a ragged batch over a paged KV cache: attention_append, then attention.
//
// In a step where every token is the last of its sequence, the first has nothing to do, and may be left out.
#pragma once
#include "attention_tiles.h"

namespace mp {

template <int HQ, int HKV, int DK, int DV>
constexpr int64_t attention_scratch(int threads, int64_t max_tokens) {
  using F32 = AttentionShape<HQ, HKV, DK, DV, Kv::F32>;
  using F16 = AttentionShape<HQ, HKV, DK, DV, Kv::F16>;
  const int64_t f32 = tile_scratch<F32>(threads, max_tokens), f16 = tile_scratch<F16>(threads, max_tokens), decode = decode_scratch<F32>(threads);
  return f32 > f16 ? (f32 > decode ? f32 : decode) : f16 > decode ? f16 : decode;
}

template <int HQ, int HKV, int DK, int DV, Kv S, int DR = 0, Rope STYLE = Rope::Half>
MP_TASK void attention_append(const AttentionArgs& a, int tid, int nt) {
  using A = AttentionShape<HQ, HKV, DK, DV, S, DR, STYLE>;
  if (is_decode(a)) return;
  if (tid == 0) plan_tiles<A>(a, nt);
  const Range rows = share(a.t * HKV, tid, nt);
  for (int64_t r = rows.begin; r < rows.end; r++) append_head<A>(a, r / HKV, r % HKV);
}

template <int HQ, int HKV, int DK, int DV, Kv S, int DR = 0, Rope STYLE = Rope::Half>
MP_TASK void attention(const AttentionArgs& a, int tid, int nt) {
  using A = AttentionShape<HQ, HKV, DK, DV, S, DR, STYLE>;
  if (is_decode(a)) attention_decode<A>(a, tid, nt);
  else attention_tiles<A>(a, tid, nt);
}

}  // namespace mp
