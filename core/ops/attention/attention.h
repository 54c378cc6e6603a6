// Scaled dot-product attention with grouped queries, causal or of all keys, in tiles: no S x U matrix is ever held.
// Dao et al. 2022, arXiv:2205.14135 (tiles, online softmax, recomputation in backward); Ainslie et al. 2023,
// arXiv:2305.13245 (grouped queries).
// B samples, S tokens per sample, U keys per sample (S where it is causal), N query heads, K key/value heads (N a
// multiple of K; query head n reads kv head n / (N / K)), D head dim, M rows of a KV cache. q, k, v and outputs may be
// strided in B, S and heads (slices of a fused [B, S, (N + 2 K) D]); D has stride 1.
#pragma once

#include <cstdint>

#include "core/ops/attention/rope_frequency.h"
#include "core/ops/op_declaration.h"

namespace megalith {

inline constexpr std::int64_t kMaxHeadDim = 256;

// On CUDA, bf16 attention is cuDNN's: D a multiple of 8, addresses and strides multiples of 16 bytes, and the first
// call for a shape, which builds its plan, outside of any capture. fp32 attention on CUDA serves tests; it is slow.

// out[s] = sum over t of softmax_t(scale q[s] . k[t]) v[t];  lse[s] = log of the sum over t of exp(scale q[s] . k[t]);
// t <= s where it is causal, else t < U. 2 B N S^2 D FLOPs, the lower triangle of two products; else 4 B N S U D.
struct AttentionForward {
  MEGALITH_OP_WITH_WORKSPACE(AttentionForward, "attention_forward");
  Tensor q;            // [B, S, N, D] bf16 | fp32
  Tensor k, v;         // [B, U, K, D] dtype of q
  Tensor out;          // [B, S, N, D] out, dtype of q; must not overlap the inputs
  Tensor lse;          // [B, N, S] out, fp32, kept for backward
  float scale = 1;     // usually 1 / sqrt(D)
  bool causal = true;  // U = S; else any U of at least 1
  Tensor workspace;    // [workspace_bytes(op, device)] uint8
};

// P is recomputed from q, k and lse; delta[s] = d_out[s] . out[s]; dS = P * (d_out v^T - delta). Where the keys are a
// part of those that a query sees, with out and lse of them all, dk and dv are theirs, and dq what they add to it.
// 5 B N S^2 D FLOPs, or 10 B N S U D.
// Workspace: on the CPU, and where a plan does not know the backend, q, d_out and the sums of dq, dk and dv of one head
// in fp32, (12 S + 8 U) D bytes (D rounded up to 16). CUDA, bf16: fp32 dq of all heads, or, if deterministic, dS of as
// many samples as fit 2 GiB and at least of one; with fewer kv heads than query heads also dk and dv of every query
// head.
struct AttentionBackward {
  MEGALITH_OP_WITH_WORKSPACE(AttentionBackward, "attention_backward");
  Tensor q, k, v;    // as in forward
  Tensor out;        // [B, S, N, D] as forward left it
  Tensor d_out;      // [B, S, N, D] dtype of q
  Tensor lse;        // [B, N, S] fp32
  Tensor delta;      // [B, N, S] out, fp32: scratch, any content before
  Tensor dq;         // [B, S, N, D] out, dtype of q
  Tensor dk, dv;     // [B, U, K, D] out, dtype of q, summed over the group's query heads
  Tensor workspace;  // [workspace_bytes(op, device)] uint8 out: scratch, any content before; 256-byte aligned on CUDA
  float scale = 1;   // forward's
  // False lets CUDA sum dq by atomics, which is faster: its last bits then vary from run to run. The CPU always
  // repeats.
  bool deterministic = true;
  bool causal = true;  // forward's
};
// Of the CUDA backend: samples that the deterministic form takes at a time, a divisor of B; fp32 dq of all heads, which
// stands at the start of the other form's workspace.
std::int64_t samples_at_a_time(const AttentionBackward& op);
std::int64_t dq_sum_bytes(const AttentionBackward& op);

// Row s of q stands at position *start + s and sees cache rows 0 .. *start + s, which KvCacheAppend has written. FLOPs
// as if the cache were full: 4 B N S M D.
struct CachedAttention {
  MEGALITH_OP(CachedAttention, "cached_attention");
  Tensor q;                             // [B, S, N, D] bf16 | fp32
  Tensor k_cache, v_cache;              // [B, M, K, D] dtype of q
  Tensor out;                           // [B, S, N, D] out, dtype of q
  const std::int32_t* start = nullptr;  // device; *start + S <= M, else the kernel throws
  float scale = 1;
};

// k_cache[b, *start + s] = k[b, s], the same for v.
struct KvCacheAppend {
  MEGALITH_OP(KvCacheAppend, "kv_cache_append");
  Tensor k, v;                          // [B, S, K, D], both bf16 or both fp32
  Tensor k_cache, v_cache;              // [B, M, K, D] in and out, dtype of k
  const std::int32_t* start = nullptr;  // device; *start + S <= M, else the kernel throws
};

// One token of each sequence: Rope of q and of k at position *start, KvCacheAppend and CachedAttention, with their
// bits and FLOPs.
struct DecodeAttention {
  MEGALITH_OP_WITH_WORKSPACE(DecodeAttention, "decode_attention");
  Tensor q;                             // [B, 1, N, D] bf16 | fp32
  Tensor k, v;                          // [B, 1, K, D] dtype of q
  Tensor k_cache, v_cache;              // [B, M, K, D] in and out, dtype of q
  Tensor out;                           // [B, 1, N, D] out, dtype of q
  const std::int32_t* start = nullptr;  // device; *start < M, else the kernel throws
  float scale = 1;
  float theta = 10000.0f;       // of Rope, as are the next two
  std::int64_t rotary_dim = 0;  // 0: nothing turns
  RopeScaling scaling;
  Tensor workspace;  // [workspace_bytes(op, device)] uint8: on the CPU the turned q
};

// Throws what is wrong with a position read on the device: `rows` rows from `start` on do not fit the cache.
[[noreturn]] void refuse_start(std::int64_t start, std::int64_t rows, std::int64_t cache_rows);

// Attention over keys that come in parts, one part after the other, as in ring attention: Liu et al. 2023,
// arXiv:2310.01889; the sum by log-sum-exp is that of Milakov & Gimelshein 2018, arXiv:1805.02867.
// What the queries saw in two disjoint sets of keys becomes what they saw in both:
//   lse' = log(exp(lse) + exp(part_lse));  out' = exp(lse - lse') out + exp(part_lse - lse') part
// in fp32. Memory-bound, one pass; deterministic.
struct AttentionMerge {
  MEGALITH_OP(AttentionMerge, "attention_merge");
  Tensor out;       // [B, S, N, D] fp32, in and out; rows may be strided
  Tensor lse;       // [B, N, S] fp32, in and out; rows may be strided
  Tensor part;      // [B, S, N, D] bf16 | fp32, rows may be strided
  Tensor part_lse;  // [B, N, S] fp32, rows may be strided
};

}  // namespace megalith
