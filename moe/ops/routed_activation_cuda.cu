// Memory-bound, one pass over each tensor. Deterministic: eight lanes own a block of 64 columns and add its terms in
// the documented order.
#include "core/ops/elementwise/pointwise.cuh"
#include "moe/ops/routed_activation.h"
#include "moe/ops/routed_arguments.cuh"
#include "moe/ops/routed_swiglu.cuh"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;

// s = round(f(x)).
template <class T, Pointwise kFunction>
__device__ inline float rounded_activation(float x) {
  return widen(narrow<T>(pointwise<T, kFunction>(x)));
}

// A thread owns one pack of x and y.
template <class T, bool kVector, Pointwise kFunction>
__global__ void __launch_bounds__(kThreads) routed_activation_forward_kernel(const RoutedArguments a) {
  const unsigned item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= a.items) return;
  unsigned pack_of_row;
  const unsigned row = a.row_parts.divide(item, pack_of_row);
  if (!a.is_live(row)) return;
  const int begin = static_cast<int>(pack_of_row) * kPack<T>;
  const float weight = a.row_weight[a.first + row];
  const Floats<T> x(load_of_row<T, kVector>(static_cast<const T*>(a.x) + a.at(row), begin, a.columns));
  const auto of_one = [weight](float v) { return routed_output(rounded_activation<T, kFunction>(v), weight); };
  store_of_row<T, kVector>(static_cast<T*>(a.y) + a.at(row), begin, a.columns, map(of_one, x).packed());
}

// A thread owns 8 columns, and eight lanes own a block of 64. dx may be x, and y may be dy, since a thread reads all of
// its elements before it writes.
template <class T, bool kVector, Pointwise kFunction>
__global__ void __launch_bounds__(kThreads) routed_activation_backward_kernel(const RoutedArguments a) {
  constexpr int kPacks = 8 / kPack<T>;
  const unsigned item = blockIdx.x * (kThreads / 8) + threadIdx.x / 8;
  if (item >= a.items) return;
  unsigned part;
  const unsigned row = a.row_parts.divide(item, part);
  if (!a.is_live(row)) return;
  const int begin = static_cast<int>(part) * kPartialColumns + static_cast<int>(threadIdx.x) % 8 * 8;
  const T *x = static_cast<const T*>(a.x) + a.at(row), *d_y = static_cast<const T*>(a.dy) + a.at(row);
  uint4 xs[kPacks], dys[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int first = begin + k * kPack<T>;
    xs[k] = load_of_row<T, kVector>(x, first, a.columns);
    dys[k] = load_of_row<T, kVector>(d_y, first, a.columns);
  }
  const float weight = a.row_weight[a.first + row];
  T *dx = static_cast<T*>(a.dx) + a.at(row), *y = static_cast<T*>(a.y) + a.at(row);
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    Floats<T> v(xs[k]), d(dys[k]);
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      const float s = rounded_activation<T, kFunction>(v[j]);
      sum = __fadd_rn(sum, __fmul_rn(d[j], s));
      v[j] = __fmul_rn(weight, d[j]) * pointwise_slope<T, kFunction>(v[j]);
      d[j] = routed_output(s, weight);
    }
    const int first = begin + k * kPack<T>;
    store_of_row<T, kVector>(dx, first, a.columns, v.packed());
    store_of_row<T, kVector>(y, first, a.columns, d.packed());
  }
  sum = sum_of_packs(sum);
  if (threadIdx.x % 8 == 0) a.partial[a.first * a.parts + item] = sum;
}

// Calls visit(std::integral_constant<Pointwise, ...>).
template <class Visit>
void visit_function(Pointwise function, Visit&& visit) {
  switch (function) {
    case Pointwise::kGeluTanh: return visit(std::integral_constant<Pointwise, Pointwise::kGeluTanh>());
    case Pointwise::kGeluExact: return visit(std::integral_constant<Pointwise, Pointwise::kGeluExact>());
    case Pointwise::kSquaredRelu: return visit(std::integral_constant<Pointwise, Pointwise::kSquaredRelu>());
  }
}

}  // namespace

void run(CudaStream& stream, const RoutedActivationForward& op) {
  const std::int64_t packs = ceil_divide(op.y.size(1) * static_cast<std::int64_t>(size_of(op.y.dtype)), 16);
  for_routed_rows(op, packs, [&](const RoutedArguments& arguments) {
    Variants(op.y.dtype, rows_aligned(op.x, op.y)).visit([&](auto type, auto is_vector) {
      visit_function(op.function, [&](auto function) {
        launch_kernel(stream, {blocks_for(arguments.items, kThreads), kThreads},
                      routed_activation_forward_kernel<decltype(type), is_vector(), function()>, arguments);
      });
    });
  });
}

void run(CudaStream& stream, const RoutedActivationBackward& op) {
  for_routed_rows(op, ceil_divide(op.y.size(1), kPartialColumns), [&](RoutedArguments arguments) {
    arguments.dy = op.dy.data;
    arguments.dx = op.dx.data;
    arguments.partial = op.d_row_weight_partial.as<float>();
    const bool vector = rows_aligned(op.x, op.dy, op.dx, op.y);
    Variants(op.y.dtype, vector).visit([&](auto type, auto is_vector) {
      visit_function(op.function, [&](auto function) {
        launch_kernel(stream, {blocks_for(arguments.items, kThreads / 8), kThreads},
                      routed_activation_backward_kernel<decltype(type), is_vector(), function()>, arguments);
      });
    });
  });
}

}  // namespace megalith
