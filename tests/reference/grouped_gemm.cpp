#include "tests/reference/grouped_gemm.h"

#include <cmath>

#include "tests/reference/activation.h"
#include "tests/reference/matrix.h"

namespace megalith::reference {

namespace {

Matrix<double> rows_of_expert(const RoutedRows& rows, const std::vector<int>& offsets, std::size_t expert) {
  const auto x = as_matrix(rows.x, rows.width);
  const int begin = offsets[expert], end = offsets[expert + 1];
  const auto first = static_cast<Eigen::Index>(rows.first), columns = static_cast<Eigen::Index>(rows.columns);
  Matrix<double> result(end - begin, columns);
  if (columns == 0) return result;
  for (int r = begin; r < end; ++r) {
    const int from = rows.index.empty() ? r : rows.index[static_cast<std::size_t>(r)];
    result.row(r - begin) = x.row(from).segment(first, columns);
  }
  return result;
}

}  // namespace

std::vector<double> grouped_gemm(const RoutedRows& a, const std::vector<int>& offsets, const std::vector<double>& b,
                                 std::size_t n, bool transpose_b) {
  const auto columns = static_cast<Eigen::Index>(n), k = static_cast<Eigen::Index>(a.columns);
  std::vector<double> c(static_cast<std::size_t>(offsets.back()) * n);
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
    const double* matrix = b.data() + e * n * a.columns;
    Eigen::Map<Matrix<double>> to(c.data() + static_cast<std::size_t>(offsets[e]) * n, offsets[e + 1] - offsets[e],
                                  columns);
    using Given = Eigen::Map<const Matrix<double>>;
    const Matrix<double> rows = rows_of_expert(a, offsets, e);
    if (transpose_b) {
      to = rows * Given(matrix, columns, k).transpose();
    } else {
      to = rows * Given(matrix, k, columns);
    }
  }
  return c;
}

std::vector<double> grouped_gemm_wgrad(const RoutedRows& a, const RoutedRows& b, const std::vector<int>& offsets) {
  const std::size_t size = a.columns * b.columns;
  std::vector<double> c((offsets.size() - 1) * size);
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
    Eigen::Map<Matrix<double>>(c.data() + e * size, static_cast<Eigen::Index>(a.columns),
                               static_cast<Eigen::Index>(b.columns)) =
        rows_of_expert(a, offsets, e).transpose() * rows_of_expert(b, offsets, e);
  }
  return c;
}

std::vector<double> routed_swiglu(const std::vector<double>& x, const std::vector<double>& row_weight,
                                  std::size_t columns) {
  std::vector<double> y;
  for (std::size_t r = 0; r < row_weight.size(); ++r) {
    const double* gate = x.data() + r * 2 * columns;
    for (std::size_t c = 0; c < columns; ++c) y.push_back(row_weight[r] * silu(gate[c]) * gate[columns + c]);
  }
  return y;
}

RoutedSwigluGradient routed_swiglu_gradient(const std::vector<double>& x, const std::vector<double>& dy,
                                            const std::vector<double>& row_weight, std::size_t columns) {
  const std::size_t rows = row_weight.size(), blocks = (columns + 63) / 64;
  RoutedSwigluGradient result{std::vector<double>(x.size()), std::vector<double>(rows * blocks),
                              std::vector<double>(rows * blocks)};
  for (std::size_t r = 0; r < rows; ++r) {
    const double *gate = x.data() + r * 2 * columns, *up = gate + columns;
    double* d_gate = result.dx.data() + r * 2 * columns;
    for (std::size_t c = 0; c < columns; ++c) {
      const double d = dy[r * columns + c], term = d * silu(gate[c]) * up[c];
      d_gate[c] = row_weight[r] * d * silu_slope(gate[c]) * up[c];
      d_gate[columns + c] = row_weight[r] * d * silu(gate[c]);
      result.d_row_weight[r * blocks + c / 64] += term;
      result.d_row_weight_magnitude[r * blocks + c / 64] += std::abs(term);
    }
  }
  return result;
}

}  // namespace megalith::reference
