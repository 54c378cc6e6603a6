// SumOfSquares is memory-bound, one pass, one launch for up to kMaxTensors tensors, whose addresses are kernel
// parameters: a block owns a piece. In AddPieces a block owns a tensor. The others are single short blocks.
// Deterministic: the index alone assigns elements of a piece, or pieces of a tensor, to threads.
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_reduce.cuh"
#include "core/ops/optim/grad_norm.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kSquareThreads = 256;
constexpr int kBlocksPerMultiprocessor = 4;
constexpr int kPacks = 8;         // loads in flight per thread
constexpr int kMaxTensors = 512;  // 20 KiB of the 32 KiB limit of a kernel's parameters
constexpr int kAddThreads = 256;
constexpr int kMaxSums = 4096;  // sums per launch, 16 KiB
constexpr int kFinalizeThreads = 256;

struct TensorPieces {
  const void* data;
  double* out;
  std::int64_t count;
  int begin, block;
  int end_piece;  // end of this tensor's pieces
};

struct SquareArguments {
  TensorPieces tensors[kMaxTensors];
  int count, pieces;
};

template <class T, bool kZeros, bool kVector>
__device__ inline double sum_piece(const T* data, int count) {
  constexpr int kStep = kSquareThreads * kPack<T>;
  double sums[kPack<T>] = {};
  const int own = static_cast<int>(threadIdx.x) * kPack<T>;
  for (int tile = 0; tile < count; tile += kStep * kPacks) {
    uint4 raw[kPacks];
    if (kVector && tile + kStep * kPacks <= count) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) raw[k] = load_full(data + tile + k * kStep + own);
    } else {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) raw[k] = load_flat<T, kVector>(data, tile + k * kStep + own, count);
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const Floats<T> x(raw[k]);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        const auto wide = static_cast<double>(x[j]);
        if constexpr (kZeros) {
          sums[j] += wide == 0 ? 1 : 0;
        } else {
          sums[j] = fma(wide, wide, sums[j]);
        }
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

// Elements beyond the end of a piece load as 0 and count as zeros.
__device__ inline double loaded_beyond(int count, int step) { return (count + step - 1) / step * step - count; }

template <class T, bool kZeros>
__global__ void __launch_bounds__(kSquareThreads, kBlocksPerMultiprocessor)
    sum_of_squares_kernel(const __grid_constant__ SquareArguments a) {
  __shared__ double shared[32];
  const int piece = static_cast<int>(blockIdx.x);
  if (piece >= a.pieces) return;
  int low = 0, high = a.count - 1;  // the first tensor whose pieces end after this one
  while (low < high) {
    const int middle = (low + high) / 2;
    if (piece < a.tensors[middle].end_piece) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const TensorPieces& tensor = a.tensors[low];
  const std::int64_t own = low == 0 ? piece : piece - a.tensors[low - 1].end_piece;
  const std::int64_t border = own * tensor.block - tensor.begin, first = max(border, std::int64_t{0});
  const int count = static_cast<int>(min(border + tensor.block, tensor.count) - first);
  const T* data = static_cast<const T*>(tensor.data) + first;
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  const double sum = aligned ? sum_piece<T, kZeros, true>(data, count) : sum_piece<T, kZeros, false>(data, count);
  double total = block_sum(sum, shared);
  if constexpr (kZeros) total -= loaded_beyond(count, kSquareThreads * kPack<T> * kPacks);
  if (threadIdx.x == 0) tensor.out[own] = total;
}

struct AddArguments {
  int ends[kMaxSums];
  int count, begin;  // sums; the first piece
  const double* pieces;
  double* out;
};

__global__ void __launch_bounds__(kAddThreads) add_pieces_kernel(const __grid_constant__ AddArguments a) {
  __shared__ double shared[32];
  const int i = static_cast<int>(blockIdx.x);
  if (i >= a.count) return;
  const int begin = i == 0 ? a.begin : a.ends[i - 1], end = a.ends[i];
  double sum = 0;
#pragma unroll 4
  for (int piece = begin + static_cast<int>(threadIdx.x); piece < end; piece += kAddThreads) sum += a.pieces[piece];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) a.out[i] = sum;
}

// Sum in the order of the tensors, on thread 0: a block of kFinalizeThreads fetches, one thread adds.
__device__ inline double sum_in_order(const double* sums, std::int64_t count) {
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
  return sum;
}

