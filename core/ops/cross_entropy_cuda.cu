// Memory-bound. A block owns a row. One pass keeps a running maximum and sum of exponentials per thread and leaves the
// row in shared memory, as much of it as fits; the second writes the gradient from there, and reads only the rest
// again, from L2. Deterministic: the threads' pairs are merged by fixed trees.
#include "core/ops/cross_entropy.h"
#include "core/ops/cuda_indices.cuh"
#include "core/ops/cuda_math.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/data_faults.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kUnrolled = 4;
constexpr float kLowest = -INFINITY;

// Dynamic shared memory that a block can have where it is alone on its multiprocessor, and where two share it. The
// runtime keeps 1 KiB a block, and the kernel some for its sums.
struct SharedMemory {
  std::int64_t of_one, of_two;

  SharedMemory() {
    int device = 0, block = 0, multiprocessor = 0;
    MEGALITH_CUDA_CHECK(cudaGetDevice(&device));
    MEGALITH_CUDA_CHECK(cudaDeviceGetAttribute(&block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    MEGALITH_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
    of_one = (block - 1024) / 16 * 16;
    of_two = (multiprocessor / 2 - 2048) / 16 * 16;
  }
};

struct LossArguments {
  const std::int32_t *verdict, *labels;
  void* logits;
  std::int64_t stride;
  float* loss;
  const MicrobatchParameters* parameters;  // null: no gradient
  std::int64_t rows;
  int vocab, columns;
  int cached_packs;
};

// max and sum of exp(x - max) over some elements. From max = -inf on, sum is 0 or NaN.
struct Softmax {
  float max = kLowest, sum = 0;
};

// exp(x - max): for fp32 as the difference says; in bf16 with one rounding less.
template <class T>
struct Shift {
  float max, scaled;
  __device__ explicit Shift(float max_) : max(max_ == kLowest ? 0.0f : max_), scaled(max * kLog2E) {}
  __device__ float exponential_of(float x) const {
    if constexpr (sizeof(T) == 2) return approximate_exp2(fmaf(x, kLog2E, -scaled));
    return expf(x - max);
  }
};

template <class T>
__device__ inline Softmax merged(const Softmax& a, const Softmax& b) {
  const float max = fmaxf(a.max, b.max);
  const Shift<float> shift(max);
  return {max, a.sum * shift.exponential_of(a.max) + b.sum * shift.exponential_of(b.max)};
}

template <class T>
__device__ inline Softmax block_softmax(Softmax x, Softmax* shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const Softmax other{__shfl_xor_sync(kAllLanes, x.max, step), __shfl_xor_sync(kAllLanes, x.sum, step)};
    x = merged<T>(x, other);
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : Softmax{};
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const Softmax other{__shfl_xor_sync(kAllLanes, x.max, step), __shfl_xor_sync(kAllLanes, x.sum, step)};
    x = merged<T>(x, other);
  }
  return x;
}

// A pack of logits; -inf beyond the vocabulary.
template <class T>
__device__ inline void unpack_logits(uint4 raw, int first, int vocab, float (&v)[kPack<T>]) {
  unpack<T>(raw, v);
  if (first + kPack<T> <= vocab) return;
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) v[j] = first + j < vocab ? v[j] : kLowest;
}

template <class T, bool kVector>
__device__ Softmax read_row(const T* x, const LossArguments& a, uint4* cache) {
  constexpr int kWidth = kPack<T>;
  const int packs = (a.vocab + kWidth - 1) / kWidth, threads = static_cast<int>(blockDim.x);
  Softmax mine;
  for (int p = static_cast<int>(threadIdx.x); p < packs; p += threads * kUnrolled) {
    uint4 raw[kUnrolled];
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      const int at = p + u * threads;
      raw[u] = load_of_row<T, kVector>(x, at * kWidth, at < packs ? a.columns : 0);
    }
    float max = mine.max;
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      const int at = p + u * threads;
      if (at < a.cached_packs) cache[at] = raw[u];
      float v[kWidth];
      unpack_logits<T>(raw[u], at * kWidth, a.vocab, v);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) max = fmaxf(max, v[j]);
    }
    const Shift<T> shift(max);
    float sum = mine.sum * shift.exponential_of(mine.max);
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      float v[kWidth];
      unpack_logits<T>(raw[u], (p + u * threads) * kWidth, a.vocab, v);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum += shift.exponential_of(v[j]);
    }
    mine = {max, sum};
  }
  return mine;
}

