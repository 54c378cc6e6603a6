// Memory-bound, one pass: a thread owns one or two packs of each tensor. Elementwise, so deterministic.
#include "core/ops/cuda_map.cuh"
#include "core/ops/cuda_math.cuh"
#include "core/ops/elementwise/activation.h"
#include "core/ops/elementwise/pointwise.cuh"

namespace megalith {

namespace {

using namespace cuda;

template <bool kExact>
inline constexpr Pointwise kGelu = kExact ? Pointwise::kGeluExact : Pointwise::kGeluTanh;

template <class T, bool kVector, bool kExact>
__global__ void __launch_bounds__(kMapThreads) gelu_forward_kernel(const T* x, T* y, std::int64_t count) {
  start_early();
  map_flat<T, kVector>([](float v) { return pointwise<T, kGelu<kExact>>(v); }, count, y, x);
}

template <class T, bool kVector, bool kExact>
__global__ void __launch_bounds__(kMapThreads)
    gelu_backward_kernel(const T* x, const T* dy, T* dx, std::int64_t count) {
  map_flat<T, kVector>([](float v, float d) { return d * pointwise_slope<T, kGelu<kExact>>(v); }, count, dx, x, dy);
}

template <class T, bool kVector>
__global__ void __launch_bounds__(kMapThreads) squared_relu_forward_kernel(const T* x, T* y, std::int64_t count) {
  start_early();
  map_flat<T, kVector>([](float v) { return pointwise<T, Pointwise::kSquaredRelu>(v); }, count, y, x);
}

template <class T, bool kVector>
__global__ void __launch_bounds__(kMapThreads)
    squared_relu_backward_kernel(const T* x, const T* dy, T* dx, std::int64_t count) {
  map_flat<T, kVector>([](float v, float d) { return d * pointwise_slope<T, Pointwise::kSquaredRelu>(v); }, count, dx,
                       x, dy);
}

struct GatedArguments {
  Rows x, dy, y, dx;  // y may be absent in the backward
  unsigned items;     // rows times packs of a row of y
  int columns;        // F
  FastDivide row_packs;
};

// A thread owns one pack of gate, of up and of y.
template <class T, bool kVector>
__global__ void __launch_bounds__(kMapThreads) swiglu_forward_kernel(const GatedArguments a) {
  start_early();
  const unsigned item = blockIdx.x * kMapThreads + threadIdx.x;
  if (item >= a.items) return;
  unsigned pack_of_row;
  const unsigned row = a.row_packs.divide(item, pack_of_row);
  const int first = static_cast<int>(pack_of_row) * kPack<T>;
  const T* gate = a.x.at<const T>(row);
  const Floats<T> g(load_of_row<T, kVector>(gate, first, a.columns));
  const Floats<T> u(load_of_row<T, kVector>(gate + a.columns, first, a.columns));
  store_of_row<T, kVector>(a.y.at<T>(row), first, a.columns, map(gated<T>, g, u).packed());
}

// A thread owns one pack of dy, of the two halves of x and dx, and of y if present.
template <class T, bool kVector>
__global__ void __launch_bounds__(kMapThreads) swiglu_backward_kernel(const GatedArguments a) {
  const unsigned item = blockIdx.x * kMapThreads + threadIdx.x;
  if (item >= a.items) return;
  unsigned pack_of_row;
  const unsigned row = a.row_packs.divide(item, pack_of_row);
  const int first = static_cast<int>(pack_of_row) * kPack<T>;
  const T* gate = a.x.at<const T>(row);
  Floats<T> g(load_of_row<T, kVector>(gate, first, a.columns));
  Floats<T> u(load_of_row<T, kVector>(gate + a.columns, first, a.columns));
  const Floats<T> d(load_of_row<T, kVector>(a.dy.at<const T>(row), first, a.columns));
  if (a.y.data != nullptr) store_of_row<T, kVector>(a.y.at<T>(row), first, a.columns, map(gated<T>, g, u).packed());
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) {
    const GatedGradient gradient = gated_gradient<T>(g[j], u[j], d[j]);
    g[j] = gradient.gate;
    u[j] = gradient.up;
  }
  T* d_gate = a.dx.at<T>(row);
  store_of_row<T, kVector>(d_gate, first, a.columns, g.packed());
  store_of_row<T, kVector>(d_gate + a.columns, first, a.columns, u.packed());
}

// Calls launch(arguments, grid) for pieces of the rows of `narrow`, which has y's layout.
template <class Launch>
void for_gated_rows(const Tensor& narrow, Launch&& launch) {
  require(narrow.size(1) < kMaxIndex / 2, "SwiGLU: more than 2^30 columns");
  const std::int64_t row_packs = ceil_divide(narrow.size(1) * static_cast<std::int64_t>(size_of(narrow.dtype)), 16);
  for_pieces(narrow.size(0), row_packs, [&](std::int64_t first, std::int64_t rows) {
    const auto part = [&](const Tensor& x) { return Rows(x ? x.slice(0, first, rows) : x); };
    GatedArguments a{.items = static_cast<unsigned>(rows * row_packs),
                     .columns = static_cast<int>(narrow.size(1)),
                     .row_packs = FastDivide(std::max<std::int64_t>(1, row_packs))};
    launch(a, part, Grid{blocks_for(a.items, kMapThreads), kMapThreads});
  });
}

}  // namespace

