// Whole rows: each for itself, or with errors made good by later columns (gptq.py).
#pragma once
#include "search.h"

namespace mq {

// As compiler/quantizers/native.py lays it out. rows f32 [n, columns], columns a multiple of the group; weights f32 [columns] or null;
// factors: for each block of columns the upper factor f32 [size, size], none where errors are not compensated. Out: codes u8 [n, columns],
// scales and zeros f32 [n, columns / group].
struct Job {
    Format format;
    int64_t n, columns, blocks;
    const float* rows;
    const float* weights;
    const float* const* factors;
    const int64_t* sizes;
    uint8_t* codes;
    float* scales;
    float* zeros;
};

// Columns whose errors reach the later ones together, and later columns that are mended at once.
constexpr int TOGETHER = 128, TILE = 8;
// Room that a row's own scale leaves above the largest of its groups' scales, where groups change after it was chosen.
constexpr float ROOM = 1.25f;

struct Rows {
    const Job& job;
    F* x;       // [columns]
    F* codes;   // [columns]
    Tried* of;  // [groups]

    int group() const { return job.format.group; }
    int64_t groups() const { return job.columns / group(); }
    Group at(int64_t g) const { return Group{x + g * group(), job.weights ? job.weights + g * group() : nullptr, group()}; }
};

template <int KIND, int ENTRIES>
static F row_scale(const Rows& r, float room) {
    F largest = all(0.0f);
    for (int64_t g = 0; g < r.groups(); g++) largest = most(largest, magnitude(r.of[g].scale));
    return up_to_bf16(largest * room / MOST);
}

template <int KIND, int ENTRIES>
static void encode(const Rows& r, int64_t g) {
    const Rounding<KIND, ENTRIES> rounding(r.job.format, r.of[g].scale, r.of[g].zero);
    for (int64_t c = g * r.group(); c < (g + 1) * r.group(); c++) r.codes[c] = rounding.code(r.x[c]);
}

template <int KIND, int ENTRIES>
static void nearest_codes(const Rows& r) {
    const Format& f = r.job.format;
    for (int64_t g = 0; g < r.groups(); g++) r.of[g] = search<KIND, ENTRIES>(f, r.at(g), nullptr);
    if (f.two_level && !(f.finer && f.bits == 8)) {
        const F row = row_scale<KIND, ENTRIES>(r, 1.0f);
        for (int64_t g = 0; g < r.groups(); g++) r.of[g] = two_level<KIND, ENTRIES>(f, r.at(g), r.of[g], row);
    }
    for (int64_t g = 0; g < r.groups(); g++) encode<KIND, ENTRIES>(r, g);
}

// Columns [start, end) are rounded, with errors [end - start] over the factor's diagonal; later columns up to `stop` take them up.
static void spread(F* x, const F* errors, const float* factor, int64_t size, int64_t start, int64_t end, int64_t stop) {
    for (int64_t j = end; j < stop; j += TILE) {
        const int64_t count = stop - j < TILE ? stop - j : TILE;
        if (count == TILE) {
            F sum[TILE];
            for (int t = 0; t < TILE; t++) sum[t] = all(0.0f);
            for (int64_t i = start; i < end; i++) {
                const float* line = factor + i * size + j;
                const F error = errors[i - start];
                for (int t = 0; t < TILE; t++) sum[t] += error * line[t];
            }
            for (int t = 0; t < TILE; t++) x[j + t] -= sum[t];
        } else {
            for (int64_t t = j; t < stop; t++) {
                F sum = all(0.0f);
                for (int64_t i = start; i < end; i++) sum += errors[i - start] * factor[i * size + t];
                x[t] -= sum;
            }
        }
    }
}

template <int KIND, int ENTRIES>
static void compensated_codes(const Rows& r) {
    const Format& f = r.job.format;
    F row = all(0.0f);
    if (f.two_level) {
        for (int64_t g = 0; g < r.groups(); g++) r.of[g] = wide_search<KIND, ENTRIES>(f, r.at(g)).tried;
        row = row_scale<KIND, ENTRIES>(r, ROOM);
    }
    const int64_t width = f.group < TOGETHER ? f.group : TOGETHER;
    F errors[TOGETHER];
    int64_t at = 0;
    for (int64_t b = 0; b < r.job.blocks; b++) {
        const int64_t size = r.job.sizes[b];
        const float* factor = r.job.factors[b];
        F* x = r.x + at;
        for (int64_t start = 0; start < size; start += width) {
            const int64_t end = start + width < size ? start + width : size, g = (at + start) / f.group;
            if ((at + start) % f.group == 0) r.of[g] = search<KIND, ENTRIES>(f, r.at(g), f.two_level ? &row : nullptr);
            const Tried t = r.of[g];
            const Rounding<KIND, ENTRIES> rounding(f, t.scale, t.zero);
            for (int64_t i = start; i < end; i++) {
                const float* line = factor + i * size;
                const F code = rounding.code(x[i]), value = rounding.value_of(code) * t.scale;
                const F error = (x[i] - (KIND == MINIMUM ? value + t.zero : value)) / line[i];
                r.codes[at + i] = code;
                errors[i - start] = error;
                for (int64_t j = i + 1; j < end; j++) x[j] -= error * line[j];
            }
            spread(x, errors, factor, size, start, end, size);
        }
        at += size;
    }
    // Columns that only fill the last group.
    if (at < r.job.columns) {
        const int64_t g = at / f.group;
        const Rounding<KIND, ENTRIES> rounding(f, r.of[g].scale, r.of[g].zero);
        for (int64_t c = at; c < r.job.columns; c++) r.codes[c] = rounding.code(r.x[c]);
    }
}

template <int KIND, int ENTRIES>
static int run(const Job& job) {
    const int64_t groups = job.columns / job.format.group;
    const size_t bytes = (size_t)(2 * job.columns * sizeof(F) + groups * sizeof(Tried));
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes)) return 1;
    const Rows rows{job, (F*)memory, (F*)memory + job.columns, (Tried*)((F*)memory + 2 * job.columns)};
    for (int64_t first = 0; first < job.n; first += LANES) {
        const int count = job.n - first < LANES ? (int)(job.n - first) : LANES;
        float* x = (float*)rows.x;
        if (count < LANES) memset(x, 0, job.columns * sizeof(F));
        for (int lane = 0; lane < count; lane++) {
            const float* row = job.rows + (first + lane) * job.columns;
            for (int64_t c = 0; c < job.columns; c++) x[c * LANES + lane] = row[c];
        }
        if (job.blocks) {
            compensated_codes<KIND, ENTRIES>(rows);
        } else {
            nearest_codes<KIND, ENTRIES>(rows);
        }
        const float* codes = (const float*)rows.codes;
        for (int lane = 0; lane < count; lane++) {
            uint8_t* out = job.codes + (first + lane) * job.columns;
            for (int64_t c = 0; c < job.columns; c++) out[c] = (uint8_t)codes[c * LANES + lane];
            for (int64_t g = 0; g < groups; g++) {
                job.scales[(first + lane) * groups + g] = rows.of[g].scale[lane];
                job.zeros[(first + lane) * groups + g] = rows.of[g].zero[lane];
            }
        }
    }
    free(memory);
    return 0;
}

}  // namespace mq

// 0, or 1 where memory is short.
extern "C" __attribute__((visibility("default"))) int mixplan_quantize(const mq::Job* job) {
    using namespace mq;
    if (job->format.kind == MINIMUM) return run<MINIMUM, 1>(*job);
    if (job->format.kind == STEPS) return run<STEPS, 1>(*job);
    switch (job->format.bits) {
        case 2: return run<BOOK, 4>(*job);
        case 3: return run<BOOK, 8>(*job);
        case 4: return run<BOOK, 16>(*job);
        default: return run<BOOK, 32>(*job);
    }
}
