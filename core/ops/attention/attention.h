// Scaled dot-product attention with grouped queries, causal or over all keys, in tiles without an S x U matrix. Dao et
// al. 2022, arXiv:2205.14135 (tiles, online softmax, recomputation in backward); Ainslie et al. 2023, arXiv:2305.13245
// (grouped queries).
// B samples, S tokens per sample, U keys per sample (S if causal), N query heads, K key/value heads (N a multiple of K;
// query head n reads kv head n / (N / K)), D head dim, M rows of a KV cache. q, k, v and outputs may be strided in B, S
// and heads (slices of a fused [B, S, (N + 2 K) D]); D has stride 1.
#pragma once

#include <cstdint>

#include "core/ops/attention/document_rows.h"
#include "core/ops/attention/rope_frequency.h"
#include "core/ops/op_declaration.h"

namespace megalith {

inline constexpr std::int64_t kMaxHeadDim = 256;

// On CUDA, cuDNN computes bf16 attention. D is a multiple of 8; addresses and strides are multiples of 16 bytes. A
// shape's first call builds its plan and must be outside of any capture. fp32 attention on CUDA is slow and for tests.

// Packed documents, optional: B is 1, and the queries of document c attend to the keys of document c only, as if each
// document were an op. If causal, both have equally many rows, aligned at the start. Lengths are read on the device, so
// that a captured graph replays with other documents. Documents do not overlap. If causal, they cover all rows. If not,
// rows outside of all are not written, but for gradients, which may become 0 there: the caller sets them to 0 before.
// A document without keys has out 0 and lse -inf. On the CPU, and in fp32, a document's bits do not depend on the pack.
// In bf16 on CUDA D is a multiple of 16.

// out[s] = sum over t of softmax_t(scale q[s] . k[t]) v[t];  lse[s] = log of the sum over t of exp(scale q[s] . k[t]);
//   t <= s if causal, otherwise t < U. 2 B N S^2 D FLOPs, the lower triangle of two products; otherwise 4 B N S U D.
struct AttentionForward {
  MEGALITH_OP_WITH_WORKSPACE(AttentionForward, "attention_forward");
  Tensor q;                 // [B, S, N, D] bf16 | fp32
  Tensor k, v;              // [B, U, K, D] dtype of q
  Tensor out;               // [B, S, N, D] out, dtype of q; must not overlap the inputs
  Tensor lse;               // [B, N, S] out, fp32, kept for backward
  float scale = 1;          // usually 1 / sqrt(D)
  bool causal = true;       // U = S; otherwise any U >= 1
  Tensor workspace;         // [workspace_bytes(op, device)] uint8
  std::int64_t window = 0;  // if causal, a query sees the last `window` keys up to its own; 0: all
  DocumentRows query_documents = {}, key_documents = {};  // both or neither; of equal capacity
  std::int64_t max_length = 0;                            // bound of the length of any document; part of a plan on CUDA
  double pairs = 0;  // expected sum over documents of queries times keys, for the cost; 0: that of one document
};

// P is recomputed from q, k and lse; delta[s] = d_out[s] . out[s]; dS = P * (d_out v^T - delta). k and v may be a part
// of a query's keys, with out and lse over all keys. dk and dv are then the part's, and dq is its contribution. 5 B N
// S^2 D FLOPs if causal, otherwise 10 B N S U D. Workspace on the CPU, or if a plan's backend is unknown: (12 S + 8 U)
// D bytes (D rounded up to 16). It holds q, d_out and the sums of dq, dk and dv of one head in fp32. CUDA, bf16: fp32
// dq of all heads or, if deterministic, dS of as many samples as fit 2 GiB, at least one. With fewer kv heads than
// query heads also dk and dv of every query head. Packed documents: packed_workspace.h.
struct AttentionBackward {
  MEGALITH_OP_WITH_WORKSPACE(AttentionBackward, "attention_backward");
  Tensor q, k, v;    // as in forward
  Tensor out;        // [B, S, N, D] forward's output
  Tensor d_out;      // [B, S, N, D] dtype of q
  Tensor lse;        // [B, N, S] fp32
  Tensor delta;      // [B, N, S] out, fp32: scratch
  Tensor dq;         // [B, S, N, D] out, dtype of q
  Tensor dk, dv;     // [B, U, K, D] out, dtype of q, summed over the group's query heads
  Tensor workspace;  // [workspace_bytes(op, device)] uint8 out: scratch; 256-byte aligned on CUDA
  float scale = 1;   // forward's
  // False lets CUDA sum dq by atomics: faster, but its last bits vary from run to run. The CPU always repeats.
  bool deterministic = true;
  bool causal = true;  // forward's, like all that follow
  std::int64_t window = 0;
  DocumentRows query_documents = {}, key_documents = {};
  std::int64_t max_length = 0;
  double pairs = 0;
};
// CUDA backend: samples per pass of the deterministic form, a divisor of B; fp32 dq of all heads, at the start of the
// other form's workspace.
std::int64_t samples_at_a_time(const AttentionBackward& op);
std::int64_t dq_sum_bytes(const AttentionBackward& op);

// Row s of q has position *start + s and sees cache rows 0 .. *start + s, which KvCacheAppend has written; with a
// window the last `window` of them. FLOPs for a full cache: 4 B N S M D, or with a shorter window W 4 B N S W D.
struct CachedAttention {
  MEGALITH_OP(CachedAttention, "cached_attention");
  Tensor q;                             // [B, S, N, D] bf16 | fp32
  Tensor k_cache, v_cache;              // [B, M, K, D] dtype of q
  Tensor out;                           // [B, S, N, D] out, dtype of q
  const std::int32_t* start = nullptr;  // device; *start + S <= M, else the kernel throws
  float scale = 1;
  std::int64_t window = 0;  // as in AttentionForward
};

// k_cache[b, *start + s] = k[b, s], the same for v.
struct KvCacheAppend {
  MEGALITH_OP(KvCacheAppend, "kv_cache_append");
  Tensor k, v;                          // [B, S, K, D], both bf16 or both fp32
  Tensor k_cache, v_cache;              // [B, M, K, D] in and out, dtype of k
  const std::int32_t* start = nullptr;  // device; *start + S <= M, else the kernel throws
};

// For one token of each sequence: Rope of q and k at position *start, KvCacheAppend and CachedAttention, with equal
// bits and FLOPs.
struct DecodeAttention {
  MEGALITH_OP_WITH_WORKSPACE(DecodeAttention, "decode_attention");
  Tensor q;                             // [B, 1, N, D] bf16 | fp32
  Tensor k, v;                          // [B, 1, K, D] dtype of q
  Tensor k_cache, v_cache;              // [B, M, K, D] in and out, dtype of q
  Tensor out;                           // [B, 1, N, D] out, dtype of q
  const std::int32_t* start = nullptr;  // device; *start < M, else the kernel throws
  float scale = 1;
  float theta = 10000.0f;       // theta, rotary_dim and scaling as in Rope
  std::int64_t rotary_dim = 0;  // 0: no rotation
  RopeScaling scaling;
  std::int64_t window = 0;  // as in AttentionForward
  Tensor workspace;         // [workspace_bytes(op, device)] uint8: on the CPU the rotated q
};

// Fails for a position read on the device: `rows` rows from `start` on do not fit the cache.
[[noreturn]] void refuse_start(std::int64_t start, std::int64_t rows, std::int64_t cache_rows);

// Merge of attention over two disjoint sets of keys, for keys in parts as in ring attention (Liu et al. 2023,
// arXiv:2310.01889). The sum by log-sum-exp is from Milakov & Gimelshein 2018, arXiv:1805.02867.
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
