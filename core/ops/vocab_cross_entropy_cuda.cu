// Memory-bound: a block owns a row, one pass each. Deterministic: sums by fixed trees, without atomics.
#include "core/ops/cuda_indices.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_reduce.cuh"
#include "core/ops/data_faults.h"
#include "core/ops/vocab_cross_entropy.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 512;
constexpr float kLowest = -INFINITY;

struct VocabArguments {
  const std::int32_t *verdict, *labels;
  void* logits;
  std::int64_t stride, rows;
  int width, columns;  // of the tensor; of these, that count
  std::int64_t first_column;
  float *max, *sums, *loss;
  const MicrobatchParameters* parameters;  // null: no gradient
};

__device__ inline float shift_of(float max) { return max == kLowest ? 0.0f : max; }

// As block_sum; without NaN, which the sum keeps.
__device__ inline float block_max(float x, float* shared) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : kLowest;
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

// Calls visit(first column, values) for each pack of the block's row.
template <class T, bool kVector, class Visit>
__device__ inline void for_each_pack(const VocabArguments& a, int length, Visit&& visit) {
  const T* x = static_cast<const T*>(a.logits) + static_cast<std::int64_t>(blockIdx.x) * a.stride;
  for (int first = static_cast<int>(threadIdx.x) * kPack<T>; first < length; first += kThreads * kPack<T>) {
    float v[kPack<T>];
    unpack<T>(load_of_row<T, kVector>(x, first, a.width), v);
    visit(first, v);
  }
}

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) vocab_max(const VocabArguments a) {
  __shared__ float shared[32];
  if (*a.verdict != 0) return;
  float max = kLowest;
  for_each_pack<T, kVector>(a, a.columns, [&](int first, const float(&v)[kPack<T>]) {
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) max = fmaxf(max, first + j < a.columns ? v[j] : kLowest);
  });
  max = block_max(max, shared);
  if (threadIdx.x == 0) a.max[blockIdx.x] = a.labels[blockIdx.x] < 0 ? 0.0f : max;
}

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) vocab_sums(const VocabArguments a) {
  __shared__ float shared[32];
  const std::int64_t row = blockIdx.x;
  const std::int32_t label = a.labels[row];
  const float max = a.max[row], shift = shift_of(max);
  float sum = 0;
  for_each_pack<T, kVector>(a, label < 0 ? 0 : a.columns, [&](int first, const float(&v)[kPack<T>]) {
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) sum += first + j < a.columns ? expf(v[j] - shift) : 0.0f;
  });
  sum = block_sum(sum, shared);
  if (threadIdx.x != 0) return;
  const std::int64_t local = label - a.first_column;
  a.sums[row] = sum;
  a.sums[a.rows + row] = label >= 0 && local >= 0 && local < a.columns
                             ? widen(static_cast<const T*>(a.logits)[row * a.stride + local]) - max
                             : 0.0f;
}

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) vocab_loss(const VocabArguments a) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t label = a.labels[row];
  const float sum = a.sums[row], label_logit = a.sums[a.rows + row];
  if (threadIdx.x == 0) a.loss[row] = label < 0 ? 0.0f : logf(sum) - label_logit;
  if (a.parameters == nullptr) return;
  T* x = static_cast<T*>(a.logits) + row * a.stride;
  const float shift = shift_of(a.max[row]), scale = a.parameters->loss_scale, factor = scale / sum;
  const std::int64_t local = label - a.first_column;
  for_each_pack<T, kVector>(a, a.width, [&](int first, float(&v)[kPack<T>]) {
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      const bool live = label >= 0 && first + j < a.columns;
      v[j] = live ? expf(v[j] - shift) * factor : 0.0f;
      // The subtraction belongs before the rounding to T.
      if (live && first + j == local) v[j] = (expf(label_logit) / sum - 1.0f) * scale;
    }
    store_of_row<T, kVector>(x, first, a.width, pack<T>(v));
  });
}

template <class Op>
VocabArguments arguments_of(const Op& op) {
  require(op.logits.size(1) < kMaxIndex / 2, "vocab cross-entropy: more than 2^30 columns");
  const std::int64_t live = op.columns.vocab_size - op.columns.first_column;
  return {.verdict = nullptr,
          .labels = op.labels.template as<const std::int32_t>(),
          .logits = op.logits.data,
          .stride = op.logits.stride(0),
          .rows = op.labels.numel(),
          .width = static_cast<int>(op.logits.size(1)),
          .columns = static_cast<int>(std::clamp<std::int64_t>(live, 0, op.logits.size(1))),
          .first_column = op.columns.first_column,
          .max = op.max.template as<float>(),
          .sums = nullptr,
          .loss = nullptr,
          .parameters = nullptr};
}

}  // namespace

void run(CudaStream& stream, const VocabMax& op) {
  VocabArguments a = arguments_of(op);
  a.verdict = launch_index_check(stream,
                                 {.index = a.labels,
                                  .count = a.rows,
                                  .low = std::int64_t{-1} << 31,  // ignored tokens
                                  .limit = op.columns.vocab_size,
                                  .raise = raise_bad_label},
                                 op.workspace);
  if (a.rows == 0) return;
  visit_kernel(op.logits.dtype, rows_aligned(op.logits), [&](auto type, auto is_vector) {
    vocab_max<decltype(type), is_vector()><<<blocks_for(a.rows, 1), kThreads, 0, stream.handle()>>>(a);
  });
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void run(CudaStream& stream, const VocabSums& op) {
  VocabArguments a = arguments_of(op);
  a.sums = op.sums.as<float>();
  if (a.rows == 0) return;
  visit_kernel(op.logits.dtype, rows_aligned(op.logits), [&](auto type, auto is_vector) {
    vocab_sums<decltype(type), is_vector()><<<blocks_for(a.rows, 1), kThreads, 0, stream.handle()>>>(a);
  });
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void run(CudaStream& stream, const VocabLoss& op) {
  VocabArguments a = arguments_of(op);
  a.sums = op.sums.as<float>();
  a.loss = op.loss.as<float>();
  a.parameters = op.write_gradient ? op.parameters : nullptr;
  if (a.rows == 0) return;
  visit_kernel(op.logits.dtype, rows_aligned(op.logits), [&](auto type, auto is_vector) {
    vocab_loss<decltype(type), is_vector()><<<blocks_for(a.rows, 1), kThreads, 0, stream.handle()>>>(a);
  });
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace megalith
