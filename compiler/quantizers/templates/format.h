// A format's rounding: from a number and its group's scale to what the nearest code stands for.
#pragma once
#include "lanes.h"

namespace mq {

// Fields are filled in by compiler/quantizers/native.py.
struct Format {
    int32_t kind;  // 0: even steps around a zero point; 1: even steps above a minimum; 2: a codebook
    int32_t bits;
    int32_t group;
    int32_t symmetric;
    int32_t half_scales;  // scales are stored as f16
    int32_t two_level;
    int32_t plain;   // of the formats whose scales are tried from a short list
    int32_t finer;   // 8-bit scales are searched for
    float book[32];  // codebook entries, ascending
};

enum Kind { STEPS = 0, MINIMUM = 1, BOOK = 2 };
constexpr float MOST = 127.0f;

static inline float levels(const Format& f) { return (float)(1 << f.bits); }
static inline float zero_point(const Format& f) { return (float)(1 << (f.bits - 1)); }
static inline float least_code(const Format& f) { return f.symmetric && f.bits == 8 ? 1.0f : 0.0f; }
static inline F stored(const Format& f, F scale) { return f.half_scales ? as_half(scale) : scale; }

// What a group's rounding needs, made once for all its columns.
template <int KIND, int ENTRIES>
struct Rounding {
    F inverse_scale, zero, low, high;
    float book[ENTRIES], border[ENTRIES];

    Rounding(const Format& f, F scale, F zero_of_group) : inverse_scale(inverse(scale)), zero(zero_of_group) {
        if constexpr (KIND == BOOK) {
            for (int i = 0; i < ENTRIES; i++) book[i] = f.book[i];
            for (int i = 1; i < ENTRIES; i++) border[i] = (f.book[i - 1] + f.book[i]) * 0.5f;
        } else {
            low = all(least_code(f)) - (KIND == STEPS ? zero : all(0.0f));
            high = all(levels(f) - 1.0f) - (KIND == STEPS ? zero : all(0.0f));
        }
    }

    // Before the scale and any minimum.
    inline F value(F x) const {
        if constexpr (KIND == BOOK) {
            const F scaled = x * inverse_scale;
            F found = all(book[0]);
            for (int i = 1; i < ENTRIES; i++) found = choose(scaled >= border[i], all(book[i]), found);
            return found;
        } else if constexpr (KIND == MINIMUM) {
            return nearest(clamp((x - zero) * inverse_scale, low, high));
        } else {
            return nearest(clamp(x * inverse_scale, low, high));
        }
    }

    inline F code(F x) const {
        if constexpr (KIND == BOOK) {
            const F scaled = x * inverse_scale;
            F found = all(0.0f);
            for (int i = 1; i < ENTRIES; i++) found = choose(scaled >= border[i], all((float)i), found);
            return found;
        } else {
            return value(x) + (KIND == STEPS ? zero : all(0.0f));
        }
    }

    // The value that `code` stands for.
    inline F value_of(F code) const {
        if constexpr (KIND == BOOK) {
            F found = all(book[0]);
            for (int i = 1; i < ENTRIES; i++) found = choose(code >= (float)i, all(book[i]), found);
            return found;
        } else {
            return code - (KIND == STEPS ? zero : all(0.0f));
        }
    }
};

}  // namespace mq
