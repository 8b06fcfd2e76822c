// What the attention kernels share: a plan's attention as a type, where keys and values lie in the pages, and the queries' way in and the
// results' way out.
#pragma once
#include "args.h"
#include "float8.h"
#include "rope.h"
#include "vec.h"
#include "vec_math.h"

namespace mp {

// The type of an element (8-bit floats are bytes), and the bits of codes; 0 where there are none. Codes are addressed by bytes.
template <Kv S> struct KvElement { using Type = uint8_t; };
template <> struct KvElement<Kv::F32> { using Type = float; };
template <> struct KvElement<Kv::F16> { using Type = uint16_t; };
constexpr int key_bits(Kv s) { return s == Kv::I8 || s == Kv::K8V4 ? 8 : s == Kv::I4 ? 4 : 0; }
constexpr int value_bits(Kv s) { return s == Kv::I8 ? 8 : s == Kv::I4 || s == Kv::K8V4 ? 4 : 0; }

// Codes of a page and head, in bytes. Keys: [steps][32 tokens][4 bytes], a step being 4 elements, or 8 of 4 bits, of which the first 4 are in
// the low halves. Values: [8 steps of 4 tokens][lanes][4 bytes], a lane being an element, or two of 4 bits: of each 32 elements the first 16
// are in the low halves of 16 lanes. So a step is a vector that integer products take as it is. After each follow, for each group, f16 scales
// [32 tokens] and minima [32 tokens].
constexpr int kCodeGroup = 32;
constexpr int64_t code_groups(int bits, int64_t dim) { return bits == 4 ? (dim + kCodeGroup - 1) / kCodeGroup : 1; }
constexpr int64_t key_steps_of(int bits, int64_t dim) { return bits == 4 ? (dim + 7) / 8 : (dim + 3) / 4; }
constexpr int64_t value_lanes_of(int bits, int64_t dim) { return bits == 4 ? round_up(dim, kCodeGroup) / 2 : round_up(dim, kLanes); }
constexpr int64_t kParameterBytes = 2 * kPage * 2;  // of a group

template <int DK, Kv S>
constexpr int64_t key_bytes() {
  constexpr int bits = key_bits(S);
  if (bits) return key_steps_of(bits, DK) * kPage * 4 + code_groups(bits, DK) * kParameterBytes;
  return (int64_t)DK * kPage * (int64_t)sizeof(typename KvElement<S>::Type);
}
template <int DV, Kv S>
constexpr int64_t value_bytes() {
  constexpr int bits = value_bits(S);
  if (bits) return kPage * value_lanes_of(bits, DV) + code_groups(bits, DV) * kParameterBytes;
  return round_up(DV, kLanes) * kPage * (int64_t)sizeof(typename KvElement<S>::Type);
}
template <int HKV, int DK, int DV, Kv S>
constexpr int64_t kv_bytes_per_page() {
  return HKV * (key_bytes<DK, S>() + value_bytes<DV, S>());
}

// Tokens between two updates of the running maximum, in steps of single tokens.
constexpr int kMostTokens = 8 * kPage;
constexpr int largest_divisor(int n, int most) {
  for (int d = most < n ? most : n; d > 1; d--) {
    if (n % d == 0) return d;
  }
  return 1;
}

// DR: rotated dims of q and k; 0 where they come rotated, or are not to be.
template <int HQ, int HKV, int DK, int DV, Kv STORE, int DR = 0, Rope STYLE = Rope::Half, Scores SCORES = Scores::F32>
struct AttentionShape {
  static_assert(HQ % HKV == 0, "query heads share KV heads evenly");
  using E = typename KvElement<STORE>::Type;
  static constexpr int kHq = HQ, kHkv = HKV, kDk = DK, kDv = DV, kDr = DR, kGroup = HQ / HKV;
  static constexpr Kv kStore = STORE;
  static constexpr Rope kStyle = STYLE;
  static constexpr Scores kScores = SCORES;
  static constexpr int kDkp = (int)round_up(DK, kLanes), kDvp = (int)round_up(DV, kLanes);
  // A page: keys of all heads, token-minor, so that a vector holds 16 tokens' keys and a score needs no horizontal sum; then values. In E.
  static constexpr int64_t kKeysOfHead = key_bytes<DK, STORE>() / (int64_t)sizeof(E), kValuesOfHead = value_bytes<DV, STORE>() / (int64_t)sizeof(E);
  static constexpr int64_t kValues = HKV * kKeysOfHead;
  static constexpr bool kCodes = key_bits(STORE) != 0;
  static constexpr int kKeyBits = key_bits(STORE), kValueBits = value_bits(STORE);
  static constexpr int64_t kKeySteps = key_steps_of(kKeyBits, DK), kKeyGroups = code_groups(kKeyBits, DK);
  static constexpr int64_t kValueLanes = value_lanes_of(kValueBits, DV), kValueGroups = code_groups(kValueBits, DV);
  static constexpr int64_t kPageBytes = kv_bytes_per_page<HKV, DK, DV, STORE>();
};

// The page of a sequence's position, or null.
template <class A>
MP_INLINE typename A::E* kv_page(const AttentionArgs& a, int64_t slot, int64_t index) {
  if (index < 0 || index >= a.max_pages) return nullptr;
  const int64_t page = a.block_tables[slot * a.max_pages + index];
  if (page < 0 || page >= a.pages) return nullptr;
  return (typename A::E*)((char*)a.cache + page * (a.page_stride ? a.page_stride : A::kPageBytes));
}
MP_INLINE f32x16 load_kv(const float* p) { return load(p); }
MP_INLINE f32x16 load_kv(const uint16_t* p) { return load_f16(p); }
MP_INLINE f32x16 load_kv(const uint8_t* p) { return e4m3_column((i32x16)__builtin_convertvector(load_as<u8x16>(p), u32x16), 0); }
MP_INLINE void store_kv(uint8_t* p, f32x16 v) { store_as(p, e4m3_codes(v)); }
MP_INLINE void store_kv(float* p, f32x16 v) { store(p, v); }
MP_INLINE void store_kv(uint16_t* p, f32x16 v) { store_as(p, f32_to_f16(v)); }

// The first position that a query at `position` sees.
MP_INLINE int64_t first_seen(const AttentionArgs& a, int64_t position) {
  if (a.window <= 0) return 0;
  return a.mask == kMaskChunked ? position / a.window * a.window : max_of(position - a.window + 1, 0);
}

// Softmax works with powers of 2, so queries carry log2(e) with their scale, and ALiBi's slopes, sinks and a cap on scores do too.
constexpr float kLog2e = 1.44269504088896341f;
constexpr float kLowest = -1e30f;  // of a key that is not seen: finite, so that the difference of two is a number

// 2^x for x <= 0, by 2^n * p(r), |r| <= 1/2; relative error 3e-7. Results below the normal range may be 0.
MP_INLINE f32x16 vexp2_negative(f32x16 x) {
#if defined(__AVX512F__)
  const f32x16 n = round_even(x), r = x - n;
#else
  const f32x16 t = vmax(splat(-127.0f), x), n = round_even(t), r = t - n;  // in this order a NaN passes
#endif
  f32x16 p = splat(1.327647199e-3f);
  p = p * r + 9.675541334e-3f;
  p = p * r + 5.550713274e-2f;
  p = p * r + 2.402211972e-1f;
  p = p * r + 6.931469671e-1f;
  p = p * r + 1.000000072f;
#if defined(__AVX512F__)
  return (f32x16)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  return p * (f32x16)((to_int(n) + 127) << 23);  // 2^-127 becomes 0
#endif
}

// A head of a token, rotated: to `to`, kDkp long, padded with zeros.
template <class A>
MP_INLINE void load_head(const AttentionArgs& a, const float* x, int64_t token, float scale, float* to) {
  if constexpr (A::kDr > 0) rope_head<A::kDk, A::kDr, A::kStyle>(x, a.cos + token * a.ldc, a.sin + token * a.ldc, to);
  const float* from = A::kDr > 0 ? to : x;
  for (int64_t d = 0; d < A::kDk; d += kLanes) store(to + d, load_n(from + d, A::kDk - d) * splat(scale));
}
template <class A>
MP_INLINE void load_query(const AttentionArgs& a, int64_t token, int64_t head, float* to) {
  load_head<A>(a, a.q + token * a.ldq + head * a.ldq_head, token, a.scale * kLog2e, to);
}

// A head's finished row: sums of values `o` [kDvp] over the total `l` of weights (with the sink's share); m is the largest score.
template <class A>
MP_INLINE void store_result(const AttentionArgs& a, int64_t token, int64_t head, const float* o, float m, float l) {
  float factor = 1.0f;
  if (a.sinks) {
    const float sink = a.sinks[head] * kLog2e, top = m > sink ? m : sink;
    factor = vexp2_negative(splat(m - top))[0];
    l = l * factor + vexp2_negative(splat(sink - top))[0];
  }
  const f32x16 scale = splat(l == 0.0f ? 0.0f : factor / l);
  float* y = a.y + token * a.ldy + head * a.ldy_head;
  for (int64_t d = 0; d < A::kDv; d += kLanes) store_n(y + d, load(o + d) * scale, A::kDv - d);
}

}  // namespace mp
