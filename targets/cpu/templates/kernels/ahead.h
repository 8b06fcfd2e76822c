// Weights asked for ahead of time: a step reads all of them, and memory must not stand still while small ops run or a thread waits.
#pragma once
#include <stdint.h>

namespace mp {

// What row functions call once for each vector they take: nothing, or a prefetch of the next line that this thread will want.
struct NoAhead {
  static inline __attribute__((always_inline)) void step(NoAhead&) {}
};
struct LinesAhead {
  const char* at;
  const char* end;
  static inline __attribute__((always_inline)) void step(LinesAhead& a) {
    __builtin_prefetch(a.at, 0, 2);
    a.at = a.at < a.end ? a.at + 64 : a.at;
  }
};

}  // namespace mp
