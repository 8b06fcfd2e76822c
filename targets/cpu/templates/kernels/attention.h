// Attention of a ragged batch over a paged KV cache: attention_append, then attention.
//
// The step's tokens are cut into tiles: runs of one sequence's consecutive positions, at most kTokens long. A work item is a tile and a KV
// head (and, where there are too few of those to keep the threads busy, a part of the context): it reads each page once for all query heads
// that share the KV head. Keys lie token-minor, so that a vector holds 16 tokens' keys and a score needs no horizontal sum.
// Items are handed out by a counter, longest first. Parts of one context are put together by whichever thread ends last, in a fixed order.
#pragma once
#include "attention_cache.h"

namespace mp {

// s[MT][16*kVectors] = q[MT][dk] times 16*kVectors tokens' keys. With few rows the cache streams past once: `next` is what will be read
// after these keys, asked for in step.
template <int MT, class E>
MP_KERNEL void score_tile(const float* q, int64_t dk, const E* keys, [[maybe_unused]] const E* next, float* s) {
  f32x16 acc[MT][kVectors];
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < kVectors; j++) acc[r][j] = splat(0.0f);
  }
#pragma clang loop unroll_count(2)
  for (int64_t d = 0; d < dk; d++) {
    f32x16 k[kVectors];
    MP_UNROLL
    for (int j = 0; j < kVectors; j++) {
      k[j] = load_kv(keys + d * kPage + j * kLanes);
      if (MT <= kSmall) prefetch(next + d * kPage + j * kLanes);
    }
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      const f32x16 x = splat(q[r * dk + d]);
      MP_UNROLL
      for (int j = 0; j < kVectors; j++) acc[r][j] += k[j] * x;
    }
  }
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < kVectors; j++) store(s + r * kKeys + j * kLanes, acc[r][j]);
  }
}

// o[MT][16*kVectors] += p[MT][tokens] times values; a page's values are dvp apart, o's rows too.
template <int MT, int NV, class E>
MP_KERNEL void value_tile(const float* p, int64_t tokens, const E* values, [[maybe_unused]] const E* next, int64_t dvp, float* o) {
  f32x16 acc[MT][NV];
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NV; j++) acc[r][j] = load(o + r * dvp + j * kLanes);
  }
#pragma clang loop unroll_count(2)
  for (int64_t t = 0; t < tokens; t++) {
    f32x16 v[NV];
    MP_UNROLL
    for (int j = 0; j < NV; j++) {
      v[j] = load_kv(values + t * dvp + j * kLanes);
      if (MT <= kSmall) prefetch(next + t * dvp + j * kLanes);
    }
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      const f32x16 x = splat(p[r * kKeys + t]);
      MP_UNROLL
      for (int j = 0; j < NV; j++) acc[r][j] += v[j] * x;
    }
  }
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NV; j++) store(o + r * dvp + j * kLanes, acc[r][j]);
  }
}

template <int MT, class E>
MP_INLINE void score_rows(const float* q, int64_t dk, const E* keys, const E* next, float* s, int64_t& r, int64_t rows) {
  while (r < rows && (MT == 1 || rows - r > MT / 2)) {
    for (int j = 0; j < kPage / kLanes; j += kVectors) {
      score_tile<MT>(q + r * dk, dk, keys + j * kLanes, next + j * kLanes, s + r * kKeys + j * kLanes);
    }
    r += MT;
  }
}
template <int MT, class E>
MP_INLINE void value_rows(const float* p, int64_t tokens, const E* values, const E* next, int64_t dvp, float* o, int64_t& r, int64_t rows) {
  while (r < rows && (MT == 1 || rows - r > MT / 2)) {
    int64_t d = 0;
    for (; d + kVectors * kLanes <= dvp; d += kVectors * kLanes) {
      value_tile<MT, kVectors>(p + r * kKeys, tokens, values + d, next + d, dvp, o + r * dvp + d);
    }
    if (d < dvp) value_tile<MT, 1>(p + r * kKeys, tokens, values + d, next + d, dvp, o + r * dvp + d);
    r += MT;
  }
}

