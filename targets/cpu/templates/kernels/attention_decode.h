// Attention of a step in which every token is the last of its sequence: memory is the limit, so every page is read once, for all query heads
// that share its KV head.
//
// The (token, KV head, page) triples of the step form one line, of which each thread takes an equal part; a head that is cut between threads
// is put together by whichever of them ends last, in a fixed order. The thread that has a sequence's last page stores the new key and value
// there first, so that no barrier is needed.
#pragma once
#include "attention_integers.h"

namespace mp {

// Pages between two updates of the running maximum.
constexpr int kDecodeKeys = kMostTokens, kDecodePages = kDecodeKeys / kPage;

// Register tiles: rows (query heads) at once, vectors of 16 tokens for a score, vectors of 16 dims for a value.
#if defined(__AVX512F__)
constexpr int kDecodeRows = 8, kScoreTiles = 16, kValueTiles = 24, kMostVectors = 8;
#elif defined(__AVX2__)
constexpr int kDecodeRows = 4, kScoreTiles = 4, kValueTiles = 6, kMostVectors = 4;
#elif defined(__aarch64__)
constexpr int kDecodeRows = 4, kScoreTiles = 5, kValueTiles = 6, kMostVectors = 4;
#else
constexpr int kDecodeRows = 2, kScoreTiles = 2, kValueTiles = 2, kMostVectors = 1;
#endif
constexpr int power_of_two_below(int n) {
  int p = 1;
  while (p * 2 <= n) p *= 2;
  return p;
}

template <class A>
struct DecodeShape {
  static constexpr int kChunks = (A::kGroup + kDecodeRows - 1) / kDecodeRows, kRows = (A::kGroup + kChunks - 1) / kChunks;
  static constexpr int kPadded = kChunks * kRows;  // rows beyond the group are computed and dropped
  static constexpr int kWanted = kRows == 1 ? kMostVectors : kScoreTiles / kRows >= 4 ? 4 : kRows == 5 || kRows == 6 ? 4 : kScoreTiles / kRows;
  static constexpr int kVectors = power_of_two_below(kWanted < kMostVectors ? kWanted : kMostVectors);
  static constexpr int kPagesAtOnce = kVectors > 1 ? kVectors / 2 : 1;
  static constexpr int kDims = largest_divisor(A::kDvp / kLanes, kValueTiles / kRows > 0 ? kValueTiles / kRows : 1);
  static constexpr int64_t kPartial = round_up((int64_t)kPadded * (A::kDvp + 2), kLanes);  // floats: sums, maxima, totals
  // Codes: queries and weights as words, with their scales and sums.
  using Integers = IntegerShape<A, kRows>;
  static constexpr int64_t kQueryWords = kPadded * kWords * Integers::kQuery, kWeightWords = A::kValueGroups * kRows * kWords * Integers::kWeights;
  static constexpr int64_t kNumbers = kPadded * (1 + Integers::kChunks) + kRows * 2 * A::kValueGroups;
  static constexpr int64_t kQuery = kPadded * A::kDkp + (A::kCodes ? round_up(kQueryWords + kWeightWords + kNumbers, kLanes) : 0);
  static constexpr int64_t kThread = kQuery + kRows * kDecodeKeys + 3 * kPartial;
};
// The words of codes, cut from behind the queries.
template <class A>
struct DecodeWords {
  using D = DecodeShape<A>;
  int32_t *queries, *weights;
  float *scales, *sums, *weight_scales, *weight_sums;
  explicit DecodeWords(float* q) {
    queries = (int32_t*)(q + D::kPadded * A::kDkp);
    weights = queries + D::kQueryWords;
    scales = (float*)(weights + D::kWeightWords);
    sums = scales + D::kPadded;
    weight_scales = sums + D::kPadded * D::Integers::kChunks;
    weight_sums = weight_scales + D::kRows * A::kValueGroups;
  }
};

// Scores of the rows from `row` on against pages; their weights times the pages' values.
template <class A>
MP_KERNEL void piece_scores(const DecodeWords<A>& words, const uint8_t* const* at, int64_t keys, const uint8_t* next, int64_t count, int64_t row, float* s) {
  using D = DecodeShape<A>;
  using I = typename D::Integers;
  for (int64_t i = 0; i < count; i++) {
    const uint8_t* ahead = i + 1 < count ? at[i + 1] + keys : next;
    for (int64_t r = 0; r < D::kRows; r += I::kRows) {
      for (int64_t half = 0; half < 2; half += I::kVectors) {
        code_scores<A, I, I::kRows, I::kVectors>(words.queries + (row + r) * kWords * I::kQuery, words.sums + (row + r) * I::kChunks, words.scales + row + r,
                                                 at[i] + keys, ahead, half, s + r * kDecodeKeys + i * kPage + half * kLanes, kDecodeKeys);
      }
    }
  }
}
template <class A>
MP_KERNEL void piece_values(const DecodeWords<A>& words, const uint8_t* const* at, int64_t values, const uint8_t* next, int64_t count, int64_t tokens,
                            const float* s, float* o) {
  using D = DecodeShape<A>;
  using I = typename D::Integers;
  constexpr int64_t kRow = kWords * I::kWeights, kGroup = D::kRows * kRow;
  for (int64_t r = 0; r < D::kRows; r++) {
    split_weights<A, I>(s + r * kDecodeKeys, at, values, count, tokens, words.weights + r * kRow, kGroup, words.weight_scales + r * A::kValueGroups,
                        words.weight_sums + r * A::kValueGroups);
  }
  for (int64_t r = 0; r < D::kRows; r += I::kRows) {
    code_values<A, I, I::kRows>(words.weights + r * kRow, kGroup, words.weight_scales + r * A::kValueGroups, words.weight_sums + r * A::kValueGroups, at, values,
                                next, count, tokens, o + r * A::kDvp);
  }
}

// s[MT][16*NT] = q[MT][DK] times the keys of NT vectors of tokens, in pages of their own. `next` is asked for in step.
template <class A, int MT, int NT>
MP_INLINE void decode_scores(const float* q, const typename A::E* const* keys, const typename A::E* const* next, int64_t half, float* s) {
  using E = typename A::E;
  constexpr int kPages = NT > 1 ? NT / 2 : 1;
  const E* k[kPages];
  const char* ahead[kPages];
  MP_UNROLL
  for (int i = 0; i < kPages; i++) k[i] = keys[i] + half * kLanes, ahead[i] = (const char*)(next[i] + half * kLanes);
  f32x16 acc[MT][NT];
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NT; j++) acc[r][j] = splat(0.0f);
  }
