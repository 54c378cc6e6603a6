// Elementwise kernels over flat arrays: memory-bound, one pass, deterministic. A block owns 2 * kMapThreads neighboring
// packs of each array.
#pragma once

#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"

namespace megalith::cuda {

inline constexpr int kMapThreads = 256;

// The kernel's body: y[i] = f(x[i] ...); y may be one of x.
template <class T, bool kVector, class Function, class... Inputs>
__device__ inline void map_flat(const Function& f, std::int64_t count, T* y, const Inputs*... x) {
  constexpr int kStep = kMapThreads * kPack<T>;
  struct Two {
    uint4 raw[2];
  };
  const std::int64_t first = (std::int64_t{blockIdx.x} * 2 * kMapThreads + threadIdx.x) * kPack<T>;
  const auto load = [&](const T* from) {
    return Two{load_flat<T, kVector>(from, first, count), load_flat<T, kVector>(from, first + kStep, count)};
  };
  const auto store = [&](const auto&... in) {
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      store_flat<T, kVector>(y, first + u * kStep, count, map(f, Floats<T>(in.raw[u])...).packed());
    }
  };
  store(load(x)...);
}

template <class T>
Grid map_grid(std::int64_t count) {
  return {blocks_for(count, 2 * kMapThreads * kPack<T>), kMapThreads};
}

}  // namespace megalith::cuda
