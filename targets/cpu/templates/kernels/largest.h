// The largest logits of each row, found by the threads that have just written them: what greedy decoding needs of 49,152 numbers is one.
// First block_maxima on every thread, then, after a barrier, first_largest on one.
#pragma once
#include "vec.h"

namespace mp {

constexpr int64_t kMaximaBlock = 64;
constexpr int64_t maxima_blocks(int64_t columns) { return (columns + kMaximaBlock - 1) / kMaximaBlock; }

// maxima[r][b]: the largest of columns [64 b, 64 b + 64) of x[rows][columns], NaN where one of them is.
MP_TASK void block_maxima(const float* x, int64_t rows, int64_t columns, float* maxima, int tid, int nt) {
  const int64_t blocks = maxima_blocks(columns), from = blocks * tid / nt, to = blocks * (tid + 1) / nt;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t b = from; b < to; b++) {
      const float* at = x + r * columns + b * kMaximaBlock;
      const int64_t count = columns - b * kMaximaBlock < kMaximaBlock ? columns - b * kMaximaBlock : kMaximaBlock;
      f32x16 most = splat(-INFINITY);
      i32x16 none = splat((int32_t)0);
      for (int64_t i = 0; i < count; i += kLanes) {
        f32x16 v = load_n(at + i, count - i);
        if (count - i < kLanes) v = select(lane_numbers() < splat((int32_t)(count - i)), v, splat(-INFINITY));
        most = select(v > most, v, most);
        none |= v != v;
      }
      maxima[r * blocks + b] = sum(none) ? NAN : max_lane(most);
    }
  }
}

// best[r]: the first column that holds row r's largest number; -1 where it is infinite or the row holds a NaN.
MP_TASK void first_largest(const float* x, int64_t rows, int64_t columns, const float* maxima, int32_t* best) {
  const int64_t blocks = maxima_blocks(columns);
  for (int64_t r = 0; r < rows; r++) {
    const float* row = maxima + r * blocks;
    f32x16 most = splat(-INFINITY);
    i32x16 none = splat((int32_t)0);
    int64_t b = 0;
    for (; b + kLanes <= blocks; b += kLanes) {
      const f32x16 v = load(row + b);
      most = select(v > most, v, most);
      none |= v != v;
    }
    float top = max_lane(most);
    bool sound = sum(none) == 0;
    for (; b < blocks; b++) {
      sound = sound && row[b] == row[b];
      if (row[b] > top) top = row[b];
    }
    best[r] = -1;
    if (!sound || top - top != 0.0f) continue;
    for (b = 0; row[b] != top;) b++;
    int64_t column = b * kMaximaBlock;
    while (x[r * columns + column] != top) column++;
    best[r] = (int32_t)column;
  }
}

}  // namespace mp