#pragma clang loop unroll_count(2)
  for (int64_t d = 0; d < A::kDk; d++) {
    f32x16 v[NT];
    MP_UNROLL
    for (int i = 0; i < kPages; i++) {
      for (int64_t b = 0; b < (NT > 1 ? 2 : 1) * kLanes * (int64_t)sizeof(E); b += 64) prefetch(ahead[i] + d * kPage * sizeof(E) + b);
    }
    MP_UNROLL
    for (int j = 0; j < NT; j++) v[j] = load_kv(k[j / 2] + d * kPage + j % 2 * kLanes);
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      const f32x16 x = splat(q[r * A::kDkp + d]);
      MP_UNROLL
      for (int j = 0; j < NT; j++) acc[r][j] += v[j] * x;
    }
  }
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NT; j++) store(s + r * kDecodeKeys + j * kLanes, acc[r][j]);
  }
}

// o[MT][16*ND] += p[MT][tokens] times a page's values.
template <class A, int MT, int ND>
MP_INLINE void decode_values(const float* p, int64_t tokens, const typename A::E* values, const typename A::E* next, float* o) {
  f32x16 acc[MT][ND];
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < ND; j++) acc[r][j] = load(o + r * A::kDvp + j * kLanes);
  }
#pragma clang loop unroll_count(2)
  for (int64_t t = 0; t < tokens; t++) {
    f32x16 v[ND];
    for (int64_t b = 0; b < ND * kLanes * (int64_t)sizeof(*values); b += 64) prefetch((const char*)(next + t * A::kDvp) + b);
    MP_UNROLL
    for (int j = 0; j < ND; j++) v[j] = load_kv(values + t * A::kDvp + j * kLanes);
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      const f32x16 x = splat(p[r * kDecodeKeys + t]);
      MP_UNROLL
      for (int j = 0; j < ND; j++) acc[r][j] += v[j] * x;
    }
  }
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < ND; j++) store(o + r * A::kDvp + j * kLanes, acc[r][j]);
  }
}

