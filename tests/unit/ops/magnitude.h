// For results whose terms cancel. The rounding of the result is relative to its value, the rounding of fp32 sums to the
// magnitude of their terms. In bf16 this is far stricter than one tolerance for both. It finds an intermediate result
// that was rounded to bf16.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tests/support/op_test.h"

namespace megalith::test {

// The magnitude for expect_close that allows 2 u(stored) |want| + (4 + sqrt(length)) u(fp32) magnitude.
inline Values sum_magnitude(const Values& want, const Values& magnitude, DType stored, std::int64_t length) {
  const double of_sums = (4 + std::sqrt(static_cast<double>(length))) * unit_roundoff(DType::kFp32);
  Values result;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double allowed = 2 * unit_roundoff(stored) * std::abs(want[i]) + of_sums * magnitude[i];
    result.push_back(allowed / tolerance(stored, length));
  }
  return result;
}

}  // namespace megalith::test
