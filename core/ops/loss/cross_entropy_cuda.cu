// Memory-bound. A persistent block holds a row in shared memory and registers from its single read to the write of its
// gradient. Each thread owns packs. While it writes a pack's gradient it fetches the same pack of the block's next row.
// A few packs later it adds the arrived data to that row's running maximum and sum of exponentials. Reads, writes and
// arithmetic thus overlap, and threads synchronize only between rows. Packs beyond the multiprocessor's memory are read
// again, from L2. Deterministic: the threads' pairs are merged by fixed trees.
#include "core/ops/cuda_indices.cuh"
#include "core/ops/cuda_math.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/loss/cross_entropy.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 1024;        // threads of a multiprocessor, in one or more blocks
constexpr int kSharingThreads = 512;  // threads of a block that shares a multiprocessor
constexpr int kTogether = 2;          // packs processed at a time per thread
constexpr int kAhead = 2;             // groups of packs in flight while one is added
constexpr float kLowest = -INFINITY;

struct LossArguments {
  const std::int32_t *verdict, *labels;
  Rows logits;
  float* loss;
  const MicrobatchParameters* parameters;  // null: no gradient
  std::int64_t rows;
  int vocab, columns;
  int shared_packs;  // packs of a thread, in shared memory
};

// Maximum and sum of exp(x - max) over some elements. While max = -inf, sum is 0 or NaN.
struct Softmax {
  float max = kLowest, sum = 0;
};

// exp(x - max): for fp32 of the difference; in bf16 with one rounding less.
template <class T>
struct Shift {
  float max, scaled;
  __device__ explicit Shift(float max_) : max(max_ == kLowest ? 0.0f : max_), scaled(max * kLog2E) {}
  __device__ float exponential_of(float x) const {
    if constexpr (sizeof(T) == 2) return approximate_exp2(fmaf(x, kLog2E, -scaled));
    return expf(x - max);
  }
};

__device__ inline Softmax merged(const Softmax& a, const Softmax& b) {
  const float max = fmaxf(a.max, b.max);
  const Shift<float> shift(max);
  return {max, a.sum * shift.exponential_of(a.max) + b.sum * shift.exponential_of(b.max)};
}

__device__ inline Softmax warp_softmax(Softmax x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    x = merged(x, {__shfl_xor_sync(kAllLanes, x.max, step), __shfl_xor_sync(kAllLanes, x.sum, step)});
  }
  return x;
}

// Exchange of a block's warps, alternating buffers, so that one barrier a row is enough.
struct Exchange {
  float max[2][32], sum[2][32];
};

__device__ inline Softmax row_softmax(Softmax x, Exchange& exchange, int turn) {
  const int thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / 32;
  x = warp_softmax(x);
  if (thread % 32 == 0) {
    exchange.max[turn][thread / 32] = x.max;
    exchange.sum[turn][thread / 32] = x.sum;
  }
  __syncthreads();
  x = {};
  if (thread % 32 < warps) x = {exchange.max[turn][thread % 32], exchange.sum[turn][thread % 32]};
  return warp_softmax(x);
}

// A pack of logits; -inf beyond the vocabulary.
template <class T>
__device__ inline Floats<T> logits_of(uint4 raw, int first, int vocab) {
  Floats<T> v(raw);
  if (first + kPack<T> <= vocab) return v;
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) v[j] = first + j < vocab ? v[j] : kLowest;
  return v;
}

template <class T>
__device__ inline void add_pack(Softmax& to, uint4 raw, int first, int vocab) {
  const Floats<T> v = logits_of<T>(raw, first, vocab);
  float max = to.max;
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) max = fmaxf(max, v[j]);
  const Shift<T> shift(max);
  float sum = to.sum * shift.exponential_of(to.max);
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) sum += shift.exponential_of(v[j]);
  to = {max, sum};
}

// Parameters of a row's gradient.
template <class T>
struct Gradient {
  T* x = nullptr;  // the row; null: nothing is written
  int label = -1;  // ignored
  Shift<T> shift{0.0f};
  float factor = 0, label_gradient = 0;

