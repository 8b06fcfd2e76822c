// Attention to codes, a few queries at a time, in integers: queries and weights become fixed-point numbers of 16 bits (of 8, where scores are
// asked for in int8), so that a step of codes is multiplied as it lies in the page, without a conversion. Sums are exact until they are scaled;
// a query's element or a weight is off by at most 2^-16 of the largest beside it, a hundredth of what the codes are off by.
#pragma once
#include "attention_codes.h"

namespace mp {

// How a number of 16 bits meets 4 codes in a lane: as two signed bytes, each with its own sum, or as it is, in pairs.
#if defined(__AVX512VNNI__)
constexpr bool kByteDigits = true;
#else
constexpr bool kByteDigits = false;
#endif
constexpr int kWords = 2;  // of 4 numbers: bytes [upper, lower], or pairs [0 and 2, 1 and 3]

template <int DIGITS>
struct CodeSums {
  static constexpr int kCount = kByteDigits ? DIGITS : 1;
  i32x16 v[kCount];
};
template <int DIGITS>
MP_INLINE void clear(CodeSums<DIGITS>& sums) {
  MP_UNROLL
  for (int d = 0; d < CodeSums<DIGITS>::kCount; d++) sums.v[d] = splat(0);
}
// sums += 4 codes of each lane times 4 numbers, whose words are `stride` apart.
template <int DIGITS>
MP_INLINE void add_products(CodeSums<DIGITS>& sums, i32x16 codes, const int32_t* words, int64_t stride) {
#if defined(__AVX512VNNI__)
  MP_UNROLL
  for (int d = 0; d < DIGITS; d++) sums.v[d] = dot_u8s8<8>(sums.v[d], codes, splat(words[d * stride]));
#elif defined(__AVX2__)
  union U { i32x16 v; __m256i h[2]; };
  U c = {sums.v[0]}, x = {codes};
  const __m256i first = _mm256_set1_epi32(words[0]), second = _mm256_set1_epi32(words[stride]);
  for (int i = 0; i < 2; i++) {
    const __m256i even = _mm256_and_si256(x.h[i], _mm256_set1_epi16(0xff)), odd = _mm256_srli_epi16(x.h[i], 8);
    c.h[i] = _mm256_add_epi32(c.h[i], _mm256_add_epi32(_mm256_madd_epi16(even, first), _mm256_madd_epi16(odd, second)));
  }
  sums.v[0] = c.v;
#elif defined(__SSE2__)
  union U { i32x16 v; __m128i h[4]; };
  U c = {sums.v[0]}, x = {codes};
  const __m128i first = _mm_set1_epi32(words[0]), second = _mm_set1_epi32(words[stride]);
  for (int i = 0; i < 4; i++) {
    const __m128i even = _mm_and_si128(x.h[i], _mm_set1_epi16(0xff)), odd = _mm_srli_epi16(x.h[i], 8);
    c.h[i] = _mm_add_epi32(c.h[i], _mm_add_epi32(_mm_madd_epi16(even, first), _mm_madd_epi16(odd, second)));
  }
  sums.v[0] = c.v;
#else
  for (int j = 0; j < 4; j++) {
    const int32_t number = (int16_t)(words[j % 2 * stride] >> (16 * (j / 2)));
    sums.v[0] += ((codes >> (8 * j)) & 0xff) * number;
  }
#endif
}
template <int DIGITS>
MP_INLINE f32x16 total(const CodeSums<DIGITS>& sums) {
  if constexpr (kByteDigits && DIGITS == 2) return to_float(sums.v[0]) * 256.0f + to_float(sums.v[1]);
  else return to_float(sums.v[0]);
}
// 16 numbers, as 4 words in each of two rows that are `stride` apart.
template <int DIGITS>
MP_INLINE void store_words(i32x16 v, int32_t* words, int64_t stride) {
  if constexpr (kByteDigits) {
    if constexpr (DIGITS == 2) {
      const i32x16 low = (v << 24) >> 24;
      store_as(words + stride, __builtin_convertvector(low, i8x16));
      v = (v - low) >> 8;
    }
    store_as(words, __builtin_convertvector(v, i8x16));
  } else {
    typedef int32_t i32x4 __attribute__((vector_size(16)));
    const i32x4 n0 = __builtin_shufflevector(v, v, 0, 4, 8, 12), n1 = __builtin_shufflevector(v, v, 1, 5, 9, 13);
    const i32x4 n2 = __builtin_shufflevector(v, v, 2, 6, 10, 14), n3 = __builtin_shufflevector(v, v, 3, 7, 11, 15);
    store_as(words, (n0 & 0xffff) | (n2 << 16));
    store_as(words + stride, (n1 & 0xffff) | (n3 << 16));
  }
}

// Registers for sums, in vectors.
#if defined(__AVX512F__)
constexpr int kCodeSums = 24;
#else
constexpr int kCodeSums = 3;
#endif

template <class A, int ROWS>
struct IntegerShape {
  static constexpr int kDigits = A::kScores == Scores::I8 ? 1 : 2;
  static constexpr float kMostQuery = kDigits == 1 ? 127.0f : 127.0f * 256.0f, kMostWeight = 127.0f * 256.0f;
  static constexpr int64_t kQuads = A::kKeySteps * (A::kKeyBits == 4 ? 2 : 1), kQuery = round_up(kQuads, 4);  // words of a query's row
  // Elements that share a scale, and whose sum of products fits 32 bits.
  static constexpr int64_t kChunkSteps = A::kKeyBits == 4 ? kCodeGroup / 8 : 64, kChunks = (A::kKeySteps + kChunkSteps - 1) / kChunkSteps;
  static constexpr int64_t kWeights = kMostTokens / 4;  // words of a row of weights
  static constexpr int kRows = largest_divisor(ROWS, kCodeSums / CodeSums<2>::kCount);  // at once
  static constexpr int kVectors = kRows * CodeSums<2>::kCount * 2 <= kCodeSums ? 2 : 1;
  static constexpr int kDims = largest_divisor((int)(A::kDvp / kLanes), kCodeSums / (kRows * CodeSums<2>::kCount) > 0 ? kCodeSums / (kRows * CodeSums<2>::kCount) : 1);
};

// A query's row q [kDkp], not scaled, to words; with the sums of its chunks, and what its scores are to be multiplied with.
template <class A, class I>
MP_INLINE void split_query(const float* q, float factor, int32_t* words, float* sums, float* scale) {
  f32x16 most = splat(0.0f);
  i32x16 none = splat(0);
  for (int64_t d = 0; d < A::kDkp; d += kLanes) {
    const f32x16 v = load(q + d);
    most = vmax(most, vabs(v));
    none |= v != v;
  }
  const float largest = sum(none) ? NAN : max_lane(most), inverse = largest > 1e-30f ? I::kMostQuery / largest : 0.0f;
  *scale = inverse == 0.0f && largest < 1.0f ? 0.0f : largest / I::kMostQuery * factor;
  for (int64_t c = 0; c < I::kChunks; c++) sums[c] = 0.0f;
  constexpr int64_t kChunkDims = A::kKeyBits == 4 ? kCodeGroup : 256;
  for (int64_t d = 0; d < I::kQuery * 4; d += kLanes) {
    const i32x16 v = round_to_int(load(q + d) * splat(inverse));
    sums[d / kChunkDims] += (float)sum(v);
    store_words<I::kDigits>(v, words + d / 4, I::kQuery);
  }
}

// s[MT][16*NT] = queries times the keys of a page's vectors from `half` on. words [row][2][kQuery], sums [row][kChunks].
template <class A, class I, int MT, int NT>
MP_INLINE void code_scores(const int32_t* words, const float* sums, const float* scales, const uint8_t* keys, const uint8_t* next, int64_t half, float* s,
                           int64_t lds) {
  const uint16_t* parameters = (const uint16_t*)(keys + A::kKeySteps * kPage * 4) + half * kLanes;
  f32x16 scores[MT][NT];
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NT; j++) scores[r][j] = splat(0.0f);
  }
  for (int64_t c = 0; c < I::kChunks; c++) {
    CodeSums<I::kDigits> acc[MT][NT];
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      MP_UNROLL
      for (int j = 0; j < NT; j++) clear(acc[r][j]);
    }
    const int64_t end = min_of((c + 1) * I::kChunkSteps, A::kKeySteps);
