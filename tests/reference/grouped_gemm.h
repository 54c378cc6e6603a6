// fp64 references of the grouped matrix products and of the routed SwiGLU.
#pragma once

#include <cstddef>
#include <vector>

namespace megalith::reference {

// Rows sorted by expert: some columns of a matrix's rows, in order or as `index` says.
struct RoutedRows {
  std::vector<double> x;
  std::size_t width;  // width of x
  std::size_t first, columns;
  std::vector<int> index = {};
};

// a_r B_e for the rows of each expert e, from `offsets[e]` to below `offsets[e + 1]`: [offsets.back(), n]. Each expert
// has a matrix [k, n] of `b`, or [n, k] if transposed.
std::vector<double> grouped_gemm(const RoutedRows& a, const std::vector<int>& offsets, const std::vector<double>& b,
                                 std::size_t n, bool transpose_b);

// The sum of a_r^T b_r for each expert: [E m, n].
std::vector<double> grouped_gemm_wgrad(const RoutedRows& a, const RoutedRows& b, const std::vector<int>& offsets);

// w_r silu(gate) up of rows [gate | up] with `columns` columns each.
std::vector<double> routed_swiglu(const std::vector<double>& x, const std::vector<double>& row_weight,
                                  std::size_t columns);

struct RoutedSwigluGradient {
  std::vector<double> dx;
  std::vector<double> d_row_weight, d_row_weight_magnitude;  // for each block of 64 columns: [rows, blocks]
};
RoutedSwigluGradient routed_swiglu_gradient(const std::vector<double>& x, const std::vector<double>& dy,
                                            const std::vector<double>& row_weight, std::size_t columns);

}  // namespace megalith::reference
