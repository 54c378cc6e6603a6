#include "core/ops/op_checks.h"

#include <fmt/format.h>

namespace megalith {

void check_same_or_apart(const Tensor& a, std::string_view a_name, const Tensor& b, std::string_view b_name,
                         Place place) {
  if (a.data == b.data && a.shape == b.shape && a.strides == b.strides && a.dtype == b.dtype) return;
  check_no_overlap(a, a_name, b, b_name, place);
}

void check_pointer(const void* pointer, std::string_view name, Place place) {
  if (pointer != nullptr) return;
  fail({.subject = std::string(name), .expected = "a device address", .got = "null"}, place);
}

void check_range(double value, double low, double high, std::string_view name, Place place) {
  if (value >= low && value <= high) return;
  fail({.subject = std::string(name), .expected = fmt::format("{} to {}", low, high), .got = fmt::format("{}", value)},
       place);
}

}  // namespace megalith