void run(CudaStream& stream, const GeluForward& op) {
  Variants(op.x.dtype, starts_aligned(op.x, op.y), op.exact).visit([&](auto type, auto is_vector, auto exact) {
    using T = decltype(type);
    launch_early(stream, map_grid<T>(op.x.numel()), gelu_forward_kernel<T, is_vector(), exact()>, op.x.as<const T>(),
                 op.y.as<T>(), op.x.numel());
  });
}

void run(CudaStream& stream, const GeluBackward& op) {
  const bool vector = starts_aligned(op.x, op.dy, op.dx);
  Variants(op.x.dtype, vector, op.exact).visit([&](auto type, auto is_vector, auto exact) {
    using T = decltype(type);
    launch_kernel(stream, map_grid<T>(op.x.numel()), gelu_backward_kernel<T, is_vector(), exact()>, op.x.as<const T>(),
                  op.dy.as<const T>(), op.dx.as<T>(), op.x.numel());
  });
}

void run(CudaStream& stream, const SquaredReluForward& op) {
  Variants(op.x.dtype, starts_aligned(op.x, op.y)).visit([&](auto type, auto is_vector) {
    using T = decltype(type);
    launch_early(stream, map_grid<T>(op.x.numel()), squared_relu_forward_kernel<T, is_vector()>, op.x.as<const T>(),
                 op.y.as<T>(), op.x.numel());
  });
}

void run(CudaStream& stream, const SquaredReluBackward& op) {
  Variants(op.x.dtype, starts_aligned(op.x, op.dy, op.dx)).visit([&](auto type, auto is_vector) {
    using T = decltype(type);
    launch_kernel(stream, map_grid<T>(op.x.numel()), squared_relu_backward_kernel<T, is_vector()>, op.x.as<const T>(),
                  op.dy.as<const T>(), op.dx.as<T>(), op.x.numel());
  });
}

void run(CudaStream& stream, const SwigluForward& op) {
  for_gated_rows(op.y, [&](GatedArguments a, const auto& part, const Grid& grid) {
    a.x = part(op.x), a.y = part(op.y);
    Variants(op.y.dtype, rows_aligned(op.x, op.y)).visit([&](auto type, auto is_vector) {
      launch_early(stream, grid, swiglu_forward_kernel<decltype(type), is_vector()>, a);
    });
  });
}

void run(CudaStream& stream, const SwigluBackward& op) {
  for_gated_rows(op.dy, [&](GatedArguments a, const auto& part, const Grid& grid) {
    a.x = part(op.x), a.dy = part(op.dy), a.y = part(op.y), a.dx = part(op.dx);
    Variants(op.dy.dtype, rows_aligned(op.x, op.dy, op.y, op.dx)).visit([&](auto type, auto is_vector) {
      launch_kernel(stream, grid, swiglu_backward_kernel<decltype(type), is_vector()>, a);
    });
  });
}

}  // namespace megalith
