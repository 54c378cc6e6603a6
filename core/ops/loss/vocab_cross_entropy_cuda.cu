// Memory-bound: a block owns a row, one pass each. Deterministic: sums by fixed trees, without atomics.
#include "core/ops/cuda_indices.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/loss/vocab_cross_entropy.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 512;
constexpr float kLowest = -INFINITY;

struct VocabArguments {
  const std::int32_t *verdict, *labels;
  Rows logits;
  std::int64_t rows;
  int width, columns;  // columns of the tensor; columns that count
  std::int64_t first_column;
  float *max, *sums, *loss;
  const MicrobatchParameters* parameters;  // null: no gradient
};

__device__ inline float shift_of(float max) { return max == kLowest ? 0.0f : max; }

// Calls visit(first column, values) for each pack of the block's row.
template <class T, bool kVector, class Visit>
__device__ inline void for_each_pack(const VocabArguments& a, int length, Visit&& visit) {
  const T* x = a.logits.at<const T>(blockIdx.x);
  for (int first = static_cast<int>(threadIdx.x) * kPack<T>; first < length; first += kThreads * kPack<T>) {
    Floats<T> v(load_of_row<T, kVector>(x, first, a.width));
    visit(first, v);
  }
}

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) vocab_max_kernel(const VocabArguments a) {
  __shared__ float shared[32];
  if (*a.verdict != 0) return;
  float max = kLowest;
  for_each_pack<T, kVector>(a, a.columns, [&](int first, const Floats<T>& v) {
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) max = fmaxf(max, first + j < a.columns ? v[j] : kLowest);
  });
  // Ignores NaN, which the sum keeps.
  max = block_reduce(max, kLowest, shared, [](float a, float b) { return fmaxf(a, b); });
  if (threadIdx.x == 0) a.max[blockIdx.x] = a.labels[blockIdx.x] < 0 ? 0.0f : max;
}

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) vocab_sums_kernel(const VocabArguments a) {
  __shared__ float shared[32];
  const std::int64_t row = blockIdx.x;
  const std::int32_t label = a.labels[row];
  const float max = a.max[row], shift = shift_of(max);
  float sum = 0;
  for_each_pack<T, kVector>(a, label < 0 ? 0 : a.columns, [&](int first, const Floats<T>& v) {
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) sum += first + j < a.columns ? expf(v[j] - shift) : 0.0f;
  });
  sum = block_sum(sum, shared);
  if (threadIdx.x != 0) return;
  const std::int64_t local = label - a.first_column;
  a.sums[row] = sum;
  a.sums[a.rows + row] =
      label >= 0 && local >= 0 && local < a.columns ? widen(a.logits.at<const T>(row)[local]) - max : 0.0f;
}

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) vocab_loss_kernel(const VocabArguments a) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t label = a.labels[row];
  const float sum = a.sums[row], label_logit = a.sums[a.rows + row];
  if (threadIdx.x == 0) a.loss[row] = label < 0 ? 0.0f : logf(sum) - label_logit;
  if (a.parameters == nullptr) return;
  const float shift = shift_of(a.max[row]), scale = a.parameters->loss_scale, factor = scale / sum;
  const std::int64_t local = label - a.first_column;
  for_each_pack<T, kVector>(a, a.width, [&](int first, Floats<T>& v) {
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      const bool live = label >= 0 && first + j < a.columns;
      v[j] = live ? expf(v[j] - shift) * factor : 0.0f;
      // The subtraction precedes the rounding to T.
      if (live && first + j == local) v[j] = (expf(label_logit) / sum - 1.0f) * scale;
    }
    store_of_row<T, kVector>(a.logits.at<T>(row), first, a.width, v.packed());
  });
}

// Sets the fields common to the three ops, and launches the kernel select(type, is_vector) with a block for each row.
template <class Op, class Select>
void launch_rows(CudaStream& stream, const Op& op, VocabArguments a, const Select& select) {
  require(op.logits.size(1) < kMaxIndex / 2, "vocab cross-entropy: more than 2^30 columns");
  const std::int64_t live = op.columns.vocab_size - op.columns.first_column;
  a.labels = op.labels.template as<const std::int32_t>();
  a.logits = Rows(op.logits);
  a.rows = op.labels.numel();
  a.width = static_cast<int>(op.logits.size(1));
  a.columns = static_cast<int>(std::clamp<std::int64_t>(live, 0, op.logits.size(1)));
  a.first_column = op.columns.first_column;
  a.max = op.max.template as<float>();
  if (a.rows == 0) return;
  Variants(op.logits.dtype, rows_aligned(op.logits)).visit([&](auto type, auto is_vector) {
    launch_kernel(stream, {blocks_for(a.rows, 1), kThreads}, select(type, is_vector), a);
  });
}

}  // namespace

void run(CudaStream& stream, const VocabMax& op) {
  const std::int32_t* verdict = check_labels(stream, op.labels, op.columns.vocab_size, op.workspace);
  launch_rows(stream, op, {.verdict = verdict},
              [](auto type, auto is_vector) { return vocab_max_kernel<decltype(type), is_vector()>; });
}

void run(CudaStream& stream, const VocabSums& op) {
  launch_rows(stream, op, {.sums = op.sums.as<float>()},
              [](auto type, auto is_vector) { return vocab_sums_kernel<decltype(type), is_vector()>; });
}

void run(CudaStream& stream, const VocabLoss& op) {
  launch_rows(stream, op,
              {.sums = op.sums.as<float>(),
               .loss = op.loss.as<float>(),
               .parameters = op.write_gradient ? op.parameters : nullptr},
              [](auto type, auto is_vector) { return vocab_loss_kernel<decltype(type), is_vector()>; });
}

}  // namespace megalith
