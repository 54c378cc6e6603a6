// Memory-bound, one pass. A group of threads, one to eight warps, owns a row of the result, and a thread has up to
// eight loads of 16 bytes in flight. What is read for a row, its entries in the tables, is read by each of its threads,
// from L1 but for the first. Deterministic: a thread sums its elements over the choices in their order.
#include "core/device/cuda/fault.cuh"
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/data_faults.h"
#include "core/ops/route_rows.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kLoads = 8;  // packs of a thread, in flight

// Which threads have which rows.
struct Groups {
  int shift = 5;  // 2^shift threads a row

  Groups(std::int64_t packs_of_row, std::int64_t packs_of_thread) {
    while (1 << shift < kThreads && (std::int64_t{1} << shift) * packs_of_thread < packs_of_row) ++shift;
  }
  Grid grid(std::int64_t rows) const { return {blocks_for(rows, kThreads >> shift), kThreads}; }
  __device__ std::int64_t row() const {
    return std::int64_t{blockIdx.x} * (kThreads >> shift) + static_cast<int>(threadIdx.x >> shift);
  }
  __device__ int size() const { return 1 << shift; }
  __device__ int lane() const { return static_cast<int>(threadIdx.x) & (size() - 1); }
};

// How many rows there are: all, or as many as the bound says.
struct LiveRows {
  std::int64_t capacity;
  const std::int32_t* bound;  // device; null: all

  explicit LiveRows(const Tensor& x) : capacity(x.size(0)), bound(x.bound) {}
  LiveRows(const Tensor& x, const Tensor& offsets)
      : capacity(x.size(0)), bound(offsets.as<const std::int32_t>() + offsets.numel() - 1) {}
  __device__ std::int64_t count() const {
    return bound == nullptr ? capacity : min(static_cast<std::int64_t>(*bound), capacity);
  }
};

struct Faults {
  CudaFault* fault;
  CudaFault::Raise raise = raise_bad_route;

  explicit Faults(CudaStream& stream) : fault(stream.fault()) {}
};

// Entries first .. first + kCount - 1 of a table as far as `count` goes; -1 for others, and for one that is out of
// range, which is reported.
template <int kCount>
__device__ inline void load_routes(std::int32_t (&route)[kCount], const std::int32_t* table, std::int64_t first,
                                   int count, std::int64_t low, std::int64_t limit, const Faults& faults) {
  int bad = -1;
#pragma unroll
  for (int j = 0; j < kCount; ++j) route[j] = j < count ? __ldg(table + first + j) : -1;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (j >= count || (route[j] >= low && route[j] < limit)) continue;
    bad = j;
    route[j] = -1;
  }
  if (bad >= 0) report_fault(faults.fault, faults.raise, first + bad, table[first + bad], low, limit);
}
__device__ inline std::int32_t load_route(const std::int32_t* table, std::int64_t i, std::int64_t low,
                                          std::int64_t limit, const Faults& faults) {
  std::int32_t route[1];
  load_routes(route, table, i, 1, low, limit, faults);
  return route[0];
}

int row_length(const Tensor& x) {
  require(x.size(1) < kMaxIndex / 2, "routed rows of more than 2^30 elements");
  return static_cast<int>(x.size(1));
}

std::int64_t packs_of(const Tensor& x) {
  return ceil_divide(x.size(1) * static_cast<std::int64_t>(size_of(x.dtype)), sizeof(uint4));
}

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads)
    permute_rows_kernel(const T* x, const std::int32_t* index, T* y, const LiveRows live, const Groups groups,
                        std::int64_t tokens, int columns, const Faults faults) {
  constexpr int kWidth = kPack<T>;
  const std::int64_t row = groups.row();
  if (row >= live.count()) return;
  const std::int32_t token = load_route(index, row, 0, tokens, faults);
  if (token < 0) return;
  const T* const from = x + std::int64_t{token} * columns;
  T* const to = y + row * columns;
  const int step = groups.size() * kWidth;
  for (int first = groups.lane() * kWidth; first < columns; first += kLoads * step) {
    uint4 raw[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) raw[u] = load_of_row<T, kVector>(from, first + u * step, columns);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) store_of_row<T, kVector>(to, first + u * step, columns, raw[u]);
  }
}

template <class T>
struct UnpermuteArguments {
  const T* x;
  const std::int32_t* position;
  T* y;
  LiveRows live;
  Groups groups;
  std::int64_t tokens;
  int choices, columns;
};

// kChoices: of which a thread has the rows at once, of kPacks packs.
template <int kChoices>
inline constexpr int kPacks = kChoices < kLoads ? 2 : 1;

