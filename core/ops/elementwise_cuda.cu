// Memory-bound, one pass; elementwise, so deterministic. Add and Cast: a thread owns one or two packs of sixteen bytes.
// Copy and Fill: dims that are contiguous are merged, and units of up to sixteen bytes are moved.
#include <bit>
#include <cstring>

#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/elementwise.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kUnrolled = 4;

// A block owns 2 * kThreads neighbouring packs.
template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) add(const T* a, const T* b, T* y, std::int64_t count) {
  constexpr int kWidth = kPack<T>;
  const std::int64_t first = (std::int64_t{blockIdx.x} * 2 * kThreads + threadIdx.x) * kWidth;
  uint4 left[2], right[2];
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    left[u] = load_flat<T, kVector>(a, first + u * kThreads * kWidth, count);
    right[u] = load_flat<T, kVector>(b, first + u * kThreads * kWidth, count);
  }
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    float v[kWidth], w[kWidth];
    unpack<T>(left[u], v);
    unpack<T>(right[u], w);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) v[j] += w[j];
    store_flat<T, kVector>(y, first + u * kThreads * kWidth, count, pack<T>(v));
  }
}

// A block owns 2 * kThreads neighbouring packs of every part.
template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) sum_parts(const T* x, int parts, T* y, std::int64_t count) {
  constexpr int kWidth = kPack<T>;
  const std::int64_t first = (std::int64_t{blockIdx.x} * 2 * kThreads + threadIdx.x) * kWidth;
  float sum[2][kWidth] = {};
  for (int begin = 0; begin < parts; begin += kUnrolled) {
    uint4 raw[kUnrolled][2];
#pragma unroll
    for (int p = 0; p < kUnrolled; ++p) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const T* part = x + (begin + p) * count;
        raw[p][u] = load_flat<T, kVector>(part, first + u * kThreads * kWidth, begin + p < parts ? count : 0);
      }
    }
#pragma unroll
    for (int p = 0; p < kUnrolled; ++p) {
      if (begin + p >= parts) break;
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        float v[kWidth];
        unpack<T>(raw[p][u], v);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sum[u][j] = begin + p == 0 ? v[j] : sum[u][j] + v[j];
      }
    }
  }
#pragma unroll
  for (int u = 0; u < 2; ++u) store_flat<T, kVector>(y, first + u * kThreads * kWidth, count, pack<T>(sum[u]));
}

// A tensor, or two of one shape, as units of `bytes` bytes: dims of the same walk are merged, dim 0 first. Strides and
// the last dim count units.
struct Walk {
  int dims = 0;
  int bytes = 1;
  std::int64_t size[kMaxDims] = {};
  std::int64_t strides[2][kMaxDims] = {};
};

Walk walk_of(const Tensor& a, const Tensor& b) {
  Walk walk;
  const auto element = static_cast<std::int64_t>(size_of(a.dtype));
  for (int d = 0; d < a.rank(); ++d) {
    if (a.size(d) == 1) continue;
    const int last = walk.dims - 1;
    if (last >= 0 && walk.strides[0][last] == a.stride(d) * a.size(d) &&
        walk.strides[1][last] == b.stride(d) * a.size(d)) {
      walk.size[last] *= a.size(d);
      walk.strides[0][last] = a.stride(d);
      walk.strides[1][last] = b.stride(d);
      continue;
    }
    walk.size[walk.dims] = a.size(d);
    walk.strides[0][walk.dims] = a.stride(d);
    walk.strides[1][walk.dims++] = b.stride(d);
  }
  if (walk.dims == 0) {
    walk.dims = 1;
    walk.size[0] = walk.strides[0][0] = walk.strides[1][0] = 1;
  }
  // The widest unit that fits every address; only where the last dim is contiguous in both.
  const int inner = walk.dims - 1;
  std::int64_t unit = element;
  if (walk.strides[0][inner] == 1 && walk.strides[1][inner] == 1) {
    const auto fits = [&](std::int64_t bytes) {
      if (walk.size[inner] * element % bytes != 0 ||
          reinterpret_cast<std::uintptr_t>(a.data) % static_cast<std::uintptr_t>(bytes) != 0 ||
          reinterpret_cast<std::uintptr_t>(b.data) % static_cast<std::uintptr_t>(bytes) != 0) {
        return false;
      }
      for (int d = 0; d < inner; ++d) {
        if (walk.strides[0][d] * element % bytes != 0 || walk.strides[1][d] * element % bytes != 0) return false;
      }
      return true;
    };
    while (unit < 16 && fits(unit * 2)) unit *= 2;
  }
  walk.bytes = static_cast<int>(unit);
  const std::int64_t elements = unit / element;
  walk.size[inner] /= elements;
  for (int d = 0; d < inner; ++d) {
    walk.strides[0][d] /= elements;
    walk.strides[1][d] /= elements;
  }
  return walk;
}

