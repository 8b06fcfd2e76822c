// Formats of packed weights (layouts: runtime/packing.py and planes.py): where things lie, and how codes are taken apart.
//
// Formats of 8 bits and fewer are read by units of 32 columns, which are eight steps of four: `codes` gives a step's four columns of 16 outputs as
// 64 bytes. What a format multiplies int8 activations with are its `operands`, unsigned bytes and a constant zero: codes as they are, or
// codebook entries + 128; 8-bit floats have none. For f32 there are `columns`. All kernels are written over these, so that a format is this file.
#pragma once
#include "args.h"
#include "codebooks.h"
#include "float8.h"
#include "vec.h"

namespace mp {

typedef int8_t i8x64 __attribute__((vector_size(64)));

constexpr int kUnitColumns = 32, kUnitSteps = 8;

constexpr int bits_of(Fmt f) {
  return f == Fmt::F32 ? 32 : f == Fmt::BF16 ? 16 : f == Fmt::I8 || f == Fmt::E4M3 ? 8 : f == Fmt::I6 ? 6 : f == Fmt::I5 || f == Fmt::N5 ? 5
       : f == Fmt::I4 || f == Fmt::N4 ? 4 : f == Fmt::I3 || f == Fmt::N3 ? 3 : 2;
}

// A weight's format: GROUP columns share a scale (0: all of an output's), S and Z say what scales and zeros are.
template <Fmt F, int GROUP = 0, Scale S = GROUP ? Scale::F16 : Scale::F32, Zero Z = Zero::None>
struct Weight {
  static constexpr Fmt kFmt = F;
  static constexpr int kGroup = GROUP;
  static constexpr Scale kScale = S;
  static constexpr Zero kZeros = Z;
  static constexpr int kBits = bits_of(F);
  static constexpr bool kQuantized = kBits <= 8;
  static constexpr bool kBook = F == Fmt::N5 || F == Fmt::N4 || F == Fmt::N3 || F == Fmt::N2;
  static constexpr bool kFloats = F == Fmt::E4M3;
  static constexpr bool kSymmetric = Z == Zero::None;
  // Of operands: the zero of symmetric formats, and the bits that one takes.
  static constexpr int kZero = kBook ? 128 : kFloats || Z == Zero::Minimum ? 0 : kQuantized ? 1 << (kBits - 1) : 0;
  static constexpr int kOperandBits = kBook ? 8 : kBits;
  // Steps whose products by int8 fit 16-bit sums where there is no VNNI: n * 2 * largest * 127 < 2^15. 0: not one.
  static constexpr int kNarrowSteps = kOperandBits <= 4 ? 8 : kOperandBits == 5 ? 4 : kOperandBits == 6 ? 2 : 0;
  static_assert(!kQuantized ? GROUP == 0 : kBits == 8 || GROUP > 0, "weights of fewer than 8 bits have groups");
  static_assert(!kFloats || (S == Scale::F32 && Z == Zero::None), "8-bit floats have f32 scales and no zeros");
  static_assert(GROUP % kUnitColumns == 0 && (GROUP || !kQuantized || S == Scale::F32), "groups are whole units; one scale an output is f32");

