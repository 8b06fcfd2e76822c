// The measuring half of benchmarks/attention.py: a step's attention over every layer, on a team of threads with a barrier after each kernel.
// BENCH_SHAPE is the kernels' template arguments: query heads, KV heads, size of a key, size of a value, storage.
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "kernels/all.h"
using namespace mp;

namespace {
template <int HQ_, int HKV_, int DK_, int DV_, Kv S_>
struct Shape {
  static constexpr int kHq = HQ_, kHkv = HKV_, kDk = DK_, kDv = DV_;
  static constexpr Kv kS = S_;
};
using B = Shape<BENCH_SHAPE>;
constexpr int HQ = B::kHq, HKV = B::kHkv, DK = B::kDk, DV = B::kDv;

double seconds_now() {
  timespec a;
  clock_gettime(CLOCK_MONOTONIC, &a);
  return (double)a.tv_sec + 1e-9 * (double)a.tv_nsec;
}
// `released` is when the last thread reached the barrier: a call lasts from one release to the next, whichever thread is late.
struct Team {
  int nt;
  const AttentionArgs* args;
  int64_t layers;
  int arrived, generation;
  double released;
  cpu_set_t cores;
};
void barrier(Team* t) {
  const int g = __atomic_load_n(&t->generation, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&t->arrived, 1, __ATOMIC_ACQ_REL) == t->nt) {
    t->released = seconds_now();
    __atomic_store_n(&t->arrived, 0, __ATOMIC_RELAXED);
    __atomic_add_fetch(&t->generation, 1, __ATOMIC_ACQ_REL);
    return;
  }
  for (int spins = 0; __atomic_load_n(&t->generation, __ATOMIC_ACQUIRE) == g; spins++) {
    if (spins > 100000) sched_yield();
  }
}
struct Member {
  Team* team;
  int tid;
};
void walk(Team* t, int tid, double* append, double* attend) {
  // Each thread on a core of its own: a new one would share its maker's for a while.
  cpu_set_t one;
  int core = 0, seen = 0;
  for (int i = 0; i < CPU_SETSIZE && seen <= tid; i++) {
    if (CPU_ISSET(i, &t->cores)) core = i, seen++;
  }
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  sched_setaffinity(0, sizeof(one), &one);
  barrier(t);
  for (int64_t i = 0; i < t->layers; i++) {
    const double start = t->released;
    attention_append<BENCH_SHAPE>(t->args[i], tid, t->nt);
    barrier(t);
    const double middle = t->released;
    attention<BENCH_SHAPE>(t->args[i], tid, t->nt);
    barrier(t);
    if (tid == 0) *append += middle - start, *attend += t->released - middle;
  }
}
void* work(void* p) {
  const Member* m = (const Member*)p;
  walk(m->team, m->tid, nullptr, nullptr);
  return nullptr;
}
char* memory(int64_t bytes) {
  const size_t size = (size_t)round_up(bytes, 1 << 21);
  char* p = (char*)aligned_alloc(1 << 21, size);
  madvise(p, size, MADV_HUGEPAGE);
  memset(p, 0, size);
  return p;
}
}  // namespace

// `batch` sequences of `chunk` new tokens each, the last at position context - 1, whose pages lie scattered over a cache of `layers` layers.
// out[2*r], out[2*r+1]: seconds of the appends and of the attentions of a whole step, round r.
extern "C" void bench_attention(int64_t batch, int64_t chunk, int64_t context, int64_t layers, int nt, int rounds, double* out) {
  const int64_t each = (context + kPage - 1) / kPage, pages = each * batch, t = batch * chunk, width = HQ * DK + HKV * (DK + DV);
  constexpr int64_t kPageBytes = kv_bytes_per_page<HKV, DK, DV, B::kS>();
  char* cache = memory(kPageBytes * pages * layers);
  float* x = (float*)memory(t * width * 4);
  float* y = (float*)memory(t * HQ * DV * 4);
  int32_t* sync = (int32_t*)memory(nt * kSyncInts * 4);
  int32_t* lengths = (int32_t*)calloc((size_t)t, 4);
  for (int64_t i = 0; i < t; i++) lengths[i] = (int32_t)context;
  void* scratch = memory(attention_scratch<HQ, HKV, DK, DV, B::kS>(nt, t));
  int32_t* positions = (int32_t*)calloc((size_t)t, 4);
  int32_t* slots = (int32_t*)calloc((size_t)t, 4);
  int32_t* table = (int32_t*)calloc((size_t)pages, 4);
  uint32_t seed = 12345;
  for (int64_t i = 0; i < t * width; i++) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
  // f16 or the halves of f32 around 1; or codes, whose scales and minima are around 2^-8.
  constexpr uint32_t kAround = B::kS == Kv::F32 || B::kS == Kv::F16 ? 0x3800 : 0x1a00;
  for (int64_t i = 0; i < kPageBytes * pages * layers / 2; i++) {
    seed = seed * 1664525u + 1013904223u;
    ((uint16_t*)cache)[i] = (uint16_t)(kAround + (seed >> 22));
  }
  for (int64_t i = 0; i < t; i++) positions[i] = (int32_t)(context - chunk + i % chunk), slots[i] = (int32_t)(i / chunk);
  for (int64_t i = 0; i < pages; i++) table[i] = (int32_t)i;
  for (int64_t i = pages - 1; i > 0; i--) {
    seed = seed * 1664525u + 1013904223u;
    const int64_t j = (int64_t)(seed >> 8) % (i + 1);
    const int32_t swap = table[i];
    table[i] = table[j], table[j] = swap;
  }
  AttentionArgs* args = (AttentionArgs*)calloc((size_t)layers, sizeof(AttentionArgs));
  for (int64_t i = 0; i < layers; i++) {
    AttentionArgs& a = args[i];
    a.q = x, a.k = x + HQ * DK, a.v = a.k + HKV * DK;
    a.ldq = a.ldk = a.ldv = width;
    a.ldq_head = a.ldk_head = DK, a.ldv_head = DV;
    a.y = y, a.ldy = HQ * DV, a.ldy_head = DV;
    a.positions = positions, a.slots = slots, a.block_tables = table;
    a.max_pages = each, a.pages = pages, a.t = t, a.scale = 0.125f;
    a.cache = cache + i * kPageBytes, a.page_stride = layers * kPageBytes;  // the layers of a page side by side, as the device has them
    a.lengths = lengths, a.sync = sync, a.scratch = scratch;
  }
  Team team = {nt, args, layers, 0, 0, 0.0, {}};
  sched_getaffinity(0, sizeof(cpu_set_t), &team.cores);
  Member members[64];
  pthread_t ids[64];
  for (int r = -1; r < rounds; r++) {
    for (int i = 1; i < nt; i++) {
      members[i] = Member{&team, i};
      pthread_create(&ids[i], nullptr, work, &members[i]);
    }
    double append = 0.0, attend = 0.0;
    walk(&team, 0, &append, &attend);
    for (int i = 1; i < nt; i++) pthread_join(ids[i], nullptr);
    if (r >= 0) out[2 * r] = append, out[2 * r + 1] = attend;
  }
  sched_setaffinity(0, sizeof(cpu_set_t), &team.cores);
  free(cache), free(sync), free(lengths), free(x), free(y), free(scratch), free(positions), free(slots), free(table), free(args);
}