__global__ void store_total_kernel(const double* sums, std::int64_t count, bool root, double* total) {
  const double sum = sum_in_order(sums, count);
  if (threadIdx.x == 0) *total = root ? sqrt(sum) : sum;
}

__global__ void grad_norm_finalize_kernel(const double* sums, std::int64_t count, const float* loss, double clip_grad,
                                          const std::int32_t* needed, std::int64_t arrived, std::int64_t rows,
                                          StepParameters* step) {
  const double sum = sum_in_order(sums, count);
  if (threadIdx.x > 0) return;
  const double norm = sqrt(sum);
  step->loss = *loss;
  step->grad_norm = static_cast<float>(norm);
  const bool finite = isfinite(step->loss) && isfinite(step->grad_norm);
  const bool has_room = needed == nullptr || (needed[0] <= arrived && needed[1] <= rows);
  const bool counts = has_room && finite;
  step->skip = !has_room ? kSkipNoRoom : finite ? 0 : kSkipNotFinite;
  step->clip_factor = counts && clip_grad > 0 ? static_cast<float>(fmin(1.0, clip_grad / (norm + 1e-6))) : 1.0f;
  if (counts) ++step->adam_count;
}

__global__ void write_step_parameters_kernel(std::int64_t iteration, float learning_rate, float decoupled,
                                             double weight_decay_scale, StepParameters* step) {
  step->iteration = iteration;
  step->learning_rate = learning_rate;
  step->decoupled_learning_rate = decoupled;
  step->weight_decay_scale = weight_decay_scale;
}

__global__ void write_microbatch_parameters_kernel(MicrobatchParameters value, MicrobatchParameters* out) {
  *out = value;
}

}  // namespace

void run(CudaStream& stream, const SumOfSquares& op) {
  SquareArguments a{};
  for (const SquaredTensor& tensor : op.tensors) {
    const std::int64_t pieces = a.pieces + tensor.num_pieces();
    require(pieces < kMaxIndex, "SumOfSquares: more than 2^31 pieces");
    a.pieces = static_cast<int>(pieces);
    a.tensors[a.count++] = {.data = tensor.x.data,
                            .out = tensor.pieces.as<double>(),
                            .count = tensor.x.numel(),
                            .begin = static_cast<int>(tensor.begin),
                            .block = static_cast<int>(tensor.block),
                            .end_piece = a.pieces};
    if (a.count < kMaxTensors && &tensor != &op.tensors.back()) continue;
    Variants(tensor.x.dtype).visit([&](auto type) {
      using T = decltype(type);
      const auto kernel = op.zeros ? sum_of_squares_kernel<T, true> : sum_of_squares_kernel<T, false>;
      launch_kernel(stream, {blocks_for(a.pieces, 1), kSquareThreads}, kernel, a);
    });
    a.count = a.pieces = 0;
  }
}

void run(CudaStream& stream, const AddPieces& op) {
  require(op.pieces.numel() < kMaxIndex, "AddPieces: more than 2^31 pieces");
  AddArguments a{.pieces = op.pieces.as<const double>(), .out = op.out.as<double>()};
  for (const std::int64_t& end : op.ends) {
    a.ends[a.count++] = static_cast<int>(end);
    if (a.count < kMaxSums && &end != &op.ends.back()) continue;
    launch_kernel(stream, {blocks_for(a.count, 1), kAddThreads}, add_pieces_kernel, a);
    a.begin = static_cast<int>(end);
    a.out += a.count;
    a.count = 0;
  }
}

void run(CudaStream& stream, const GradNormFinalize& op) {
  launch_kernel(stream, {1, kFinalizeThreads}, grad_norm_finalize_kernel, op.sums.as<const double>(), op.sums.numel(),
                op.loss.as<const float>(), op.clip_grad, op.room.needed.as<const std::int32_t>(), op.room.arrived,
                op.room.rows, op.parameters);
}

void run(CudaStream& stream, const StoreTotal& op) {
  launch_kernel(stream, {1, kFinalizeThreads}, store_total_kernel, op.sums.as<const double>(), op.sums.numel(), op.root,
                op.total);
}

void run(CudaStream& stream, const WriteStepParameters& op) {
  launch_kernel(stream, {1, 1}, write_step_parameters_kernel, op.iteration, op.learning_rate,
                op.decoupled_learning_rate, op.weight_decay_scale, op.parameters);
}

void run(CudaStream& stream, const WriteMicrobatchParameters& op) {
  launch_kernel(stream, {1, 1}, write_microbatch_parameters_kernel, op.value, op.out);
}

}  // namespace megalith
