#include "tests/reference/gemm.h"

#include "tests/reference/matrix.h"

namespace megalith::reference {

std::vector<double> gemm(const std::vector<double>& a, const std::vector<double>& b, const GemmSizes& s) {
  const auto m = static_cast<Eigen::Index>(s.m), n = static_cast<Eigen::Index>(s.n), k = static_cast<Eigen::Index>(s.k);
  using Given = Eigen::Map<const Matrix<double>>;
  Matrix<double> left = s.transpose_a ? Given(a.data(), k, m) : Given(a.data(), m, k);
  Matrix<double> right = s.transpose_b ? Given(b.data(), n, k) : Given(b.data(), k, n);
  if (s.transpose_a) left.transposeInPlace();
  if (s.transpose_b) right.transposeInPlace();
  std::vector<double> c(s.m * s.n);
  Eigen::Map<Matrix<double>>(c.data(), m, n) = left * right;
  return c;
}

}  // namespace megalith::reference
