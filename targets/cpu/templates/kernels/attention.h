// Attention of a ragged batch over a paged KV cache: attention_append, then attention.
//
// In a step where every token is the last of its sequence, the first has nothing to do, and may be left out.
#pragma once
#include "attention_tiles.h"

namespace mp {

template <int HQ, int HKV, int DK, int DV, Kv S, Scores SCORES = Scores::F32>
constexpr int64_t attention_scratch(int threads, int64_t max_tokens) {
  using A = AttentionShape<HQ, HKV, DK, DV, S, 0, Rope::Half, SCORES>;
  const int64_t tiles = tile_scratch<A>(threads, max_tokens), decode = decode_scratch<A>(threads);
  return tiles > decode ? tiles : decode;
}

template <int HQ, int HKV, int DK, int DV, Kv S, int DR = 0, Rope STYLE = Rope::Half, Scores SCORES = Scores::F32>
MP_TASK void attention_append(const AttentionArgs& a, int tid, int nt) {
  using A = AttentionShape<HQ, HKV, DK, DV, S, DR, STYLE, SCORES>;
  if (is_decode(a)) return;
  if (tid == 0) plan_tiles<A>(a, nt);
  const Range rows = share(a.t * HKV, tid, nt);
  for (int64_t r = rows.begin; r < rows.end; r++) append_head<A>(a, r / HKV, r % HKV);
}

template <int HQ, int HKV, int DK, int DV, Kv S, int DR = 0, Rope STYLE = Rope::Half, Scores SCORES = Scores::F32>
MP_TASK void attention(const AttentionArgs& a, int tid, int nt) {
  using A = AttentionShape<HQ, HKV, DK, DV, S, DR, STYLE, SCORES>;
  if (is_decode(a)) attention_decode<A>(a, tid, nt);
  else attention_tiles<A>(a, tid, nt);
}

}  // namespace mp
