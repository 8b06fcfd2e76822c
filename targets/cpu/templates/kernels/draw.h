// A token drawn from a row of logits: temperature, top_k, top_p, min_p and one uniform number. What runtime/sampling.py does in numpy, where
// the rules are told; weights here are f32, sums f64. One thread does it: a row's maxima spare it all but a few of the logits.
#pragma once
#include "largest.h"
#include "vec_math.h"

namespace mp {

// How the next tokens of one sequence are drawn; a temperature of 0 takes the most probable one.
struct Draw {
  double temperature, top_p, min_p;
  int64_t top_k;
  const double* uniforms;  // [steps], in [0, 1)
};

// A token and its logit, later its weight. Scratch for a draw is one of these for every column.
struct Candidate {
  float value;
  int32_t id;
};

// Whether a comes after b where the largest value comes first, and the lower id among equals.
static inline bool comes_after(Candidate a, Candidate b) { return a.value < b.value || (a.value == b.value && a.id > b.id); }

// Make heap[at..] a heap again whose root comes last; only heap[at] may be out of place.
static inline void settle(Candidate* heap, int64_t count, int64_t at) {
  const Candidate moved = heap[at];
  for (int64_t child; (child = 2 * at + 1) < count; at = child) {
    if (child + 1 < count && comes_after(heap[child + 1], heap[child])) child++;
    if (!comes_after(heap[child], moved)) break;
    heap[at] = heap[child];
  }
  heap[at] = moved;
}

// The first `most` so far, in a heap once they are that many.
struct Leading {
  Candidate* heap;
  int64_t most, count;
};

static inline void offer(Leading* l, Candidate c) {
  if (l->count < l->most) {
    l->heap[l->count++] = c;
    for (int64_t i = l->count == l->most ? l->most / 2 : 0; i-- > 0;) settle(l->heap, l->count, i);
  } else if (comes_after(l->heap[0], c)) {
    l->heap[0] = c;
    settle(l->heap, l->count, 0);
  }
}

// found: the `most` (1 to `columns`) largest of x, in order. maxima: as in largest.h.
static void take_largest(const float* x, int64_t columns, const float* maxima, int64_t most, Candidate* found) {
  const int64_t blocks = maxima_blocks(columns);
  float least = -INFINITY;
  if (most < blocks) {
    // This many blocks hold a number of at least the smallest of this many maxima, so nothing below it counts.
    Leading highest = {found, most, 0};
    for (int64_t b = 0; b < blocks; b++) offer(&highest, Candidate{maxima[b], (int32_t)b});
    least = found[0].value;
  }
  Leading leading = {found, most, 0};
  for (int64_t b = 0; b < blocks; b++) {
    if (maxima[b] < least) continue;
    const int64_t end = (b + 1) * kMaximaBlock < columns ? (b + 1) * kMaximaBlock : columns;
    for (int64_t i = b * kMaximaBlock; i < end; i++) {
      if (x[i] < least) continue;
      offer(&leading, Candidate{x[i], (int32_t)i});
      if (leading.count == most && found[0].value > least) least = found[0].value;
    }
  }
  for (int64_t count = most; count > 1;) {
    const Candidate last = found[0];
    found[0] = found[--count];
    found[count] = last;
    settle(found, count, 0);
  }
}

// exp((x - top) / temperature): 1 at the top.
MP_INLINE f32x16 draw_weights(f32x16 x, float top, float scale) { return vexp((x - splat(top)) * splat(scale)); }

// Values of at most 16 candidates become weights; returns their sum.
MP_TASK double weigh(Candidate* c, int64_t count, float top, float scale) {
  float values[kLanes];
  double total = 0;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = count - i < kLanes ? count - i : kLanes;
    for (int64_t k = 0; k < kLanes; k++) values[k] = k < n ? c[i + k].value : top;
    store(values, draw_weights(load(values), top, scale));
    for (int64_t k = 0; k < n; k++) total += c[i + k].value = values[k];
  }
  return total;
}

