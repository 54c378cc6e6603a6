// Memory-bound, one pass over each tensor. Deterministic: eight lanes own a block of 64 columns and add its terms in
// the documented order.
#include "moe/ops/grouped_gemm/grouped_gemm.h"
#include "moe/ops/routed_arguments.cuh"
#include "moe/ops/routed_swiglu.cuh"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;

// A thread owns one pack each of gate, up and y.
template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) routed_swiglu_forward_kernel(const RoutedArguments a) {
  const unsigned item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= a.items) return;
  unsigned pack_of_row;
  const unsigned row = a.row_parts.divide(item, pack_of_row);
  if (!a.is_live(row)) return;
  const int begin = static_cast<int>(pack_of_row) * kPack<T>;
  const T* gate = static_cast<const T*>(a.x) + a.at(row) * 2;
  const float weight = a.row_weight[a.first + row];
  const Floats<T> g(load_of_row<T, kVector>(gate, begin, a.columns));
  const Floats<T> u(load_of_row<T, kVector>(gate + a.columns, begin, a.columns));
  const auto of_one = [weight](float x, float up) { return routed_output(routed_activation<T>(x, up), weight); };
  store_of_row<T, kVector>(static_cast<T*>(a.y) + a.at(row), begin, a.columns, map(of_one, g, u).packed());
}

// A thread owns 8 columns, and eight lanes own a block of 64. dx may be x, and y may be dy, since a thread reads all of
// its elements before it writes.
template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) routed_swiglu_backward_kernel(const RoutedArguments a) {
  constexpr int kPacks = 8 / kPack<T>;
  const unsigned item = blockIdx.x * (kThreads / 8) + threadIdx.x / 8;
  if (item >= a.items) return;
  unsigned part;
  const unsigned row = a.row_parts.divide(item, part);
  if (!a.is_live(row)) return;
  const int begin = static_cast<int>(part) * kPartialColumns + static_cast<int>(threadIdx.x) % 8 * 8;
  const T *gate = static_cast<const T*>(a.x) + a.at(row) * 2, *d_y = static_cast<const T*>(a.dy) + a.at(row);
  uint4 gates[kPacks], ups[kPacks], dys[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int first = begin + k * kPack<T>;
    gates[k] = load_of_row<T, kVector>(gate, first, a.columns);
    ups[k] = load_of_row<T, kVector>(gate + a.columns, first, a.columns);
    dys[k] = load_of_row<T, kVector>(d_y, first, a.columns);
  }
  const float weight = a.row_weight[a.first + row];
  T *d_gate = static_cast<T*>(a.dx) + a.at(row) * 2, *y = static_cast<T*>(a.y) + a.at(row);
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    Floats<T> g(gates[k]), u(ups[k]), d(dys[k]);
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      const RoutedGradient gradient = routed_gradient<T>(g[j], u[j], d[j], weight, sum);
      g[j] = gradient.gate;
      u[j] = gradient.up;
      d[j] = gradient.y;
    }
    const int first = begin + k * kPack<T>;
    store_of_row<T, kVector>(d_gate, first, a.columns, g.packed());
    store_of_row<T, kVector>(d_gate + a.columns, first, a.columns, u.packed());
    store_of_row<T, kVector>(y, first, a.columns, d.packed());
  }
  sum = sum_of_packs(sum);
  if (threadIdx.x % 8 == 0) a.partial[a.first * a.parts + item] = sum;
}

}  // namespace

void run(CudaStream& stream, const RoutedSwigluForward& op) {
  const std::int64_t packs = ceil_divide(op.y.size(1) * static_cast<std::int64_t>(size_of(op.y.dtype)), 16);
  for_routed_rows(op, packs, [&](const RoutedArguments& arguments) {
    Variants(op.y.dtype, rows_aligned(op.x, op.y)).visit([&](auto type, auto is_vector) {
      launch_kernel(stream, {blocks_for(arguments.items, kThreads), kThreads},
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
      launch_kernel(stream, {blocks_for(arguments.items, kThreads / 8), kThreads},
                    routed_swiglu_backward_kernel<decltype(type), is_vector()>, arguments);
    });
  });
}

}  // namespace megalith
