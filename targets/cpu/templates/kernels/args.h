// The interface of the heavy kernels: argument structs, enums, and how much scratch each kernel wants.
//
// Every kernel is `template <...> static void name(const Args& a, int tid, int nt)` in namespace mp. All nt threads of the pool call it with
// the same `a`; each does its own share. The caller puts a barrier after each kernel. Row counts are run-time, widths are template constants.
// Strides are in elements; the last dimension is contiguous. Pointers marked "or null" are optional inputs. `a.scratch` is one block, 64-byte
// aligned and shared by all threads, of at least NAME_scratch(nt, max_rows...) bytes; the kernel cuts it by tid. Scratch needs no initial
// value and holds nothing between kernels, except for the attention pair (see AttentionArgs).
// Outputs must not overlap inputs, except that `residual` may be `y` itself (same pointer and stride).
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace mp {

// Weight formats, the types of their scales and zeros (packed layouts: runtime/packing.py), roundings of f32 activations, gating functions,
// rotary styles, masks. Where they are template arguments, a weight's format is one type: Weight<Fmt, GROUP, Scale, Zero> of weight.h.
enum class Fmt { F32, BF16, I8, I6, I5, I4, I3, I2, N5, N4, N3, N2, E4M3 };
enum class Scale { F16, F32, TwoLevel };
enum class Zero { None, Point, Minimum };
enum class Act { F32, BF16, E4M3 };  // E4M3: by rows, with a scale for each
enum class Fn { None, Silu, Gelu, GeluTanh, Relu, Relu2, Sigmoid, Tanh };
enum class Rope { Half, Interleaved };
// What the KV cache holds: numbers (FP8: of 8 bits), or codes of 8 or 4 bits (K8V4: keys of 8, values of 4); runtime/kv_format.py defines them.
enum class Kv { F32, F16, I8, I4, K8V4, FP8 };
// What scores are sums of: products of f32, or of int8 queries and codes.
enum class Scores { F32, I8 };
// How a product with int8 activations makes them itself when there are few rows: not at all, from x, or from a norm of x.
enum class Pre { None, Plain, Rms, Layer };
constexpr int kMaskCausal = 0, kMaskChunked = 1;
constexpr int kPage = 32;  // tokens in a page of the KV cache

// linear<class W, int K, Act A>: y[m,n] = sum_k x[m,k] w[n,k] + bias[n] + residual[m,n].
// gated_linear<class W, int K, Act A, Fn FN>: y[m,n] = FN(gate[m,n]) * up[m,n]; n = rows of the gate (I); bias is [2,n].
// `zeros` is given where W says so.
struct LinearArgs {
  const float* x;         // [m, K]
  int64_t ldx;
  const void* w;          // packed
  const void* scales;     // [blocks][G][16] f16 or f32, or bytes [blocks][2+G][16] in two levels; null for f32 and bf16
  const void* zeros;      // [blocks][G][16], u8 points or f16 minima, or null
  const float* bias;      // [n] or null
  const float* residual;  // [m, n] or null (never for gated_linear)
  int64_t ldr;
  float* y;               // [m, n]
  int64_t ldy;
  int64_t m, n;
  void* scratch;          // linear_scratch(nt, K)
};

// linear_q<class W, int K, Pre PRE> and gated_linear_q<class W, int K, Fn FN, Pre PRE>: the same with int8 activations and integer weights.
// K is the unpadded width; q has Kp = K rounded up to the group (to 32 where there are none) columns, of which the padding is zero.
// With PRE and m <= few, q is not read: every thread quantizes the rows of x for itself, which costs less than a barrier after one that does.
struct LinearQArgs {
  const int8_t* q;        // [m, Kp]
  int64_t ldq;
  const float* q_scales;  // [m, G]
  const float* q_sums;    // [m, G]
  int64_t ldg;            // stride of q_scales and q_sums
  const void* w;
  const void* scales;
  const void* zeros;
  const float* bias;
  const float* residual;
  int64_t ldr;
  float* y;
  int64_t ldy;
  int64_t m, n;
  void* scratch;          // linear_scratch(nt, K)
  const float* x;         // PRE: [m, K], with the norm's parameters
  int64_t ldx;
  const float* norm_weight;
  const float* norm_bias;
  float eps;
  int64_t few;            // at most kFewRows
};
constexpr int kFewRows = 4;

// grouped_linear<class W, int K>: y[t,j] = W[id[t,j]] x[t,j] + bias[id[t,j]]. An id outside [0, experts) gives zeros.
struct GroupedLinearArgs {
  const float* x;         // [t, j, K]
  int64_t ldx_t, ldx_j;   // ldx_j = 0 broadcasts one row over j
  const int64_t* ids;     // [t, j], contiguous
  const void* w;          // experts' packed tensors one after the other
  const void* scales;
  const void* zeros;
  const float* bias;      // [experts, n] or null
  float* y;               // [t, j, n], contiguous
  int64_t t, j, n, experts;
  void* scratch;          // grouped_linear_scratch(nt, K, t*j, experts)
};

// embedding<class W, int K>: y[m,:] = W[ids[m],:]. An id outside [0, rows) gives zeros.
struct EmbeddingArgs {
  const int64_t* ids;     // [m]
  const void* w;
  const void* scales;
  const void* zeros;
  float* y;               // [m, K]
  int64_t ldy;
  int64_t m, rows;
};

// rms_norm<int N>, layer_norm<int N>: over the last dimension. Rows are m = outer * inner; row (o, i) of x stands at x + o*ldx + i*ldx_inner.
struct NormArgs {
  const float* x;
  int64_t ldx, ldx_inner;
  const float* weight;    // [N] or null
  const float* bias;      // [N] or null (layer_norm only)
  float* y;
  int64_t ldy, ldy_inner;
  int64_t outer, inner;
  float eps;
};

// quantize_act<int N, int GROUP>, rms_norm_quant<int N, int GROUP>, layer_norm_quant<int N, int GROUP>: to int8 with the scales and sums that
// linear_q reads; GROUP 0 is the whole row. q's padding columns (up to Np = N rounded up to GROUP, or to 32) are written as zeros.
struct QuantizeArgs {
  const float* x;         // [m, N]
  int64_t ldx;
  const float* weight;    // norms: [N] or null
  const float* bias;      // layer_norm_quant: [N] or null
  int8_t* q;              // [m, Np]
  int64_t ldq;
  float* scales;          // [m, G]
  float* sums;            // [m, G]
  int64_t ldg;
  int64_t m;
  float eps;
};

// rope<int D, int DR, Rope STYLE>: rotates the first DR of D dims of each head, copies the rest. y may be x (same strides).
struct RopeArgs {
  const float* x;         // [t, heads, D]
  int64_t ldx, ldx_head;  // stride between tokens, between heads
  const float* cos;       // [t, DR]
  const float* sin;
  int64_t ldc;            // stride between tokens of cos and sin (0 broadcasts)
  float* y;
  int64_t ldy, ldy_head;
  int64_t t, heads;
};

// attention_append<int HQ, int HKV, int DK, int DV, Kv S, int DR = 0, Rope STYLE = Half> stores the step's keys and values in the pages and
// plans the work in `scratch`; attention<the same> reads both. They take the same args, with a barrier and no other use of this scratch
// between them. Where `lengths` says that every token is the last of its sequence in this step, attention does all of it, and
// attention_append does nothing. DR > 0: the first DR dims of q and k are rotated on their way in, as rope<DK, DR, STYLE> does.
// Token i is at `positions[i]` of the sequence in slot `slots[i]`; it sees keys at positions 0..positions[i] of that sequence.
// The page of position p is block_tables[slot*max_pages + p/32]. A page that is not in [0, pages) is neither read nor written.
// A page of one layer is kv_bytes_per_page<HKV, DK, DV, S>() bytes: [HKV][DK][32 tokens] keys, then [HKV][32 tokens][DV up to 16] values; or
// codes, as attention_codes.h lays them out.
// The cache's memory must be zeroed once when it is allocated.
struct AttentionArgs {
  const float* q;         // [t, HQ, DK]
  const float* k;         // [t, HKV, DK]
  const float* v;         // [t, HKV, DV]
  int64_t ldq, ldk, ldv;  // strides between tokens
  int64_t ldq_head, ldk_head, ldv_head;
  const float* cos;       // [t, DR] where DR > 0
  const float* sin;
  int64_t ldc;            // stride between tokens of cos and sin (0 broadcasts)
  const float* sinks;     // [HQ] or null
  const float* slopes;    // [HQ] or null (ALiBi: score += slope * (key position - query position))
  float* y;               // [t, HQ, DV]
  int64_t ldy, ldy_head;
  const int32_t* positions;
  const int32_t* slots;
  const int32_t* lengths;       // 1 + the largest position of the token's sequence in this step; null where that is not known
  const int32_t* block_tables;  // [max_sequences, max_pages]
  int64_t max_pages;
  void* cache;            // this layer's pages
  int64_t pages;
  int64_t page_stride;    // bytes between a layer's pages; 0: they lie one after the other
  int64_t t;
  float scale;
  float softcap;          // 0: none
  int32_t window;         // 0: none. causal: key position > query position - window; chunked: the same chunk of `window` positions
  int32_t mask;           // kMaskCausal or kMaskChunked
  void* scratch;          // attention_scratch<HQ, HKV, DK, DV>(nt, max_step_tokens)
  int32_t* sync;          // kSyncInts for each thread, zero before and after
};

constexpr int64_t kSyncInts = 16;  // of a thread in a kernel's `sync`: a cache line

constexpr int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }
constexpr int64_t packed_columns(int64_t k, int64_t group) { return round_up(k, group ? group : 32); }

}  // namespace mp
