#include "core/tensor/shape.h"

namespace megalith {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int d = 0; d < shape.rank(); ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(shape[d]);
  }
  return text + "]";
}

}  // namespace megalith