#pragma clang loop unroll_count(2)
    for (int64_t i = c * I::kChunkSteps; i < end; i++) {
      i32x16 v[NT];
      MP_UNROLL
      for (int j = 0; j < NT; j++) {
        const int64_t at = (i * kPage + (half + j) * kLanes) * 4;
        v[j] = load_as<i32x16>(keys + at);
        prefetch(next + at);
      }
      if constexpr (A::kKeyBits == 8) {
        MP_UNROLL
        for (int r = 0; r < MT; r++) {
          MP_UNROLL
          for (int j = 0; j < NT; j++) add_products<I::kDigits>(acc[r][j], v[j], words + r * kWords * I::kQuery + i, I::kQuery);
        }
      } else {
        i32x16 low[NT], high[NT];
        MP_UNROLL
        for (int j = 0; j < NT; j++) low[j] = v[j] & 0x0f0f0f0f, high[j] = (v[j] >> 4) & 0x0f0f0f0f;
        MP_UNROLL
        for (int r = 0; r < MT; r++) {
          const int32_t* w = words + r * kWords * I::kQuery + 2 * i;
          MP_UNROLL
          for (int j = 0; j < NT; j++) {
            add_products<I::kDigits>(acc[r][j], low[j], w, I::kQuery);
            add_products<I::kDigits>(acc[r][j], high[j], w + 1, I::kQuery);
          }
        }
      }
    }
    MP_UNROLL
    for (int j = 0; j < NT; j++) {
      const uint16_t* of = parameters + (A::kKeyBits == 4 ? c : 0) * 2 * kPage + j * kLanes;
      const f32x16 scale = load_f16(of), least = load_f16(of + kPage);
      MP_UNROLL
      for (int r = 0; r < MT; r++) scores[r][j] += total(acc[r][j]) * scale + least * splat(sums[r * I::kChunks + c]);
    }
  }
  for (int64_t b = 0; b < A::kKeyGroups * kParameterBytes; b += 64) prefetch(next + A::kKeySteps * kPage * 4 + b);
  MP_UNROLL
  for (int r = 0; r < MT; r++) {
    MP_UNROLL
    for (int j = 0; j < NT; j++) store(s + r * lds + j * kLanes, scores[r][j] * splat(scales[r]));
  }
}