// A part of one head's context: pages [begin, end) of a token's sequence.
struct DecodePiece {
  int64_t token, kv_head, begin, end;
};

// Scores of a row's keys to weights, in place. Keys from `base`; those outside [first, last] are not seen. Returns the sum of the weights.
MP_INLINE float decode_softmax(const AttentionArgs& a, float* s, int64_t vectors, int64_t base, int64_t first, int64_t last, float slope, float* m,
                               bool* grown) {
  f32x16 top = splat(kLowest);
  const bool plain = a.softcap <= 0.0f && slope == 0.0f && base >= first && base + vectors * kLanes - 1 <= last;
  if (plain) {
    f32x16 other = top;
    int64_t i = 0;
    for (; i + 2 <= vectors; i += 2) top = vmax(top, load(s + i * kLanes)), other = vmax(other, load(s + (i + 1) * kLanes));
    for (; i < vectors; i++) top = vmax(top, load(s + i * kLanes));
    top = vmax(top, other);
  } else {
    for (int64_t i = 0; i < vectors; i++) {
      f32x16 v = load(s + i * kLanes);
      const i32x16 position = lane_numbers() + splat((int32_t)(base + i * kLanes));
      if (a.softcap > 0.0f) v = vtanh(v / splat(a.softcap * kLog2e)) * splat(a.softcap * kLog2e);
      v += to_float(position - splat((int32_t)last)) * splat(slope);
      v = select((position <= splat((int32_t)last)) & (position >= splat((int32_t)first)), v, splat(kLowest));
      store(s + i * kLanes, v);
      top = vmax(top, v);
    }
  }
  const float seen = max_lane(top), now = *m > seen ? *m : seen;
  *grown = now != *m;
  *m = now;
  // Where nothing was seen yet, all weights are 0.
  const f32x16 shift = splat(now <= kLowest ? 0.0f : now);
  f32x16 t0 = splat(0.0f), t1 = t0;
  for (int64_t i = 0; i + 2 <= vectors; i += 2) {
    const f32x16 p0 = vexp2_negative(load(s + i * kLanes) - shift), p1 = vexp2_negative(load(s + (i + 1) * kLanes) - shift);
    store(s + i * kLanes, p0);
    store(s + (i + 1) * kLanes, p1);
    t0 += p0;
    t1 += p1;
  }
  return sum(t0 + t1);
}

