// Element types. Names are those of safetensors ("F32") and of the flags ("fp32").
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
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

inline constexpr DType kDTypes[] = {DType::kFp32,  DType::kBf16,  DType::kFp64,
                                    DType::kInt32, DType::kInt64, DType::kUint8};

class DTypeSet {
 public:
  constexpr DTypeSet() = default;
  constexpr DTypeSet(std::initializer_list<DType> dtypes) {
    for (const DType dtype : dtypes) bits_ |= bit(dtype);
  }
  static constexpr DTypeSet all() {
    DTypeSet set;
    for (const DType dtype : kDTypes) set.bits_ |= bit(dtype);
    return set;
  }
  constexpr bool contains(DType dtype) const { return (bits_ & bit(dtype)) != 0; }

 private:
  static constexpr unsigned bit(DType dtype) { return 1u << static_cast<unsigned>(dtype); }

  unsigned bits_ = 0;
};
inline constexpr DTypeSet kFloatTypes = {DType::kFp32, DType::kBf16};  // dtypes of weights and activations

}  // namespace megalith
