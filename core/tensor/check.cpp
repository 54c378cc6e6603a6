#include "core/tensor/check.h"

#include <fmt/format.h>

namespace megalith {

namespace {

[[noreturn]] void refuse(std::string_view name, std::string expected, std::string got, Place place) {
  fail({.subject = std::string(name), .expected = std::move(expected), .got = std::move(got)}, place);
}

}  // namespace

void refuse_absent(std::string_view name, Place place) { refuse(name, "a tensor", "none", place); }

void refuse_shape(const Tensor& tensor, const Shape& expected, std::string_view name, Place place) {
  refuse(name, "shape " + to_string(expected), to_string(tensor.shape), place);
}

void refuse_rank(const Tensor& tensor, int low, int high, std::string_view name, Place place) {
  refuse(name, low == high ? fmt::format("{} dims", low) : fmt::format("{} to {} dims", low, high),
         to_string(tensor.shape), place);
}

void refuse_dtype(const Tensor& tensor, DTypeSet allowed, std::string_view name, Place place) {
  std::string names;
  for (const DType dtype : kDTypes) {
    if (allowed.contains(dtype)) names += (names.empty() ? "" : " or ") + std::string(name_of(dtype));
  }
  refuse(name, "dtype " + names, std::string(name_of(tensor.dtype)), place);
}

void refuse_strides(const Tensor& tensor, std::string_view name, Place place) {
  refuse(name, "contiguous rows", "a strided " + to_string(tensor.shape), place);
}

void refuse_rows(const Tensor& tensor, std::string_view name, Place place) {
  refuse(name, "stride 1 in the last dim", tensor.rank() == 0 ? "no dims" : fmt::format("{}", tensor.stride(-1)),
         place);
}

void check_no_overlap(const Tensor& a, std::string_view a_name, const Tensor& b, std::string_view b_name, Place place) {
  const auto* a_begin = a.as<const std::byte>();
  const auto* b_begin = b.as<const std::byte>();
  if (a.extent_bytes() == 0 || b.extent_bytes() == 0) return;
  if (a_begin + a.extent_bytes() <= b_begin || b_begin + b.extent_bytes() <= a_begin) return;
  refuse(fmt::format("{} and {}", a_name, b_name), "separate memory", "an overlap", place);
}

}  // namespace megalith
