// Memory-bound, one pass: a thread owns one or two packs of sixteen bytes of each tensor. Elementwise, so
// deterministic.
#include "core/ops/activation.h"
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_math.cuh"
#include "core/ops/cuda_pack.cuh"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr float kTwoSqrtTwoOverPi = 1.59576912f;

// s = 1 / (1 + exp(-x)), and 1 - s without cancellation.
struct Logistic {
  float value, complement;
};

template <class T>
__device__ inline Logistic logistic_pair(float x) {
  const float e = exponential<T>(-fabsf(x));
  const float larger = quotient<T>(1.0f, 1.0f + e);
  const float smaller = e * larger;
  return x >= 0 ? Logistic{larger, smaller} : Logistic{smaller, larger};
}

// gelu(x) = x cdf(x). In the tanh form cdf(x) = 0.5 (1 + tanh(u)) = logistic(2u): one exponential, and no cancellation
// in the lower tail. From |x| = 100 on the result no longer depends on the cubic term, which could overflow.
struct GeluArgument {
  float x2, z;  // x^2 and 2u
};

__device__ inline GeluArgument gelu_argument(float x) {
  const float x2 = fminf(x * x, 1e4f);
  return {x2, x * fmaf(x2, kTwoSqrtTwoOverPi * 0.044715f, kTwoSqrtTwoOverPi)};
}

__device__ inline float normal_below(float x) { return 0.5f * erfcf(x * -0.707106781f); }

template <class T, bool kExact>
__device__ inline float gelu(float x) {
  if constexpr (kExact) return x * normal_below(x);
  return quotient<T>(x, 1.0f + exponential<T>(-gelu_argument(x).z));
}

template <class T, bool kExact>
__device__ inline float gelu_slope(float x) {
  if constexpr (kExact) return fmaf(x, 0.398942280f * exponential<T>(-0.5f * x * x), normal_below(x));
  const GeluArgument argument = gelu_argument(x);
  const Logistic s = logistic_pair<T>(argument.z);
  const float z_slope = fmaf(argument.x2, 3 * kTwoSqrtTwoOverPi * 0.044715f, kTwoSqrtTwoOverPi);
  return fmaf(x, s.value * s.complement * z_slope, s.value);
}

// A block owns 2 * kThreads neighbouring packs.
template <class T, bool kVector, bool kExact>
__global__ void __launch_bounds__(kThreads) gelu_forward(const T* x, T* y, std::int64_t count) {
  constexpr int kWidth = kPack<T>;
  const std::int64_t first = (std::int64_t{blockIdx.x} * 2 * kThreads + threadIdx.x) * kWidth;
  uint4 raw[2];
#pragma unroll
  for (int u = 0; u < 2; ++u) raw[u] = load_flat<T, kVector>(x, first + u * kThreads * kWidth, count);
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    float v[kWidth];
    unpack<T>(raw[u], v);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) v[j] = gelu<T, kExact>(v[j]);
    store_flat<T, kVector>(y, first + u * kThreads * kWidth, count, pack<T>(v));
  }
}

// A block owns 2 * kThreads neighbouring packs.
template <class T, bool kVector, bool kExact>
__global__ void __launch_bounds__(kThreads) gelu_backward(const T* x, const T* dy, T* dx, std::int64_t count) {
  constexpr int kWidth = kPack<T>;
  const std::int64_t first = (std::int64_t{blockIdx.x} * 2 * kThreads + threadIdx.x) * kWidth;
  uint4 raw[2], gradient[2];
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    raw[u] = load_flat<T, kVector>(x, first + u * kThreads * kWidth, count);
    gradient[u] = load_flat<T, kVector>(dy, first + u * kThreads * kWidth, count);
  }
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    float v[kWidth], d[kWidth];
    unpack<T>(raw[u], v);
    unpack<T>(gradient[u], d);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) v[j] = d[j] * gelu_slope<T, kExact>(v[j]);
    store_flat<T, kVector>(dx, first + u * kThreads * kWidth, count, pack<T>(v));
  }
}

