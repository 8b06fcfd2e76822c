// Multiply-adds from registers alone: twelve independent accumulators, more than latency times throughput of any unit here.
#pragma once
#include "frame.h"
#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ceilings {


static volatile float float_sink;
static volatile int int_sink;
static volatile float float_source = 0.5f;
static volatile int int_source = 0x01020301;
constexpr int kChains = 12;

// Each loop does kChains accumulations. The empty asm keeps the compiler from computing anything ahead.
#define CHAINS(V, A, B, START, STEP, HIDE)              \
  V acc[kChains];                                       \
  for (int c = 0; c < kChains; c++) acc[c] = START;     \
  auto x = A;                                           \
  auto y = B;                                           \
  for (int64_t i = 0; i < loops; i++) {                 \
    __asm__ volatile("" : "+" HIDE(x), "+" HIDE(y));    \
    _Pragma("clang loop unroll(full)") for (int c = 0; c < kChains; c++) acc[c] = STEP(acc[c], x, y); \
  }

#if defined(__x86_64__)
#define STEP_FMA512(acc, x, y) _mm512_fmadd_ps(x, y, acc)
#define STEP_FMA256(acc, x, y) _mm256_fmadd_ps(x, y, acc)
#define STEP_FMA128(acc, x, y) _mm_add_ps(_mm_mul_ps(x, y), acc)
// Its first two steps do not need the accumulator: without the asm they would be done once for all chains.
#define STEP_MADD256(acc, x, y)                                                     \
  ({                                                                                \
    __asm__ volatile("" : "+x"(x));                                                 \
    _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), y));        \
  })

__attribute__((target("avx512f"))) static void fp32_avx512(int64_t loops) {
  CHAINS(__m512, _mm512_set1_ps(float_source), _mm512_set1_ps(float_source), _mm512_setzero_ps(), STEP_FMA512, "v")
  for (int c = 0; c < kChains; c++) float_sink = _mm512_reduce_add_ps(acc[c]);
}
__attribute__((target("avx2,fma"))) static void fp32_avx2(int64_t loops) {
  CHAINS(__m256, _mm256_set1_ps(float_source), _mm256_set1_ps(float_source), _mm256_setzero_ps(), STEP_FMA256, "x")
  for (int c = 0; c < kChains; c++) float_sink = _mm_cvtss_f32(_mm256_castps256_ps128(acc[c]));
}
static void fp32_sse(int64_t loops) {
  CHAINS(__m128, _mm_set1_ps(float_source), _mm_set1_ps(float_source), _mm_setzero_ps(), STEP_FMA128, "x")
  for (int c = 0; c < kChains; c++) float_sink = _mm_cvtss_f32(acc[c]);
}
__attribute__((target("avx2"))) static void int8_avx2(int64_t loops) {
  CHAINS(__m256i, _mm256_set1_epi32(int_source), _mm256_set1_epi32(int_source), _mm256_setzero_si256(), STEP_MADD256, "x")
  for (int c = 0; c < kChains; c++) int_sink = _mm_cvtsi128_si32(_mm256_castsi256_si128(acc[c]));
}
__attribute__((target("avx512f,avx512vnni"))) static void int8_vnni(int64_t loops) {
  CHAINS(__m512i, _mm512_set1_epi32(int_source), _mm512_set1_epi32(int_source), _mm512_setzero_si512(), _mm512_dpbusd_epi32, "v")
  for (int c = 0; c < kChains; c++) int_sink = _mm512_reduce_add_epi32(acc[c]);
}
__attribute__((target("avx512f,avx512bf16"))) static void bf16_avx512(int64_t loops) {
  CHAINS(__m512, (__m512bh)_mm512_set1_epi32(int_source), (__m512bh)_mm512_set1_epi32(int_source), _mm512_setzero_ps(), _mm512_dpbf16_ps, "v")
  for (int c = 0; c < kChains; c++) float_sink = _mm512_reduce_add_ps(acc[c]);
}

struct __attribute__((packed)) TileConfig {
  uint8_t palette, start, reserved[14];
  uint16_t columns[16];  // bytes of a row
  uint8_t rows[16];
};