// w: weights of up to 16 columns, 0 where they are below `least` or beyond the row.
MP_INLINE f32x16 weights_at(const float* x, int64_t count, float top, float scale, float least) {
  const f32x16 w = draw_weights(load_n(x, count), top, scale), none = splat(0.0f);
  return select(lane_numbers() < splat((int32_t)(count < kLanes ? count : kLanes)), select(w < splat(least), none, w), none);
}

// sums[b]: of the weights in each block of columns, where they are given; returns the sum of all.
MP_TASK double weigh_row(const float* x, int64_t columns, float top, float scale, float least, double* sums) {
  double total = 0;
  for (int64_t at = 0; at < columns; at += kMaximaBlock) {
    const int64_t count = columns - at < kMaximaBlock ? columns - at : kMaximaBlock;
    f32x16 block = splat(0.0f);
    for (int64_t i = 0; i < count; i += kLanes) block += weights_at(x + at + i, count - i, top, scale, least);
    const double weight = sum(block);
    if (sums) sums[at / kMaximaBlock] = weight;
    total += weight;
  }
  return total;
}

// From all columns whose weight is at least `least`, in their own order.
MP_TASK int32_t draw_from_row(const float* x, int64_t columns, int32_t best, float scale, float least, double uniform, double* sums) {
  const float top = x[best];
  const double target = uniform * weigh_row(x, columns, top, scale, least, sums);
  double before = 0;
  int64_t b = 0;
  for (const int64_t last = maxima_blocks(columns) - 1; b < last && before + sums[b] <= target; b++) before += sums[b];
  int32_t token = best;
  float w[kLanes];
  for (int64_t at = b * kMaximaBlock; at < columns && at < (b + 1) * kMaximaBlock; at += kLanes) {
    store(w, weights_at(x + at, columns - at, top, scale, least));
    for (int64_t k = 0; k < kLanes; k++) {
      if (w[k] == 0.0f) continue;
      token = (int32_t)(at + k);
      before += w[k];
      if (before > target) return token;
    }
  }
  // Sums of one thing in two orders may differ in the last bits.
  return token;
}

// Row x's token. best, maxima: what largest.h found, a finite logit. found: scratch, one for each column.
MP_TASK int32_t draw_token(const float* x, int64_t columns, const float* maxima, int32_t best, const Draw& d, double uniform, Candidate* found) {
  if (d.temperature == 0) return best;
  const double inverse = 1 / d.temperature;
  // Within these bounds 0 times it is 0, and infinity times it infinity.
  const float top = x[best], scale = inverse > 1e37 ? 1e37f : inverse < 1e-37 ? 1e-37f : (float)inverse, least = (float)d.min_p;
  const bool ranked = d.top_k > 0 && d.top_k < columns;
  if (!ranked && d.top_p >= 1) return draw_from_row(x, columns, best, scale, least, uniform, (double*)found);
  // With top_p alone a few of the most probable do in most cases.
  int64_t count = ranked ? d.top_k : columns < 256 ? columns : 256;
  double wanted = ranked ? 0 : d.top_p * weigh_row(x, columns, top, scale, 0, nullptr), total;
  for (;; count = count * 8 < columns ? count * 8 : columns) {
    take_largest(x, columns, maxima, count, found);
    total = weigh(found, count, top, scale);
    if (ranked || total >= wanted || count == columns) break;
  }
  if (ranked) wanted = d.top_p * total;
  double kept = 0;
  int64_t n = 0;
  for (; n < count && (n == 0 || found[n].value >= least); n++) {
    if (d.top_p < 1 && n && kept >= wanted) break;
    kept += found[n].value;
  }
  const double target = uniform * kept;
  double before = 0;
  for (int64_t i = 0; i + 1 < n; i++) {
    before += found[i].value;
    if (before > target) return found[i].id;
  }
  return found[n - 1].id;
}

}  // namespace mp
