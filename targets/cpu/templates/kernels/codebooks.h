// The codebooks of the nonuniform formats, as in runtime/codebooks.py (a test compares them), in 1/127 of the largest entry.
#pragma once
#include <stdint.h>

namespace mp {

constexpr int8_t kBook2[4] = {-127, -38, 13, 78};
constexpr int8_t kBook3[8] = {-127, -74, -41, -17, 3, 25, 53, 96};
constexpr int8_t kBook4[16] = {-127, -97, -76, -59, -44, -31, -20, -9, 1, 10, 21, 32, 45, 61, 81, 115};
constexpr int8_t kBook5[32] = {-127, -115, -103, -92, -84, -76, -68, -61, -54, -46, -39, -33, -26, -20, -14, -7,
                               -1, 5, 11, 18, 25, 32, 39, 46, 53, 61, 68, 76, 84, 93, 103, 120};

// Entry i of a codebook of BITS, over again beyond its end.
template <int BITS>
constexpr int8_t book_entry(int i) {
  return BITS == 2 ? kBook2[i % 4] : BITS == 3 ? kBook3[i % 8] : BITS == 4 ? kBook4[i % 16] : kBook5[i % 32];
}

}  // namespace mp