#define AMX_BODY(DP)                                       \
  TileConfig config = {};                                  \
  config.palette = 1;                                      \
  for (int t = 0; t < 8; t++) {                            \
    config.columns[t] = 64;                                \
    config.rows[t] = 16;                                   \
  }                                                        \
  alignas(64) static const uint8_t zeros[1024] = {0};      \
  _tile_loadconfig(&config);                               \
  _tile_loadd(6, zeros, 64);                               \
  _tile_loadd(7, zeros, 64);                               \
  _tile_zero(0);                                           \
  _tile_zero(1);                                           \
  _tile_zero(2);                                           \
  _tile_zero(3);                                           \
  _tile_zero(4);                                           \
  _tile_zero(5);                                           \
  for (int64_t i = 0; i < loops; i++) {                    \
    DP(0, 6, 7);                                           \
    DP(1, 6, 7);                                           \
    DP(2, 6, 7);                                           \
    DP(3, 6, 7);                                           \
    DP(4, 6, 7);                                           \
    DP(5, 6, 7);                                           \
  }                                                        \
  alignas(64) uint8_t out[1024];                           \
  _tile_stored(0, out, 64);                                \
  int_sink = out[5];                                       \
  _tile_release();

__attribute__((target("amx-tile,amx-int8"))) static void int8_amx(int64_t loops) { AMX_BODY(_tile_dpbusd) }
__attribute__((target("amx-tile,amx-bf16"))) static void bf16_amx(int64_t loops) { AMX_BODY(_tile_dpbf16ps) }

typedef void (*Loop)(int64_t);
static const struct {
  const char* name;
  Loop loop;
  double operations;  // in one loop
} kUnits[] = {
    {"fp32_sse", fp32_sse, kChains * 4 * 2.0},          {"fp32_avx2", fp32_avx2, kChains * 8 * 2.0},
    {"fp32_avx512", fp32_avx512, kChains * 16 * 2.0},   {"int8_avx2", int8_avx2, kChains * 32 * 2.0},
    {"int8_vnni", int8_vnni, kChains * 64 * 2.0},       {"bf16_avx512", bf16_avx512, kChains * 32 * 2.0},
    {"int8_amx", int8_amx, 6 * 16 * 16 * 64 * 2.0},     {"bf16_amx", bf16_amx, 6 * 16 * 16 * 32 * 2.0},
};
#else
typedef float Vec4 __attribute__((vector_size(16)));
#define STEP_FMA(acc, x, y) ((acc) + (x) * (y))
static void fp32_simd(int64_t loops) {
  const float s = float_source;
  CHAINS(Vec4, ((Vec4){s, s, s, s}), ((Vec4){s, s, s, s}), ((Vec4){0, 0, 0, 0}), STEP_FMA, "w")
  for (int c = 0; c < kChains; c++) float_sink = acc[c][0];
}
typedef void (*Loop)(int64_t);
static const struct {
  const char* name;
  Loop loop;
  double operations;
} kUnits[] = {{"fp32_simd", fp32_simd, kChains * 4 * 2.0}};
#endif

struct PeakWork {
  Loop loop;
  int64_t loops;
};

static void peak_part(const void* work, int, int) { ((const PeakWork*)work)->loop(((const PeakWork*)work)->loops); }

}  // namespace ceilings

// Asks the kernel for the AMX tiles, once a process. 0 where it gives them.
EXPORT int ceilings_allow_amx() {
#if defined(__x86_64__) && defined(__linux__)
  return (int)syscall(SYS_arch_prctl, 0x1023, 18);
#else
  return 1;
#endif
}

// Seconds of each round; `operations` is what one thread does in one round. 0, 1 where threads cannot be made, 2 for an unknown unit.
EXPORT int ceilings_peak(const char* name, int64_t loops, int threads, int rounds, double* seconds, double* operations) {
  for (const auto& unit : ceilings::kUnits)
    if (!strcmp(unit.name, name)) {
      const ceilings::PeakWork work = {unit.loop, loops};
      *operations = unit.operations * (double)loops;
      return ceilings::time_rounds(ceilings::peak_part, &work, threads, rounds, seconds);
    }
  return 2;
}