  __device__ uint4 of(uint4 raw, int first, int vocab) const {
    constexpr int kWidth = kPack<T>;
    if (label < 0) return make_uint4(0, 0, 0, 0);
    Floats<T> v = logits_of<T>(raw, first, vocab);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) v[j] = shift.exponential_of(v[j]) * factor;
    if (label >= first && label < first + kWidth) {  // the subtraction precedes the rounding to T
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if (first + j == label) v[j] = label_gradient;
      }
    }
    if (first + kWidth > vocab) {  // also if exp(-inf) would be NaN because of a NaN
#pragma unroll
      for (int j = 0; j < kWidth; ++j) v[j] = first + j < vocab ? v[j] : 0.0f;
    }
    return v.packed();
  }
};

// kKept: packs of a thread in registers, after those in shared memory. The remaining packs are in neither.
template <class T, bool kVector, int kMaxThreads, int kKept>
__global__ void __launch_bounds__(kMaxThreads, kThreads / kMaxThreads) cross_entropy_kernel(const LossArguments a) {
  constexpr int kWidth = kPack<T>;
  extern __shared__ uint4 cache[];
  __shared__ Exchange exchange;
  if (*a.verdict != 0) return;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int in_shared = a.shared_packs, in_memory = (in_shared + kKept) * threads + thread;
  uint4 kept[kKept > 0 ? kKept : 1];
  const auto label_at = [&](std::int64_t row) { return row < a.rows ? a.labels[row] : -1; };
  const auto load = [&](const T* x, int first) {
    return load_of_row<T, kVector>(x, first, first < a.vocab ? a.columns : 0);
  };

  // Writes the gradient of one row, reads the next one, or both.
  const auto pass = [&](const Gradient<T>& gradient, const T* next) {
    Softmax softmax;
    const auto write = [&](uint4 raw, int first) {
      store_of_row<T, kVector>(gradient.x, first, a.columns, gradient.of(raw, first, a.vocab));
    };
    const auto add_shared = [&](int begin) {
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        const int p = (begin + u) * threads + thread;
        if (begin + u < in_shared) add_pack<T>(softmax, cache[p], p * kWidth, a.vocab);
      }
    };
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      const int first = ((in_shared + j) * threads + thread) * kWidth;
      if (gradient.x != nullptr) write(kept[j], first);
      if (next != nullptr) kept[j] = load(next, first);
    }
    for (int k = 0; k < in_shared; k += kTogether) {
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        const int p = (k + u) * threads + thread, first = p * kWidth;
        if (k + u >= in_shared) break;
        if (gradient.x != nullptr) write(cache[p], first);
        if (next != nullptr) stage_of_row<T, kVector>(cache + p, next, first, first < a.vocab ? a.columns : 0);
      }
      commit_stage();
      if (next == nullptr || k < kAhead * kTogether) continue;
      wait_for_stages<kAhead>();
      add_shared(k - kAhead * kTogether);
    }
    for (int p = in_memory; p * kWidth < a.columns; p += threads) {
      if (gradient.x != nullptr) write(load(gradient.x, p * kWidth), p * kWidth);
      if (next != nullptr) add_pack<T>(softmax, load(next, p * kWidth), p * kWidth, a.vocab);
    }
    if (next == nullptr) return softmax;
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      add_pack<T>(softmax, kept[j], ((in_shared + j) * threads + thread) * kWidth, a.vocab);
    }
    wait_for_stages<0>();
    const int iterations = (in_shared + kTogether - 1) / kTogether;
    for (int i = max(0, iterations - kAhead); i < iterations; ++i) add_shared(i * kTogether);
    return softmax;
  };

  Gradient<T> gradient;
  int label = label_at(blockIdx.x), turn = 0;
  for (std::int64_t row = blockIdx.x;; row += gridDim.x) {
    const T* next = label >= 0 ? a.logits.at<T>(row) : nullptr;
    const float label_logit = next != nullptr ? widen(next[label]) : 0.0f;
    const int label_after = label_at(row + gridDim.x);
    const Softmax mine = pass(gradient, next);
    if (row >= a.rows) return;
    gradient.x = a.parameters != nullptr ? a.logits.at<T>(row) : nullptr;
    gradient.label = label;
    if (next != nullptr) {
      const Softmax softmax = row_softmax(mine, exchange, turn);
      turn ^= 1;
      gradient.shift = Shift<T>(softmax.max);
      if (gradient.x != nullptr) {
        const float scale = a.parameters->loss_scale;
        gradient.factor = scale / softmax.sum;
        gradient.label_gradient = (expf(label_logit - gradient.shift.max) / softmax.sum - 1.0f) * scale;
      }
      if (thread == 0) a.loss[row] = logf(softmax.sum) - (label_logit - softmax.max);
    } else if (thread == 0) {
      a.loss[row] = 0;
    }
    label = label_after;
  }
}

