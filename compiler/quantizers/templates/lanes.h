// Sixteen output rows at a time, one in each lane: sums over columns never cross lanes, so that every CPU gives the same bits.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace mq {

constexpr int LANES = 16;
typedef float F __attribute__((vector_size(64)));
typedef int32_t I __attribute__((vector_size(64)));
typedef uint32_t U __attribute__((vector_size(64)));

static inline F all(float x) { return F{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
static inline F choose(I mask, F a, F b) { return mask ? a : b; }
static inline F least(F a, F b) { return choose(a < b, a, b); }
static inline F most(F a, F b) { return choose(a > b, a, b); }
static inline F magnitude(F x) { return (F)((I)x & 0x7fffffff); }
// NaN becomes `low`.
static inline F clamp(F x, F low, F high) {
    x = choose(x > low, x, low);
    return choose(x < high, x, high);
}
// To the nearest whole number, even in the middle; for magnitudes below 2^22.
static inline F nearest(F x) {
    const F magic = all(12582912.0f);
    return (x + magic) - magic;
}
static inline F inverse(F x) { return choose(x == 0.0f, all(0.0f), 1.0f / x); }

// As an f16 holds it, to the nearest, even in the middle; beyond the largest f16, infinity.
static inline F as_half(F x) {
    const F size = magnitude(x);
    const F small = (size + 0.75f) - 0.75f;  // multiples of 2^-24, the subnormals
    const U bits = (U)size;
    const F normal = (F)((bits + 0xfff + ((bits >> 13) & 1)) & 0xffffe000u);
    const F held = choose(size < 6.103515625e-05f, small, choose(normal > 65504.0f, all(__builtin_inff()), normal));
    return (F)((I)held | ((I)x & (int32_t)0x80000000));
}

// As a bf16 holds it, rounded up; for numbers that are not negative.
static inline F up_to_bf16(F x) { return (F)(((U)x + 0xffffu) & 0xffff0000u); }

}  // namespace mq
