// Memory-bound, one pass. A thread owns an element, so that accesses of neighboring threads are adjacent.
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/elementwise/elementwise.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;

struct CastArguments {
  const void* x;
  void* y;
  std::int64_t sizes[4];  // missing leading dims have size 1
  std::int64_t x_strides[4], y_strides[4];
  std::int64_t count;
  bool accumulate;
};

template <class From, class To>
__global__ void __launch_bounds__(kThreads) cast_rows_kernel(const CastArguments a) {
  std::int64_t rest = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (rest >= a.count) return;
  std::int64_t from = 0, to = 0;
#pragma unroll
  for (int d = 3; d >= 0; --d) {
    const std::int64_t at = rest % a.sizes[d];
    rest /= a.sizes[d];
    from += at * a.x_strides[d];
    to += at * a.y_strides[d];
  }
  const float x = widen(static_cast<const From*>(a.x)[from]);
  To& y = static_cast<To*>(a.y)[to];
  y = narrow<To>(a.accumulate ? widen(y) + x : x);
}

}  // namespace

void run(CudaStream& stream, const CastRows& op) {
  if (op.x.numel() == 0) return;
  CastArguments a{.x = op.x.data, .y = op.y.data, .count = op.x.numel(), .accumulate = op.accumulate};
  for (int d = 0; d < 4; ++d) {
    const int of = d - (4 - op.x.rank());
    a.sizes[d] = of < 0 ? 1 : op.x.size(of);
    a.x_strides[d] = of < 0 ? 0 : op.x.stride(of);
    a.y_strides[d] = of < 0 ? 0 : op.y.stride(of);
  }
  Variants(op.x.dtype, op.y.dtype).visit([&](auto from, auto to) {
    launch_kernel(stream, {blocks_for(a.count, kThreads), kThreads}, cast_rows_kernel<decltype(from), decltype(to)>, a);
  });
}

}  // namespace megalith
