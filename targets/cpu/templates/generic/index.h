// Indexed reads and writes. Every index is checked: one out of range is reported (frame.h, fail) and gives zeros.
#pragma once
#include <string.h>

#include "frame.h"
#include "view.h"

namespace mp {

template <class T>
static inline void copy_row(T* y, const View& row, const T* x, int64_t count) {
  if (row.rank == 1 && row.stride[0] == 1) {
    memcpy(y, x, (size_t)count * sizeof(T));
  } else {
    for (int64_t i = 0; i < count; ++i) y[i] = x[row.at(i)];
  }
}

// y[pre, b, post] = x[pre, i0[b], .., ik[b], post] for k + 1 = axes; y contiguous, the indices are views of one shape, `row` the post axes.
template <class T, class I, int AXES>
static void index_nd(const Call& c, T* y, const View& pre, const View (&indices)[AXES], const int64_t (&sizes)[AXES],
                     const int64_t (&strides)[AXES], const View& row) {
  const int64_t picks = indices[0].size(), width = row.size();
  int64_t lo, hi;
  share(pre.size() * picks, 1, c.tid, c.nt, &lo, &hi);
  for (int64_t o = lo; o < hi; ++o) {
    const T* x = pre.as<T>() + pre.at(o / picks);
    bool inside = true;
    for (int a = 0; a < AXES; ++a) {
      const int64_t i = checked(c, indices[a].template as<I>()[indices[a].at(o % picks)], sizes[a]);
      inside = inside && i >= 0;
      x += (i < 0 ? 0 : i) * strides[a];
    }
    if (inside) {
      copy_row(y + o * width, row, x, width);
    } else {
      memset(y + o * width, 0, (size_t)width * sizeof(T));
    }
  }
}

// y[i0, .., j, ..] = x[i0, .., index[i0, .., j, ..], ..]: all axes of `index` in row-major order; `x` has index's shape with stride 0 on the axis.
template <class T, class I>
static void gather(const Call& c, T* y, const View& index, const View& x, int64_t n, int64_t stride) {
  int64_t lo, hi;
  share(index.size(), 1, c.tid, c.nt, &lo, &hi);
  for (int64_t o = lo; o < hi; ++o) {
    const int64_t i = checked(c, index.as<I>()[index.at(o)], n);
    y[o] = i < 0 ? (T)0 : x.as<T>()[x.at(o) + i * stride];
  }
}

// y[.., index[.., j, ..], ..] (+)= src[.., j, ..]: `y`, `index` and `src` are views of the other axes; one thread takes a whole line along the
// axis, so that later elements win and sums have a fixed order.
template <class T, class I, bool ADD>
static void scatter(const Call& c, const View& y, int64_t n, int64_t ys, const View& index, int64_t count, int64_t is, const View& src,
                    int64_t ss) {
  int64_t lo, hi;
  share(index.size(), 1, c.tid, c.nt, &lo, &hi);
  for (int64_t o = lo; o < hi; ++o) {
    T* out = y.as<T>() + y.at(o);
    const I* at = index.as<I>() + index.at(o);
    const T* in = src.as<T>() + src.at(o);
    for (int64_t j = 0; j < count; ++j) {
      const int64_t i = checked(c, at[j * is], n);
      if (i < 0) continue;
      out[i * ys] = ADD ? (T)(out[i * ys] + in[j * ss]) : in[j * ss];
    }
  }
}

}  // namespace mp