  static constexpr int64_t padded(int64_t k) { return F == Fmt::F32 ? k : F == Fmt::BF16 ? round_up(k, 2) : packed_columns(k, GROUP); }
  static constexpr int64_t groups(int64_t k) { return GROUP ? padded(k) / (GROUP ? GROUP : 1) : 1; }
  // Bytes that a block of 16 outputs takes, of weights, scales and zeros.
  static constexpr int64_t block_bytes(int64_t k) { return padded(k) * kLanes * kBits / 8; }
  static constexpr int64_t scale_bytes(int64_t k) {
    return !kQuantized ? 0 : kLanes * (S == Scale::F32 ? 4 * groups(k) : S == Scale::F16 ? 2 * groups(k) : groups(k) + 2);
  }
  static constexpr int64_t zero_bytes(int64_t k) { return kSymmetric ? 0 : kLanes * groups(k) * (Z == Zero::Minimum ? 2 : 1); }
};

// A block's scales.
template <class W>
struct Scales {
  const char* at;
  f32x16 row;  // two-level scales: of the outputs
};
template <class W>
MP_INLINE Scales<W> block_scales(const void* scales, int64_t block, int64_t groups) {
  Scales<W> s;
  if constexpr (W::kScale == Scale::TwoLevel) {
    s.at = (const char*)scales + block * (groups + 2) * kLanes;
    const u32x16 low = __builtin_convertvector(load_as<u8x16>(s.at), u32x16), high = __builtin_convertvector(load_as<u8x16>(s.at + kLanes), u32x16);
    s.row = (f32x16)(low << 16 | high << 24);
    s.at += 2 * kLanes;
  } else {
    s.at = (const char*)scales + block * groups * kLanes * (W::kScale == Scale::F32 ? 4 : 2);
  }
  return s;
}
template <class W>
MP_INLINE f32x16 group_scale(const Scales<W>& s, int64_t g) {
  if constexpr (W::kScale == Scale::F32) return load((const float*)s.at + g * kLanes);
  else if constexpr (W::kScale == Scale::F16) return load_f16((const uint16_t*)s.at + g * kLanes);
  else return __builtin_convertvector(load_as<i8x16>(s.at + g * kLanes), f32x16) * s.row;
}
// Group g's zero points, or minima, of a block.
template <class W>
MP_INLINE f32x16 group_zero([[maybe_unused]] const void* zeros, [[maybe_unused]] int64_t block, [[maybe_unused]] int64_t groups,
                             [[maybe_unused]] int64_t g) {
  if constexpr (W::kZeros == Zero::Point) return __builtin_convertvector(load_as<u8x16>((const uint8_t*)zeros + (block * groups + g) * kLanes), f32x16);
  else if constexpr (W::kZeros == Zero::Minimum) return load_f16((const uint16_t*)zeros + (block * groups + g) * kLanes);
  else return splat(0.0f);
}

// Shifted left by n bits, or right where n is negative.
MP_INLINE i32x16 shifted(i32x16 v, int n) { return n >= 0 ? v << n : (i32x16)((u32x16)v >> -n); }
MP_INLINE i32x16 byte_mask(int m) { return splat((int32_t)(m * 0x01010101)); }

// Step s of the unit at p: a code in each byte. Without CLEAN the bits above the code's are anything. s is constant once loops are unrolled.
template <Fmt F, bool CLEAN = true>
MP_INLINE i32x16 codes(const char* p, int s) {
  constexpr int kBits = bits_of(F);
  if constexpr (kBits == 8) return load_as<i32x16>(p + s * 64);
  constexpr int kWide = kBits >= 4 ? 4 : 2, kPer = 8 / kWide;
  i32x16 v = shifted(load_as<i32x16>(p + s / kPer * 64), -(s % kPer) * kWide);
  if (CLEAN || kBits != kWide) v &= byte_mask((1 << kWide) - 1);
  const char* rest = p + kWide * 64;
  if constexpr (kBits == 6) v |= shifted(load_as<i32x16>(rest + s / 4 * 64), 4 - s % 4 * 2) & byte_mask(0x30);
  if constexpr (kBits == 5 || kBits == 3) v |= shifted(load_as<i32x16>(rest), kWide - s) & byte_mask(1 << kWide);
  return v;
}

// A codebook as bytes for look-ups, OFFSET added to its entries.
template <class W, int OFFSET>
struct Book {
#if defined(__AVX512BW__) || defined(__AVX2__)
  i8x64 low, high;  // 16 entries over again
#else
  int8_t entries[32];
#endif
};
template <class W, int OFFSET>
MP_INLINE Book<W, OFFSET> make_book() {
  Book<W, OFFSET> b;
  if constexpr (W::kBook) {
#if defined(__AVX512BW__) || defined(__AVX2__)
    MP_UNROLL
    for (int i = 0; i < 64; i++) {
      b.low[i] = (int8_t)(book_entry<W::kBits>(i % 16) + OFFSET);
      b.high[i] = (int8_t)(book_entry<W::kBits>(i % 16 + 16) + OFFSET);
    }
#else
    for (int i = 0; i < 32; i++) b.entries[i] = (int8_t)(book_entry<W::kBits>(i) + OFFSET);
#endif
  }
  return b;
}
#if defined(__AVX512BW__) || defined(__AVX2__)
// table[byte] for bytes below 16.
MP_INLINE i32x16 look_up(i8x64 table, i32x16 v) {
#if defined(__AVX512BW__)
  return (i32x16)_mm512_shuffle_epi8((__m512i)table, (__m512i)v);
#else
  union U { i32x16 v; i8x64 t; __m256i h[2]; };
  U r = {v}, t;
  t.t = table;
  for (int i = 0; i < 2; i++) r.h[i] = _mm256_shuffle_epi8(t.h[i], r.h[i]);
  return r.v;
#endif
}
#endif
// Step s of the unit at p as entries + OFFSET.
template <class W, int OFFSET>
MP_INLINE i32x16 entries(const char* p, int s, const Book<W, OFFSET>& b) {
#if defined(__AVX512BW__) || defined(__AVX2__)
  if constexpr (W::kBits < 5) return look_up(b.low, codes<W::kFmt>(p, s));
  const i32x16 nibble = codes<Fmt::I4>(p, s), fifth = load_as<i32x16>(p + 256);
#if defined(__AVX512BW__)
  const __mmask64 upper = _mm512_test_epi8_mask((__m512i)fifth, _mm512_set1_epi8((char)(1 << s)));
  return (i32x16)_mm512_mask_shuffle_epi8((__m512i)look_up(b.low, nibble), upper, (__m512i)b.high, (__m512i)nibble);
#else
  union U { i32x16 v; __m256i h[2]; };
  U low = {look_up(b.low, nibble)}, high = {look_up(b.high, nibble)}, sign = {shifted(fifth, 7 - s)};
  for (int i = 0; i < 2; i++) low.h[i] = _mm256_blendv_epi8(low.h[i], high.h[i], sign.h[i]);
  return low.v;
#endif
#elif defined(__aarch64__)
  union U { i32x16 v; uint8x16_t h[4]; };
  U r = {codes<W::kFmt>(p, s)};
  const uint8x16x2_t table = {{vld1q_u8((const uint8_t*)b.entries), vld1q_u8((const uint8_t*)b.entries + 16)}};
  for (int i = 0; i < 4; i++) r.h[i] = vqtbl2q_u8(table, r.h[i]);
  return r.v;
#else
  union U { i32x16 v; uint8_t b[64]; };
  U r = {codes<W::kFmt>(p, s)};
  for (int i = 0; i < 64; i++) r.b[i] = (uint8_t)b.entries[r.b[i]];
  return r.v;
#endif
}

// What int8 activations are multiplied with.
template <class W>
using Operands = Book<W, -128>;  // + 128 as a byte
template <class W>
MP_INLINE i32x16 operands(const char* p, int s, [[maybe_unused]] const Operands<W>& book) {
  if constexpr (W::kBook) return entries<W>(p, s, book);
  else return codes<W::kFmt>(p, s);
}

// A step's columns as f32: operand - kOffset, a codebook's entries, or floats.
template <class W>
struct Columns {
#if defined(__AVX512F__)
  static constexpr bool kTable = W::kBits <= 5;
#else
  static constexpr bool kTable = false;
#endif
  // Minima are added to codes as they are.
  static constexpr int kOffset = W::kZeros == Zero::Minimum ? (W::kBits == 8 ? 128 : 0) : kTable || W::kBits == 8 ? W::kZero : W::kBook ? 128 : 0;
  f32x16 low, high;
  Book<W, 0> book;

