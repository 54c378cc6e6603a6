// Checks for ops: each says the tensor by name ("op.weight"), what was expected and what came.
#pragma once

#include <source_location>
#include <string_view>

#include "core/tensor/tensor.h"

namespace megalith {

using Place = std::source_location;

// An empty tensor may have a null address.
void check_present(const Tensor& tensor, std::string_view name, Place place = Place::current());
void check_shape(const Tensor& tensor, const Shape& expected, std::string_view name, Place place = Place::current());
void check_rank(const Tensor& tensor, int rank, std::string_view name, Place place = Place::current());
void check_dtype(const Tensor& tensor, DTypeSet allowed, std::string_view name, Place place = Place::current());
void check_contiguous(const Tensor& tensor, std::string_view name, Place place = Place::current());
// The last dim has stride 1.
void check_rows(const Tensor& tensor, std::string_view name, Place place = Place::current());
void check_no_overlap(const Tensor& a, std::string_view a_name, const Tensor& b, std::string_view b_name,
                      Place place = Place::current());

}  // namespace megalith
