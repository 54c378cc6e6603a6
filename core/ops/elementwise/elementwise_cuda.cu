// Memory-bound, one pass; elementwise, so deterministic. Add, SumParts and Cast: a thread owns a few packs. Copy and
// Fill: contiguous dims are merged, and units of up to sixteen bytes are moved.
#include <cstring>

#include "core/ops/cuda_map.cuh"
#include "core/ops/elementwise/elementwise.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kUnrolled = 4;

template <class T, bool kVector>
__global__ void __launch_bounds__(kMapThreads) add_kernel(const T* a, const T* b, T* y, std::int64_t count) {
  map_flat<T, kVector>([](float left, float right) { return left + right; }, count, y, a, b);
}

// A block owns 2 * kMapThreads neighboring packs of every part.
template <class T, bool kVector>
__global__ void __launch_bounds__(kMapThreads) sum_parts_kernel(const T* x, int parts, T* y, std::int64_t count) {
  constexpr int kStep = kMapThreads * kPack<T>;
  const std::int64_t first = (std::int64_t{blockIdx.x} * 2 * kMapThreads + threadIdx.x) * kPack<T>;
  Floats<T> sum[2];
  for (int begin = 0; begin < parts; begin += kUnrolled) {
    uint4 raw[kUnrolled][2];
#pragma unroll
    for (int p = 0; p < kUnrolled; ++p) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const T* part = x + (begin + p) * count;
        raw[p][u] = load_flat<T, kVector>(part, first + u * kStep, begin + p < parts ? count : 0);
      }
    }
#pragma unroll
    for (int p = 0; p < kUnrolled; ++p) {
      if (begin + p >= parts) break;
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const Floats<T> v(raw[p][u]);
#pragma unroll
        for (int j = 0; j < kPack<T>; ++j) sum[u][j] = begin + p == 0 ? v[j] : sum[u][j] + v[j];
      }
    }
  }
#pragma unroll
  for (int u = 0; u < 2; ++u) store_flat<T, kVector>(y, first + u * kStep, count, sum[u].packed());
}

// One or two tensors of one shape as units of `bytes` bytes. Dims of a common stride are merged, dim 0 first.
struct Walk {
  int dims = 0;
  int bytes = 1;
  unsigned units = 0;  // units of the launch's piece
  std::int64_t size[kMaxDims] = {};
  std::int64_t strides[2][kMaxDims] = {};
  FastDivide divide[kMaxDims];  // by size; dim 0's is unused
};

Walk walk_of(const Tensor& a, const Tensor& b) {
  Walk walk;
  for (int d = 0; d < a.rank(); ++d) {
    const std::int64_t size = a.size(d), strides[] = {a.stride(d), b.stride(d)};
    if (size == 1) continue;
    int to = walk.dims - 1;
    if (to >= 0 && walk.strides[0][to] == strides[0] * size && walk.strides[1][to] == strides[1] * size) {
      walk.size[to] *= size;
    } else {
      walk.size[to = walk.dims++] = size;
    }
    for (int t = 0; t < 2; ++t) walk.strides[t][to] = strides[t];
  }
  if (walk.dims == 0) walk.dims = 1, walk.size[0] = walk.strides[0][0] = walk.strides[1][0] = 1;
  // The widest unit that divides every address; only if the last dim is contiguous in both.
  const int inner = walk.dims - 1;
  const auto element = static_cast<std::int64_t>(size_of(a.dtype));
  const auto fits = [&](std::int64_t bytes) {
    bool all = walk.size[inner] * element % bytes == 0;
    for (int t = 0; t < 2; ++t) {
      const auto address = reinterpret_cast<std::uintptr_t>((t == 0 ? a : b).data);
      all = all && walk.strides[t][inner] == 1 && address % static_cast<std::uintptr_t>(bytes) == 0;
      for (int d = 0; d < inner; ++d) all = all && walk.strides[t][d] * element % bytes == 0;
    }
    return all;
  };
  std::int64_t elements = 1;  // elements of a unit
  while (elements * element < 16 && fits(2 * elements * element)) elements *= 2;
  walk.bytes = static_cast<int>(elements * element);
  walk.size[inner] /= elements;
  for (int d = 0; d < walk.dims; ++d) {
    for (int t = 0; t < 2 && d < inner; ++t) walk.strides[t][d] /= elements;
    walk.divide[d] = FastDivide(walk.size[d] < kMaxIndex ? walk.size[d] : 1);
  }
  return walk;
}

// Computes the offset of a unit in either tensor.
__device__ inline void place(const Walk& walk, unsigned unit, std::int64_t (&offset)[2]) {
  offset[0] = offset[1] = 0;
#pragma unroll
  for (int d = kMaxDims - 1; d >= 0; --d) {
    if (d >= walk.dims) continue;
    unsigned at = unit;
    if (d > 0) unit = walk.divide[d].divide(unit, at);
    offset[0] += at * walk.strides[0][d];
    offset[1] += at * walk.strides[1][d];
  }
}

