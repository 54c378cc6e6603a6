// Dispatch from a runtime dtype to a compile-time one, in CPU kernels.
#pragma once

#include "core/tensor/bf16.h"
#include "core/tensor/dtype.h"

namespace megalith {

// Calls visit(float{}) or visit(bf16{}); check() has rejected every other dtype.
template <class Visit>
void visit_float(DType dtype, Visit&& visit) {
  if (dtype == DType::kFp32) {
    visit(float{});
  } else {
    visit(bf16{});
  }
}
template <class Visit>
void visit_float(DType first, DType second, Visit&& visit) {
  visit_float(first, [&](auto a) { visit_float(second, [&](auto b) { visit(a, b); }); });
}

}  // namespace megalith