// Adds a piece up: o [kPadded][kDvp], m and l [kPadded]. `then` is what will be read after it.
template <class A>
MP_KERNEL void decode_piece(const AttentionArgs& a, const DecodePiece& piece, const typename A::E* then, float* q, float* s, float* o, float* m, float* l) {
  using D = DecodeShape<A>;
  using E = typename A::E;
  const int64_t slot = a.slots[piece.token], last = a.positions[piece.token], head = piece.kv_head * A::kGroup;
  const int64_t keys = piece.kv_head * A::kKeysOfHead, values = A::kValues + piece.kv_head * A::kValuesOfHead, first = first_seen(a, last);
  for (int64_t r = 0; r < D::kPadded; r++) {
    if (r >= A::kGroup) memset(q + r * A::kDkp, 0, A::kDkp * sizeof(float));
    else if (A::kCodes) load_head<A>(a, a.q + piece.token * a.ldq + (head + r) * a.ldq_head, piece.token, 1.0f, q + r * A::kDkp);
    else load_query<A>(a, piece.token, head + r, q + r * A::kDkp);
    m[r] = kLowest;
    l[r] = 0.0f;
  }
  [[maybe_unused]] const DecodeWords<A> words(q);
  if constexpr (A::kCodes) {
    using I = typename D::Integers;
    for (int64_t r = 0; r < D::kPadded; r++) {
      split_query<A, I>(q + r * A::kDkp, a.scale * kLog2e, words.queries + r * kWords * I::kQuery, words.sums + r * I::kChunks, words.scales + r);
    }
  }
  memset(o, 0, D::kPadded * A::kDvp * sizeof(float));
  const E* at[kDecodePages + D::kPagesAtOnce];
  for (int64_t page = piece.begin; page < piece.end; page += kDecodePages) {
    const int64_t count = min_of(kDecodePages, piece.end - page), padded = round_up(count, D::kPagesAtOnce);
    const bool ends = page + count >= piece.end;
    uint32_t missing = 0;
    for (int64_t i = 0; i < padded; i++) {
      const E* p = i < count ? kv_page<A>(a, slot, page + i) : nullptr;
      if (!p && i < count) missing |= 1u << i;
      at[i] = p ? p : i ? at[i - 1] : (const E*)a.cache;
    }
    const E* following = ends ? then : kv_page<A>(a, slot, page + count);
    if (!following) following = at[0];
    for (int64_t chunk = 0; chunk < D::kChunks; chunk++) {
      const int64_t row = chunk * D::kRows;
      if constexpr (A::kCodes) piece_scores<A>(words, at, keys, at[0] + values, count, row, s);
      for (int64_t i = 0; !A::kCodes && i < padded; i += D::kPagesAtOnce) {
        const E *k[D::kPagesAtOnce], *next[D::kPagesAtOnce];
        for (int64_t j = 0; j < D::kPagesAtOnce; j++) {
          const int64_t n = i + D::kPagesAtOnce + j;
          k[j] = at[i + j] + keys;
          next[j] = n < padded ? at[n] + keys : at[min_of(j, count - 1)] + values;
        }
        for (int64_t half = 0; half < (D::kVectors > 1 ? 1 : 2); half++) {
          if constexpr (!A::kCodes) decode_scores<A, D::kRows, D::kVectors>(q + row * A::kDkp, k, next, half, s + i * kPage + half * kLanes);
        }
      }
      for (int64_t i = 0; missing >> i; i++) {
        if (!(missing >> i & 1)) continue;
        for (int64_t r = 0; r < D::kRows; r++) {
          for (int64_t j = 0; j < kPage; j += kLanes) store(s + r * kDecodeKeys + i * kPage + j, splat(kLowest));
        }
      }
      for (int64_t r = 0; r < D::kRows; r++) {
        const float slope = a.slopes && row + r < A::kGroup ? a.slopes[head + row + r] * kLog2e : 0.0f, old = m[row + r];
        bool grown;
        const float total = decode_softmax(a, s + r * kDecodeKeys, count * (kPage / kLanes), page * kPage, first, last, slope, m + row + r, &grown);
        if (grown) {
          const f32x16 keep = vexp2_negative(splat(old - m[row + r]));
          l[row + r] *= keep[0];
          float* sums = o + (row + r) * A::kDvp;
          for (int64_t d = 0; d < A::kDvp; d += kLanes) store(sums + d, load(sums + d) * keep);
        }
        l[row + r] += total;
      }
      // Tokens after the last position hold what another sequence left there.
      if constexpr (A::kCodes) {
        piece_values<A>(words, at, values, following + keys, count, min_of(count * kPage, last + 1 - page * kPage), s, o + row * A::kDvp);
      }
      for (int64_t i = 0; !A::kCodes && i < count; i++) {
        const int64_t tokens = min_of(kPage, last + 1 - (page + i) * kPage);
        const E* from = at[i] + values;
        const E* next = i + 1 < count ? at[i + 1] + values : following + keys;
        for (int64_t d = 0; d < A::kDvp; d += D::kDims * kLanes) {
          if constexpr (!A::kCodes) decode_values<A, D::kRows, D::kDims>(s + i * kPage, tokens, from + d, next + d, o + row * A::kDvp + d);
        }
      }
    }
  }
}

// Whether every token is the last of its sequence in this step.
MP_INLINE bool is_decode(const AttentionArgs& a) {
  if (!a.lengths) return false;
  for (int64_t i = 0; i < a.t; i++) {
    if (a.positions[i] + 1 != a.lengths[i]) return false;
  }
  return true;
}

