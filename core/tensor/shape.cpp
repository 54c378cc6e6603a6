#include "core/tensor/shape.h"

#include <fmt/format.h>

namespace megalith {

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace megalith
