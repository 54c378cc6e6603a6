// Memory-bound, one pass. A group of one to eight warps owns a row of the result. A thread has up to eight 16-byte
// loads in flight. All threads of a row read its table entries, from L1 after the first read. Deterministic: a thread
// sums its elements over the choices, in order.
#include "moe/ops/cuda_routes.cuh"
#include "moe/ops/route_rows.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = kRouteThreads;
constexpr int kLoads = 8;  // packs in flight per thread

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads)
    permute_rows_kernel(const T* x, const std::int32_t* index, T* y, const LiveRows live, const RowThreads threads,
                        std::int64_t tokens, int columns, const Faults faults) {
  constexpr int kWidth = kPack<T>;
  const std::int64_t row = threads.row();
  if (row >= live.count()) return;
  const std::int32_t token = load_route(index, row, 0, tokens, faults);
  if (token < 0) return;
  const T* const from = x + std::int64_t{token} * columns;
  T* const to = y + row * columns;
  const int step = threads.size() * kWidth;
  for (int first = threads.lane() * kWidth; first < columns; first += kLoads * step) {
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
  LiveRows live, tokens;
  RowThreads threads;
  int choices;  // per token, each part of a row counted
  int columns;  // per part
  int position_choices, row_parts;
  FastDivide parts;
};

// load_routes for rows of several parts: loads `count` part indices of a token, from its index `first` on.
template <class T, int kCount>
__device__ inline void load_parts(std::int32_t (&part)[kCount], const UnpermuteArguments<T>& a, std::int64_t token,
                                  int first, int count, std::int64_t rows, const Faults& faults) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    part[j] = -1;
    if (j >= count) continue;
    unsigned s = 0;
    const unsigned k = a.parts.divide(static_cast<unsigned>(first + j), s);
    const std::int32_t row = load_route(a.position, token * a.position_choices + k, -1, rows, faults);
    if (row >= 0) part[j] = row * a.row_parts + static_cast<int>(s);
  }
}

// kChoices: rows that a thread loads at once, kPacks packs of each.
template <int kChoices>
inline constexpr int kPacks = kChoices < kLoads ? 2 : 1;

// Three blocks per multiprocessor. Without this limit, the compiler targets more blocks and loads packs serially.
template <class T, bool kVector, int kChoices, bool kParts>
__global__ void __launch_bounds__(kThreads, 3)
    unpermute_rows_kernel(const UnpermuteArguments<T> a, const Faults faults) {
  constexpr int kWidth = kPack<T>;
  const std::int64_t token = a.threads.row();
  if (token >= a.tokens.count()) return;
  const std::int64_t rows = a.live.count();
  std::int32_t row[kChoices];
  const auto find_rows = [&](int k) {
    if constexpr (kParts) {
      load_parts(row, a, token, k, a.choices - k, rows, faults);
    } else {
      load_routes(row, a.position, token * a.choices + k, a.choices - k, -1, rows, faults);
    }
  };
  find_rows(0);
  T* const to = a.y + token * a.columns;
  const int step = a.threads.size() * kWidth;
  for (int first = a.threads.lane() * kWidth; first < a.columns; first += kPacks<kChoices> * step) {
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
      for (int j = 0; j < kChoices; ++j) {  // absent rows load 0, which does not change a sum
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

// Parts of a row of x; one if rows are empty.
std::int64_t parts_of(const UnpermuteRows& op) { return op.y.size(1) > 0 ? op.x.size(1) / op.y.size(1) : 1; }

template <int kChoices>
void unpermute(CudaStream& stream, const UnpermuteRows& op) {
  const RowThreads threads(packs_of(op.y), std::max(2, kPacks<kChoices>));
  const std::int64_t parts = parts_of(op), choices = op.position.size(1);
  require(op.x.size(0) < kMaxIndex / parts && choices < kMaxIndex / parts, "more than 2^31 parts of routed rows");
  Variants(op.x.dtype, rows_aligned(op.x, op.y), parts > 1).visit([&](auto type, auto is_vector, auto has_parts) {
    using T = decltype(type);
    const UnpermuteArguments<T> a{.x = op.x.as<const T>(),
                                  .position = op.position.as<const std::int32_t>(),
                                  .y = op.y.as<T>(),
                                  .live = LiveRows(op.x),
                                  .tokens = LiveRows(op.position),
                                  .threads = threads,
                                  .choices = static_cast<int>(choices * parts),
                                  .columns = row_length(op.y),
                                  .position_choices = static_cast<int>(choices),
                                  .row_parts = static_cast<int>(parts),
                                  .parts = FastDivide(parts)};
    launch_kernel(stream, threads.grid(op.y.size(0)), unpermute_rows_kernel<T, is_vector(), kChoices, has_parts()>, a,
                  Faults(stream));
  });
}

// A thread owns a choice.
__global__ void __launch_bounds__(kThreads)
    permute_weights_kernel(const float* weight, const std::int32_t* position, float* row_weight, const LiveRows live,
                           const LiveRows tokens, int choices, const Faults faults) {
  const std::int64_t slot = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (slot >= tokens.count() * choices) return;
  const std::int32_t row = load_route(position, slot, -1, live.count(), faults);
  if (row >= 0) row_weight[row] = weight[slot];
}

// A thread owns a choice; its partial sums are in few sectors.
__global__ void __launch_bounds__(kThreads)
    unpermute_weight_gradients_kernel(const float* partial, const std::int32_t* position, float* d_weight,
                                      const LiveRows live, const LiveRows tokens, int choices, std::int64_t parts,
                                      const Faults faults) {
  const std::int64_t slot = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (slot >= tokens.count() * choices) return;
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
  const RowThreads threads(packs_of(op.x), kLoads);
  const std::int64_t rows = op.index.numel();
  Variants(op.x.dtype, rows_aligned(op.x, op.y)).visit([&](auto type, auto is_vector) {
    using T = decltype(type);
    launch_kernel(stream, threads.grid(rows), permute_rows_kernel<T, is_vector()>, op.x.as<const T>(),
                  op.index.as<const std::int32_t>(), op.y.as<T>(), LiveRows(op.index, op.offsets), threads,
                  op.x.size(0), row_length(op.x), Faults(stream));
  });
}

void run(CudaStream& stream, const UnpermuteRows& op) {
  const std::int64_t choices = op.position.size(1) * parts_of(op);
  if (choices <= 1) return unpermute<1>(stream, op);
  if (choices <= 2) return unpermute<2>(stream, op);
  if (choices <= 4) return unpermute<4>(stream, op);
  unpermute<8>(stream, op);
}

void run(CudaStream& stream, const PermuteWeights& op) {
  const std::int64_t slots = op.weight.numel();
  launch_kernel(stream, {blocks_for(slots, kThreads), kThreads}, permute_weights_kernel, op.weight.as<const float>(),
                op.position.as<const std::int32_t>(), op.row_weight.as<float>(), LiveRows(op.row_weight),
                LiveRows(op.position), static_cast<int>(op.position.size(1)), Faults(stream));
}

void run(CudaStream& stream, const UnpermuteWeightGradients& op) {
  const std::int64_t slots = op.position.numel();
  launch_kernel(stream, {blocks_for(slots, kThreads), kThreads}, unpermute_weight_gradients_kernel,
                op.partial.as<const float>(), op.position.as<const std::int32_t>(), op.d_weight.as<float>(),
                LiveRows(op.partial), LiveRows(op.position), static_cast<int>(op.position.size(1)), op.partial.size(1),
                Faults(stream));
}

}  // namespace megalith
