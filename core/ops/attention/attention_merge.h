// Attention over keys that come in parts, one part after the other, as in ring attention: Liu et al. 2023,
// arXiv:2310.01889; the sum by log-sum-exp is that of Milakov & Gimelshein 2018, arXiv:1805.02867.
// B samples, S tokens per sample, N query heads, D head dim.
#pragma once

#include "core/ops/op_declaration.h"

namespace megalith {

// What the queries saw in two disjoint sets of keys becomes what they saw in both:
//   lse' = log(exp(lse) + exp(part_lse));  out' = exp(lse - lse') out + exp(part_lse - lse') part
// in fp32. Memory-bound, one pass; deterministic.
struct AttentionMerge {
  static constexpr const char* kName = "attention_merge";
  Tensor out;       // [B, S, N, D] fp32, in and out; rows may be strided
  Tensor lse;       // [B, N, S] fp32, in and out; rows may be strided
  Tensor part;      // [B, S, N, D] bf16 | fp32, rows may be strided
  Tensor part_lse;  // [B, N, S] fp32, rows may be strided
};
void fields(const AttentionMerge& op, Fields& f);
void compute(const AttentionMerge& op);
void run(CudaStream& stream, const AttentionMerge& op);

}  // namespace megalith
