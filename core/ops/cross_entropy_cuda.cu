// Memory-bound. A cluster of one to eight blocks owns a row, each block a slice of it, which it reads once into shared
// memory: while it arrives, each thread keeps a running maximum and sum of exponentials; the blocks exchange theirs;
// the gradient is written from shared memory. Slices are so short that a multiprocessor holds several, of which some
// read while others write. What exceeds the memory of eight blocks is read again, from L2. Deterministic: the threads'
// pairs are merged by fixed trees, the blocks' in order.
#include "core/ops/cross_entropy.h"
#include "core/ops/cuda_cluster.cuh"
#include "core/ops/cuda_indices.cuh"
#include "core/ops/cuda_math.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/data_faults.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kMaxThreads = 512;
constexpr int kBlocks = 2;  // of a multiprocessor, so that one reads while the other writes
constexpr int kStages = 4;  // parts of a slice that are waited for one after the other
constexpr float kLowest = -INFINITY;

// What the number of blocks of a row depends on.
struct Slicing {
  int most_blocks = 1;             // of a cluster
  std::int64_t shared_alone = 0;   // bytes of dynamic shared memory of a block alone on its multiprocessor
  std::int64_t shared_beside = 0;  // where kBlocks share it

  Slicing() {
    int device = 0, block = 0, multiprocessor = 0, major = 0;
    MEGALITH_CUDA_CHECK(cudaGetDevice(&device));
    MEGALITH_CUDA_CHECK(cudaDeviceGetAttribute(&block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    MEGALITH_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
    MEGALITH_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    constexpr int kKept = 2048;  // by the runtime, and by the kernel for its sums
    shared_alone = (block - kKept) / 16 * 16;
    shared_beside = (multiprocessor / kBlocks - kKept) / 16 * 16;
    if (major >= 9) most_blocks = kMaxCluster;
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
  int cluster;                    // blocks of a row
  int slice_packs, cached_packs;  // of a block; of those, in shared memory
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

// Of the threads of all blocks that share a row. The cluster has arrived once, so that its blocks are known to run.
__device__ inline Softmax row_softmax(Softmax x, int cluster) {
  __shared__ Softmax warps[32];
  __shared__ float max[kMaxCluster], sum[kMaxCluster];
  const int thread = static_cast<int>(threadIdx.x);
  x = warp_softmax(x);
  if (thread % 32 == 0) warps[thread / 32] = x;
  __syncthreads();
  x = warp_softmax(thread % 32 < static_cast<int>(blockDim.x) / 32 ? warps[thread % 32] : Softmax{});
  if (cluster == 1) return x;
  cluster_wait();
  if (thread < cluster) {
    store_to_peer(max + cluster_rank(), threadIdx.x, x.max);
    store_to_peer(sum + cluster_rank(), threadIdx.x, x.sum);
  }
  cluster_arrive();
  cluster_wait();
  x = {max[0], sum[0]};
  for (int block = 1; block < cluster; ++block) x = merged(x, {max[block], sum[block]});
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

// A block's part of a row: packs first, first + 1, ..., of which the cache holds the foremost.
struct Slice {
  int first, packs, cached;
  uint4* cache;

  __device__ Slice(const LossArguments& a, int width, uint4* shared) : cache(shared) {
    const int row_packs = (a.columns + width - 1) / width;
    first = a.cluster == 1 ? 0 : static_cast<int>(cluster_rank()) * a.slice_packs;
    packs = max(0, min(a.slice_packs, row_packs - first));
    cached = min(packs, a.cached_packs);
  }
};

template <class T, bool kVector>
__device__ inline uint4 load_logits(const T* x, int pack, const LossArguments& a) {
  const int first = pack * kPack<T>;
  return load_of_row<T, kVector>(x, first, first < a.vocab ? a.columns : 0);
}

// Adds two packs, -inf where there is none.
template <class T>
__device__ inline void add_packs(Softmax& to, const uint4 (&raw)[2], const int (&first)[2], int vocab) {
  constexpr int kWidth = kPack<T>;
  float v[2][kWidth], max = to.max;
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    unpack_logits<T>(raw[u], first[u], vocab, v[u]);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) max = fmaxf(max, v[u][j]);
  }
  const Shift<T> shift(max);
  float sum = to.sum * shift.exponential_of(to.max);
#pragma unroll
  for (int u = 0; u < 2; ++u) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum += shift.exponential_of(v[u][j]);
  }
  to = {max, sum};
}

template <class T, bool kVector>
__device__ Softmax read_slice(const T* x, const LossArguments& a, const Slice& slice) {
  constexpr int kWidth = kPack<T>, kBeyond = 1 << 30;  // a first column that no vocabulary has
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int stage = (slice.cached + kStages * threads - 1) / (kStages * threads) * threads;  // packs
#pragma unroll
  for (int s = 0; s < kStages; ++s) {
    for (int p = s * stage + thread; p < min((s + 1) * stage, slice.cached); p += threads) {
      const int first = (slice.first + p) * kWidth;
      stage_of_row<T, kVector>(slice.cache + p, x, first, first < a.vocab ? a.columns : 0);
    }
    commit_stage();
  }
  Softmax mine;
  const auto add = [&](int begin, int end, auto&& pack_at) {
    for (int p = begin + thread; p < end; p += 2 * threads) {
      const bool second = p + threads < end;
      const uint4 raw[2] = {pack_at(p), second ? pack_at(p + threads) : make_uint4(0, 0, 0, 0)};
      const int first[2] = {(slice.first + p) * kWidth, second ? (slice.first + p + threads) * kWidth : kBeyond};
      add_packs<T>(mine, raw, first, a.vocab);
    }
  };
  const auto add_stage = [&](int s) {
    add(s * stage, min((s + 1) * stage, slice.cached), [&](int p) { return slice.cache[p]; });
  };
  wait_for_stages<3>();
  add_stage(0);
  wait_for_stages<2>();
  add_stage(1);
  wait_for_stages<1>();
  add_stage(2);
  wait_for_stages<0>();
  add_stage(3);
  add(slice.cached, slice.packs, [&](int p) { return load_logits<T, kVector>(x, slice.first + p, a); });
  return mine;
}

template <class T, bool kVector>
__device__ void write_gradient(T* x, const LossArguments& a, const Slice& slice, const Softmax& row, int label,
                               float label_logit) {
  constexpr int kWidth = kPack<T>;
  const Shift<T> shift(row.max);
  const float scale = a.parameters->loss_scale, factor = scale / row.sum;
  const float label_gradient = (expf(label_logit - shift.max) / row.sum - 1.0f) * scale;
#pragma unroll 2
  for (int p = static_cast<int>(threadIdx.x); p < slice.packs; p += static_cast<int>(blockDim.x)) {
    const int first = (slice.first + p) * kWidth;
    float v[kWidth];
    unpack_logits<T>(p < slice.cached ? slice.cache[p] : load_logits<T, kVector>(x, slice.first + p, a), first, a.vocab,
                     v);
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

template <class T, bool kVector>
__global__ void __launch_bounds__(kMaxThreads, kBlocks) cross_entropy(const LossArguments a) {
  constexpr int kWidth = kPack<T>;
  extern __shared__ uint4 cache[];
  const std::int64_t row = blockIdx.x / static_cast<unsigned>(a.cluster);
  if (*a.verdict != 0) return;
  T* x = static_cast<T*>(a.logits) + row * a.stride;
  const Slice slice(a, kWidth, cache);
  const bool first_thread = slice.first == 0 && threadIdx.x == 0;
  const std::int32_t label = a.labels[row];
  if (label < 0) {
    if (first_thread) a.loss[row] = 0;
    if (a.parameters == nullptr) return;
    for (int p = static_cast<int>(threadIdx.x); p < slice.packs; p += static_cast<int>(blockDim.x)) {
      store_of_row<T, kVector>(x, (slice.first + p) * kWidth, a.columns, make_uint4(0, 0, 0, 0));
    }
    return;
  }
  if (a.cluster > 1) cluster_arrive();
  const float label_logit = widen(x[label]);
  const Softmax softmax = row_softmax(read_slice<T, kVector>(x, a, slice), a.cluster);
  if (first_thread) a.loss[row] = logf(softmax.sum) - (label_logit - softmax.max);
  if (a.parameters != nullptr) write_gradient<T, kVector>(x, a, slice, softmax, label, label_logit);
}

template <class T, bool kVector>
void launch_rows(CudaStream& stream, const LossArguments& a, const Slicing& slicing) {
  const auto kernel = cross_entropy<T, kVector>;
  // A property of the kernel, the same for every launch.
  static const cudaError_t raised =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(slicing.shared_alone));
  MEGALITH_CUDA_CHECK(raised);
  const auto cluster = static_cast<unsigned>(a.cluster);
  const auto threads = static_cast<unsigned>(std::clamp(a.slice_packs / 128 * 32, 32, kMaxThreads));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks_for(a.rows * a.cluster, 1));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(a.cached_packs) * 16;
  config.stream = stream.handle();
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  MEGALITH_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, a));
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
                  .columns = static_cast<int>(columns),
                  .cluster = 1};
  if (rows == 0) return;
  const auto& slicing = stream.keep<Slicing>();
  const std::int64_t packs = ceil_divide(columns * static_cast<std::int64_t>(size_of(op.logits.dtype)), 16);
  const auto slice_bytes = [&] { return ceil_divide(packs, a.cluster) * 16; };
  while (a.cluster < slicing.most_blocks && slice_bytes() > slicing.shared_beside) ++a.cluster;
  a.slice_packs = static_cast<int>(slice_bytes() / 16);
  a.cached_packs = static_cast<int>(std::min(slice_bytes(), slicing.shared_alone) / 16);
  visit_kernel(op.logits.dtype, rows_aligned(op.logits),
               [&](auto type, auto is_vector) { launch_rows<decltype(type), is_vector()>(stream, a, slicing); });
}

}  // namespace megalith
