// Steps with prompts, second half: a work item is a tile (a run of a sequence's tokens) and a KV head, and, where there are too few of those
// to keep the threads busy, a part of the context. Keys and values are converted once for all its rows (a row is a token and query head).
// Items are handed out by a counter, longest first. Parts of one context are put together by whichever thread ends last, in a fixed order.
#pragma once
#include "attention_rows.h"

namespace mp {

// The rows of a tile and head: queries as steps, sums of values, of weights (by lane), maxima. Row r is token r / group, head r % group.
struct TileRows {
  float *q, *o, *l, *m;
  int64_t count, first_position, head;
};

// 2^x where the result is rounded to bf16: relative error 8e-5.
template <bool PAIRS>
MP_INLINE f32x16 weight_of(f32x16 x) {
#if defined(__AVX512F__)
  if constexpr (PAIRS) {
    const f32x16 n = round_even(x), r = x - n;
    f32x16 p = splat(5.517166904e-2f);
    p = p * r + 2.426111222e-1f;
    p = p * r + 6.932609855e-1f;
    p = p * r + 9.999280735e-01f;
    return (f32x16)_mm512_scalef_ps((__m512)p, (__m512)n);
  }
#endif
  return vexp2_negative(x);
}

// A running maximum that grows by no more than this is kept as it is: weights of at most 2^6 are as exact, and sums need no new scale.
constexpr float kSlack = 6.0f;

// Turns a row's scores of `vectors` * 16 keys from position `base` to weights `p` (f32, or pairs of bf16); updates o, l and m.
template <class A>
MP_INLINE void tile_softmax(const AttentionArgs& a, const TileRows& w, int64_t row, float* s, float* p, int64_t base, int64_t vectors, bool masked) {
  using T = TileShape<A>;
  const int64_t group = A::kGroup;
  f32x16 top = splat(kLowest), other = top;
  if (masked || a.softcap > 0.0f || a.slopes) {
    const int64_t last = w.first_position + row / group, first = first_seen(a, last);
    const float slope = a.slopes && row < w.count ? a.slopes[w.head + row % group] * kLog2e : 0.0f;
    for (int64_t i = 0; i < vectors; i++) {
      f32x16 v = load(s + i * kLanes);
      const i32x16 position = lane_numbers() + splat((int32_t)(base + i * kLanes));
      if (a.softcap > 0.0f) v = vtanh(v / splat(a.softcap * kLog2e)) * splat(a.softcap * kLog2e);
      if (a.slopes) v += to_float(position - splat((int32_t)last)) * splat(slope);
      if (masked) v = select((position <= splat((int32_t)last)) & (position >= splat((int32_t)first)), v, splat(kLowest));
      store(s + i * kLanes, v);
      top = vmax(top, v);
    }
  } else {
    for (int64_t i = 0; i < vectors; i += 2) top = vmax(top, load(s + i * kLanes)), other = vmax(other, load(s + (i + 1) * kLanes));
    top = vmax(top, other);
  }
  const float old = w.m[row], seen = max_lane(top);
  f32x16 total = load(w.l + row * kLanes);
  if (seen > old + kSlack || old <= kLowest) {
    w.m[row] = seen > old ? seen : old;
    const f32x16 keep = vexp2_negative(splat(old - w.m[row]));
    total *= keep;
    float* o = w.o + row * A::kDvp;
    for (int64_t d = 0; d < A::kDvp; d += kLanes) store(o + d, load(o + d) * keep);
  }
  // Where nothing was seen yet, all weights are 0.
  const f32x16 shift = splat(w.m[row] <= kLowest ? 0.0f : w.m[row]);
  for (int64_t i = 0; i < vectors; i += 2) {
    const f32x16 p0 = weight_of<T::kPairs>(load(s + i * kLanes) - shift), p1 = weight_of<T::kPairs>(load(s + (i + 1) * kLanes) - shift);
    total += p0 + p1;
    if constexpr (T::kPairs) {
#if defined(__AVX512BF16__)
      store(p + i / 2 * kLanes, pack_neighbours(p0, p1));
#endif
    } else {
      store(p + i * kLanes, p0);
      store(p + (i + 1) * kLanes, p1);
    }
  }
  store(w.l + row * kLanes, total);
}

// One work item: a tile's rows against pages [begin, end).
template <class A>
MP_TASK void tile_item(const AttentionArgs& a, const AttentionTile& tile, int64_t kv_head, int64_t begin, int64_t end, const TileRows& w, float* scratch) {
  using T = TileShape<A>;
  using E = typename A::E;
  const int64_t slot = a.slots[tile.first], p0 = w.first_position, p1 = p0 + tile.count - 1, padded = round_up(w.count, T::kRowBlock);
  const int64_t keys = kv_head * A::kKeysOfHead, values = A::kValues + kv_head * A::kValuesOfHead;
  float *s = scratch, *p = T::kPairs ? s + T::kRowBlock * T::kKeys : s;
  float *k = s + 2 * T::kRowBlock * T::kKeys, *v = k + T::kPages * T::kKeyFloats;
  for (int64_t r = 0; r < padded; r++) {
    if (r < w.count) query_steps<A>(a, tile.first + r / A::kGroup, w.head + r % A::kGroup, w.q + r * T::kQuery);
    else memset(w.q + r * T::kQuery, 0, T::kQuery * sizeof(float));
    w.m[r] = kLowest;
  }
  memset(w.o, 0, padded * A::kDvp * sizeof(float));
  memset(w.l, 0, padded * kLanes * sizeof(float));
  for (int64_t page = begin; page < end; page += T::kPages) {
    const int64_t pages = min_of(T::kPages, end - page), base = page * kPage;
    uint32_t missing = 0;
    const float *ready_keys[T::kPages], *ready_values[T::kPages];
    int64_t steps[T::kPages];
    for (int64_t i = 0; i < pages; i++) {
      const E* at = kv_page<A>(a, slot, page + i);
      if (!at) missing |= 1u << i, at = (const E*)a.cache;
      // Without a page nothing is seen, and nothing is multiplied either.
      const int64_t tokens = missing >> i & 1 ? 0 : min_of(kPage, p1 + 1 - (base + i * kPage));
      if constexpr (T::kConverts) {
        key_steps<A>(at + keys, k + i * T::kKeyFloats);
        value_steps<A>(at + values, tokens, v + i * T::kValueFloats);
        ready_keys[i] = k + i * T::kKeyFloats;
        ready_values[i] = v + i * T::kValueFloats;
      } else {
        ready_keys[i] = at + keys;
        ready_values[i] = at + values;
      }
      steps[i] = T::kPairs ? (tokens + 1) / 2 : tokens;
    }
    for (int64_t r = 0; r < w.count; r += T::kRowBlock) {
      const int64_t rows = min_of(T::kRowBlock, w.count - r), from = p0 + r / A::kGroup, last = p0 + (r + rows - 1) / A::kGroup;
      if (last < base) continue;  // all of them end before these pages
      const int64_t seen = min_of(pages, (last - base) / kPage + 1);
      // Every key of these pages is seen by every row, unless the last is after the first row's position or the first before the window.
      const bool masked = base + seen * kPage - 1 > from || base < first_seen(a, last);
      block_scores<A>(w.q + r * T::kQuery, ready_keys, seen, s, rows);
      for (int64_t i = 0; missing >> i; i++) {
        for (int64_t j = 0; (missing >> i & 1) && j < rows * kPage; j++) s[j / kPage * T::kKeys + i * kPage + j % kPage] = kLowest;
      }
      for (int64_t j = 0; j < rows; j++) {
        tile_softmax<A>(a, w, r + j, s + j * T::kKeys, p + j * T::kWeights, base, seen * (kPage / kLanes), masked);
      }
      block_values<A>(p, ready_values, steps, seen, w.o + r * A::kDvp, rows);
    }
  }
}

// The same for a tile of one token, whose pages need not be converted: as a step of such tokens does it.
template <class A>
MP_KERNEL void token_item(const AttentionArgs& a, const AttentionTile& tile, int64_t kv_head, int64_t begin, int64_t end, const TileRows& w, float* scratch) {
  using D = DecodeShape<A>;
  float *q = scratch, *s = q + D::kQuery, *o = s + D::kRows * kDecodeKeys, *m = o + D::kPadded * A::kDvp, *l = m + D::kPadded;
  decode_piece<A>(a, DecodePiece{tile.first, kv_head, begin, end}, nullptr, q, s, o, m, l);
  memcpy(w.o, o, A::kGroup * A::kDvp * sizeof(float));
  for (int64_t r = 0; r < A::kGroup; r++) {
    w.m[r] = m[r];
    store(w.l + r * kLanes, splat(0.0f));
    w.l[r * kLanes] = l[r];
  }
}

template <class A>
MP_INLINE TileRows tile_rows_at(float* partial) {
  using T = TileShape<A>;
  TileRows w;
  w.o = partial;
  w.l = w.o + T::kRows * A::kDvp;
  w.m = w.l + T::kRows * kLanes;
  return w;
}

// Parts of one context to one, in order.
template <class A>
MP_KERNEL void join_tile_parts(const TileRows& w, float* parts, int64_t count) {
  using T = TileShape<A>;
  for (int64_t r = 0; r < w.count; r++) {
    w.m[r] = kLowest;
    for (int64_t i = 0; i < count; i++) {
      const float m = tile_rows_at<A>(parts + i * T::kPartial).m[r];
      w.m[r] = w.m[r] > m ? w.m[r] : m;
    }
    memset(w.o + r * A::kDvp, 0, A::kDvp * sizeof(float));
    f32x16 total = splat(0.0f);
    for (int64_t i = 0; i < count; i++) {
      const TileRows from = tile_rows_at<A>(parts + i * T::kPartial);
      const f32x16 keep = vexp2_negative(splat(from.m[r] - w.m[r]));
      total += keep * load(from.l + r * kLanes);
      for (int64_t d = 0; d < A::kDvp; d += kLanes) {
        float* to = w.o + r * A::kDvp + d;
        store(to, load(to) + load(from.o + r * A::kDvp + d) * keep);
      }
    }
    store(w.l + r * kLanes, total);
  }
}

template <class A>
MP_TASK void attention_tiles(const AttentionArgs& a, int tid, int nt) {
  using T = TileShape<A>;
  const TileScratch<A> s(a, tid, nt);
  float *q = s.own, *scratch = q + T::kRows * T::kQuery, *whole = s.own + T::kThread - DecodeShape<A>::kThread - T::kPartial;
#if defined(MP_AMX)
  const AmxTiles tiles;
#endif
  const int64_t splits = s.plan->splits, items = (int64_t)s.plan->tiles * A::kHkv * splits;
  for (;;) {
    const int64_t item = __atomic_fetch_add(&s.plan->next, 1, __ATOMIC_RELAXED);
    if (item >= items) break;
    // Later tiles of a prompt have more keys to look at, so they go first.
    const int64_t pair = item / splits, part = item % splits;
    const AttentionTile tile = s.tiles[s.plan->tiles - 1 - pair / A::kHkv];
    const int64_t kv_head = pair % A::kHkv, p0 = a.positions[tile.first], p1 = p0 + tile.count - 1;
    const int64_t first = first_seen(a, p0) / kPage, pages = p1 / kPage + 1 - first;
    TileRows w = tile_rows_at<A>(splits == 1 ? whole : s.partials + item * T::kPartial);
    w.q = q;
    w.count = (int64_t)tile.count * A::kGroup, w.first_position = p0, w.head = kv_head * A::kGroup;
    const int64_t begin = first + pages * part / splits, end = first + pages * (part + 1) / splits;
    if (tile.count == 1) token_item<A>(a, tile, kv_head, begin, end, w, s.own + T::kThread - DecodeShape<A>::kThread);
    else tile_item<A>(a, tile, kv_head, begin, end, w, scratch);
    if (splits > 1) {
      if (__atomic_add_fetch(s.done + pair, 1, __ATOMIC_ACQ_REL) < splits) continue;
      TileRows all = tile_rows_at<A>(whole);
      all.count = w.count, all.head = w.head;
      join_tile_parts<A>(all, s.partials + pair * splits * T::kPartial, splits);
      w = all;
    }
    for (int64_t r = 0; r < w.count; r++) {
      store_result<A>(a, tile.first + r / A::kGroup, w.head + r % A::kGroup, w.o + r * A::kDvp, w.m[r], sum(load(w.l + r * kLanes)));
    }
  }
}

}  // namespace mp