template <class A>
constexpr int64_t decode_scratch(int threads) { return threads * round_up(DecodeShape<A>::kThread * 4, 64); }

template <class A>
MP_TASK void attention_decode(const AttentionArgs& a, int tid, int nt) {
  using D = DecodeShape<A>;
  constexpr int64_t kStride = round_up(D::kThread * 4, 64) / 4;
  float* own = (float*)a.scratch + tid * kStride;
  // Partial results first, so that other threads find them.
  float *q = own + 2 * D::kPartial, *s = q + D::kQuery, *whole = s + D::kRows * kDecodeKeys;
  int64_t total = 0;
  for (int64_t i = 0; i < a.t; i++) total += a.positions[i] / kPage + 1 - first_seen(a, a.positions[i]) / kPage;
  total *= A::kHkv;
  const Range mine = share(total, tid, nt);
  const auto owner = [&](int64_t at) { return (int)(((at + 1) * nt - 1) / total); };  // the thread whose share holds this place of the line
  int64_t begin = 0;
  for (int64_t token = 0; token < a.t && begin < mine.end; token++) {
    const int64_t page0 = first_seen(a, a.positions[token]) / kPage, pages = a.positions[token] / kPage + 1 - page0;
    for (int64_t h = 0; h < A::kHkv && begin < mine.end; h++, begin += pages) {
      const int64_t from = max_of(mine.begin, begin) - begin, to = min_of(mine.end, begin + pages) - begin;
      if (from >= to) continue;
      if (to == pages) append_head<A>(a, token, h);
      // After this piece comes the next head of the same sequence, or the first of the next sequence.
      const bool same = h + 1 < A::kHkv;
      const int64_t after = same ? token : token + 1 < a.t ? token + 1 : token;
      const typename A::E* then = kv_page<A>(a, a.slots[after], first_seen(a, a.positions[after]) / kPage);
      if (then) then += same ? A::kKeysOfHead : -h * A::kKeysOfHead;
      const bool split = from > 0 || to < pages;
      float *o = split ? own + (from > 0 ? 0 : D::kPartial) : whole, *m = o + D::kPadded * A::kDvp, *l = m + D::kPadded;
      decode_piece<A>(a, DecodePiece{token, h, page0 + from, page0 + to}, then, q, s, o, m, l);
      if (split) {
        const int one = owner(begin), other = owner(begin + pages - 1);
        int32_t* done = a.sync + one * kSyncInts;
        if (__atomic_add_fetch(done, 1, __ATOMIC_ACQ_REL) < other - one + 1) continue;
        __atomic_store_n(done, 0, __ATOMIC_RELAXED);
        o = whole, m = o + D::kPadded * A::kDvp, l = m + D::kPadded;
        for (int64_t r = 0; r < A::kGroup; r++) {
          m[r] = kLowest;
          l[r] = 0.0f;
          for (int i = one; i <= other; i++) {
            const float part = ((float*)a.scratch + i * kStride + (i == one ? D::kPartial : 0))[D::kPadded * A::kDvp + r];
            m[r] = m[r] > part ? m[r] : part;
          }
          memset(o + r * A::kDvp, 0, A::kDvp * sizeof(float));
          for (int i = one; i <= other; i++) {
            const float* part = (float*)a.scratch + i * kStride + (i == one ? D::kPartial : 0);
            const f32x16 keep = vexp2_negative(splat(part[D::kPadded * A::kDvp + r] - m[r]));
            l[r] += keep[0] * part[D::kPadded * A::kDvp + D::kPadded + r];
            for (int64_t d = 0; d < A::kDvp; d += kLanes) {
              store(o + r * A::kDvp + d, load(o + r * A::kDvp + d) + load(part + r * A::kDvp + d) * keep);
            }
          }
        }
      }
      for (int64_t r = 0; r < A::kGroup; r++) store_result<A>(a, token, h * A::kGroup + r, o + r * A::kDvp, m[r], l[r]);
    }
  }
}

}  // namespace mp
