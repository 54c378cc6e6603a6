// Building blocks of attention kernels in which a group of lanes processes one key at a time, with a slice of every row
// in registers. A block owns one query row (forward, dq) or one key row (dk, dv). Partial results are added in a fixed
// order, so that bits repeat. Bound by L2 and latency, not arithmetic: suitable for tests and for generation, which
// reads the cache once per query head.
#pragma once

#include "core/ops/attention/attention_cuda.h"
#include "core/ops/attention/attention_documents_cuda.cuh"
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_reduce.cuh"

namespace megalith::cuda::attention {

inline constexpr int kWarp = 32, kWarps = 8, kThreads = kWarps * kWarp;

// [B, tokens, heads, D] with stride 1 in D.
template <class T>
struct Heads {
  T* data;
  std::int64_t sample, token, head;

  Heads(const Tensor& x) : data(x.as<T>()), sample(x.stride(0)), token(x.stride(1)), head(x.stride(2)) {}
  __device__ T* row(std::int64_t b, std::int64_t s, std::int64_t n) const {
    return data + b * sample + s * token + n * head;
  }
};

// Unit of a load: kWidth elements in 16 bytes, or 1 element if rows are not aligned.
template <class T, int kWidth>
using Word = std::conditional_t<kWidth == 1, T, uint4>;

// Split of a row of dim elements over a group's lanes: chunks of kWidth, a lane's at a stride of `lanes`.
struct Lanes {
  int lane, lanes, dim;
  template <int kWidth>
  __device__ int at(int chunk) const {
    return (chunk * lanes + lane) * kWidth;
  }
};

template <class T, int kWidth>
inline constexpr int kChunksOf = kWidth == 1 ? kMaxHeadDim / kWarp : kMaxHeadDim / (kWidth * kWarp);

// A lane's part of a row as loaded. Separate from Slice and free of branches, so that loads of several rows are in
// flight together. A lane beyond the row's end reads the row's start.
template <class T, int kWidth>
struct Stored {
  Word<T, kWidth> word[kChunksOf<T, kWidth>];

  __device__ Stored() {}
  __device__ Stored(const T* row, const Lanes& l) { read(row, l); }
  __device__ void read(const T* row, const Lanes& l) {
#pragma unroll
    for (int c = 0; c < kChunksOf<T, kWidth>; ++c) {
      const int at = l.at<kWidth>(c);
      word[c] = *reinterpret_cast<const Word<T, kWidth>*>(row + (at < l.dim ? at : 0));
    }
  }
};

// A lane's part of a row as numbers; 0 beyond the row's end.
template <class T, int kWidth>
struct Slice {
  static constexpr int kChunks = kChunksOf<T, kWidth>;
  float x[kChunks][kWidth] = {};

  Slice() = default;
  __device__ Slice(const Stored<T, kWidth>& stored, const Lanes& l) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const bool inside = l.at<kWidth>(c) < l.dim;
      if constexpr (kWidth == 1) {
        x[c][0] = inside ? widen(stored.word[c]) : 0.0f;
      } else {
        const Floats<T> v(stored.word[c]);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) x[c][i] = inside ? v[i] : 0.0f;
      }
    }
  }
  template <class Visit>
  __device__ static void each(const Visit& visit) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) visit(c, i);
    }
  }
  __device__ float dot(const Slice& other) const {
    float sum = 0;
    each([&](int c, int i) { sum = fmaf(x[c][i], other.x[c][i], sum); });
    return sum;
  }
  __device__ void scale(float factor) {
    each([&](int c, int i) { x[c][i] *= factor; });
  }
  __device__ void add(float factor, const Slice& other) {
    each([&](int c, int i) { x[c][i] = fmaf(factor, other.x[c][i], x[c][i]); });
  }
  // Adds the slices of the warp's groups, pairwise; the first group holds the sum.
  __device__ void add_groups(int lanes) {
    for (int offset = lanes; offset < kWarp; offset *= 2) {
      each([&](int c, int i) { x[c][i] += __shfl_down_sync(kAllLanes, x[c][i], offset); });
    }
  }
  __device__ void write(float* row, const Lanes& l) const {
    each([&](int c, int i) {
      const int at = l.at<kWidth>(c) + i;
      if (at < l.dim) row[at] = x[c][i];
    });
  }
};

// Returns exp(from - to); 0 for -inf, the start value of a group without scores.
__device__ inline float rescaling(float from, float to) { return from == -INFINITY ? 0.0f : expf(from - to); }

struct GroupPlace {  // a thread's place among the groups of its block
  Lanes lanes;
  int group, groups;
  __device__ GroupPlace(int lanes_of_group, int dim)
      : lanes{static_cast<int>(threadIdx.x) % lanes_of_group, lanes_of_group, dim},
        group(static_cast<int>(threadIdx.x) / lanes_of_group),
        groups(kThreads / lanes_of_group) {}
};

// Returns the lanes of a row: the least power of two that covers D, so that short rows waste none.
inline int lanes_for(std::int64_t dim, int width) {
  int lanes = 1;
  while (lanes < kWarp && lanes * width < dim) lanes *= 2;
  return lanes;
}

}  // namespace megalith::cuda::attention