struct Launch {
  unsigned blocks, threads;
  int shared_packs;
};

template <class T, bool kVector, int kMaxThreads, int kKept>
void launch_rows(CudaStream& stream, LossArguments a, const Launch& launch, int largest_bytes) {
  constexpr auto kKernel = cross_entropy_kernel<T, kVector, kMaxThreads, kKept>;
  allow_shared_memory<kKernel>(largest_bytes);
  a.shared_packs = launch.shared_packs;
  const std::size_t shared = static_cast<std::size_t>(launch.shared_packs) * launch.threads * sizeof(uint4);
  launch_kernel(stream, {launch.blocks, launch.threads, shared}, kKernel, a);
}

}  // namespace

void run(CudaStream& stream, const CrossEntropy& op) {
  const std::int64_t rows = op.labels.numel(), columns = op.logits.size(1);
  require(columns < kMaxIndex / 2, "CrossEntropy: more than 2^30 columns");
  LossArguments a{.verdict = check_labels(stream, op.labels, op.vocab_size, op.workspace),
                  .labels = op.labels.as<const std::int32_t>(),
                  .logits = Rows(op.logits),
                  .loss = op.loss.as<float>(),
                  .parameters = op.write_gradient ? op.parameters : nullptr,
                  .rows = rows,
                  .vocab = static_cast<int>(op.vocab_size),
                  .columns = static_cast<int>(columns),
                  .shared_packs = 0};
  if (rows == 0) return;
  const int memory = stream.shared_memory_of_multiprocessor(),
            memory_of_block = stream.dynamic_shared_memory_of_block();
  const int packs = static_cast<int>(ceil_divide(columns * static_cast<std::int64_t>(size_of(op.logits.dtype)), 16));
  Variants(op.logits.dtype, rows_aligned(op.logits)).visit([&](auto type, auto is_vector) {
    using T = decltype(type);
    constexpr bool kVector = is_vector();
    const auto grid = [&](int blocks) {
      return static_cast<unsigned>(std::min<std::int64_t>(rows, std::int64_t{blocks} * stream.multiprocessors()));
    };
    const int threads = std::clamp(packs / 128 * 32, 32, kSharingThreads),
              all = static_cast<int>(ceil_divide(packs, threads));
    const int blocks = std::min(kThreads / threads, memory / (all * threads * 16 + CudaStream::kSharedMemoryOfBlock));
    if (blocks > 1) {
      const Launch launch{.blocks = grid(blocks), .threads = static_cast<unsigned>(threads), .shared_packs = all};
      return launch_rows<T, kVector, kSharingThreads, 0>(stream, a, launch, memory_of_block);
    }
    const int most = memory_of_block / (kThreads * 16), needed = static_cast<int>(ceil_divide(packs, kThreads));
    const Launch launch{.blocks = grid(1), .threads = kThreads, .shared_packs = std::min(most, needed)};
    if (needed <= most) return launch_rows<T, kVector, kThreads, 0>(stream, a, launch, memory_of_block);
    if (needed <= most + 2) return launch_rows<T, kVector, kThreads, 2>(stream, a, launch, memory_of_block);
    launch_rows<T, kVector, kThreads, 5>(stream, a, launch, memory_of_block);
  });
}

}  // namespace megalith