// A block owns kUnrolled * kMapThreads neighboring units, here and in fill_kernel.
template <class ByteUnit>
__global__ void __launch_bounds__(kMapThreads) copy_kernel(const ByteUnit* from, ByteUnit* to, const Walk walk) {
  ByteUnit value[kUnrolled];
  std::int64_t offset[kUnrolled][2];
#pragma unroll
  for (int u = 0; u < kUnrolled; ++u) {
    const unsigned unit = (blockIdx.x * kUnrolled + static_cast<unsigned>(u)) * kMapThreads + threadIdx.x;
    offset[u][1] = -1;
    if (unit >= walk.units) continue;
    place(walk, unit, offset[u]);
    value[u] = from[offset[u][0]];
  }
#pragma unroll
  for (int u = 0; u < kUnrolled; ++u) {
    if (offset[u][1] >= 0) to[offset[u][1]] = value[u];
  }
}

template <class ByteUnit>
__global__ void __launch_bounds__(kMapThreads) fill_kernel(ByteUnit* to, ByteUnit value, const Walk walk) {
#pragma unroll
  for (int u = 0; u < kUnrolled; ++u) {
    const unsigned unit = (blockIdx.x * kUnrolled + static_cast<unsigned>(u)) * kMapThreads + threadIdx.x;
    if (unit >= walk.units) continue;
    std::int64_t offset[2];
    place(walk, unit, offset);
    to[offset[0]] = value;
  }
}

// Calls launch(Unit{}, first index of dim 0, walk, grid) for each piece.
template <class Launch>
void for_units(Walk walk, Launch&& launch) {
  std::int64_t units_of_one = 1;  // units per index of dim 0
  for (int d = 1; d < walk.dims; ++d) units_of_one *= walk.size[d];
  for_pieces(walk.size[0], units_of_one, [&](std::int64_t first, std::int64_t count) {
    walk.units = static_cast<unsigned>(count * units_of_one);
    const Grid grid{blocks_for(walk.units, kUnrolled * kMapThreads), kMapThreads};
    switch (walk.bytes) {
      case 1: return launch(std::uint8_t{}, first, walk, grid);
      case 2: return launch(std::uint16_t{}, first, walk, grid);
      case 4: return launch(std::uint32_t{}, first, walk, grid);
      case 8: return launch(uint2{}, first, walk, grid);
      default: return launch(uint4{}, first, walk, grid);
    }
  });
}

// The value in the tensor's dtype, repeated over a unit.
template <class ByteUnit>
ByteUnit repeated(DType dtype, double value) {
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
  ByteUnit unit;
  for (std::size_t i = 0; i < sizeof(ByteUnit); ++i) {
    std::memcpy(reinterpret_cast<std::byte*>(&unit) + i, element + i % size_of(dtype), 1);
  }
  return unit;
}

}  // namespace

void run(CudaStream& stream, const Add& op) {
  Variants(op.a.dtype, starts_aligned(op.a, op.b, op.y)).visit([&](auto type, auto is_vector) {
    using T = decltype(type);
    launch_kernel(stream, map_grid<T>(op.a.numel()), add_kernel<T, is_vector()>, op.a.as<const T>(), op.b.as<const T>(),
                  op.y.as<T>(), op.a.numel());
  });
}

void run(CudaStream& stream, const SumParts& op) {
  // The parts are adjacent: all are aligned if the first is and their size is a multiple.
  const bool vector = starts_aligned(op.parts, op.y) && op.y.bytes() % 16 == 0;
  Variants(op.parts.dtype, vector).visit([&](auto type, auto is_vector) {
    using T = decltype(type);
    launch_kernel(stream, map_grid<T>(op.y.numel()), sum_parts_kernel<T, is_vector()>, op.parts.as<const T>(),
                  static_cast<int>(op.parts.size(0)), op.y.as<T>(), op.y.numel());
  });
}

void run(CudaStream& stream, const Copy& op) {
  if (op.src.numel() == 0) return;
  for_units(walk_of(op.src, op.dst), [&](auto unit, std::int64_t first, const Walk& walk, const Grid& grid) {
    using ByteUnit = decltype(unit);
    launch_kernel(stream, grid, copy_kernel<ByteUnit>, op.src.as<const ByteUnit>() + first * walk.strides[0][0],
                  op.dst.as<ByteUnit>() + first * walk.strides[1][0], walk);
  });
}

void run(CudaStream& stream, const Fill& op) {
  if (op.x.numel() == 0) return;
  for_units(walk_of(op.x, op.x), [&](auto unit, std::int64_t first, const Walk& walk, const Grid& grid) {
    using ByteUnit = decltype(unit);
    launch_kernel(stream, grid, fill_kernel<ByteUnit>, op.x.as<ByteUnit>() + first * walk.strides[0][0],
                  repeated<ByteUnit>(op.x.dtype, op.value), walk);
  });
}

}  // namespace megalith
