// What this machine can do at most: memory read at a working-set size, and multiply-adds per second of each unit, in registers alone.
//
// One library holds a probe for every unit; Python calls only those whose flags the CPU has, so each function names its own instruction set.
#pragma once
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace ceilings {

static double seconds_now() {
  timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

constexpr int kMostThreads = 256;

// One thread's part of a round. `tid` of `threads`; `work` is what the probe needs.
typedef void (*Part)(const void* work, int tid, int threads);

struct Team {
  Part part;
  const void* work;
  int threads, rounds;
  alignas(64) int arrived;
  alignas(64) int generation;
  double released;  // when the last thread reached the barrier: a round lasts from one release to the next
};

static void barrier(Team* team) {
  const int now = __atomic_load_n(&team->generation, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&team->arrived, 1, __ATOMIC_ACQ_REL) == team->threads) {
    team->released = seconds_now();
    __atomic_store_n(&team->arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&team->generation, now + 1, __ATOMIC_RELEASE);
    return;
  }
  for (int spins = 0; __atomic_load_n(&team->generation, __ATOMIC_ACQUIRE) == now; spins++)
    if (spins > 100000) sched_yield();
}

struct Member {
  Team* team;
  int tid;
};

static void* rounds_of(void* pointer) {
  Member* me = (Member*)pointer;
  barrier(me->team);
  for (int r = 0; r < me->team->rounds; r++) {
    me->team->part(me->team->work, me->tid, me->team->threads);
    barrier(me->team);
  }
  return nullptr;
}

// Runs `rounds` rounds on `threads` threads and stores each round's seconds. 0, or 1 where a thread cannot be made.
static int time_rounds(Part part, const void* work, int threads, int rounds, double* seconds) {
  if (threads < 1 || threads > kMostThreads) return 1;
  Team team = {};
  team.part = part;
  team.work = work;
  team.threads = threads;
  team.rounds = rounds;
  Member members[kMostThreads];
  pthread_t ids[kMostThreads];
  int made = 1;
  for (; made < threads; made++) {
    members[made] = Member{&team, made};
    if (pthread_create(&ids[made], nullptr, rounds_of, &members[made])) break;
  }
  if (made < threads) {
    // Those that exist wait at the barrier for a full team: shrink the team so that they run no round and end.
    team.rounds = 0;
    __atomic_store_n(&team.threads, made, __ATOMIC_SEQ_CST);
    barrier(&team);
    for (int i = 1; i < made; i++) pthread_join(ids[i], nullptr);
    return 1;
  }
  barrier(&team);
  for (int r = 0; r < rounds; r++) {
    const double start = team.released;
    part(work, 0, threads);
    barrier(&team);
    seconds[r] = team.released - start;
  }
  for (int i = 1; i < threads; i++) pthread_join(ids[i], nullptr);
  return 0;
}

}  // namespace ceilings