struct GatedArguments {
  const void *x, *dy;
  void *y, *dx;  // y may be null in the backward
  std::int64_t x_stride, dy_stride, y_stride, dx_stride;
  unsigned items;  // rows times packs of a row of y
  int columns;     // F
  FastDivide row_packs;
};

// silu(gate) * up.
template <class T>
__device__ inline float gated(float gate, float up) {
  return up * quotient<T>(gate, 1.0f + exponential<T>(-gate));
}

// A thread owns one pack of gate, of up and of y.
template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) swiglu_forward(const GatedArguments a) {
  constexpr int kWidth = kPack<T>;
  const unsigned item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= a.items) return;
  unsigned pack_of_row;
  const unsigned row = a.row_packs.divide(item, pack_of_row);
  const int first = static_cast<int>(pack_of_row) * kWidth;
  const T* gate = static_cast<const T*>(a.x) + row * a.x_stride;
  const uint4 raw_gate = load_of_row<T, kVector>(gate, first, a.columns);
  const uint4 raw_up = load_of_row<T, kVector>(gate + a.columns, first, a.columns);
  float g[kWidth], u[kWidth];
  unpack<T>(raw_gate, g);
  unpack<T>(raw_up, u);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) u[j] = gated<T>(g[j], u[j]);
  store_of_row<T, kVector>(static_cast<T*>(a.y) + row * a.y_stride, first, a.columns, pack<T>(u));
}

// A thread owns one pack of dy, of the two halves of x and dx, and of y where that is asked for. d silu(g) / dg = s (1
// + g (1 - s)), s = logistic(g).
template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) swiglu_backward(const GatedArguments a) {
  constexpr int kWidth = kPack<T>;
  const unsigned item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= a.items) return;
  unsigned pack_of_row;
  const unsigned row = a.row_packs.divide(item, pack_of_row);
  const int first = static_cast<int>(pack_of_row) * kWidth;
  const T* gate = static_cast<const T*>(a.x) + row * a.x_stride;
  const uint4 raw_gate = load_of_row<T, kVector>(gate, first, a.columns);
  const uint4 raw_up = load_of_row<T, kVector>(gate + a.columns, first, a.columns);
  const uint4 raw_dy = load_of_row<T, kVector>(static_cast<const T*>(a.dy) + row * a.dy_stride, first, a.columns);
  float g[kWidth], u[kWidth], d[kWidth];
  unpack<T>(raw_gate, g);
  unpack<T>(raw_up, u);
  unpack<T>(raw_dy, d);
  if (a.y != nullptr) {
    float y[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) y[j] = gated<T>(g[j], u[j]);
    store_of_row<T, kVector>(static_cast<T*>(a.y) + row * a.y_stride, first, a.columns, pack<T>(y));
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const Logistic s = logistic_pair<T>(g[j]);
    const float slope = s.value * fmaf(g[j], s.complement, 1.0f);
    const float silu = g[j] * s.value;
    g[j] = d[j] * (u[j] * slope);
    u[j] = d[j] * silu;
  }
  T* d_gate = static_cast<T*>(a.dx) + row * a.dx_stride;
  store_of_row<T, kVector>(d_gate, first, a.columns, pack<T>(g));
  store_of_row<T, kVector>(d_gate + a.columns, first, a.columns, pack<T>(u));
}

