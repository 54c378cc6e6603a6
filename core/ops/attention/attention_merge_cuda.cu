// Memory-bound, one pass. A warp owns a row of one head: its statistic, and its D elements. Deterministic.
#include "core/ops/attention/attention.h"
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kWarp = 32;

struct MergeArguments {
  float *out, *lse;
  const void* part;
  const float* part_lse;
  std::int64_t out_strides[3], part_strides[3];      // strides of sample, token and head
  std::int64_t lse_strides[2], part_lse_strides[2];  // strides of sample and head
  std::int64_t rows, tokens, heads;
  int dim;
};

template <class T>
__global__ void __launch_bounds__(kThreads) attention_merge_kernel(const MergeArguments a) {
  const std::int64_t row = std::int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t n = row % a.heads, s = row / a.heads % a.tokens, b = row / a.heads / a.tokens;
  float* const lse_at = a.lse + b * a.lse_strides[0] + n * a.lse_strides[1] + s;
  const float lse = *lse_at, part_lse = a.part_lse[b * a.part_lse_strides[0] + n * a.part_lse_strides[1] + s];
  const float largest = lse < part_lse ? part_lse : lse;  // NaN stays
  const float weight = expf(lse - largest), part_weight = expf(part_lse - largest), total = weight + part_weight;
  const float kept = weight / total, added = part_weight / total;
  float* const out = a.out + b * a.out_strides[0] + s * a.out_strides[1] + n * a.out_strides[2];
  const T* const part =
      static_cast<const T*>(a.part) + b * a.part_strides[0] + s * a.part_strides[1] + n * a.part_strides[2];
  for (int d = lane; d < a.dim; d += kWarp) out[d] = fmaf(widen(part[d]), added, out[d] * kept);
  __syncwarp();  // all lanes have read the statistic
  if (lane == 0) *lse_at = largest + logf(total);
}

}  // namespace

void run(CudaStream& stream, const AttentionMerge& op) {
  if (op.out.numel() == 0) return;
  const Tensor &out = op.out, &part = op.part;
  const MergeArguments a{.out = out.as<float>(),
                         .lse = op.lse.as<float>(),
                         .part = part.data,
                         .part_lse = op.part_lse.as<const float>(),
                         .out_strides = {out.stride(0), out.stride(1), out.stride(2)},
                         .part_strides = {part.stride(0), part.stride(1), part.stride(2)},
                         .lse_strides = {op.lse.stride(0), op.lse.stride(1)},
                         .part_lse_strides = {op.part_lse.stride(0), op.part_lse.stride(1)},
                         .rows = out.size(0) * out.size(1) * out.size(2),
                         .tokens = out.size(1),
                         .heads = out.size(2),
                         .dim = static_cast<int>(out.size(3))};
  Variants(part.dtype).visit([&](auto type) {
    launch_kernel(stream, {blocks_for(a.rows, kThreads / kWarp), kThreads}, attention_merge_kernel<decltype(type)>, a);
  });
}

}  // namespace megalith