struct WalkArguments {
  int dims;
  unsigned units;
  FastDivide size[kMaxDims];
  std::int64_t strides[2][kMaxDims];
};

// Offsets of a unit in either tensor.
__device__ inline void place(const WalkArguments& a, unsigned unit, std::int64_t& first, std::int64_t& second) {
  first = second = 0;
#pragma unroll
  for (int d = kMaxDims - 1; d >= 0; --d) {
    if (d >= a.dims) continue;
    unsigned at = unit;
    if (d > 0) unit = a.size[d].divide(unit, at);
    first += at * a.strides[0][d];
    second += at * a.strides[1][d];
  }
}

// A block owns kUnrolled * kThreads neighbouring units.
template <class Unit>
__global__ void __launch_bounds__(kThreads) copy_units(const Unit* from, Unit* to, const WalkArguments a) {
  Unit value[kUnrolled];
  std::int64_t target[kUnrolled];
#pragma unroll
  for (int u = 0; u < kUnrolled; ++u) {
    const unsigned unit = (blockIdx.x * kUnrolled + static_cast<unsigned>(u)) * kThreads + threadIdx.x;
    target[u] = -1;
    if (unit >= a.units) continue;
    std::int64_t source;
    place(a, unit, source, target[u]);
    value[u] = from[source];
  }
#pragma unroll
  for (int u = 0; u < kUnrolled; ++u) {
    if (target[u] >= 0) to[target[u]] = value[u];
  }
}

template <class Unit>
__global__ void __launch_bounds__(kThreads) fill_units(Unit* to, Unit value, const WalkArguments a) {
#pragma unroll
  for (int u = 0; u < kUnrolled; ++u) {
    const unsigned unit = (blockIdx.x * kUnrolled + static_cast<unsigned>(u)) * kThreads + threadIdx.x;
    if (unit >= a.units) continue;
    std::int64_t at, same;
    place(a, unit, at, same);
    to[at] = value;
  }
}

template <class Visit>
void visit_unit(int bytes, Visit&& visit) {
  switch (bytes) {
    case 1: return visit(std::uint8_t{});
    case 2: return visit(std::uint16_t{});
    case 4: return visit(std::uint32_t{});
    case 8: return visit(uint2{});
    default: return visit(uint4{});
  }
}

// Calls launch(Unit{}, offsets of the piece in bytes, arguments, blocks) for pieces of dim 0 that are small enough for
// 32-bit unit numbers.
template <class Launch>
void for_pieces(const Walk& walk, Launch&& launch) {
  WalkArguments a{.dims = walk.dims};
  std::int64_t units_of_one = 1;  // of one index of dim 0
  for (int d = 0; d < walk.dims; ++d) {
    if (d > 0) units_of_one *= walk.size[d];
    a.size[d] = FastDivide(walk.size[d] < kMaxIndex ? walk.size[d] : 1);  // that of dim 0 is not used
    a.strides[0][d] = walk.strides[0][d];
    a.strides[1][d] = walk.strides[1][d];
  }
  require(units_of_one < kMaxIndex, "Copy or Fill: more than 2^31 units within one index of the first dim");
  const std::int64_t most = (kMaxIndex - 1) / units_of_one;
  for (std::int64_t begin = 0; begin < walk.size[0]; begin += most) {
    a.units = static_cast<unsigned>(std::min(most, walk.size[0] - begin) * units_of_one);
    visit_unit(walk.bytes, [&](auto unit) {
      launch(unit, begin * walk.strides[0][0] * walk.bytes, begin * walk.strides[1][0] * walk.bytes, a,
             blocks_for(a.units, kUnrolled * kThreads));
    });
    MEGALITH_CUDA_CHECK(cudaGetLastError());
  }
}