// A row's weights p of pages' tokens, those from `tokens` on left out, times the values' scales, as words for each group [kWeights * 2]; with
// what their products are to be multiplied with, and the minima's part of each group's sums. Pages begin at at[i] + values.
template <class A, class I>
MP_INLINE void split_weights(const float* p, const uint8_t* const* at, int64_t values, int64_t pages, int64_t tokens, int32_t* words, int64_t ldw, float* scales,
                             float* sums) {
  alignas(64) float scaled[kMostTokens];
  for (int64_t g = 0; g < A::kValueGroups; g++) {
    f32x16 most = splat(0.0f), minima = splat(0.0f);
    for (int64_t i = 0; i < pages; i++) {
      const uint16_t* of = (const uint16_t*)(at[i] + values + kPage * A::kValueLanes) + g * 2 * kPage;
      for (int64_t j = 0; j < kPage; j += kLanes) {
        const int64_t t = i * kPage + j;
        // What adds nothing is 0 rather than a denormal number, whose products would take a hundred times as long.
        const f32x16 weight = select(load(p + t) > splat(1e-30f), load(p + t), splat(0.0f));
        f32x16 v = weight * load_f16(of + j), least = weight * load_f16(of + kPage + j);
        if (tokens - t < kLanes) {  // what other sequences left there may be no number
          const i32x16 seen = lane_numbers() < splat((int32_t)(tokens - t));
          v = select(seen, v, splat(0.0f)), least = select(seen, least, splat(0.0f));
        }
        store(scaled + t, v);
        most = vmax(most, v);
        minima += least;
      }
    }
    const float largest = max_lane(most), inverse = largest > 1e-30f ? I::kMostWeight / largest : 0.0f;
    scales[g] = inverse == 0.0f && largest < 1.0f ? 0.0f : largest / I::kMostWeight;
    sums[g] = sum(minima);
    for (int64_t t = 0; t < pages * kPage; t += kLanes) {
      store_words<2>(round_to_int(load(scaled + t) * splat(inverse)), words + g * ldw + t / 4, I::kWeights);
    }
  }
}

