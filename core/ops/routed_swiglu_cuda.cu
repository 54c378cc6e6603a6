// Memory-bound, one pass over each tensor. Deterministic: a warp owns whole blocks of 128 columns, whose terms it adds
// in the stated order.
#include "core/ops/cuda_experts.cuh"
#include "core/ops/cuda_launch.cuh"
#include "core/ops/grouped_gemm.h"
#include "core/ops/routed_swiglu.cuh"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kForwardThreads = 256;
constexpr int kBackwardThreads = 128;
constexpr int kRounds = 4;  // packs of each tensor that a thread of the backward has in flight

template <class T>
constexpr int kLanesOfBlock = kPartialColumns / kPack<T>;
template <class T>
constexpr int kBlocksOfWarp = kRounds * 32 / kLanesOfBlock<T>;

// Of rows from `first` on.
struct RoutedArguments {
  RoutedExperts offsets;
  std::int64_t first;
  unsigned items;      // of these rows
  int columns, parts;  // F; items of a row: packs, or blocks of 128 columns
  FastDivide row_parts;
  const void *x, *dy;
  void *dx, *y;
  const float* row_weight;
  float* partial;

  __device__ bool is_live(unsigned row) const { return first + row < offsets.live(); }
  template <class T>
  __device__ const T* gate(unsigned row) const {
    return static_cast<const T*>(x) + (first + row) * 2 * columns;
  }
  __device__ std::int64_t at(unsigned row) const { return (first + row) * columns; }
};

// A thread owns one pack of gate, of up and of y.
template <class T, bool kVector>
__global__ void __launch_bounds__(kForwardThreads) routed_swiglu_forward_kernel(const RoutedArguments a) {
  const unsigned item = blockIdx.x * kForwardThreads + threadIdx.x;
  if (item >= a.items) return;
  unsigned pack_of_row;
  const unsigned row = a.row_parts.divide(item, pack_of_row);
  if (!a.is_live(row)) return;
  const int begin = static_cast<int>(pack_of_row) * kPack<T>;
  const T* gate = a.gate<T>(row);
  const float weight = a.row_weight[a.first + row];
  const Floats<T> g(load_of_row<T, kVector>(gate, begin, a.columns));
  const Floats<T> u(load_of_row<T, kVector>(gate + a.columns, begin, a.columns));
  const auto of_one = [weight](float x, float up) { return routed_output(routed_activation<T>(x, up), weight); };
  store_of_row<T, kVector>(static_cast<T*>(a.y) + a.at(row), begin, a.columns, map(of_one, g, u).packed());
}

// A warp owns kBlocks neighbouring blocks of 128 columns; they may be of several rows. The terms of the row weights'
// gradients go through shared memory to the four lanes that add those of a block. dx may be x, and y dy: a thread reads
// all that it owns before it writes.
template <class T, bool kVector>
__global__ void __launch_bounds__(kBackwardThreads) routed_swiglu_backward_kernel(const RoutedArguments a) {
  constexpr int kLanes = kLanesOfBlock<T>, kAtOnce = 32 / kLanes, kBlocks = kBlocksOfWarp<T>;
  static_assert(kBlocks * 4 <= 32);
  // The row's end keeps the sums of a warp's blocks in other banks.
  __shared__ alignas(16) float terms[kBackwardThreads / 32][kBlocks][kPartialColumns + 8];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned first_block = (blockIdx.x * (kBackwardThreads / 32) + static_cast<unsigned>(warp)) * kBlocks;
  const std::int64_t live = a.offsets.live() - a.first;
  // The row of a block, or none.
  const auto find_row = [&](unsigned block, unsigned& row, unsigned& part) {
    const bool inside = block < a.items;
    row = a.row_parts.divide(inside ? block : 0, part);
    return inside && row < live;
  };

  uint4 gate[kRounds], up[kRounds], dy[kRounds];
  unsigned row[kRounds];
  int begin[kRounds], length[kRounds];
#pragma unroll
  for (int k = 0; k < kRounds; ++k) {
    unsigned part;
    const bool is_live = find_row(first_block + static_cast<unsigned>(k * kAtOnce + lane / kLanes), row[k], part);
    begin[k] = static_cast<int>(part) * kPartialColumns + lane % kLanes * kPack<T>;
    length[k] = is_live ? a.columns : 0;
    const T* from = a.gate<T>(row[k]);
    gate[k] = load_of_row<T, kVector>(from, begin[k], length[k]);
    up[k] = load_of_row<T, kVector>(from + a.columns, begin[k], length[k]);
    dy[k] = load_of_row<T, kVector>(static_cast<const T*>(a.dy) + a.at(row[k]), begin[k], length[k]);
  }
#pragma unroll
  for (int k = 0; k < kRounds; ++k) {
    const float weight = length[k] > 0 ? a.row_weight[a.first + row[k]] : 0.0f;
    Floats<T> g(gate[k]), u(up[k]), y;
    const Floats<T> d(dy[k]);
    float* to = &terms[warp][k * kAtOnce + lane / kLanes][lane % kLanes * kPack<T>];
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      const float s = routed_activation<T>(g[j], u[j]);
      const GatedGradient gradient = routed_gradient<T>(g[j], u[j], d[j], weight);
      to[j] = weight_term(d[j], s);
      y[j] = routed_output(s, weight);
      g[j] = gradient.gate;
      u[j] = gradient.up;
    }
    T* d_gate = static_cast<T*>(a.dx) + a.at(row[k]) * 2;
    store_of_row<T, kVector>(d_gate, begin[k], length[k], g.packed());
    store_of_row<T, kVector>(d_gate + a.columns, begin[k], length[k], u.packed());
    store_of_row<T, kVector>(static_cast<T*>(a.y) + a.at(row[k]), begin[k], length[k], y.packed());
  }
  __syncwarp();

  float sum = 0;
  if (lane / 4 < kBlocks) {
    const float* from = &terms[warp][lane / 4][lane % 4 * 2];
#pragma unroll
    for (int c = 0; c < kPartialColumns; c += 8) sum = __fadd_rn(__fadd_rn(sum, from[c]), from[c + 1]);
  }
  sum = sum_of_quad(sum);
  const unsigned block = first_block + static_cast<unsigned>(lane) / 4;
  unsigned row_of_sum, part;
  const bool is_sum = lane % 4 == 0 && lane / 4 < kBlocks && find_row(block, row_of_sum, part);
  if (is_sum) a.partial[a.first * a.parts + block] = sum;
}

