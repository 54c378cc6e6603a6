// Row-major vectors seen as Eigen's matrices, and vectors as its arrays.
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <span>
#include <vector>

namespace megalith::reference {

template <class Number>
using Matrix = Eigen::Matrix<Number, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class Number>
auto as_matrix(const std::vector<Number>& x, std::size_t columns) {
  const auto width = static_cast<Eigen::Index>(columns), size = static_cast<Eigen::Index>(x.size());
  return Eigen::Map<const Matrix<Number>>(x.data(), width == 0 ? 0 : size / width, width);
}
template <class Number>
auto as_matrix(std::vector<Number>& x, std::size_t columns) {
  const auto width = static_cast<Eigen::Index>(columns), size = static_cast<Eigen::Index>(x.size());
  return Eigen::Map<Matrix<Number>>(x.data(), width == 0 ? 0 : size / width, width);
}

inline auto as_array(std::span<const double> x) {
  return Eigen::Map<const Eigen::ArrayXd>(x.data(), static_cast<Eigen::Index>(x.size()));
}
inline auto as_array(std::vector<double>& x) {
  return Eigen::Map<Eigen::ArrayXd>(x.data(), static_cast<Eigen::Index>(x.size()));
}

}  // namespace megalith::reference
