// Strided arrays of up to 8 dimensions, and walks over them.
#pragma once
#include <stdint.h>

#include "frame.h"

namespace mp {

constexpr int kMaxRank = 8;

struct View {
  void* data;
  int rank;
  int64_t shape[kMaxRank], stride[kMaxRank];  // in elements

  int64_t size() const {
    int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= shape[d];
    return n;
  }
  // Offset of element i in row-major order.
  int64_t at(int64_t i) const {
    int64_t offset = 0;
    for (int d = rank - 1; d > 0; --d) {
      offset += i % shape[d] * stride[d];
      i /= shape[d];
    }
    return rank ? offset + i * stride[0] : 0;
  }
  // The offset with `stride` of another view of the same shape.
  template <class T>
  T* as() const {
    return (T*)data;
  }
};

}  // namespace mp
