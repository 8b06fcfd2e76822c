// Which scale, and zero point or minimum, a group of columns gets: scales.py says why these are tried; the two give the same but for the
// order in which errors are summed up.
#pragma once
#include "format.h"

namespace mq {

struct Tried {
    F scale, zero;
};

// A group's columns: x[c] of 16 rows each. weights: what errors in a column count for, or null.
struct Group {
    const F* x;
    const float* weights;
    int columns;
};

struct Best {
    Tried tried;
    F error;
    bool any;

    inline void offer(Tried one, F its_error) {
        if (!any) {
            *this = Best{one, its_error, true};
            return;
        }
        const I better = its_error < error;
        tried = Tried{choose(better, one.scale, tried.scale), choose(better, one.zero, tried.zero)};
        error = choose(better, its_error, error);
    }
};

// Squared error, less what all candidates share.
template <int KIND, int ENTRIES>
static F error_of(const Format& f, const Group& g, const float* weights, Tried t) {
    const Rounding<KIND, ENTRIES> rounding(f, t.scale, t.zero);
    F sum = all(0.0f);
    for (int c = 0; c < g.columns; c++) {
        const F x = g.x[c], v = rounding.value(x);
        F error;
        if constexpr (KIND == MINIMUM) {
            const F off = (t.zero - x) + v * t.scale;
            error = off * off;
        } else {
            error = (x * -2.0f + v * t.scale) * v;
        }
        sum += weights ? error * weights[c] : error;
    }
    return KIND == MINIMUM ? sum : sum * t.scale;
}

// The scale of least error for the codes that the tried one gives.
template <int KIND, int ENTRIES>
static F refined(const Format& f, const Group& g, Tried t) {
    const Rounding<KIND, ENTRIES> rounding(f, t.scale, t.zero);
    F size = all(0.0f), product = all(0.0f);
    for (int c = 0; c < g.columns; c++) {
        const F v = rounding.value(g.x[c]), counted = g.weights ? v * g.weights[c] : v;
        size += counted * v;
        product += counted * (KIND == MINIMUM ? g.x[c] - t.zero : g.x[c]);
    }
    return stored(f, choose(size > 0.0f, product / size, t.scale));
}

struct Range {
    F low, high, extreme;
};

static Range range_of(const Group& g) {
    F low = g.x[0], high = g.x[0];
    for (int c = 1; c < g.columns; c++) low = least(low, g.x[c]), high = most(high, g.x[c]);
    return Range{low, high, choose(high >= -low, high, low)};
}

static const float DIVISORS[] = {8.0f, 7.0f, 7.5f, 8.5f, 9.0f, 6.5f, 7.25f, 7.75f, 8.25f, 9.5f};
static const float SHRINKS[] = {1.0f, 0.95f, 0.9f, 0.85f, 0.975f, 0.8f};
static const float FACTORS[] = {1.0f, 0.96f, 0.92f, 0.88f, 0.84f, 0.8f, 0.75f, 0.7f, 1.04f, 1.08f};
static const float OTHER_SIGN[] = {1.18f, 1.12f, 1.06f, 1.0f, 0.94f, 0.88f, 0.82f, 0.76f};
static const float FINER[] = {1.0f, 0.98f, 0.96f, 0.94f, 0.92f, 0.9f, 0.87f, 0.84f};
static const float NEAR[] = {0.0f, -1.0f, 1.0f};
static const float ENDS[] = {1.0f, 0.925f, 0.85f, 0.775f};

template <int KIND, int ENTRIES>
static Best plain_search(const Format& f, const Group& g) {
    const Range r = range_of(g);
    const float* known = f.bits == 4 ? g.weights : nullptr;
    Best best{};
    if (f.symmetric && f.bits == 8) {
        best.offer({stored(f, most(r.high, -r.low) / 127.0f), all(zero_point(f))}, all(0.0f));
    } else if (f.symmetric) {
        for (int i = 0; i < (known ? 10 : 5); i++) {
            const Tried t{stored(f, r.extreme / -DIVISORS[i]), all(zero_point(f))};
            best.offer(t, error_of<KIND, ENTRIES>(f, g, known, t));
        }
    } else {
        const F low = least(r.low, all(0.0f)), high = most(r.high, all(0.0f)), top = all(levels(f) - 1.0f);
        for (int i = 0; i < (f.bits != 4 ? 1 : known ? 6 : 4); i++) {
            const F scale = stored(f, (high - low) * (SHRINKS[i] / (levels(f) - 1.0f)));
            const Tried t{scale, clamp(nearest(clamp(low * -SHRINKS[i] * inverse(scale), all(-1.0f), all(1024.0f))), all(0.0f), top)};
            best.offer(t, error_of<KIND, ENTRIES>(f, g, known, t));
        }
    }
    return best;
}

template <int KIND, int ENTRIES>
static Best wide_search(const Format& f, const Group& g) {
    const Range r = range_of(g);
    Best best{};
    const F middle = all(KIND == BOOK ? 0.0f : zero_point(f));
    if (f.bits == 8 && f.symmetric) {
        best.offer({stored(f, magnitude(r.extreme) / 127.0f), middle}, all(0.0f));
    } else if (f.symmetric) {
        const float outermost = -(KIND == BOOK ? MOST : zero_point(f));
        for (float factor : FACTORS) {
            const Tried t{stored(f, r.extreme * (factor / outermost)), middle};
            best.offer(t, error_of<KIND, ENTRIES>(f, g, g.weights, t));
        }
        // A codebook is no more even-handed than narrow codes are.
        if (KIND == BOOK || f.bits <= 3) {
            for (float factor : OTHER_SIGN) {
                const Tried t{stored(f, r.extreme * (-factor / outermost)), middle};
                best.offer(t, error_of<KIND, ENTRIES>(f, g, g.weights, t));
            }
        }
    } else {
        const F zero = all(0.0f);
        const F low = KIND == MINIMUM ? r.low : least(r.low, zero), high = KIND == MINIMUM ? r.high : most(r.high, zero);
        const F centre = KIND == MINIMUM ? (low + high) / 2.0f : zero;
        const int ends = f.bits == 8 ? 1 : 4;
        for (int below = 0; below < ends; below++) {
            for (int above = 0; above < ends; above++) {
                const F bottom = (low - centre) * ENDS[below] + centre, top = (high - centre) * ENDS[above] + centre;
                const F scale = stored(f, (top - bottom) / (levels(f) - 1.0f));
                const F point = clamp(nearest(clamp(-bottom * inverse(scale), all(-1.0f), all(1024.0f))), zero, all(levels(f) - 1.0f));
                const Tried t{scale, KIND == MINIMUM ? as_half(bottom) : point};
                best.offer(t, error_of<KIND, ENTRIES>(f, g, g.weights, t));
            }
        }
    }
    return best;
}

// 8-bit scales that may clip the largest element a little. row: of two-level scales, or null.
template <int KIND, int ENTRIES>
static Tried finer_search(const Format& f, const Group& g, const F* row) {
    const F largest = magnitude(range_of(g).extreme);
    Best best{};
    for (float factor : FINER) {
        F scale = stored(f, largest * (factor / 127.0f));
        if (row) scale = clamp(nearest(clamp(scale * inverse(*row), all(0.0f), all(1024.0f))), all(0.0f), all(MOST)) * *row;
        const Tried t{scale, all(zero_point(f))};
        best.offer(t, error_of<KIND, ENTRIES>(f, g, g.weights, t));
    }
    return best.tried;
}

static inline F whole(F count) { return nearest(clamp(count, all(-MOST), all(MOST))); }

// Scales that are a row's bf16 times a whole number, near the tried ones.
template <int KIND, int ENTRIES>
static Tried two_level(const Format& f, const Group& g, Tried tried, F row) {
    const F count = tried.scale * inverse(row);
    if (f.bits == 8) {
        // Nothing is clipped.
        const F up = magnitude(count) - 1e-6f, down = nearest(clamp(up, all(0.0f), all(MOST)));
        return {clamp(choose(down < up, down + 1.0f, down), all(0.0f), all(MOST)) * row, tried.zero};
    }
    const F middle = whole(count);
    Best best{};
    for (float step : NEAR) {
        const Tried t{clamp(middle + step, all(-MOST), all(MOST)) * row, tried.zero};
        best.offer(t, error_of<KIND, ENTRIES>(f, g, g.weights, t));
    }
    const Tried t{whole(refined<KIND, ENTRIES>(f, g, best.tried) * inverse(row)) * row, tried.zero};
    best.offer(t, error_of<KIND, ENTRIES>(f, g, g.weights, t));
    return best.tried;
}

// Before a two-level format's second level.
template <int KIND, int ENTRIES>
static Tried search(const Format& f, const Group& g, const F* row) {
    if (f.finer && f.bits == 8 && f.symmetric) return finer_search<KIND, ENTRIES>(f, g, row);
    if (f.plain) return plain_search<KIND, ENTRIES>(f, g).tried;
    Best best = wide_search<KIND, ENTRIES>(f, g);
    if (f.two_level) return row ? two_level<KIND, ENTRIES>(f, g, best.tried, *row) : best.tried;
    if (f.bits == 8) return best.tried;
    const Tried t{refined<KIND, ENTRIES>(f, g, best.tried), best.tried.zero};
    best.offer(t, error_of<KIND, ENTRIES>(f, g, g.weights, t));
    return best.tried;
}

}  // namespace mq