// Three blocks a multiprocessor: told nothing, the compiler aims at more of them and loads one pack after the other.
template <class T, bool kVector, int kChoices>
__global__ void __launch_bounds__(kThreads, 3)
    unpermute_rows_kernel(const UnpermuteArguments<T> a, const Faults faults) {
  constexpr int kWidth = kPack<T>;
  const std::int64_t token = a.groups.row();
  if (token >= a.tokens) return;
  const std::int64_t rows = a.live.count(), slot = token * a.choices;
  std::int32_t row[kChoices];
  const auto find_rows = [&](int k) { load_routes(row, a.position, slot + k, a.choices - k, -1, rows, faults); };
  find_rows(0);
  T* const to = a.y + token * a.columns;
  const int step = a.groups.size() * kWidth;
  for (int first = a.groups.lane() * kWidth; first < a.columns; first += kPacks<kChoices> * step) {
    Floats<T> sum[kPacks<kChoices>];
    for (int k = 0;;) {
      uint4 raw[kPacks<kChoices>][kChoices];
#pragma unroll
      for (int u = 0; u < kPacks<kChoices>; ++u) {
#pragma unroll
        for (int j = 0; j < kChoices; ++j) {
          const T* const from = a.x + std::int64_t{row[j]} * a.columns;
          raw[u][j] = load_of_row<T, kVector>(from, first + u * step, row[j] >= 0 ? a.columns : 0);
        }
      }
#pragma unroll
      for (int j = 0; j < kChoices; ++j) {  // nothing is 0, which changes no sum that begins with 0
#pragma unroll
        for (int u = 0; u < kPacks<kChoices>; ++u) sum[u] += Floats<T>(raw[u][j]);
      }
      k += kChoices;
      if (k >= a.choices) break;
      find_rows(k);
    }
    if (a.choices > kChoices) find_rows(0);
#pragma unroll
    for (int u = 0; u < kPacks<kChoices>; ++u)
      store_of_row<T, kVector>(to, first + u * step, a.columns, sum[u].packed());
  }
}

template <int kChoices>
void unpermute(CudaStream& stream, const UnpermuteRows& op) {
  const Groups groups(packs_of(op.x), std::max(2, kPacks<kChoices>));
  const std::int64_t tokens = op.y.size(0);
  Variants(op.x.dtype, rows_aligned(op.x, op.y)).visit([&](auto type, auto is_vector) {
    using T = decltype(type);
    const UnpermuteArguments<T> a{.x = op.x.as<const T>(),
                                  .position = op.position.as<const std::int32_t>(),
                                  .y = op.y.as<T>(),
                                  .live = LiveRows(op.x),
                                  .groups = groups,
                                  .tokens = tokens,
                                  .choices = static_cast<int>(op.position.size(1)),
                                  .columns = row_length(op.x)};
    launch_kernel(stream, groups.grid(tokens), unpermute_rows_kernel<T, is_vector(), kChoices>, a, Faults(stream));
  });
}

// A thread has a choice.
__global__ void __launch_bounds__(kThreads)
    permute_weights_kernel(const float* weight, const std::int32_t* position, float* row_weight, const LiveRows live,
                           std::int64_t slots, const Faults faults) {
  const std::int64_t slot = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (slot >= slots) return;
  const std::int32_t row = load_route(position, slot, -1, live.count(), faults);
  if (row >= 0) row_weight[row] = weight[slot];
}

// A thread has a choice: its partial sums share a few sectors.
__global__ void __launch_bounds__(kThreads)
    unpermute_weight_gradients_kernel(const float* partial, const std::int32_t* position, float* d_weight,
                                      const LiveRows live, std::int64_t parts, std::int64_t slots,
                                      const Faults faults) {
  const std::int64_t slot = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (slot >= slots) return;
  const std::int32_t row = load_route(position, slot, -1, live.count(), faults);
  float sum = 0;
  if (row >= 0) {
    const float* const from = partial + row * parts;
#pragma unroll 8
    for (std::int64_t p = 0; p < parts; ++p) sum += __ldg(from + p);
  }
  d_weight[slot] = sum;
}

}  // namespace

void run(CudaStream& stream, const PermuteRows& op) {
  const Groups groups(packs_of(op.x), kLoads);
  const std::int64_t rows = op.index.numel();
  Variants(op.x.dtype, rows_aligned(op.x, op.y)).visit([&](auto type, auto is_vector) {
    using T = decltype(type);
    launch_kernel(stream, groups.grid(rows), permute_rows_kernel<T, is_vector()>, op.x.as<const T>(),
                  op.index.as<const std::int32_t>(), op.y.as<T>(), LiveRows(op.index, op.offsets), groups, op.x.size(0),
                  row_length(op.x), Faults(stream));
  });
}

void run(CudaStream& stream, const UnpermuteRows& op) {
  const std::int64_t choices = op.position.size(1);
  if (choices <= 1) return unpermute<1>(stream, op);
  if (choices <= 2) return unpermute<2>(stream, op);
  if (choices <= 4) return unpermute<4>(stream, op);
  unpermute<8>(stream, op);
}

void run(CudaStream& stream, const PermuteWeights& op) {
  const std::int64_t slots = op.weight.numel();
  launch_kernel(stream, {blocks_for(slots, kThreads), kThreads}, permute_weights_kernel, op.weight.as<const float>(),
                op.position.as<const std::int32_t>(), op.row_weight.as<float>(), LiveRows(op.row_weight), slots,
                Faults(stream));
}

void run(CudaStream& stream, const UnpermuteWeightGradients& op) {
  const std::int64_t slots = op.position.numel();
  launch_kernel(stream, {blocks_for(slots, kThreads), kThreads}, unpermute_weight_gradients_kernel,
                op.partial.as<const float>(), op.position.as<const std::int32_t>(), op.d_weight.as<float>(),
                LiveRows(op.partial), op.partial.size(1), slots, Faults(stream));
}

}  // namespace megalith