  MP_INLINE Columns make() {
    Columns c;
    c.low = c.high = splat(0.0f);
    if constexpr (kTable) {
      MP_UNROLL
      for (int i = 0; i < kLanes; i++) {
        c.low[i] = W::kBook ? (float)book_entry<W::kBits>(i) : (float)(i % (1 << W::kBits) - kOffset);
        c.high[i] = W::kBook ? (float)book_entry<W::kBits>(i + 16) : (float)(i + 16 - kOffset);
      }
    } else {
      c.book = make_book<W, 0>();
    }
    return c;
  }
  MP_INLINE i32x16 step([[maybe_unused]] const Columns& c, const char* p, int s) {
    if constexpr (kTable) return codes<W::kFmt, false>(p, s);
    else if constexpr (W::kFloats) return codes<W::kFmt>(p, s);
    else if constexpr (W::kBook) return entries<W>(p, s, c.book);
    else if constexpr (W::kBits == 8) return codes<W::kFmt>(p, s) ^ (int32_t)0x80808080;
    else return codes<W::kFmt>(p, s);
  }
  // Column j of four.
  MP_INLINE f32x16 column([[maybe_unused]] const Columns& c, i32x16 v, int j) {
#if defined(__AVX512F__)
    if constexpr (kTable) {
      const __m512i index = (__m512i)((u32x16)v >> (8 * j));
      if constexpr (W::kBits == 5) return (f32x16)_mm512_permutex2var_ps((__m512)c.low, index, (__m512)c.high);
      else return (f32x16)_mm512_permutexvar_ps(index, (__m512)c.low);
    }
#endif
    if constexpr (W::kFloats) return e4m3_column(v, j);
    else if constexpr (W::kBook || W::kBits == 8) return to_float((v << (24 - 8 * j)) >> 24);
    else return to_float((i32x16)((u32x16)v >> (8 * j)) & 255);
  }
};

// One code of a unit, by numbers: column k (below 32) of a lane.
template <Fmt F>
MP_INLINE int code_at(const uint8_t* unit, int64_t lane, int64_t k) {
  constexpr int kBits = bits_of(F);
  const uint8_t* p = unit + lane * 4 + k % 4;
  const int64_t s = k / 4;
  if constexpr (kBits == 8) return p[s * 64];
  if constexpr (kBits == 2 || kBits == 3) {
    const int low = p[s / 4 * 64] >> (s % 4 * 2) & 3;
    return kBits == 2 ? low : low | (p[2 * 64] >> s & 1) << 2;
  } else {
    const int low = p[s / 2 * 64] >> (s % 2 * 4) & 15;
    return kBits == 4 ? low : kBits == 5 ? low | (p[4 * 64] >> s & 1) << 4 : low | (p[(4 + s / 4) * 64] >> (s % 4 * 2) & 3) << 4;
  }
}

}  // namespace mp
