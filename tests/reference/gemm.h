// fp64 reference of the matrix product.
#pragma once

#include <cstddef>
#include <vector>

namespace megalith::reference {

struct GemmSizes {
  std::size_t m, n, k;
  bool transpose_a = false;
  bool transpose_b = false;
};

// op(a) op(b), row-major.
std::vector<double> gemm(const std::vector<double>& a, const std::vector<double>& b, const GemmSizes& s);

}  // namespace megalith::reference