// o[MT][kDvp] += weights times the values of pages. words [group][row][2][kWeights], scales and sums [row][group].
template <class A, class I, int MT>
MP_INLINE void code_values(const int32_t* words, int64_t ldw, const float* scales, const float* sums, const uint8_t* const* at, int64_t values, const uint8_t* next,
                           int64_t pages, int64_t tokens, float* o) {
  constexpr int ND = A::kValueBits == 4 ? 1 : I::kDims, kHalves = A::kValueBits == 4 ? 2 : 1;
  for (int64_t lane = 0; lane < A::kValueLanes; lane += ND * kLanes) {
    const int64_t g = A::kValueBits == 4 ? lane / kLanes : 0;
    const int32_t* w = words + g * ldw;
    CodeSums<2> acc[MT][ND * kHalves];
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      MP_UNROLL
      for (int j = 0; j < ND * kHalves; j++) clear(acc[r][j]);
    }
    for (int64_t i = 0; i < pages; i++) {
      const uint8_t *page = at[i] + values + lane * 4, *ahead = (i + 1 < pages ? at[i + 1] + values : next) + lane * 4;
      const int64_t steps = min_of(kPage / 4, (tokens - i * kPage + 3) / 4);
#pragma clang loop unroll_count(2)
      for (int64_t t = 0; t < steps; t++) {
        MP_UNROLL
        for (int j = 0; j < ND; j++) {
          const i32x16 v = load_as<i32x16>(page + t * A::kValueLanes * 4 + j * 64);
          prefetch(ahead + t * A::kValueLanes * 4 + j * 64);
          MP_UNROLL
          for (int r = 0; r < MT; r++) {
            const int32_t* of = w + r * kWords * I::kWeights + i * (kPage / 4) + t;
            if constexpr (A::kValueBits == 8) {
              add_products<2>(acc[r][j], v, of, I::kWeights);
            } else {
              add_products<2>(acc[r][0], v & 0x0f0f0f0f, of, I::kWeights);
              add_products<2>(acc[r][1], (v >> 4) & 0x0f0f0f0f, of, I::kWeights);
            }
          }
        }
      }
    }
    MP_UNROLL
    for (int r = 0; r < MT; r++) {
      const f32x16 scale = splat(scales[r * A::kValueGroups + g]), least = splat(sums[r * A::kValueGroups + g]);
      MP_UNROLL
      for (int j = 0; j < ND * kHalves; j++) {
        const int64_t d = A::kValueBits == 4 ? g * kCodeGroup + j * kLanes : lane + j * kLanes;
        if (d < A::kDvp) store(o + r * A::kDvp + d, load(o + r * A::kDvp + d) + (total(acc[r][j]) * scale + least));
      }
    }
  }
}

}  // namespace mp
