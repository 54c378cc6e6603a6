// Packs of sixteen bytes: eight bf16 or four fp32 elements, kept raw until use. For *_cuda.cu files. A kernel has two
// forms: kVector moves packs, if addresses and lengths allow it; the other moves single elements. Both give an element
// to the same thread, so that results do not depend on alignment.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/tensor/bf16.h"
#include "core/tensor/tensor.h"

namespace megalith::cuda {

template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }

// Keeps the compiler from holding unpacked elements in registers across this point; unpacking again is cheaper.
__device__ inline void forget_unpacked(uint4& raw) {
  asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w));
}
template <int kCount>
__device__ inline void forget_unpacked(uint4 (&raw)[kCount]) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) forget_unpacked(raw[k]);
}

template <class T>
__device__ inline T narrow(float x) {
  if constexpr (sizeof(T) == 2) {
    return T{__bfloat16_as_ushort(__float2bfloat16_rn(x))};
  } else {
    return x;
  }
}

__device__ inline void unpack_pair(unsigned word, float& low, float& high) {
  low = __uint_as_float(word << 16);
  high = __uint_as_float(word & 0xFFFF0000u);
}

__device__ inline unsigned pack_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return static_cast<unsigned>(__bfloat16_as_ushort(pair.x)) | static_cast<unsigned>(__bfloat16_as_ushort(pair.y))
                                                                   << 16;
}

// The elements of a pack as numbers.
template <class T>
struct Floats {
  float x[kPack<T>] = {};

  Floats() = default;
  __device__ explicit Floats(uint4 raw) {
    if constexpr (sizeof(T) == 2) {
      unpack_pair(raw.x, x[0], x[1]);
      unpack_pair(raw.y, x[2], x[3]);
      unpack_pair(raw.z, x[4], x[5]);
      unpack_pair(raw.w, x[6], x[7]);
    } else {
      x[0] = __uint_as_float(raw.x);
      x[1] = __uint_as_float(raw.y);
      x[2] = __uint_as_float(raw.z);
      x[3] = __uint_as_float(raw.w);
    }
  }
  __device__ float& operator[](int j) { return x[j]; }
  __device__ float operator[](int j) const { return x[j]; }
  __device__ void operator+=(const Floats& other) {
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) x[j] += other.x[j];
  }
  __device__ uint4 packed() const {
    if constexpr (sizeof(T) == 2) {
      return make_uint4(pack_pair(x[0], x[1]), pack_pair(x[2], x[3]), pack_pair(x[4], x[5]), pack_pair(x[6], x[7]));
    } else {
      return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
    }
  }
};

// kCount neighboring elements, loaded and stored together: 8, 16 or 32 bytes.
template <class T, int kCount>
struct alignas(kCount * sizeof(T) < 16 ? 8 : 16) Group {
  unsigned word[kCount * sizeof(T) / sizeof(unsigned)];

  Group() = default;
  __device__ explicit Group(const float (&x)[kCount]) {
#pragma unroll
    for (int j = 0; j < kCount; j += 4 / static_cast<int>(sizeof(T))) {
      if constexpr (sizeof(T) == 2) {
        word[j / 2] = pack_pair(x[j], x[j + 1]);
      } else {
        word[j] = __float_as_uint(x[j]);
      }
    }
  }
  __device__ void get(float (&x)[kCount]) const {
#pragma unroll
    for (int j = 0; j < kCount; j += 4 / static_cast<int>(sizeof(T))) {
      if constexpr (sizeof(T) == 2) {
        unpack_pair(word[j / 2], x[j], x[j + 1]);
      } else {
        x[j] = __uint_as_float(word[j]);
      }
    }
  }
};

// Applies f to each element: map([](float a, float b) { return a + b; }, Floats<T>(a), Floats<T>(b)).
template <class T, class Function, class... More>
__device__ inline Floats<T> map(const Function& f, const Floats<T>& first, const More&... more) {
  Floats<T> y;
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) y[j] = f(first[j], more[j]...);
  return y;
}

template <class T>
__device__ inline uint4 load_full(const T* p) {
  return *reinterpret_cast<const uint4*>(p);
}

template <class T>
__device__ inline void store_full(T* p, uint4 raw) {
  *reinterpret_cast<uint4*>(p) = raw;
}

// Loads p[0] .. p[count - 1], at most a pack, one by one; the others read as 0 and are not touched.
template <class T>
__device__ inline uint4 load_elements(const T* p, std::int64_t count) {
  Floats<T> x;
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) x[j] = j < count ? widen(p[j]) : 0.0f;
  return x.packed();
}

template <class T>
__device__ inline void store_elements(T* p, uint4 raw, std::int64_t count) {
  const Floats<T> x(raw);
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) {
    if (j < count) p[j] = narrow<T>(x[j]);
  }
}

// Loads the pack from element `first` of a row; empty beyond the row's end. With kVector a row consists of full packs.
template <class T, bool kVector>
__device__ inline uint4 load_of_row(const T* row, int first, int length) {
  if constexpr (kVector) {
    return first < length ? load_full(row + first) : make_uint4(0, 0, 0, 0);
  } else {
    return load_elements(row + first, length - first);
  }
}

template <class T, bool kVector>
__device__ inline void store_of_row(T* row, int first, int length, uint4 raw) {
  if constexpr (kVector) {
    if (first < length) store_full(row + first, raw);
  } else {
    store_elements(row + first, raw, length - first);
  }
}

// Same in a flat array of any length: only its last pack may be partial.
template <class T, bool kVector>
__device__ inline uint4 load_flat(const T* data, std::int64_t first, std::int64_t count) {
  if (kVector && first + kPack<T> <= count) return load_full(data + first);
  return load_elements(data + first, count - first);
}

template <class T, bool kVector>
__device__ inline void store_flat(T* data, std::int64_t first, std::int64_t count, uint4 raw) {
  if (kVector && first + kPack<T> <= count) return store_full(data + first, raw);
  store_elements(data + first, raw, count - first);
}

// Copies the pack that load_of_row would return into shared memory, asynchronously with kVector. It is valid after
// wait_for_stages<n>() if at most n commit_stage() followed, for the same thread only.
template <class T, bool kVector>
__device__ inline void stage_of_row(uint4* shared, const T* row, int first, int length) {
  if constexpr (kVector) {
    const bool inside = first < length;
    const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(inside ? row + first : row),
                 "r"(inside ? 16 : 0)
                 : "memory");
  } else {
    *shared = load_elements(row + first, length - first);
  }
}

__device__ inline void commit_stage() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending>
__device__ inline void wait_for_stages() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Host: returns whether packs of flat arrays, or of each row, start at multiples of 16 bytes; true if absent.
template <class... Tensors>
bool starts_aligned(const Tensors&... x) {
  return (... && (reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0));
}
inline bool rows_aligned(const Tensor& x) {
  if (!x) return true;
  const auto size = static_cast<std::int64_t>(size_of(x.dtype));
  if (!starts_aligned(x) || x.size(-1) * size % 16 != 0) return false;
  for (int d = 0; d + 1 < x.rank(); ++d) {
    if (x.size(d) > 1 && x.stride(d) * size % 16 != 0) return false;
  }
  return true;
}
template <class... Tensors>
bool rows_aligned(const Tensor& x, const Tensors&... more) {
  return rows_aligned(x) && (... && rows_aligned(more));
}

}  // namespace megalith::cuda
