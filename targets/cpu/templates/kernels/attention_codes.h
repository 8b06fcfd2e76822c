// Keys and values as codes of 8 or 4 bits: how a token's are made and where they lie, and how a page's are widened for steps with prompts.
// The numbers are those of runtime/kv_format.py, bit for bit.
#pragma once
#include "attention_shape.h"

namespace mp {

// Codes of n elements of `x`, readable up to a multiple of 16, as one group; those up to the multiple of 16 are 0.
template <int BITS>
MP_INLINE void make_codes(const float* x, int64_t n, uint8_t* codes, uint16_t* scale, uint16_t* minimum) {
  constexpr float kTop = (1 << BITS) - 1;
  f32x16 least = splat(x[0]), most = least;
  i32x16 none = splat(0);
  for (int64_t i = 0; i < n; i += kLanes) {
    f32x16 v = load(x + i);
    if (n - i < kLanes) v = select(lane_numbers() < splat((int32_t)(n - i)), v, splat(x[0]));
    least = vmin(least, v);
    most = vmax(most, v);
    none |= v != v;
  }
  const float low = -max_lane(-least), high = sum(none) ? NAN : max_lane(most);
  uint16_t halves[2 * kLanes];
  store_as(halves, f32_to_f16(splat((high - low) / kTop)));
  store_as(halves + kLanes, f32_to_f16(splat(low)));
  *scale = halves[0];
  *minimum = halves[kLanes];
  const float wide = load_f16(halves)[0], start = load_f16(halves + kLanes)[0], inverse = wide > 0.0f ? 1.0f / wide : 0.0f;
  for (int64_t i = 0; i < n; i += kLanes) {
    const f32x16 v = vmin(vmax((load(x + i) - splat(start)) * splat(inverse), splat(0.0f)), splat(kTop));
    i32x16 code = round_to_int(v);
    if (n - i < kLanes) code &= lane_numbers() < splat((int32_t)(n - i));
    store_as(codes + i, __builtin_convertvector(code & 0xff, u8x16));
  }
}
template <int BITS>
MP_INLINE void make_groups(const float* x, int64_t n, uint8_t* codes, uint16_t* parameters, int64_t at) {
  const int64_t width = BITS == 4 ? kCodeGroup : n;
  for (int64_t d = 0; d < n; d += width, parameters += 2 * kPage) {
    make_codes<BITS>(x + d, min_of(width, n - d), codes + d, parameters + at, parameters + kPage + at);
  }
}

// A key of token `at` of a page, or its value; bytes belong to one token, so that threads may store neighbours.
template <class A>
MP_INLINE void store_key_codes(const float* k, uint8_t* keys, int64_t at) {
  alignas(64) uint8_t codes[round_up(A::kDk, kCodeGroup)] = {};
  make_groups<A::kKeyBits>(k, A::kDk, codes, (uint16_t*)(keys + A::kKeySteps * kPage * 4), at);
  for (int64_t i = 0; i < A::kKeySteps; i++) {
    uint32_t step;
    if constexpr (A::kKeyBits == 8) {
      memcpy(&step, codes + i * 4, 4);
    } else {
      uint32_t low, high;
      memcpy(&low, codes + i * 8, 4);
      memcpy(&high, codes + i * 8 + 4, 4);
      step = low | high << 4;
    }
    memcpy(keys + (i * kPage + at) * 4, &step, 4);
  }
}
template <class A>
MP_INLINE void store_value_codes(const float* v, uint8_t* values, int64_t at) {
  alignas(64) uint8_t codes[round_up(A::kDv, kCodeGroup)] = {};
  make_groups<A::kValueBits>(v, A::kDv, codes, (uint16_t*)(values + kPage * A::kValueLanes), at);
  uint8_t* to = values + at / 4 * A::kValueLanes * 4 + at % 4;
  for (int64_t i = 0; i < A::kValueLanes; i++) {
    if constexpr (A::kValueBits == 8) {
      to[i * 4] = codes[i];
    } else {
      const uint8_t* pair = codes + i / kLanes * kCodeGroup + i % kLanes;
      to[i * 4] = (uint8_t)(pair[0] | pair[kLanes] << 4);
    }
  }
}

// Byte J of each lane as a number; of 4-bit codes, half H.
template <int BITS, int J, int H>
MP_INLINE f32x16 code_numbers(i32x16 v) {
  constexpr int kShift = 8 * J + 4 * H;
  return to_float((i32x16)((u32x16)v >> kShift) & ((1 << BITS) - 1));
}

// Keys of a page and head, widened: each(d, vector of 16 tokens, numbers) for all dims, 4 or 8 of them in order.
template <class A, class F>
MP_INLINE void widen_keys(const uint8_t* keys, const F& each) {
  constexpr int kBits = A::kKeyBits;
  const uint16_t* parameters = (const uint16_t*)(keys + A::kKeySteps * kPage * 4);
  for (int64_t half = 0; half < 2; half++) {
    for (int64_t i = 0; i < A::kKeySteps; i++) {
      const int64_t d = i * (32 / kBits), group = kBits == 4 ? d / kCodeGroup : 0;
      const f32x16 scale = load_f16(parameters + group * 2 * kPage + half * kLanes), least = load_f16(parameters + (group * 2 + 1) * kPage + half * kLanes);
      const i32x16 v = load_as<i32x16>(keys + (i * kPage + half * kLanes) * 4);
      each(d, half, code_numbers<kBits, 0, 0>(v) * scale + least, code_numbers<kBits, 1, 0>(v) * scale + least);
      each(d + 2, half, code_numbers<kBits, 2, 0>(v) * scale + least, code_numbers<kBits, 3, 0>(v) * scale + least);
      if constexpr (kBits == 4) {
        each(d + 4, half, code_numbers<4, 0, 1>(v) * scale + least, code_numbers<4, 1, 1>(v) * scale + least);
        each(d + 6, half, code_numbers<4, 2, 1>(v) * scale + least, code_numbers<4, 3, 1>(v) * scale + least);
      }
    }
  }
}

// Values of a page and head, widened: each(token, d, numbers of that token, of the next) for tokens below `tokens`, and one more where they
// are odd, whose numbers are 0. d is below kDvp.
template <class A, class F>
MP_INLINE void widen_values(const uint8_t* values, int64_t tokens, const F& each) {
  constexpr int kBits = A::kValueBits;
  const uint16_t* parameters = (const uint16_t*)(values + kPage * A::kValueLanes);
  const f32x16 zero = splat(0.0f);
  float scales[A::kValueGroups][kPage], minima[A::kValueGroups][kPage];
  for (int64_t g = 0; g < A::kValueGroups; g++) {
    for (int64_t j = 0; j < kPage; j += kLanes) {
      store(scales[g] + j, load_f16(parameters + g * 2 * kPage + j));
      store(minima[g] + j, load_f16(parameters + (g * 2 + 1) * kPage + j));
    }
  }
  for (int64_t t = 0; t < tokens; t += 2) {
    for (int64_t lane = 0; lane < A::kValueLanes; lane += kLanes) {
      const int64_t g = kBits == 4 ? lane / kLanes : 0, d = kBits == 4 ? g * kCodeGroup : lane;
      i32x16 v = load_as<i32x16>(values + (t / 4 * A::kValueLanes + lane) * 4);
      if (t % 4) v = (i32x16)((u32x16)v >> 16);
      const f32x16 s0 = splat(scales[g][t]), m0 = splat(minima[g][t]), s1 = splat(scales[g][t + 1]), m1 = splat(minima[g][t + 1]);
      const bool both = t + 1 < tokens;
      each(t, d, code_numbers<kBits, 0, 0>(v) * s0 + m0, both ? code_numbers<kBits, 1, 0>(v) * s1 + m1 : zero);
      if constexpr (kBits == 4) {
        if (d + kLanes < A::kDvp) each(t, d + kLanes, code_numbers<4, 0, 1>(v) * s0 + m0, both ? code_numbers<4, 1, 1>(v) * s1 + m1 : zero);
      }
    }
  }
}

// Stores a token's key and value of one KV head in the cache.
template <class A>
MP_KERNEL void append_head(const AttentionArgs& a, int64_t token, int64_t h) {
  using E = typename A::E;
  const int64_t position = a.positions[token], at = position % kPage;
  E* page = kv_page<A>(a, a.slots[token], position / kPage);
  if (!page || position < 0) return;
  alignas(64) float k[A::kDkp];
  load_head<A>(a, a.k + token * a.ldk + h * a.ldk_head, token, 1.0f, k);
  const float* v = a.v + token * a.ldv + h * a.ldv_head;
  E *keys = page + h * A::kKeysOfHead, *values = page + A::kValues + h * A::kValuesOfHead;
  if constexpr (A::kCodes) {
    alignas(64) float padded[A::kDvp];
    for (int64_t d = 0; d < A::kDv; d += kLanes) store(padded + d, load_n(v + d, A::kDv - d));
    store_key_codes<A>(k, keys, at);
    store_value_codes<A>(padded, values, at);
  } else {
    for (int64_t d = 0; d < A::kDk; d += kLanes) {
      E lanes[kLanes];
      store_kv(lanes, load(k + d));
      for (int64_t i = 0; i < kLanes && d + i < A::kDk; i++) keys[(d + i) * kPage + at] = lanes[i];
    }
    for (int64_t d = 0; d < A::kDv; d += kLanes) store_kv(values + at * A::kDvp + d, load_n(v + d, A::kDv - d));
  }
}

}  // namespace mp