// Calls launch(type, is_vector, arguments, blocks) for pieces of the rows small enough for 32-bit item numbers.
template <class Launch>
void for_gated_rows(const Tensor& narrow, bool vector, GatedArguments a, Launch&& launch) {
  const std::int64_t rows = narrow.size(0), size = static_cast<std::int64_t>(size_of(narrow.dtype));
  const std::int64_t row_packs = std::max<std::int64_t>(1, ceil_divide(narrow.size(1) * size, 16));
  require(row_packs < kMaxIndex / 16, "SwiGLU: rows of more than 2 GiB");
  a.columns = static_cast<int>(narrow.size(1));
  a.row_packs = FastDivide(row_packs);
  const std::int64_t most = (kMaxIndex - 1) / row_packs;
  const auto advance = [size](auto*& p, std::int64_t elements) {
    if (p != nullptr)
      p = reinterpret_cast<std::remove_reference_t<decltype(p)>>(reinterpret_cast<std::uintptr_t>(p) + elements * size);
  };
  for (std::int64_t row = 0; row < std::max<std::int64_t>(rows, 1); row += most) {
    const std::int64_t piece = std::min(most, rows - row);
    a.items = static_cast<unsigned>(narrow.size(1) == 0 ? 0 : piece * row_packs);
    visit_kernel(narrow.dtype, vector,
                 [&](auto type, auto is_vector) { launch(type, is_vector, a, blocks_for(a.items, kThreads)); });
    MEGALITH_CUDA_CHECK(cudaGetLastError());
    advance(a.x, piece * a.x_stride);
    advance(a.dy, piece * a.dy_stride);
    advance(a.y, piece * a.y_stride);
    advance(a.dx, piece * a.dx_stride);
  }
}

template <class Launch>
void visit_gelu(const Tensor& x, bool vector, bool exact, Launch&& launch) {
  visit_kernel(x.dtype, vector, [&](auto type, auto is_vector) {
    const unsigned blocks = blocks_for(x.numel(), 2 * kThreads * kPack<decltype(type)>);
    if (exact) {
      launch(type, is_vector, std::true_type{}, blocks);
    } else {
      launch(type, is_vector, std::false_type{}, blocks);
    }
  });
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void run(CudaStream& stream, const GeluForward& op) {
  const bool vector = starts_aligned(op.x.data) && starts_aligned(op.y.data);
  visit_gelu(op.x, vector, op.exact, [&](auto type, auto is_vector, auto exact, unsigned blocks) {
    using T = decltype(type);
    gelu_forward<T, is_vector(), exact()>
        <<<blocks, kThreads, 0, stream.handle()>>>(op.x.as<const T>(), op.y.as<T>(), op.x.numel());
  });
}

void run(CudaStream& stream, const GeluBackward& op) {
  const bool vector = starts_aligned(op.x.data) && starts_aligned(op.dy.data) && starts_aligned(op.dx.data);
  visit_gelu(op.x, vector, op.exact, [&](auto type, auto is_vector, auto exact, unsigned blocks) {
    using T = decltype(type);
    gelu_backward<T, is_vector(), exact()><<<blocks, kThreads, 0, stream.handle()>>>(
        op.x.as<const T>(), op.dy.as<const T>(), op.dx.as<T>(), op.x.numel());
  });
}

void run(CudaStream& stream, const SwigluForward& op) {
  const GatedArguments a{.x = op.x.data, .y = op.y.data, .x_stride = op.x.stride(0), .y_stride = op.y.stride(0)};
  for_gated_rows(op.y, rows_aligned(op.x) && rows_aligned(op.y), a,
                 [&](auto type, auto is_vector, const GatedArguments& piece, unsigned blocks) {
                   swiglu_forward<decltype(type), is_vector()><<<blocks, kThreads, 0, stream.handle()>>>(piece);
                 });
}

void run(CudaStream& stream, const SwigluBackward& op) {
  const GatedArguments a{.x = op.x.data,
                         .dy = op.dy.data,
                         .y = op.y.data,
                         .dx = op.dx.data,
                         .x_stride = op.x.stride(0),
                         .dy_stride = op.dy.stride(0),
                         .y_stride = op.y ? op.y.stride(0) : 0,
                         .dx_stride = op.dx.stride(0)};
  for_gated_rows(op.dy, rows_aligned(op.x) && rows_aligned(op.dy) && rows_aligned(op.y) && rows_aligned(op.dx), a,
                 [&](auto type, auto is_vector, const GatedArguments& piece, unsigned blocks) {
                   swiglu_backward<decltype(type), is_vector()><<<blocks, kThreads, 0, stream.handle()>>>(piece);
                 });
}

}  // namespace megalith
