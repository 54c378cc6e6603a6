// Memory-bound. A cluster of one to eight blocks owns a few rows, each block a slice of them, which it reads once into
// shared memory: while it arrives, each thread keeps a running maximum and sum of exponentials; the blocks exchange
// theirs; the gradient is written from shared memory. Two blocks share a multiprocessor, so that one reads while the
// other writes; rows of several blocks, where that is not enough, also read the next slice meanwhile. What exceeds the
// memory of eight blocks is read again, from L2. Deterministic: the threads' pairs are merged by fixed trees, the
// blocks' in order.
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
constexpr int kBlocks = 2;             // of a multiprocessor, so that one reads while the other writes
constexpr int kParts = 2;              // of a slice, waited for one after the other
constexpr std::int64_t kMostRows = 8;  // of a cluster
constexpr float kLowest = -INFINITY;

struct LossArguments {
  const std::int32_t *verdict, *labels;
  void* logits;
  std::int64_t stride;
  float* loss;
  const MicrobatchParameters* parameters;  // null: no gradient
  std::int64_t rows;
  int vocab, columns;
  int rows_of_cluster;
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

// What the threads of all blocks of a row exchange; in turns, so that one barrier is enough.
struct Exchange {
  float warp_max[2][32], warp_sum[2][32];
  float max[2][kMaxCluster], sum[2][kMaxCluster];
};

__device__ inline Softmax row_softmax(Softmax x, int cluster, Exchange& exchange, int turn) {
  const int thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / 32;
  x = warp_softmax(x);
  if (thread % 32 == 0) {
    exchange.warp_max[turn][thread / 32] = x.max;
    exchange.warp_sum[turn][thread / 32] = x.sum;
  }
  __syncthreads();
  x = {};
  if (thread % 32 < warps) x = {exchange.warp_max[turn][thread % 32], exchange.warp_sum[turn][thread % 32]};
  x = warp_softmax(x);
  if (cluster == 1) return x;
  float *max = exchange.max[turn], *sum = exchange.sum[turn];
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

// A block's part of a row: packs first, first + 1, ..., of which the foremost have room in shared memory.
struct Slice {
  int first, packs, cached, part;

  __device__ Slice(const LossArguments& a, int width) {
    const int row_packs = (a.columns + width - 1) / width, threads = static_cast<int>(blockDim.x);
    first = a.cluster == 1 ? 0 : static_cast<int>(cluster_rank()) * a.slice_packs;
    packs = max(0, min(a.slice_packs, row_packs - first));
    cached = min(packs, a.cached_packs);
    part = (cached + kParts * threads - 1) / (kParts * threads) * threads;
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

// Starts to bring a slice into shared memory: kParts stages, empty ones for an absent row.
template <class T, bool kVector>
__device__ inline void fetch_slice(const T* x, const LossArguments& a, const Slice& slice, uint4* cache) {
  const int threads = static_cast<int>(blockDim.x), cached = x == nullptr ? 0 : slice.cached;
#pragma unroll
  for (int s = 0; s < kParts; ++s) {
    for (int p = s * slice.part + static_cast<int>(threadIdx.x); p < min((s + 1) * slice.part, cached); p += threads) {
      const int first = (slice.first + p) * kPack<T>;
      stage_of_row<T, kVector>(cache + p, x, first, first < a.vocab ? a.columns : 0);
    }
    commit_stage();
  }
}

// `kLater` stages were committed after the slice's own.
template <class T, bool kVector, int kLater>
__device__ Softmax read_slice(const T* x, const LossArguments& a, const Slice& slice, const uint4* cache) {
  constexpr int kWidth = kPack<T>, kBeyond = 1 << 30;  // a first column that no vocabulary has
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  Softmax mine;
  const auto add = [&](int begin, int end, auto&& pack_at) {
    for (int p = begin + thread; p < end; p += 2 * threads) {
      const bool second = p + threads < end;
      const uint4 raw[2] = {pack_at(p), second ? pack_at(p + threads) : make_uint4(0, 0, 0, 0)};
      const int first[2] = {(slice.first + p) * kWidth, second ? (slice.first + p + threads) * kWidth : kBeyond};
      add_packs<T>(mine, raw, first, a.vocab);
    }
  };
  const auto cached = [cache](int p) { return cache[p]; };
  wait_for_stages<kLater + 1>();
  add(0, min(slice.part, slice.cached), cached);
  wait_for_stages<kLater>();
  add(slice.part, slice.cached, cached);
  add(slice.cached, slice.packs, [&](int p) { return load_logits<T, kVector>(x, slice.first + p, a); });
  return mine;
}

template <class T, bool kVector>
__device__ void write_gradient(T* x, const LossArguments& a, const Slice& slice, const uint4* cache, const Softmax& row,
                               int label, float label_logit) {
  constexpr int kWidth = kPack<T>;
  const Shift<T> shift(row.max);
  const float scale = a.parameters->loss_scale, factor = scale / row.sum;
  const float label_gradient = (expf(label_logit - shift.max) / row.sum - 1.0f) * scale;
#pragma unroll 2
  for (int p = static_cast<int>(threadIdx.x); p < slice.packs; p += static_cast<int>(blockDim.x)) {
    const int first = (slice.first + p) * kWidth;
    float v[kWidth];
    unpack_logits<T>(p < slice.cached ? cache[p] : load_logits<T, kVector>(x, slice.first + p, a), first, a.vocab, v);
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

// kRing: slices in shared memory, of the row at work and of those after it.
template <class T, bool kVector, int kRing>
__global__ void __launch_bounds__(kMaxThreads, kBlocks) cross_entropy(const LossArguments a) {
  extern __shared__ uint4 ring[];
  __shared__ Exchange exchange;
  if (*a.verdict != 0) return;
  const Slice slice(a, kPack<T>);
  const std::int64_t begin = std::int64_t{blockIdx.x / static_cast<unsigned>(a.cluster)} * a.rows_of_cluster;
  const std::int64_t end = min(begin + a.rows_of_cluster, a.rows);
  const auto fetch = [&](std::int64_t row) {
    T* x = row < end && a.labels[row] >= 0 ? static_cast<T*>(a.logits) + row * a.stride : nullptr;
    fetch_slice<T, kVector>(x, a, slice, ring + (row - begin) % kRing * a.cached_packs);
  };
#pragma unroll
  for (int r = 0; r < kRing; ++r) fetch(begin + r);
  if (a.cluster > 1) {  // all blocks run
    cluster_arrive();
    cluster_wait();
  }
  const bool first_thread = slice.first == 0 && threadIdx.x == 0;
  int turn = 0;
  for (std::int64_t row = begin; row < end; ++row) {
    T* x = static_cast<T*>(a.logits) + row * a.stride;
    const uint4* cache = ring + (row - begin) % kRing * a.cached_packs;
    const std::int32_t label = a.labels[row];
    if (label >= 0) {
      const float label_logit = widen(x[label]);
      const Softmax mine = read_slice<T, kVector, (kRing - 1) * kParts>(x, a, slice, cache);
      const Softmax softmax = row_softmax(mine, a.cluster, exchange, turn);
      turn ^= 1;
      if (first_thread) a.loss[row] = logf(softmax.sum) - (label_logit - softmax.max);
      if (a.parameters != nullptr) write_gradient<T, kVector>(x, a, slice, cache, softmax, label, label_logit);
    } else {
      if (first_thread) a.loss[row] = 0;
      for (int p = static_cast<int>(threadIdx.x); a.parameters != nullptr && p < slice.packs;
           p += static_cast<int>(blockDim.x)) {
        store_of_row<T, kVector>(x, (slice.first + p) * kPack<T>, a.columns, make_uint4(0, 0, 0, 0));
      }
    }
    fetch(row + kRing);
  }
  wait_for_stages<0>();
}

// What the number of blocks of a row depends on.
struct Slicing {
  int most_blocks = 1;             // of a cluster
  std::int64_t shared_alone = 0;   // bytes of dynamic shared memory of a block alone on its multiprocessor
  std::int64_t shared_beside = 0;  // where kBlocks share it

  Slicing() {
    int device = 0, block = 0, multiprocessor = 0;
    MEGALITH_CUDA_CHECK(cudaGetDevice(&device));
    MEGALITH_CUDA_CHECK(cudaDeviceGetAttribute(&block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    MEGALITH_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
    constexpr int kKept = 2048;  // by the runtime, and by the kernel for its sums
    shared_alone = (block - kKept) / 16 * 16;
    shared_beside = (multiprocessor / kBlocks - kKept) / 16 * 16;
    cudaFuncAttributes code{};
    MEGALITH_CUDA_CHECK(cudaFuncGetAttributes(&code, cross_entropy<float, false, 1>));
    if (has_clusters(code)) most_blocks = kMaxCluster;
  }
};

template <class T, bool kVector, int kRing>
void launch_rows(CudaStream& stream, const LossArguments& a, const Slicing& slicing) {
  const auto kernel = cross_entropy<T, kVector, kRing>;
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
  config.gridDim = dim3(blocks_for(ceil_divide(a.rows, a.rows_of_cluster) * a.cluster, 1));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(kRing * a.cached_packs) * 16;
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
                  .rows_of_cluster = 1,
                  .cluster = 1};
  if (rows == 0) return;
  const auto& slicing = stream.keep<Slicing>();
  const std::int64_t packs = ceil_divide(columns * static_cast<std::int64_t>(size_of(op.logits.dtype)), 16);
  const auto slice_bytes = [&] { return ceil_divide(packs, a.cluster) * 16; };
  const auto split = [&](std::int64_t most_bytes) {
    while (a.cluster < slicing.most_blocks && slice_bytes() > most_bytes) ++a.cluster;
    return slice_bytes() <= most_bytes;
  };
  const bool one = slice_bytes() <= slicing.shared_beside;
  const bool ahead = !one && split(slicing.shared_beside / 32 * 16);
  if (ahead) {  // at least so many clusters that none works much longer than the others
    a.rows_of_cluster = static_cast<int>(std::clamp<std::int64_t>(rows / 512, 1, kMostRows));
  }
  a.slice_packs = static_cast<int>(slice_bytes() / 16);
  a.cached_packs = static_cast<int>(std::min(slice_bytes(), slicing.shared_alone) / 16);
  visit_kernel(op.logits.dtype, rows_aligned(op.logits), [&](auto type, auto is_vector) {
    if (ahead) {
      launch_rows<decltype(type), is_vector(), 2>(stream, a, slicing);
    } else {
      launch_rows<decltype(type), is_vector(), 1>(stream, a, slicing);
    }
  });
}

}  // namespace megalith
