// Steps with prompts, first half: the step's keys and values go to the cache, and one thread plans the work of the second half.
#pragma once
#include "attention_decode.h"

namespace mp {

// A run of one sequence's consecutive tokens.
struct AttentionTile { int32_t first, count; };

struct AttentionPlan {
  int32_t tiles, splits, next, pad;
};
constexpr int64_t attention_items(int threads) { return 8 * (int64_t)threads; }  // most items with a split context

template <class A>
struct TileShape {
  // Many rows, since keys and values are converted once for all of them; their sums stay in the L2 cache.
  static constexpr int kMostRows = 192, kRowBlock = 16;
  static constexpr int kTokens = A::kGroup >= kMostRows ? 1 : power_of_two_below(kMostRows / A::kGroup);
  static constexpr int64_t kRows = round_up(kTokens * A::kGroup, kRowBlock);
  // f16 keys and values, and codes, are multiplied as pairs of bf16 where the machine does that.
#if defined(__AVX512BF16__)
  static constexpr bool kPairs = A::kStore != Kv::F32;
#else
  static constexpr bool kPairs = false;
#endif
  static constexpr bool kConverts = A::kStore != Kv::F32;
  static constexpr int64_t kSteps = kPairs ? round_up(A::kDk, 32) / 2 : A::kDk;    // of a score's sum; 4 bytes of a query each
  static constexpr int64_t kQuery = round_up(kSteps, kLanes);                      // stride of queries
  static constexpr int64_t kTokenSteps = kPairs ? kPage / 2 : kPage;               // of a page's sum of values
  static constexpr int64_t kPages = 4, kKeys = kPages * kPage;                     // between two updates of the running maximum
  static constexpr int64_t kWeights = kPairs ? kKeys / 2 : kKeys;                  // stride of weights
  static constexpr int64_t kKeyFloats = kSteps * kPage, kValueFloats = kTokenSteps * A::kDvp;  // a page, converted
  static constexpr int64_t kPartial = kRows * (A::kDvp + kLanes + 1);  // sums of values, of weights (by lane), maxima
  static constexpr int64_t kThread =
      kRows * kQuery + kRowBlock * kKeys * 2 + (kConverts ? kPages * (kKeyFloats + kValueFloats) : 0) + kPartial + DecodeShape<A>::kThread;
};

template <class A>
constexpr int64_t tile_scratch(int threads, int64_t max_tokens) {
  using T = TileShape<A>;
  return 64 + round_up(max_tokens * 8, 64) + round_up(attention_items(threads) * 4, 64) +
         round_up(attention_items(threads) * T::kPartial * 4, 64) + threads * round_up(T::kThread * 4, 64);
}

template <class A>
struct TileScratch {
  AttentionPlan* plan;
  AttentionTile* tiles;
  int32_t* done;    // parts of a tile and head that are finished
  float* partials;
  float* own;       // this thread's
  TileScratch(const AttentionArgs& a, int tid, int nt) {
    using T = TileShape<A>;
    Arena s{(char*)a.scratch};
    plan = s.take<AttentionPlan>(1);
    tiles = s.take<AttentionTile>(a.t);
    done = s.take<int32_t>(attention_items(nt));
    partials = s.take<float>(attention_items(nt) * T::kPartial);
    own = (float*)(s.at + tid * round_up(T::kThread * 4, 64));
  }
};

template <class A>
MP_TASK void plan_tiles(const AttentionArgs& a, int nt) {
  TileScratch<A> s(a, 0, nt);
  // Smaller tiles where there would be too few to go round.
  int64_t most = TileShape<A>::kTokens;
  while (most > 8 && (a.t / most) * A::kHkv < 4 * nt) most /= 2;
  int32_t tiles = 0;
  int64_t keys = 0;
  for (int64_t i = 0; i < a.t; i++) {
    AttentionTile* last = s.tiles + tiles - 1;
    keys = max_of(keys, a.positions[i] + 1 - first_seen(a, a.positions[i]));
    const bool joins = i > 0 && last->count < most && a.slots[i] == a.slots[i - 1] && a.positions[i] == a.positions[i - 1] + 1;
    if (joins) last->count++;
    else s.tiles[tiles++] = AttentionTile{(int32_t)i, 1};
  }
  const int64_t items = (int64_t)tiles * A::kHkv;
  int64_t splits = 1;
  if (nt > 1 && items > 0 && items < 4 * nt) splits = min_of((4 * nt + items - 1) / items, max_of(keys / (2 * kPage), 1));
  *s.plan = AttentionPlan{tiles, (int32_t)splits, 0, 0};
  for (int64_t i = 0; i < attention_items(nt); i++) s.done[i] = 0;
}

}  // namespace mp
