// Reading memory: every byte of a buffer loaded once a pass, in several manners. Which is fastest depends on the machine; the caller takes the best.
#pragma once
#include "frame.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ceilings {

struct Read {
  const char* at;
  int64_t bytes;  // a multiple of 1024 for each thread's part is not needed: the tail is left out
  int manner;     // streams - 1, plus 8 where the next lines are prefetched
  int width;      // bytes of a load: 64 (AVX-512), 32 (AVX2) or 16
  int passes;
};

constexpr int64_t kAhead = 4096;

#define READ_BODY(V, LOAD, XOR, ZERO, STORE)                                                             \
  const int streams = (r.manner & 7) + 1;                                                                \
  const int64_t part = bytes / streams & ~(int64_t)255;                                                  \
  constexpr int n = 256 / (int)sizeof(V) < 4 ? 256 / (int)sizeof(V) : 4;                                 \
  V s[4] = {ZERO, ZERO, ZERO, ZERO};                                                                     \
  for (int64_t i = 0; i < part; i += 256)                                                                \
    for (int k = 0; k < streams; k++) {                                                                  \
      const char* p = at + k * part + i;                                                                 \
      if (r.manner & 8)                                                                                  \
        for (int line = 0; line < 256; line += 64) __builtin_prefetch(p + kAhead + line, 0, 3);          \
      for (int v = 0; v < 256 / (int)sizeof(V); v++) s[v % n] = XOR(s[v % n], LOAD(p + v * sizeof(V)));  \
    }                                                                                                    \
  STORE

static volatile uint8_t sink;

#define KEEP                                                                    \
  {                                                                             \
    uint8_t out[sizeof(s)];                                                     \
    memcpy(out, s, sizeof(s));                                                  \
    uint8_t all = 0;                                                            \
    for (unsigned i = 0; i < sizeof(s); i++) all ^= out[i];                     \
    sink = all;                                                                 \
  }

typedef uint8_t Vec16 __attribute__((vector_size(16)));
#define LOAD16(p) (*(const Vec16*)(p))
#define XOR_PLAIN(a, b) ((a) ^ (b))
static void read_16(const Read& r, const char* at, int64_t bytes) { READ_BODY(Vec16, LOAD16, XOR_PLAIN, (Vec16){0}, KEEP) }

#if defined(__x86_64__)
#define LOAD32(p) _mm256_load_si256((const __m256i*)(p))
#define LOAD64(p) _mm512_load_si512(p)
__attribute__((target("avx2"))) static void read_32(const Read& r, const char* at, int64_t bytes) {
  READ_BODY(__m256i, LOAD32, _mm256_xor_si256, _mm256_setzero_si256(), KEEP)
}
__attribute__((target("avx512f"))) static void read_64(const Read& r, const char* at, int64_t bytes) {
  READ_BODY(__m512i, LOAD64, _mm512_xor_si512, _mm512_setzero_si512(), KEEP)
}
#endif

static void read_part(const void* work, int tid, int threads) {
  const Read& r = *(const Read*)work;
  const int64_t part = r.bytes / threads & ~(int64_t)4095;
  const char* at = r.at + tid * part;
  for (int pass = 0; pass < r.passes; pass++) {
#if defined(__x86_64__)
    if (r.width == 64) {
      read_64(r, at, part);
      continue;
    }
    if (r.width == 32) {
      read_32(r, at, part);
      continue;
    }
#endif
    read_16(r, at, part);
  }
}

}  // namespace ceilings

// A buffer of `bytes`, aligned to 2 MB, in huge pages where asked and given, touched; nullptr where there is no memory.
EXPORT char* ceilings_map(int64_t bytes, int huge) {
  const int64_t page = 2 << 20;
  char* raw = (char*)mmap(nullptr, (size_t)(bytes + page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == (char*)MAP_FAILED) return nullptr;
  char* at = (char*)(((uintptr_t)raw + page - 1) & ~(uintptr_t)(page - 1));
  if (at > raw) munmap(raw, (size_t)(at - raw));
  if (raw + page > at) munmap(at + bytes, (size_t)(raw + page - at));
  madvise(at, (size_t)bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  memset(at, 1, (size_t)bytes);
  return at;
}

EXPORT void ceilings_unmap(char* at, int64_t bytes) { munmap(at, (size_t)bytes); }

EXPORT int ceilings_read(const char* at, int64_t bytes, int threads, int manner, int width, int passes, int rounds, double* seconds) {
  const ceilings::Read work = {at, bytes, manner, width, passes};
  return ceilings::time_rounds(ceilings::read_part, &work, threads, rounds, seconds);
}
