// The frame around the kernels of a region: what the loader passes in, what every op's function is called with, and how work is shared out.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace mp {

// What the loader gives once. The order of the arrays is fixed by runtime/devices/cpu_abi.py.
struct CreateArgs {
  int64_t threads;
  void* const* constants;
  uint8_t* arena;    // 64-byte aligned, arena_bytes
  uint8_t* scratch;  // 64-byte aligned, mixplan_scratch_bytes(threads)
  void* const* kv;   // where the first page of each attention layer of the region lies
  int64_t kv_stride; // bytes from a layer's page to its next one: layers lie side by side within a page, so few tokens touch little memory
  int64_t pages;
  int64_t max_pages;
  int64_t profile;   // 1: count nanoseconds of every op
};

// What the loader gives each step.
struct StepArgs {
  int64_t tokens, rows;
  const int32_t* positions;  // [T]
  const int32_t* slots;      // [T]
  const int32_t* lengths;    // [T]
  const int32_t* block_tables;
  void* const* inputs;
  void* const* outputs;
  // Where `best` is given: the largest logits are looked for while they are in the cache.
  int32_t* best;        // [R], the first column of the row's largest logit, -1 where that is not a finite number
  float* maxima;        // [R, kLogits / 64 rounded up], the largest of each 64 columns, NaN where one of them is
  int64_t nanoseconds;  // set by the step: how long it took
};

struct Draw;

// Several steps in one call: each takes the tokens that the one before it found.
struct DecodeArgs {
  StepArgs step;         // one token of each sequence, and rows as many; with `best` and `maxima`
  int64_t* ids;          // [tokens], the region inputs and step arrays that advance from step to step
  int64_t* positions;
  int64_t* lengths;
  int32_t* step_positions;
  int32_t* step_lengths;
  const int32_t* stops;  // token ids after which no further step is made
  int64_t stop_count;
  int64_t steps;         // at most; every sequence has the pages for them
  int64_t budget;        // nanoseconds: beyond the first, no step that would end later
  int32_t* found;        // [steps][tokens], set
  int64_t done;          // set: steps made
  const Draw* draws;     // kernels/draw.h; [tokens], or null, where every token is the most probable one
  void* scratch;         // with draws: 8 bytes for each column of logits
};

// What an op's function is called with, on every thread.
struct Call {
  void* const* p;  // the op's operands
  int64_t T, R;
  int tid, nt;
  int32_t node;
  int32_t* error;
  void* scratch;
  const StepArgs* step;
  int64_t pages, max_pages, kv_stride;
  int32_t* sync;  // kSyncBytes for each thread, zero between ops
};
constexpr int64_t kSyncBytes = 64;

// Ops that are left out of steps with few tokens, few rows of logits, or only tokens that are the last of their sequences, since later ops
// do their work in such steps.
enum Few : int32_t { kNever, kFewTokens, kFewLogits, kLastTokens };

struct Op {
  void (*run)(const Call&);
  int32_t operands;  // index of its first operand
  int32_t node;      // 1 + index of the node in the plan
  int64_t w0, wt, wr, wtt;  // work = w0 + wt*T + wr*R + wtt*T*T, in element operations
  Few few;
};

// Where an operand lies: constants, region inputs and outputs by index, the arena at a byte offset, KV storage by layer.
enum Kind : int32_t { kArena, kConst, kInput, kOutput, kKv };
struct Operand {
  Kind kind;
  int32_t index;
  int64_t offset;
};

// The share of [0, n) that thread tid takes, in multiples of `grain` (the last share may end on n).
static inline void share(int64_t n, int64_t grain, int tid, int nt, int64_t* lo, int64_t* hi) {
  const int64_t blocks = (n + grain - 1) / grain;
  const int64_t a = blocks * tid / nt * grain, b = blocks * (tid + 1) / nt * grain;
  *lo = a < n ? a : n;
  *hi = b < n ? b : n;
}

// Report an index out of range in this op. The step goes on without the access and then returns the first such node.
static inline void fail(const Call& c) {
  int32_t none = 0;
  __atomic_compare_exchange_n(c.error, &none, c.node, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

// A normalised index (negative ones count from the end), or -1 after reporting it.
static inline int64_t checked(const Call& c, int64_t i, int64_t n) {
  const int64_t k = i < 0 ? i + n : i;
  if (k >= 0 && k < n) return k;
  fail(c);
  return -1;
}

}  // namespace mp