template <class T, bool kVector>
__device__ void write_gradient(T* x, const LossArguments& a, const uint4* cache, const Softmax& row, int label,
                               float label_logit) {
  constexpr int kWidth = kPack<T>;
  const int packs = (a.columns + kWidth - 1) / kWidth, threads = static_cast<int>(blockDim.x);
  const Shift<T> shift(row.max);
  const float scale = a.parameters->loss_scale, factor = scale / row.sum;
  const float label_gradient = (expf(label_logit - shift.max) / row.sum - 1.0f) * scale;
  for (int p = static_cast<int>(threadIdx.x); p < packs; p += 2 * threads) {
    uint4 raw[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int at = p + u * threads, first = at * kWidth;
      raw[u] = at < a.cached_packs ? cache[at] : load_of_row<T, kVector>(x, first, first < a.vocab ? a.columns : 0);
    }
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int first = (p + u * threads) * kWidth;
      float v[kWidth];
      unpack_logits<T>(raw[u], first, a.vocab, v);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) v[j] = shift.exponential_of(v[j]) * factor;
      if (label >= first && label < first + kWidth) {  // the subtraction belongs before the rounding to T
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          if (first + j == label) v[j] = label_gradient;
        }
      }
      if (first + kWidth > a.vocab) {  // also where a NaN would make NaN of exp(-inf)
#pragma unroll
        for (int j = 0; j < kWidth; ++j) v[j] = first + j < a.vocab ? v[j] : 0.0f;
      }
      store_of_row<T, kVector>(x, first, a.columns, pack<T>(v));
    }
  }
}

template <class T, bool kVector, int kMaxThreads>
__global__ void __launch_bounds__(kMaxThreads, 1024 / kMaxThreads) cross_entropy(const LossArguments a) {
  extern __shared__ uint4 cache[];
  __shared__ Softmax shared[32];
  const std::int64_t row = blockIdx.x;
  if (row >= a.rows || *a.verdict != 0) return;
  T* x = static_cast<T*>(a.logits) + row * a.stride;
  const std::int32_t label = a.labels[row];
  if (label < 0) {
    if (threadIdx.x == 0) a.loss[row] = 0;
    if (a.parameters == nullptr) return;
    constexpr int kWidth = kPack<T>;
    for (int first = static_cast<int>(threadIdx.x) * kWidth; first < a.columns;
         first += static_cast<int>(blockDim.x) * kWidth) {
      store_of_row<T, kVector>(x, first, a.columns, make_uint4(0, 0, 0, 0));
    }
    return;
  }
  const float label_logit = widen(x[label]);
  const Softmax softmax = block_softmax<T>(read_row<T, kVector>(x, a, cache), shared);
  if (threadIdx.x == 0) a.loss[row] = logf(softmax.sum) - (label_logit - softmax.max);
  if (a.parameters != nullptr) write_gradient<T, kVector>(x, a, cache, softmax, label, label_logit);
}

template <class T, bool kVector, int kMaxThreads>
void launch_rows(CudaStream& stream, const LossArguments& a, unsigned threads, std::int64_t shared) {
  const auto kernel = cross_entropy<T, kVector, kMaxThreads>;
  // A property of the kernel, not a call on the stream: legal under capture.
  MEGALITH_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  kernel<<<blocks_for(a.rows, 1), threads, static_cast<std::size_t>(shared), stream.handle()>>>(a);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void run(CudaStream& stream, const CrossEntropy& op) {
  const std::int64_t rows = op.labels.numel(), columns = op.logits.size(1);
  require(columns < kMaxIndex / 2, "CrossEntropy: more than 2^30 columns");
  LossArguments a{.verdict = launch_index_check(stream, {.index = op.labels.as<const std::int32_t>(),
                                                         .count = rows,
                                                         .low = std::int64_t{-1} << 31,  // ignored tokens
                                                         .limit = op.vocab_size,
                                                         .raise = raise_bad_label}),
                  .labels = op.labels.as<const std::int32_t>(),
                  .logits = op.logits.data,
                  .stride = op.logits.stride(0),
                  .loss = op.loss.as<float>(),
                  .parameters = op.write_gradient ? op.parameters : nullptr,
                  .rows = rows,
                  .vocab = static_cast<int>(op.vocab_size),
                  .columns = static_cast<int>(columns)};
  if (rows == 0) return;
  const std::int64_t packs = ceil_divide(op.vocab_size * static_cast<std::int64_t>(size_of(op.logits.dtype)), 16);
  // Two blocks a multiprocessor, so that one reads while the other writes; one where two rows do not fit.
  const auto& memory = stream.keep<SharedMemory>();
  const bool two = !op.write_gradient || packs * 16 <= memory.of_two;
  const std::int64_t shared = op.write_gradient ? std::min(packs * 16, two ? memory.of_two : memory.of_one) : 0;
  a.cached_packs = static_cast<int>(shared / 16);
  const auto threads =
      static_cast<unsigned>(std::clamp<std::int64_t>(ceil_divide(packs, 32 * kUnrolled) * 32, 32, two ? 512 : 1024));
  visit_kernel(op.logits.dtype, rows_aligned(op.logits), [&](auto type, auto is_vector) {
    using T = decltype(type);
    if (two) {
      launch_rows<T, is_vector(), 512>(stream, a, threads, shared);
    } else {
      launch_rows<T, is_vector(), 1024>(stream, a, threads, shared);
    }
  });
}

}  // namespace megalith
