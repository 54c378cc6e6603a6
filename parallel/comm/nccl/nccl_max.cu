#include <cuda_bf16.h>

#include <algorithm>

#include "core/device/cuda/check.h"
#include "parallel/comm/nccl/nccl_max.h"

namespace megalith {

namespace {

constexpr int kThreads = 256;

template <class Key>
constexpr Key kLargest = static_cast<Key>(~(Key{1} << (8 * sizeof(Key) - 1)));

__device__ std::int32_t bits_of(float x) { return __float_as_int(x); }
__device__ std::int64_t bits_of(double x) { return __double_as_longlong(x); }
__device__ void set_bits(std::int32_t bits, float& x) { x = __int_as_float(bits); }
__device__ void set_bits(std::int64_t bits, double& x) { x = __longlong_as_double(bits); }

__device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float widen(float x) { return x; }
__device__ double widen(double x) { return x; }
__device__ void narrow(float x, __nv_bfloat16& out) { out = __float2bfloat16_rn(x); }
__device__ void narrow(float x, float& out) { out = x; }
__device__ void narrow(double x, double& out) { out = x; }

// The bits of a negative float fall as it rises: all but the sign are flipped.
template <class Key>
__device__ Key flip(Key bits) {
  return bits >= 0 ? bits : bits ^ kLargest<Key>;
}

template <class Float, class Key>
__global__ void to_keys(const Float* floats, Key* keys, std::int64_t n) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    const auto x = widen(floats[i]);
    keys[i] = x != x ? kLargest<Key> : flip(bits_of(x));
  }
}

template <class Wide, class Float, class Key>
__global__ void from_keys(const Key* keys, Float* floats, std::int64_t n) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    Wide x;
    set_bits(flip(keys[i]), x);
    narrow(x, floats[i]);
  }
}

unsigned blocks(const CudaStream& stream, std::int64_t n) {
  return static_cast<unsigned>(std::min<std::int64_t>((n + kThreads - 1) / kThreads, 8 * stream.multiprocessors()));
}

}  // namespace

void keys_from_floats(CudaStream& stream, const Tensor& floats, const Tensor& keys) {
  const std::int64_t n = floats.numel();
  const unsigned grid = blocks(stream, n);
  if (floats.dtype == DType::kFp32) {
    to_keys<<<grid, kThreads, 0, stream.handle()>>>(floats.as<float>(), keys.as<std::int32_t>(), n);
  } else if (floats.dtype == DType::kFp64) {
    to_keys<<<grid, kThreads, 0, stream.handle()>>>(floats.as<double>(), keys.as<std::int64_t>(), n);
  } else {
    to_keys<<<grid, kThreads, 0, stream.handle()>>>(floats.as<__nv_bfloat16>(), keys.as<std::int32_t>(), n);
  }
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void floats_from_keys(CudaStream& stream, const Tensor& keys, const Tensor& floats) {
  const std::int64_t n = floats.numel();
  const unsigned grid = blocks(stream, n);
  if (floats.dtype == DType::kFp32) {
    from_keys<float><<<grid, kThreads, 0, stream.handle()>>>(keys.as<std::int32_t>(), floats.as<float>(), n);
  } else if (floats.dtype == DType::kFp64) {
    from_keys<double><<<grid, kThreads, 0, stream.handle()>>>(keys.as<std::int64_t>(), floats.as<double>(), n);
  } else {
    from_keys<float><<<grid, kThreads, 0, stream.handle()>>>(keys.as<std::int32_t>(), floats.as<__nv_bfloat16>(), n);
  }
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace megalith
