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
inline std::vector<double> gemm(const std::vector<double>& a, const std::vector<double>& b, const GemmSizes& s) {
  std::vector<double> c(s.m * s.n, 0.0);
  for (std::size_t i = 0; i < s.m; ++i) {
    for (std::size_t j = 0; j < s.n; ++j) {
      for (std::size_t p = 0; p < s.k; ++p) {
        const double left = s.transpose_a ? a[p * s.m + i] : a[i * s.k + p];
        const double right = s.transpose_b ? b[j * s.k + p] : b[p * s.n + j];
        c[i * s.n + j] += left * right;
      }
    }
  }
  return c;
}

}  // namespace megalith::reference