// The rows of a work item: queries, scores, sums of values, running maximum and total.
struct AttentionRows {
  float *q, *s, *o, *m, *l;
  int64_t count, group;  // rows; row r is token r / group, head r % group
};

// Scores of `keys` keys from position `base` to weights: scale is in q already; softcap, ALiBi and mask here. Updates m, l and o's scale.
template <int DVP>
MP_KERNEL void softmax_rows(const AttentionArgs& a, const AttentionRows& w, int64_t first_position, int64_t head, int64_t base, int64_t vectors,
                            bool masked) {
  const f32x16 lowest = splat(-__builtin_inff());
  for (int64_t r = 0; r < w.count; r++) {
    float* s = w.s + r * kKeys;
    const int64_t position = first_position + r / w.group;
    const int64_t first = a.window <= 0 ? 0 : a.mask == kMaskChunked ? position / a.window * a.window : position - a.window + 1;
    const float slope = a.slopes ? a.slopes[head + r % w.group] : 0.0f;
    f32x16 top = lowest;
    for (int64_t i = 0; i < vectors; i++) {
      f32x16 v = load(s + i * kLanes);
      const i32x16 distance = lane_numbers() + splat((int32_t)(base + i * kLanes - position));
      if (a.softcap > 0.0f) v = vtanh(v / splat(a.softcap)) * splat(a.softcap);
      if (a.slopes) v += to_float(distance) * splat(slope);
      if (masked) v = select((distance <= 0) & (distance >= splat((int32_t)(first - position))), v, lowest);
      store(s + i * kLanes, v);
      top = vmax(top, v);
    }
    const float old = w.m[r], seen = max_lane(top), now = old > seen ? old : seen;
    if (now == -__builtin_inff()) {  // nothing visible yet
      for (int64_t i = 0; i < vectors; i++) store(s + i * kLanes, splat(0.0f));
      continue;
    }
    f32x16 total = splat(0.0f);
    for (int64_t i = 0; i < vectors; i++) {
      const f32x16 p = vexp_negative(load(s + i * kLanes) - splat(now));
      store(s + i * kLanes, p);
      total += p;
    }
    if (old != now) {
      const float keep = vexp_negative(splat(old - now))[0];
      w.l[r] *= keep;
      w.m[r] = now;
      for (int64_t d = 0; d < DVP; d += kLanes) store(w.o + r * DVP + d, load(w.o + r * DVP + d) * splat(keep));
    }
    w.l[r] += sum(total);
  }
}