// Calls launch(arguments) for pieces of the rows, each of `parts` items.
template <class Op, class Launch>
void for_routed_rows(const Op& op, std::int64_t parts, Launch&& launch) {
  const std::int64_t rows = op.y.size(0), columns = op.y.size(1), experts = op.offsets.size(0) - 1;
  require(columns < kMaxIndex / 2, "the routed SwiGLU: more than 2^30 columns");
  require(rows < kMaxIndex && experts < kMaxIndex, "the routed SwiGLU: more than 2^31 rows");
  for_pieces(rows, parts, [&](std::int64_t first, std::int64_t count) {
    launch(RoutedArguments{
        .offsets = {op.offsets.template as<const std::int32_t>(), static_cast<int>(experts), static_cast<int>(rows)},
        .first = first,
        .items = static_cast<unsigned>(count * parts),
        .columns = static_cast<int>(columns),
        .parts = static_cast<int>(parts),
        .row_parts = FastDivide(std::max<std::int64_t>(1, parts)),
        .x = op.x.data,
        .y = op.y.data,
        .row_weight = op.row_weight.template as<const float>()});
  });
}

}  // namespace

void run(CudaStream& stream, const RoutedSwigluForward& op) {
  const std::int64_t packs = ceil_divide(op.y.size(1) * static_cast<std::int64_t>(size_of(op.y.dtype)), 16);
  for_routed_rows(op, packs, [&](const RoutedArguments& arguments) {
    Variants(op.y.dtype, rows_aligned(op.x, op.y)).visit([&](auto type, auto is_vector) {
      launch_kernel(stream, {blocks_for(arguments.items, kForwardThreads), kForwardThreads},
                    routed_swiglu_forward_kernel<decltype(type), is_vector()>, arguments);
    });
  });
}

void run(CudaStream& stream, const RoutedSwigluBackward& op) {
  for_routed_rows(op, ceil_divide(op.y.size(1), kPartialColumns), [&](RoutedArguments arguments) {
    arguments.dy = op.dy.data;
    arguments.dx = op.dx.data;
    arguments.partial = op.d_row_weight_partial.as<float>();
    const bool vector = rows_aligned(op.x, op.dy, op.dx, op.y);
    Variants(op.y.dtype, vector).visit([&](auto type, auto is_vector) {
      using T = decltype(type);
      const Grid grid{blocks_for(arguments.items, kBlocksOfWarp<T> * kBackwardThreads / 32), kBackwardThreads};
      launch_kernel(stream, grid, routed_swiglu_backward_kernel<T, is_vector()>, arguments);
    });
  });
}

}  // namespace megalith
