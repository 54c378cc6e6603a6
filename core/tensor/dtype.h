// Element types. Names are those of safetensors ("F32") and of the flags ("fp32").
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace megalith {

enum class DType : std::uint8_t { kFp32, kBf16, kFp64, kInt32, kInt64, kUint8 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
    case DType::kInt32: return 4;
    case DType::kBf16: return 2;
    case DType::kFp64:
    case DType::kInt64: return 8;
    case DType::kUint8: return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kFp32: return "fp32";
    case DType::kBf16: return "bf16";
    case DType::kFp64: return "fp64";
    case DType::kInt32: return "int32";
    case DType::kInt64: return "int64";
    case DType::kUint8: return "uint8";
  }
  return "?";
}

}  // namespace megalith