// One work item: rows of a tile against pages [page0, page1).
template <int HQ, int HKV, int DK, int DV, Kv S>
MP_TASK void attention_item(const AttentionArgs& a, const AttentionTile& tile, int64_t kv_head, int64_t page0, int64_t page1, const AttentionRows& w) {
  using Shape = AttentionShape<HQ, HKV, DK, DV>;
  using E = typename KvElement<S>::Type;
  constexpr int64_t kValues = (int64_t)HKV * DK * kPage;  // where a page's values begin
  const int64_t slot = a.slots[tile.first], p0 = a.positions[tile.first], p1 = p0 + tile.count - 1, head = kv_head * Shape::kGroup;
  for (int64_t r = 0; r < w.count; r++) {
    const float* q = a.q + (tile.first + r / Shape::kGroup) * a.ldq + (head + r % Shape::kGroup) * a.ldq_head;
    for (int64_t d = 0; d < DK; d += kLanes) store_n(w.q + r * DK + d, load_n(q + d, DK - d) * splat(a.scale), DK - d);
    w.m[r] = -__builtin_inff();
    w.l[r] = 0.0f;
  }
  memset(w.o, 0, round_up(w.count, 8) * Shape::kDvp * sizeof(float));
  for (int64_t page = page0; page < page1; page += kKeyPages) {
    const int64_t pages = min_of(kKeyPages, page1 - page), base = page * kPage;
    bool missing = false;
    const E* at[kKeyPages];
    for (int64_t i = 0; i < pages; i++) {
      at[i] = kv_page<HKV, DK, DV, S>(a, slot, page + i);
      float* s = w.s + i * kPage;
      if (!at[i]) {
        for (int64_t r = 0; r < w.count; r++) {
          for (int64_t j = 0; j < kPage; j += kLanes) store(s + r * kKeys + j, splat(-__builtin_inff()));
        }
        missing = true;
        continue;
      }
      const E* keys = at[i] + kv_head * DK * kPage;
      const E* next = i + 1 < pages ? kv_page<HKV, DK, DV, S>(a, slot, page + i + 1) : at[0];
      if (next) next += i + 1 < pages ? kv_head * DK * kPage : kValues + kv_head * kPage * Shape::kDvp;
      else next = keys;
      int64_t r = 0;
      if constexpr (kRows >= 8) score_rows<8>(w.q, DK, keys, next, s, r, w.count);
      if constexpr (kRows >= 4) score_rows<4>(w.q, DK, keys, next, s, r, w.count);
      score_rows<2>(w.q, DK, keys, next, s, r, w.count);
      score_rows<1>(w.q, DK, keys, next, s, r, w.count);
    }
    // Every key of these pages is seen by every row, unless the last is after the first row's position or the first before the window.
    int64_t lowest = 0;
    if (a.window > 0) lowest = a.mask == kMaskChunked ? p1 / a.window * a.window : p1 - a.window + 1;
    const bool masked = missing || base + pages * kPage - 1 > p0 || base < lowest;
    softmax_rows<Shape::kDvp>(a, w, p0, head, base, pages * (kPage / kLanes), masked);
    for (int64_t i = 0; i < pages; i++) {
      if (!at[i]) continue;
      // Tokens after the tile's last position hold what another sequence left there.
      const int64_t tokens = min_of(kPage, p1 + 1 - (base + i * kPage));
      const E* values = at[i] + kValues + kv_head * kPage * Shape::kDvp;
      const E* next = i + 1 < pages ? at[i + 1] : page + pages < page1 ? kv_page<HKV, DK, DV, S>(a, slot, page + pages) : nullptr;
      if (next) next += i + 1 < pages ? kValues + kv_head * kPage * Shape::kDvp : kv_head * DK * kPage;
      else next = values;
      int64_t r = 0;
      if constexpr (kRows >= 8) value_rows<8>(w.s + i * kPage, tokens, values, next, Shape::kDvp, w.o, r, w.count);
      if constexpr (kRows >= 4) value_rows<4>(w.s + i * kPage, tokens, values, next, Shape::kDvp, w.o, r, w.count);
      value_rows<2>(w.s + i * kPage, tokens, values, next, Shape::kDvp, w.o, r, w.count);
      value_rows<1>(w.s + i * kPage, tokens, values, next, Shape::kDvp, w.o, r, w.count);
    }
  }
}

// Divides by the total (with the sink's share) and writes the rows out.
template <int HQ, int HKV, int DK, int DV>
MP_TASK void attention_finish(const AttentionArgs& a, const AttentionTile& tile, int64_t kv_head, const AttentionRows& w) {
  using Shape = AttentionShape<HQ, HKV, DK, DV>;
  for (int64_t r = 0; r < w.count; r++) {
    const int64_t head = kv_head * Shape::kGroup + r % Shape::kGroup;
    float total = w.l[r], factor = 1.0f;
    if (a.sinks) {
      const float top = w.m[r] > a.sinks[head] ? w.m[r] : a.sinks[head];
      factor = vexp(splat(w.m[r] - top))[0];
      total = total * factor + vexp(splat(a.sinks[head] - top))[0];
    }
    const f32x16 scale = splat(total == 0.0f ? 0.0f : factor / total);
    float* y = a.y + (tile.first + r / Shape::kGroup) * a.ldy + head * a.ldy_head;
    for (int64_t d = 0; d < DV; d += kLanes) store_n(y + d, load(w.o + r * Shape::kDvp + d) * scale, DV - d);
  }
}

