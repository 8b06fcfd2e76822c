// Padding, triangles and index ramps. y is contiguous.
#pragma once
#include "frame.h"
#include "view.h"

namespace mp {

// `shape` is y's; element i of y along axis d is element i - lo[d] of x, or `value` outside x.
template <class T>
static void pad(const Call& c, T* y, const View& shape, const View& x, const int64_t (&lo)[kMaxRank], T value) {
  int64_t first, end;
  share(shape.size(), 1, c.tid, c.nt, &first, &end);
  for (int64_t o = first; o < end; ++o) {
    int64_t rest = o, offset = 0;
    bool inside = true;
    for (int d = shape.rank - 1; d >= 0; --d) {
      const int64_t i = rest % shape.shape[d] - lo[d];
      rest /= shape.shape[d];
      inside = inside && i >= 0 && i < x.shape[d];
      offset += i * x.stride[d];
    }
    y[o] = inside ? x.as<T>()[offset] : value;
  }
}

// Of the last two axes: keep column - row <= diagonal (lower) or >= diagonal.
template <class T, bool LOWER>
static void triangle(const Call& c, T* y, const View& x, int64_t diagonal) {
  const int64_t rows = x.shape[x.rank - 2], columns = x.shape[x.rank - 1];
  int64_t lo, hi;
  share(x.size(), 1, c.tid, c.nt, &lo, &hi);
  for (int64_t o = lo; o < hi; ++o) {
    const int64_t distance = o % columns - o / columns % rows;
    y[o] = (LOWER ? distance <= diagonal : distance >= diagonal) ? x.as<T>()[x.at(o)] : (T)0;
  }
}

// y[.., i, ..] = i, where `inner` elements follow each i and the axis has n.
template <class T>
static void iota(const Call& c, T* y, int64_t total, int64_t n, int64_t inner) {
  int64_t lo, hi;
  share(total, 1, c.tid, c.nt, &lo, &hi);
  for (int64_t o = lo; o < hi; ++o) y[o] = (T)(o / inner % n);
}

}  // namespace mp
