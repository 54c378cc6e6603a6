// SumOfSquares is memory-bound, one pass, two launches for up to kMaxTensors tensors, whose addresses are the kernels'
// parameters: a block owns a slice of a tensor, then a block adds the slices of a tensor by a fixed tree. The others
// are single blocks that take no time. Deterministic: where slices begin depends on the tensor alone.
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_reduce.cuh"
#include "core/ops/grad_norm.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kSquareThreads = 256;
constexpr int kPacks = 8;                      // loads in flight per thread
constexpr std::int64_t kSlice = kSquareSlice;  // elements of a block
constexpr int kAddThreads = 1024;
constexpr int kMaxTensors = 512;  // 12 KiB of the 32 KiB that a kernel's parameters may take
constexpr int kFinalizeThreads = 256;

struct TensorSlices {
  const void* data;
  std::int64_t count;
  int end_slice;  // slices of the tensors up to this one
  bool vector;    // aligned
};

struct SquareArguments {
  TensorSlices tensors[kMaxTensors];
  int count, slices;
  double* slice_sums;  // [slices]
  double* out;         // [count]

  __device__ int first_slice(int tensor) const { return tensor == 0 ? 0 : tensors[tensor - 1].end_slice; }
};

template <class T, bool kVector>
__device__ inline double square_slice(const T* data, std::int64_t first, std::int64_t end) {
  constexpr int kStep = kSquareThreads * kPack<T>;
  static_assert(kSlice % (kStep * kPacks) == 0);
  double sums[kPack<T>] = {};
  for (int tile = 0; tile < kSlice; tile += kStep * kPacks) {
    uint4 raw[kPacks];
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const std::int64_t at = first + tile + k * kStep + static_cast<int>(threadIdx.x) * kPack<T>;
      raw[k] = load_flat<T, kVector>(data, at, end);
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const Floats<T> x(raw[k]);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        const auto wide = static_cast<double>(x[j]);
        sums[j] = fma(wide, wide, sums[j]);
      }
    }
  }
#pragma unroll
  for (int step = kPack<T> / 2; step > 0; step /= 2) {
#pragma unroll
    for (int j = 0; j < step; ++j) sums[j] += sums[j + step];
  }
  return sums[0];
}

template <class T>
__global__ void __launch_bounds__(kSquareThreads) sum_of_squares_kernel(const __grid_constant__ SquareArguments a) {
  __shared__ double shared[32];
  const int slice = static_cast<int>(blockIdx.x);
  if (slice >= a.slices) return;
  int low = 0, high = a.count - 1;  // the first tensor whose slices end behind this one
  while (low < high) {
    const int middle = (low + high) / 2;
    if (slice < a.tensors[middle].end_slice) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const TensorSlices& tensor = a.tensors[low];
  const std::int64_t first = (slice - a.first_slice(low)) * kSlice;
  const T* data = static_cast<const T*>(tensor.data);
  const double sum = tensor.vector ? square_slice<T, true>(data, first, tensor.count)
                                   : square_slice<T, false>(data, first, tensor.count);
  const double total = block_sum(sum, shared);
  if (threadIdx.x == 0) a.slice_sums[slice] = total;
}

__global__ void __launch_bounds__(kAddThreads) sum_of_squares_add_kernel(const __grid_constant__ SquareArguments a) {
  __shared__ double shared[32];
  const int tensor = static_cast<int>(blockIdx.x);
  if (tensor >= a.count) return;
  const int begin = a.first_slice(tensor), end = a.tensors[tensor].end_slice;
  double sum = 0;
#pragma unroll 4
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kAddThreads) sum += a.slice_sums[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) a.out[tensor] = sum;
}

void launch_squares(CudaStream& stream, DType dtype, const SquareArguments& a) {
  Variants(dtype).visit([&](auto type) {
    launch_kernel(stream, {blocks_for(a.slices, 1), kSquareThreads}, sum_of_squares_kernel<decltype(type)>, a);
  });
  launch_kernel(stream, {blocks_for(a.count, 1), kAddThreads}, sum_of_squares_add_kernel, a);
}

// One block, which fetches; one thread adds, in the order of the tensors.
__global__ void grad_norm_finalize_kernel(const double* sums, std::int64_t count, const float* loss, double clip_grad,
                                          StepParameters* step) {
  __shared__ double tile[kFinalizeThreads];
  double sum = 0;
  for (std::int64_t first = 0; first < count; first += kFinalizeThreads) {
    const std::int64_t i = first + threadIdx.x;
    if (i < count) tile[threadIdx.x] = sums[i];
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int k = 0; k < kFinalizeThreads && first + k < count; ++k) sum += tile[k];
    }
    __syncthreads();
  }
  if (threadIdx.x > 0) return;
  const double norm = sqrt(sum);
  step->loss = *loss;
  step->grad_norm = static_cast<float>(norm);
  const bool finite = isfinite(step->loss) && isfinite(step->grad_norm);
  step->skip = finite ? 0 : 1;
  step->clip_factor = finite && clip_grad > 0 ? static_cast<float>(fmin(1.0, clip_grad / (norm + 1e-6))) : 1.0f;
  if (finite) ++step->adam_count;
}

__global__ void write_step_parameters_kernel(std::int64_t iteration, float learning_rate, StepParameters* step) {
  step->iteration = iteration;
  step->learning_rate = learning_rate;
}

__global__ void write_microbatch_parameters_kernel(MicrobatchParameters value, MicrobatchParameters* out) {
  *out = value;
}

}  // namespace

void run(CudaStream& stream, const SumOfSquares& op) {
  SquareArguments a{};
  a.out = op.out.as<double>();
  a.slice_sums = op.workspace.as<double>();
  for (const Tensor& tensor : op.tensors) {
    a.slices += static_cast<int>(ceil_divide(tensor.numel(), kSlice));
    a.tensors[a.count++] = {
        .data = tensor.data, .count = tensor.numel(), .end_slice = a.slices, .vector = starts_aligned(tensor)};
    if (a.count < kMaxTensors && &tensor != &op.tensors.back()) continue;
    launch_squares(stream, tensor.dtype, a);
    a.out += a.count;
    a.count = a.slices = 0;
  }
}

void run(CudaStream& stream, const GradNormFinalize& op) {
  launch_kernel(stream, {1, kFinalizeThreads}, grad_norm_finalize_kernel, op.sums.as<const double>(), op.sums.numel(),
                op.loss.as<const float>(), op.clip_grad, op.parameters);
}

void run(CudaStream& stream, const WriteStepParameters& op) {
  launch_kernel(stream, {1, 1}, write_step_parameters_kernel, op.iteration, op.learning_rate, op.parameters);
}

void run(CudaStream& stream, const WriteMicrobatchParameters& op) {
  launch_kernel(stream, {1, 1}, write_microbatch_parameters_kernel, op.value, op.out);
}

}  // namespace megalith
