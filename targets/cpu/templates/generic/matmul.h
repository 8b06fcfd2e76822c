// Batched f32 products of two activations: y[b, m, n] = sum_k a[b, m, k] * w[b, k, n]; y contiguous, a and w of any strides.
// Products with weights go through linear.h; what is left is small, so a register tile of 4 rows by 32 columns is enough.
#pragma once
#include "frame.h"
#include "view.h"

namespace mp {

static void matmul(const Call& c, float* y, const View& batch_a, const View& batch_w, int64_t m, int64_t n, int64_t k, int64_t am, int64_t ak,
                   int64_t wk, int64_t wn) {
  constexpr int kRows = 4, kColumns = 32;
  const int64_t row_tiles = (m + kRows - 1) / kRows, column_tiles = (n + kColumns - 1) / kColumns, tiles = row_tiles * column_tiles;
  int64_t lo, hi;
  share(batch_a.size() * tiles, 1, c.tid, c.nt, &lo, &hi);
  for (int64_t t = lo; t < hi; ++t) {
    const int64_t b = t / tiles, i0 = t % tiles / column_tiles * kRows, j0 = t % column_tiles * kColumns;
    const float* a = batch_a.as<float>() + batch_a.at(b) + i0 * am;
    const float* w = batch_w.as<float>() + batch_w.at(b) + j0 * wn;
    float* out = y + (b * m + i0) * n + j0;
    const int64_t rows = m - i0 < kRows ? m - i0 : kRows, columns = n - j0 < kColumns ? n - j0 : kColumns;
    if (wn != 1 && wk == 1 && ak == 1) {
      // Both run along k: dot products in 16 lanes.
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          float lanes[16] = {};
          int64_t q = 0;
          for (; q + 16 <= k; q += 16) {
            for (int l = 0; l < 16; ++l) lanes[l] += a[i * am + q + l] * w[j * wn + q + l];
          }
          float sum = 0.0f;
          for (; q < k; ++q) sum += a[i * am + q] * w[j * wn + q];
          for (int l = 0; l < 16; ++l) sum += lanes[l];
          out[i * n + j] = sum;
        }
      }
      continue;
    }
    float acc[kRows][kColumns] = {};
    const bool full = rows == kRows && columns == kColumns && wn == 1;
    for (int64_t q = 0; q < k; ++q) {
      if (full) {
        for (int i = 0; i < kRows; ++i) {
          const float s = a[i * am + q * ak];
          for (int j = 0; j < kColumns; ++j) acc[i][j] += s * w[q * wk + j];
        }
      } else {
        for (int64_t i = 0; i < rows; ++i) {
          const float s = a[i * am + q * ak];
          for (int64_t j = 0; j < columns; ++j) acc[i][j] += s * w[q * wk + j * wn];
        }
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) out[i * n + j] = acc[i][j];
    }
  }
}

}  // namespace mp
