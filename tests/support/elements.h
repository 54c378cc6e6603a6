// Elements of tensors as bytes on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/tensor/bf16.h"
#include "core/tensor/tensor.h"

namespace megalith::test {

inline double element(const std::byte* address, DType type) {
  const auto read = [address](auto value) {
    std::memcpy(&value, address, sizeof(value));
    return value;
  };
  switch (type) {
    case DType::kFp32: return read(float{});
    case DType::kBf16: return to_float(read(bf16{}));
    case DType::kFp64: return read(double{});
    case DType::kInt32: return read(std::int32_t{});
    case DType::kInt64: return static_cast<double>(read(std::int64_t{}));
    case DType::kUint8: return read(std::uint8_t{});
  }
  return 0;
}

inline void set_element(std::byte* address, DType type, double value) {
  const auto write = [address](auto rounded) { std::memcpy(address, &rounded, sizeof(rounded)); };
  switch (type) {
    case DType::kFp32: return write(static_cast<float>(value));
    case DType::kBf16: return write(to_bf16(static_cast<float>(value)));
    case DType::kFp64: return write(value);
    case DType::kInt32: return write(static_cast<std::int32_t>(value));
    case DType::kInt64: return write(static_cast<std::int64_t>(value));
    case DType::kUint8: return write(static_cast<std::uint8_t>(value));
  }
}

// Calls visit(i, offset in elements) for each element in logical order.
template <class Visit>
void for_each_element(const Tensor& tensor, Visit&& visit) {
  const std::int64_t count = tensor.numel();
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    std::int64_t offset = 0;
    for (int d = tensor.rank() - 1; d >= 0; --d) {
      offset += rest % tensor.size(d) * tensor.stride(d);
      rest /= tensor.size(d);
    }
    visit(i, offset);
  }
}

}  // namespace megalith::test
