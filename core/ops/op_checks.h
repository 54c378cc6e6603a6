// Checks that several ops share, beyond core/tensor/check.h.
#pragma once

#include <string_view>

#include "core/tensor/check.h"

namespace megalith {

inline constexpr std::initializer_list<DType> kFloatTypes = {DType::kFp32, DType::kBf16};

// For ops that may work in place: the same address and strides, or no overlap at all.
void check_same_or_apart(const Tensor& a, std::string_view a_name, const Tensor& b, std::string_view b_name,
                         Place place = Place::current());

// A pointer into device memory that the op cannot do without.
void check_pointer(const void* pointer, std::string_view name, Place place = Place::current());

// `low <= value <= high`, and not NaN.
void check_range(double value, double low, double high, std::string_view name, Place place = Place::current());

}  // namespace megalith
