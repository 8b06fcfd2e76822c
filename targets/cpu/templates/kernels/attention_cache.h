// The paged KV cache of attention: where keys and values lie, how a step's are appended, and the plan of the work that the append leaves for
// attention.h.
#pragma once
#include "tile.h"

namespace mp {

template <Kv S> struct KvElement { using Type = float; };
template <> struct KvElement<Kv::F16> { using Type = uint16_t; };

template <int HKV, int DK, int DV, Kv S>
constexpr int64_t kv_bytes_per_page() {
  return (int64_t)HKV * kPage * (DK + round_up(DV, kLanes)) * (int64_t)sizeof(typename KvElement<S>::Type);
}

constexpr int kKeyPages = 4;                    // pages between two updates of the running maximum
constexpr int kKeys = kKeyPages * kPage;
constexpr int kVectors = kBlocks > 1 ? 2 : 1;   // of 16 tokens or dims in a register tile

struct AttentionTile { int32_t first, count; };

template <int HQ, int HKV, int DK, int DV>
struct AttentionShape {
  static_assert(HQ % HKV == 0, "query heads share KV heads evenly");
  static constexpr int kGroup = HQ / HKV;
  static constexpr int kTokens = kGroup >= 48 ? 1 : kGroup == 1 ? 32 : 48 / kGroup;
  static constexpr int kRowCount = (int)round_up(kTokens * kGroup, 8);
  static constexpr int kDvp = (int)round_up(DV, kLanes);
  static constexpr int64_t kPartial = (int64_t)kRowCount * (kDvp + 2);  // floats: sums, running maxima, running totals
  static constexpr int64_t kThreadFloats = (int64_t)kRowCount * (DK + kKeys + kDvp + 2) + 4 * kLanes;
};

// What attention_append leaves in scratch for attention.
struct AttentionPlan {
  int32_t tiles, splits, next, pad;
};
constexpr int64_t attention_items(int threads) { return 8 * (int64_t)threads; }  // most items with a split context

template <int HQ, int HKV, int DK, int DV>
constexpr int64_t attention_scratch(int threads, int64_t max_tokens) {
  using Sh = AttentionShape<HQ, HKV, DK, DV>;
  return 64 + round_up(max_tokens * 8, 64) + round_up(attention_items(threads) * 4, 64) + 64 +
         round_up(attention_items(threads) * Sh::kPartial * 4, 64) + threads * round_up(Sh::kThreadFloats * 4 + 256, 64);
}

template <class Shape>
struct AttentionScratch {
  AttentionPlan* plan;
  AttentionTile* tiles;
  int32_t* done;
  float* partials;
  float* own;  // this thread's
  AttentionScratch(const AttentionArgs& a, int tid, int nt) {
    Arena s{(char*)a.scratch};
    plan = s.take<AttentionPlan>(1);
    tiles = s.take<AttentionTile>(a.t);
    done = s.take<int32_t>(attention_items(nt));
    partials = s.take<float>(attention_items(nt) * Shape::kPartial);
    own = (float*)(s.at + tid * round_up(Shape::kThreadFloats * 4 + 256, 64));
  }
};

// The page of a sequence's position, or null.
template <int HKV, int DK, int DV, Kv S>
MP_INLINE typename KvElement<S>::Type* kv_page(const AttentionArgs& a, int64_t slot, int64_t index) {
  if (index < 0 || index >= a.max_pages) return nullptr;
  const int64_t page = a.block_tables[slot * a.max_pages + index];
  if (page < 0 || page >= a.pages) return nullptr;
  const int64_t stride = a.page_stride ? a.page_stride : kv_bytes_per_page<HKV, DK, DV, S>();
  return (typename KvElement<S>::Type*)((char*)a.cache + page * stride);
}
MP_INLINE f32x16 load_kv(const float* p) { return load(p); }
MP_INLINE f32x16 load_kv(const uint16_t* p) { return load_f16(p); }
MP_INLINE void store_kv(float* p, f32x16 v) { store(p, v); }
MP_INLINE void store_kv(uint16_t* p, f32x16 v) { store_as(p, f32_to_f16(v)); }

template <int HQ, int HKV, int DK, int DV, Kv S>
MP_TASK void attention_append(const AttentionArgs& a, int tid, int nt) {
  using Shape = AttentionShape<HQ, HKV, DK, DV>;
  using E = typename KvElement<S>::Type;
  if (tid == 0) {
    AttentionScratch<Shape> s(a, tid, nt);
    int32_t tiles = 0, longest = 0;
    for (int64_t i = 0; i < a.t; i++) {
      AttentionTile* last = s.tiles + tiles - 1;
      longest = longest > a.positions[i] ? longest : a.positions[i];
      const bool joins = i > 0 && last->count < Shape::kTokens && a.slots[i] == a.slots[i - 1] && a.positions[i] == a.positions[i - 1] + 1;
      if (joins) last->count++;
      else s.tiles[tiles++] = AttentionTile{(int32_t)i, 1};
    }
    const int64_t items = (int64_t)tiles * HKV, keys = a.window > 0 ? min_of(longest + 1, a.window + Shape::kTokens) : longest + 1;
    int64_t splits = 1;
    if (nt > 1 && items > 0 && items < 4 * nt) splits = min_of((4 * nt + items - 1) / items, max_of(keys / (2 * kPage), 1));
    *s.plan = AttentionPlan{tiles, (int32_t)splits, 0, 0};
    for (int64_t i = 0; i < attention_items(nt); i++) s.done[i] = 0;
  }
  const Range rows = share(a.t * HKV, tid, nt);
  for (int64_t r = rows.begin; r < rows.end; r++) {
    const int64_t t = r / HKV, h = r % HKV, position = a.positions[t], at = position % kPage;
    E* page = kv_page<HKV, DK, DV, S>(a, a.slots[t], position / kPage);
    if (!page || position < 0) continue;
    const float* k = a.k + t * a.ldk + h * a.ldk_head;
    const float* v = a.v + t * a.ldv + h * a.ldv_head;
    E* keys = page + h * DK * kPage + at;
    E* values = page + (int64_t)HKV * DK * kPage + (h * kPage + at) * Shape::kDvp;
    for (int64_t d = 0; d < DK; d += kLanes) {
      E lanes[kLanes];
      store_kv(lanes, load_n(k + d, DK - d));
      for (int64_t i = 0; i < kLanes && d + i < DK; i++) keys[(d + i) * kPage] = lanes[i];
    }
    for (int64_t d = 0; d < DV; d += kLanes) store_kv(values + d, load_n(v + d, DV - d));
  }
}

}  // namespace mp
