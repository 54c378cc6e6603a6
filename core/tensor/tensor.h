// A tensor is a view: address, dtype, shape and strides. It owns nothing and is cheap to copy. The arena owns memory of
// a step, a MemoryPool parameters and other memory outside the step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/base/error.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace megalith {

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kFp32;
  Shape shape;
  std::array<std::int64_t, kMaxDims> strides{};  // in elements; the last dim's is 1 unless an op says otherwise
  const std::int32_t* bound = nullptr;           // device: number of used rows of a bounded tensor, <= shape[0]

  Tensor() = default;
  Tensor(void* address, DType type, const Shape& extents);  // row-major

  bool present() const { return data != nullptr; }
  explicit operator bool() const { return present(); }
  std::int64_t size(int dim) const { return shape[dim < 0 ? dim + shape.rank() : dim]; }
  std::int64_t stride(int dim) const { return strides[static_cast<std::size_t>(dim < 0 ? dim + shape.rank() : dim)]; }
  int rank() const { return shape.rank(); }
  std::int64_t numel() const { return shape.numel(); }
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype); }
  std::size_t extent_bytes() const {  // bytes from the first element to one past the last, including gaps
    if (data == nullptr || numel() == 0) return 0;
    std::int64_t last = 0;
    for (int d = 0; d < rank(); ++d) last += (shape[d] - 1) * stride(d);
    return static_cast<std::size_t>(last + 1) * size_of(dtype);
  }
  bool is_contiguous() const {
    std::int64_t expected = 1;
    for (int d = rank() - 1; d >= 0; --d) {
      if (shape[d] != 1 && stride(d) != expected) return false;
      expected *= shape[d];
    }
    return true;
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }

  // Views. `slice` keeps the rank; `view` requires a contiguous tensor of the same numel. A bound counts rows from the
  // tensor's first one, so that dim 0 of a bounded tensor cannot be cut, split or merged.
  Tensor slice(int dim, std::int64_t start, std::int64_t length) const;
  Tensor view(const Shape& extents) const;
  // Splits a dim of a possibly strided tensor in two: [T, N*D] -> [T, N, D] for split_dim(1, N).
  Tensor split_dim(int dim, std::int64_t outer) const;
};

}  // namespace megalith