// The value in the tensor's dtype, repeated over a unit.
template <class Unit>
Unit repeated(DType dtype, double value) {
  std::byte element[8] = {};
  const auto set = [&element](auto converted) { std::memcpy(element, &converted, sizeof(converted)); };
  switch (dtype) {
    case DType::kFp32: set(static_cast<float>(value)); break;
    case DType::kBf16: set(to_bf16(static_cast<float>(value))); break;
    case DType::kFp64: set(value); break;
    case DType::kInt32: set(static_cast<std::int32_t>(value)); break;
    case DType::kInt64: set(static_cast<std::int64_t>(value)); break;
    case DType::kUint8: set(static_cast<std::uint8_t>(value)); break;
  }
  Unit unit;
  for (std::size_t i = 0; i < sizeof(Unit); ++i) {
    std::memcpy(reinterpret_cast<std::byte*>(&unit) + i, element + i % size_of(dtype), 1);
  }
  return unit;
}

}  // namespace

void run(CudaStream& stream, const Add& op) {
  const bool vector = starts_aligned(op.a.data) && starts_aligned(op.b.data) && starts_aligned(op.y.data);
  visit_kernel(op.a.dtype, vector, [&](auto type, auto is_vector) {
    using T = decltype(type);
    const unsigned blocks = blocks_for(op.a.numel(), 2 * kThreads * kPack<T>);
    add<T, is_vector()>
        <<<blocks, kThreads, 0, stream.handle()>>>(op.a.as<const T>(), op.b.as<const T>(), op.y.as<T>(), op.a.numel());
  });
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void run(CudaStream& stream, const SumParts& op) {
  // The parts lie one after the other: all are aligned where the first is and their size is a multiple.
  const bool vector = starts_aligned(op.parts.data) && starts_aligned(op.y.data) && op.y.bytes() % 16 == 0;
  visit_kernel(op.parts.dtype, vector, [&](auto type, auto is_vector) {
    using T = decltype(type);
    const unsigned blocks = blocks_for(op.y.numel(), 2 * kThreads * kPack<T>);
    sum_parts<T, is_vector()><<<blocks, kThreads, 0, stream.handle()>>>(
        op.parts.as<const T>(), static_cast<int>(op.parts.size(0)), op.y.as<T>(), op.y.numel());
  });
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void run(CudaStream& stream, const Copy& op) {
  if (op.src.numel() == 0) return;
  for_pieces(walk_of(op.src, op.dst),
             [&](auto unit, std::int64_t from, std::int64_t to, const WalkArguments& a, unsigned blocks) {
               using Unit = decltype(unit);
               copy_units<Unit><<<blocks, kThreads, 0, stream.handle()>>>(
                   reinterpret_cast<const Unit*>(op.src.as<const std::byte>() + from),
                   reinterpret_cast<Unit*>(op.dst.as<std::byte>() + to), a);
             });
}

void run(CudaStream& stream, const Fill& op) {
  if (op.x.numel() == 0) return;
  for_pieces(walk_of(op.x, op.x),
             [&](auto unit, std::int64_t at, std::int64_t, const WalkArguments& a, unsigned blocks) {
               using Unit = decltype(unit);
               fill_units<Unit><<<blocks, kThreads, 0, stream.handle()>>>(
                   reinterpret_cast<Unit*>(op.x.as<std::byte>() + at), repeated<Unit>(op.x.dtype, op.value), a);
             });
}

}  // namespace megalith
