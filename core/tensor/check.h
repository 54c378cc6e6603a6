// Checks for ops. An error has the tensor's name ("op.weight"), the expected and the actual value.
#pragma once

#include <source_location>
#include <string_view>

#include "core/tensor/tensor.h"

namespace megalith {

using Place = std::source_location;

// Throw the error of the check of the same name below.
[[noreturn]] void refuse_absent(std::string_view name, Place place);
[[noreturn]] void refuse_shape(const Tensor& tensor, const Shape& expected, std::string_view name, Place place);
[[noreturn]] void refuse_rank(const Tensor& tensor, int low, int high, std::string_view name, Place place);
[[noreturn]] void refuse_dtype(const Tensor& tensor, DTypeSet allowed, std::string_view name, Place place);
[[noreturn]] void refuse_strides(const Tensor& tensor, std::string_view name, Place place);
[[noreturn]] void refuse_rows(const Tensor& tensor, std::string_view name, Place place);

// An empty tensor may have a null address.
inline void check_present(const Tensor& tensor, std::string_view name, Place place = Place::current()) {
  if (tensor.data == nullptr && tensor.numel() != 0) [[unlikely]]
    refuse_absent(name, place);
}

inline void check_shape(const Tensor& tensor, const Shape& expected, std::string_view name,
                        Place place = Place::current()) {
  check_present(tensor, name, place);
  if (tensor.shape != expected) [[unlikely]]
    refuse_shape(tensor, expected, name, place);
}

inline void check_rank(const Tensor& tensor, int low, int high, std::string_view name, Place place = Place::current()) {
  check_present(tensor, name, place);
  if (tensor.rank() < low || tensor.rank() > high) [[unlikely]]
    refuse_rank(tensor, low, high, name, place);
}

inline void check_dtype(const Tensor& tensor, DTypeSet allowed, std::string_view name, Place place = Place::current()) {
  if (!allowed.contains(tensor.dtype)) [[unlikely]]
    refuse_dtype(tensor, allowed, name, place);
}

inline void check_contiguous(const Tensor& tensor, std::string_view name, Place place = Place::current()) {
  if (!tensor.is_contiguous()) [[unlikely]]
    refuse_strides(tensor, name, place);
}

// Requires stride 1 in the last dim.
inline void check_rows(const Tensor& tensor, std::string_view name, Place place = Place::current()) {
  if (tensor.rank() == 0 || (tensor.stride(-1) != 1 && tensor.size(-1) > 1)) [[unlikely]]
    refuse_rows(tensor, name, place);
}

void check_no_overlap(const Tensor& a, std::string_view a_name, const Tensor& b, std::string_view b_name,
                      Place place = Place::current());

}  // namespace megalith
