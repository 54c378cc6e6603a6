#include <cuda_bf16.h>

#include <algorithm>

#include "core/device/cuda/check.h"
#include "core/ops/gemm_kernels_cuda.h"

namespace megalith {

namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;

__device__ float read(const float* x) { return *x; }
__device__ float read(const __nv_bfloat16* x) { return __bfloat162float(*x); }
__device__ void write(float* x, float value) { *x = value; }
__device__ void write(__nv_bfloat16* x, float value) { *x = __float2bfloat16_rn(value); }

template <class C, class B>
struct Rows {
  C* c;
  const B* bias;  // may be null
  std::int64_t rows, columns, stride;
  bool keep;
};

// Memory-bound, one pass over c; a thread owns single elements, so a result depends on nothing else: deterministic. Not
// on the way of a training step, whose biases cuBLASLt adds.
template <class C, class B>
__global__ void __launch_bounds__(kThreads) rows_kernel(Rows<C, B> p) {
  const std::int64_t count = p.rows * p.columns;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    const std::int64_t column = i % p.columns;
    C* out = p.c + i / p.columns * p.stride + column;
    write(out, (p.keep ? read(out) : 0.0f) + (p.bias != nullptr ? read(p.bias + column) : 0.0f));
  }
}

// Memory-bound, writes x once. The sum of the four 16-bit parts of a hash of the index (the finalizer of Steele et al.
// 2014, doi:10.1145/2660193.2660195), with mean 0 and variance 1.
template <class T>
__global__ void __launch_bounds__(kThreads) normal_kernel(T* x, std::int64_t count, std::uint32_t seed) {
  constexpr float kMean = 2.0f * 65535.0f;
  constexpr float kDeviation = 37837.23f;  // sqrt(4 (2^32 - 1) / 12)
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    std::uint64_t z = (static_cast<std::uint64_t>(seed) << 40) + static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    const auto sum = static_cast<std::uint32_t>((z & 0xFFFF) + ((z >> 16) & 0xFFFF) + ((z >> 32) & 0xFFFF) + (z >> 48));
    write(x + i, (static_cast<float>(sum) - kMean) / kDeviation);
  }
}

unsigned blocks_for(const CudaStream& stream, std::int64_t count) {
  const std::int64_t most = static_cast<std::int64_t>(stream.multiprocessors()) * kBlocksPerMultiprocessor;
  return static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, most));
}

template <class C, class B>
void launch_rows(CudaStream& stream, const GemmRows& op) {
  const Rows<C, B> p{.c = op.c.as<C>(),
                     .bias = op.bias.as<const B>(),
                     .rows = op.c.size(0),
                     .columns = op.c.size(1),
                     .stride = op.c.stride(0),
                     .keep = op.keep};
  rows_kernel<<<blocks_for(stream, op.c.numel()), kThreads, 0, stream.handle()>>>(p);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void run(CudaStream& stream, const GemmRows& op) {
  if (op.c.numel() == 0) return;
  const bool wide = op.c.dtype == DType::kFp32;
  const bool wide_bias = op.bias && op.bias.dtype == DType::kFp32;
  if (wide && wide_bias) return launch_rows<float, float>(stream, op);
  if (wide) return launch_rows<float, __nv_bfloat16>(stream, op);
  if (wide_bias) return launch_rows<__nv_bfloat16, float>(stream, op);
  launch_rows<__nv_bfloat16, __nv_bfloat16>(stream, op);
}

void fill_normal(CudaStream& stream, const Tensor& x, std::uint32_t seed) {
  if (x.numel() == 0) return;
  const unsigned blocks = blocks_for(stream, x.numel());
  if (x.dtype == DType::kFp32) {
    normal_kernel<<<blocks, kThreads, 0, stream.handle()>>>(x.as<float>(), x.numel(), seed);
  } else {
    normal_kernel<<<blocks, kThreads, 0, stream.handle()>>>(x.as<__nv_bfloat16>(), x.numel(), seed);
  }
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace megalith
