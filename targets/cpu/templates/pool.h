// A persistent pool of threads that walk the ops of a step in lockstep.
//
// One barrier serves everything: it starts a step, separates ops, and parks idle workers. A waiter polls for a bounded time and then sleeps on
// a futex, so an idle server costs nothing and an oversubscribed machine still makes progress.
#pragma once
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "frame.h"

namespace mp {

static inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

struct alignas(64) Barrier {
  int32_t generation;
  char pad0[60];
  int32_t arrived;
  char pad1[60];
  int32_t sleepers;
  char pad2[60];
};

// How long a thread polls before it sleeps, in nanoseconds. Polling is best while every thread has a core of its own, and far worse than
// sleeping once they share cores. So a wait that outlasts the longest budget halves it; one that does not, slept through or not, restores it.
constexpr int64_t kLeastPolling = 10000, kMostPolling = 200000;

static int64_t nanoseconds_now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

// All stores before the barrier are visible after it. The sleeper's count and the generation are sequentially consistent: either the
// sleeper sees the new generation and does not sleep, or the last arriver sees the sleeper and wakes it. Gives the nanoseconds of a wait that
// outlasted polling, 0 for others.
static int64_t wait(Barrier* b, int nt, int64_t* polling) {
  const int32_t now = __atomic_load_n(&b->generation, __ATOMIC_RELAXED);
  if (__atomic_add_fetch(&b->arrived, 1, __ATOMIC_ACQ_REL) == nt) {
    __atomic_store_n(&b->arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&b->generation, now + 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&b->sleepers, __ATOMIC_SEQ_CST)) syscall(SYS_futex, &b->generation, FUTEX_WAKE_PRIVATE, 1 << 30, 0, 0, 0);
    return 0;
  }
  // Most waits end before the clock is read once.
  int64_t began = 0;
  for (int i = 1;; ++i) {
    if (__atomic_load_n(&b->generation, __ATOMIC_ACQUIRE) != now) return 0;
    relax();
    if (i % 32) continue;
    const int64_t t = nanoseconds_now();
    if (!began) began = t;
    else if (t - began > *polling) break;
  }
  __atomic_add_fetch(&b->sleepers, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&b->generation, __ATOMIC_SEQ_CST) == now) syscall(SYS_futex, &b->generation, FUTEX_WAIT_PRIVATE, now, 0, 0, 0);
  __atomic_sub_fetch(&b->sleepers, 1, __ATOMIC_SEQ_CST);
  const int64_t waited = nanoseconds_now() - began;
  if (waited <= kMostPolling) *polling = kMostPolling;
  else *polling = *polling / 2 > kLeastPolling ? *polling / 2 : kLeastPolling;
  return waited;
}

}  // namespace mp
