// Ops along one axis: softmax and its kin, cumulative sums, arg-extrema, top-k, sort. `x` and `y` are views of the other axes (of the same
// shape); n elements stand `xs` (`ys`) apart along the axis.
#pragma once
#include "frame.h"
#include "pointwise_math.h"
#include "view.h"

namespace mp {

enum class Soft { Softmax, LogSoftmax, LogSumExp };

template <Soft S>
static void softmax(const Call& c, const View& y, int64_t ys, const View& x, int64_t xs, int64_t n) {
  int64_t lo, hi;
  share(x.size(), 1, c.tid, c.nt, &lo, &hi);
  for (int64_t o = lo; o < hi; ++o) {
    const float* in = x.as<float>() + x.at(o);
    float* out = y.as<float>() + y.at(o);
    float top = -INFINITY;
    for (int64_t i = 0; i < n; ++i) top = in[i * xs] > top ? in[i * xs] : top;
    const float shift = top == -INFINITY && S == Soft::LogSumExp ? 0.0f : top;
    // Sixteen sums, for speed and for accuracy.
    float sums[16] = {};
    int64_t i = 0;
    if (xs == 1 && ys == 1) {
      for (; i + 16 <= n; i += 16) {
        for (int l = 0; l < 16; ++l) {
          const float e = exp_f(in[i + l] - shift);
          sums[l] += e;
          if (S == Soft::Softmax) out[i + l] = e;
        }
      }
    }
    for (; i < n; ++i) {
      const float e = exp_f(in[i * xs] - shift);
      sums[i % 16] += e;
      if (S == Soft::Softmax) out[i * ys] = e;
    }
    float sum = 0.0f;
    for (int l = 0; l < 16; ++l) sum += sums[l];
    if (S == Soft::LogSumExp) {
      *out = shift + logf(sum);
    } else if (S == Soft::LogSoftmax) {
      const float log_sum = logf(sum);
      for (int64_t k = 0; k < n; ++k) out[k * ys] = in[k * xs] - shift - log_sum;
    } else {
      for (int64_t k = 0; k < n; ++k) out[k * ys] = out[k * ys] / sum;
    }
  }
}

template <class T, class Out>
static void cumsum(const Call& c, const View& y, int64_t ys, const View& x, int64_t xs, int64_t n) {
  int64_t lo, hi;
  share(x.size(), 1, c.tid, c.nt, &lo, &hi);
  for (int64_t o = lo; o < hi; ++o) {
    const T* in = x.as<T>() + x.at(o);
    Out* out = y.as<Out>() + y.at(o);
    Out sum = 0;
    for (int64_t i = 0; i < n; ++i) out[i * ys] = sum += (Out)in[i * xs];
  }
}

// Whether a stands before b. NaN counts as the largest number.
template <bool LARGEST, class T>
MP_INLINE bool before(T a, T b) {
  if (a != a || b != b) return LARGEST ? a != a && b == b : b != b && a == a;
  return LARGEST ? a > b : a < b;
}

// Index of the first extremum; the first NaN, where there is one (as numpy).
template <bool LARGEST, class T>
static void arg_extremum(const Call& c, int64_t* y, const View& x, int64_t xs, int64_t n) {
  int64_t lo, hi;
  share(x.size(), 1, c.tid, c.nt, &lo, &hi);
  for (int64_t o = lo; o < hi; ++o) {
    const T* in = x.as<T>() + x.at(o);
    int64_t best = 0;
    for (int64_t i = 1; i < n && in[best * xs] == in[best * xs]; ++i) {
      const T v = in[i * xs];
      if ((LARGEST ? v > in[best * xs] : v < in[best * xs]) || v != v) best = i;
    }
    y[o] = best;
  }
}

// The k first of n in order, ties by the lower index. values and indices have the same strides.
template <bool LARGEST, class T>
static void topk(const Call& c, const View& values, const View& indices, int64_t ys, const View& x, int64_t xs, int64_t n, int64_t k) {
  int64_t lo, hi;
  share(x.size(), 1, c.tid, c.nt, &lo, &hi);
  for (int64_t o = lo; o < hi; ++o) {
    const T* in = x.as<T>() + x.at(o);
    T* v = values.as<T>() + values.at(o);
    int64_t* at = indices.as<int64_t>() + indices.at(o);
    for (int64_t i = 0; i < n; ++i) {
      const T value = in[i * xs];
      int64_t j = i < k ? i : k;
      if (j == k && (k == 0 || !before<LARGEST>(value, v[(k - 1) * ys]))) continue;
      j = j == k ? k - 1 : j;
      for (; j > 0 && before<LARGEST>(value, v[(j - 1) * ys]); --j) {
        v[j * ys] = v[(j - 1) * ys];
        at[j * ys] = at[(j - 1) * ys];
      }
      v[j * ys] = value;
      at[j * ys] = i;
    }
  }
}

// A heap sort of (value, index) pairs, which is stable because the index breaks ties.
template <bool DESCENDING, class T>
static void sort(const Call& c, const View& values, const View& indices, int64_t ys, const View& x, int64_t xs, int64_t n) {
  int64_t lo, hi;
  share(x.size(), 1, c.tid, c.nt, &lo, &hi);
  for (int64_t o = lo; o < hi; ++o) {
    const T* in = x.as<T>() + x.at(o);
    T* v = values.as<T>() + values.at(o);
    int64_t* at = indices.as<int64_t>() + indices.at(o);
    for (int64_t i = 0; i < n; ++i) v[i * ys] = in[i * xs], at[i * ys] = i;
    const auto less = [&](T a, int64_t ia, T b, int64_t ib) { return before<DESCENDING>(a, b) || (!before<DESCENDING>(b, a) && ia < ib); };
    const auto sift = [&](int64_t root, int64_t end) {
      const T value = v[root * ys];
      const int64_t index = at[root * ys];
      for (;;) {
        int64_t child = 2 * root + 1;
        if (child >= end) break;
        if (child + 1 < end && less(v[child * ys], at[child * ys], v[(child + 1) * ys], at[(child + 1) * ys])) ++child;
        if (!less(value, index, v[child * ys], at[child * ys])) break;
        v[root * ys] = v[child * ys];
        at[root * ys] = at[child * ys];
        root = child;
      }
      v[root * ys] = value;
      at[root * ys] = index;
    };
    for (int64_t i = n / 2 - 1; i >= 0; --i) sift(i, n);
    for (int64_t end = n - 1; end > 0; --end) {
      const T value = v[end * ys];
      const int64_t index = at[end * ys];
      v[end * ys] = v[0];
      at[end * ys] = at[0];
      v[0] = value;
      at[0] = index;
      sift(0, end);
    }
  }
}

}  // namespace mp
