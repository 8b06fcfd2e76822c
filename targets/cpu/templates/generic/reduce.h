// Reductions over any set of axes: `kept` are the other axes of x, `axes` those reduced; y is contiguous in the order of `kept`.
#pragma once
#include "frame.h"
#include "pointwise_math.h"
#include "view.h"

namespace mp {

template <class T, class Out>
struct Sum {
  using In = T;
  using Acc = Out;
  using Result = Out;
  static Acc first() { return 0; }
  static Acc step(Acc a, T x) { return a + (Acc)x; }
  static Acc merge(Acc a, Acc b) { return a + b; }
  static Result last(Acc a, int64_t) { return a; }
};
template <class T, class Out>
struct Mean : Sum<T, Out> {
  static Out last(Out a, int64_t n) { return a / (Out)n; }
};
template <class T, class Out>
struct Prod {
  using In = T;
  using Acc = Out;
  using Result = Out;
  static Acc first() { return 1; }
  static Acc step(Acc a, T x) { return a * (Acc)x; }
  static Acc merge(Acc a, Acc b) { return a * b; }
  static Result last(Acc a, int64_t) { return a; }
};
template <class T>
constexpr T lowest() {
  return (T)-1 > (T)0 ? (T)0 : (T)((uint64_t)1 << (8 * sizeof(T) - 1));
}
template <>
constexpr float lowest<float>() {
  return -INFINITY;
}
template <class T>
constexpr T highest() {
  return (T)~lowest<T>();
}
template <>
constexpr float highest<float>() {
  return INFINITY;
}
// NaN wins, as in numpy.
template <class T, class>
struct Amax {
  using In = T;
  using Acc = T;
  using Result = T;
  static T first() { return lowest<T>(); }
  static T step(T a, T x) { return x > a || x != x ? x : a; }
  static T merge(T a, T b) { return step(a, b); }
  static T last(T a, int64_t) { return a; }
};
template <class T, class>
struct Amin : Amax<T, T> {
  static T first() { return highest<T>(); }
  static T step(T a, T x) { return x < a || x != x ? x : a; }
  static T merge(T a, T b) { return step(a, b); }
};
template <class T, class>
struct Any {
  using In = T;
  using Acc = uint8_t;
  using Result = uint8_t;
  static Acc first() { return 0; }
  static Acc step(Acc a, T x) { return a | (uint8_t)(x != 0); }
  static Acc merge(Acc a, Acc b) { return a | b; }
  static Result last(Acc a, int64_t) { return a; }
};
template <class T, class>
struct All : Any<T, T> {
  static uint8_t first() { return 1; }
  static uint8_t step(uint8_t a, T x) { return a & (uint8_t)(x != 0); }
  static uint8_t merge(uint8_t a, uint8_t b) { return a & b; }
};

template <class Op>
static void reduce(const Call& c, typename Op::Result* y, const View& kept, const View& axes) {
  using T = typename Op::In;
  using Acc = typename Op::Acc;
  constexpr int kLanes = 16;
  const int last = axes.rank - 1;
  const int64_t n = axes.shape[last], stride = axes.stride[last], count = axes.size();
  int64_t lo, hi;
  share(kept.size(), 1, c.tid, c.nt, &lo, &hi);
  for (int64_t o = lo; o < hi; ++o) {
    const T* row = kept.as<T>() + kept.at(o);
    // Independent lanes: faster, and rounding errors grow with n/16 instead of n.
    Acc lanes[kLanes];
    for (int l = 0; l < kLanes; ++l) lanes[l] = Op::first();
    for (int64_t r = 0; r < count; r += n) {
      const T* x = row + axes.at(r);
      int64_t i = 0;
      if (stride == 1) {
        for (; i + kLanes <= n; i += kLanes) {
          for (int l = 0; l < kLanes; ++l) lanes[l] = Op::step(lanes[l], x[i + l]);
        }
      }
      for (; i < n; ++i) lanes[i % kLanes] = Op::step(lanes[i % kLanes], x[i * stride]);
    }
    for (int half = kLanes / 2; half; half /= 2) {
      for (int l = 0; l < half; ++l) lanes[l] = Op::merge(lanes[l], lanes[l + half]);
    }
    y[o] = Op::last(lanes[0], count);
  }
}

}  // namespace mp
