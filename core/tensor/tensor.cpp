#include "core/tensor/tensor.h"

namespace megalith {

Tensor::Tensor(void* address, DType type, const Shape& extents) : data(address), dtype(type), shape(extents) {
  std::int64_t stride = 1;
  for (int d = extents.rank() - 1; d >= 0; --d) {
    strides[static_cast<std::size_t>(d)] = stride;
    stride *= extents[d];
  }
}

Tensor Tensor::slice(int dim, std::int64_t start, std::int64_t length) const {
  const int d = dim < 0 ? dim + rank() : dim;
  require(d >= 0 && d < rank(), "Tensor::slice of a missing dim");
  require(start >= 0 && length >= 0 && start <= shape[d] && length <= shape[d] - start, "Tensor::slice out of range");
  require(bound == nullptr || d != 0 || length == shape[0], "Tensor::slice of the rows of a bounded tensor");
  Tensor result = *this;
  result.shape[d] = length;
  if (data != nullptr) {
    result.data = static_cast<std::byte*>(data) + start * stride(d) * static_cast<std::int64_t>(size_of(dtype));
  }
  return result;
}

Tensor Tensor::view(const Shape& extents) const {
  require(is_contiguous() && extents.numel() == numel(), "Tensor::view of a strided tensor or of another size");
  require(bound == nullptr || (extents.rank() > 0 && extents[0] == shape[0]),
          "Tensor::view over the rows of a bounded tensor");
  Tensor result(data, dtype, extents);
  result.bound = bound;
  return result;
}

Tensor Tensor::split_dim(int dim, std::int64_t outer) const {
  const int d = dim < 0 ? dim + rank() : dim;
  require(d >= 0 && d < rank(), "Tensor::split_dim of a missing dim");
  require(bound == nullptr || d != 0, "Tensor::split_dim of the rows of a bounded tensor");
  require(outer > 0 && shape[d] % outer == 0 && rank() < kMaxDims, "Tensor::split_dim does not divide");
  const std::int64_t inner = shape[d] / outer;
  Tensor result = *this;
  result.shape = {};
  int out = 0;
  for (int i = 0; i < rank(); ++i) {
    if (i == d) {
      result.shape.push_back(outer);
      result.strides[static_cast<std::size_t>(out++)] = stride(i) * inner;
      result.shape.push_back(inner);
    } else {
      result.shape.push_back(shape[i]);
    }
    result.strides[static_cast<std::size_t>(out++)] = stride(i);
  }
  return result;
}

}  // namespace megalith