template <int HQ, int HKV, int DK, int DV, Kv S>
MP_TASK void attention(const AttentionArgs& a, int tid, int nt) {
  using Shape = AttentionShape<HQ, HKV, DK, DV>;
  constexpr int64_t R = Shape::kRowCount, DVP = Shape::kDvp;
  const AttentionScratch<Shape> s(a, tid, nt);
  Arena own{(char*)s.own};
  AttentionRows w;
  w.q = own.take<float>(R * DK);
  w.s = own.take<float>(R * kKeys);
  w.o = own.take<float>(R * DVP);
  w.m = own.take<float>(R);
  w.l = own.take<float>(R);
  w.group = Shape::kGroup;
  const int64_t splits = s.plan->splits, items = (int64_t)s.plan->tiles * HKV * splits;
  for (;;) {
    const int64_t item = __atomic_fetch_add(&s.plan->next, 1, __ATOMIC_RELAXED);
    if (item >= items) break;
    // Later tiles of a prompt have more keys to look at, so they go first.
    const int64_t pair = item / splits, part = item % splits;
    const AttentionTile tile = s.tiles[s.plan->tiles - 1 - pair / HKV];
    const int64_t kv_head = pair % HKV, p0 = a.positions[tile.first], p1 = p0 + tile.count - 1;
    int64_t first = a.window <= 0 ? 0 : a.mask == kMaskChunked ? p0 / a.window * a.window : p0 - a.window + 1;
    first = max_of(first, 0) / kPage;
    const int64_t pages = p1 / kPage + 1 - first;
    w.count = (int64_t)tile.count * Shape::kGroup;
    if (splits == 1) {
      attention_item<HQ, HKV, DK, DV, S>(a, tile, kv_head, first, first + pages, w);
      attention_finish<HQ, HKV, DK, DV>(a, tile, kv_head, w);
      continue;
    }
    AttentionRows mine = w;
    float* partial = s.partials + item * Shape::kPartial;
    mine.o = partial;
    mine.m = partial + R * DVP;
    mine.l = mine.m + R;
    attention_item<HQ, HKV, DK, DV, S>(a, tile, kv_head, first + pages * part / splits, first + pages * (part + 1) / splits, mine);
    if (__atomic_add_fetch(s.done + pair, 1, __ATOMIC_ACQ_REL) < splits) continue;
    float* all = s.partials + pair * splits * Shape::kPartial;
    for (int64_t r = 0; r < w.count; r++) {
      float top = -__builtin_inff(), total = 0.0f;
      for (int64_t i = 0; i < splits; i++) {
        const float m = all[i * Shape::kPartial + R * DVP + r];
        top = top > m ? top : m;
      }
      memset(w.o + r * DVP, 0, DVP * sizeof(float));
      for (int64_t i = 0; i < splits; i++) {
        const float* from = all + i * Shape::kPartial;
        const float m = from[R * DVP + r], keep = m == -__builtin_inff() ? 0.0f : vexp_negative(splat(m - top))[0];
        total += keep * from[R * DVP + R + r];
        for (int64_t d = 0; d < DVP; d += kLanes) {
          float* to = w.o + r * DVP + d;
          store(to, load(to) + load(from + r * DVP + d) * splat(keep));
        }
      }
      w.m[r] = top;
      w.l[r] = total;
    }
    attention_finish<HQ, HKV, DK, DV>(a, tile, kv_head, w);
  }
}

}  // namespace mp
