// fp64 reference of the embedding and of its gradients, as sums over one-hot matrices.
#pragma once

#include <cstddef>
#include <vector>

namespace megalith::reference {

struct EmbeddingSizes {
  std::size_t vocabulary, positions, columns;  // positions 0: none
  std::size_t rows_per_sample, start;
};

inline std::vector<double> embedding(const std::vector<double>& tokens, const std::vector<double>& table,
                                     const std::vector<double>& positions, const EmbeddingSizes& sizes) {
  std::vector<double> y;
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const std::size_t position = sizes.start + row % sizes.rows_per_sample;
    for (std::size_t c = 0; c < sizes.columns; ++c) {
      double value = table[static_cast<std::size_t>(tokens[row]) * sizes.columns + c];
      if (sizes.positions > 0) value += positions[position * sizes.columns + c];
      y.push_back(value);
    }
  }
  return y;
}

// sum over rows with index(row) == i of dy[row], for each of `count` indices.
template <class Index>
std::vector<double> sum_rows_by(const std::vector<double>& dy, std::size_t columns, std::size_t count, Index&& index) {
  std::vector<double> result(count * columns);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t row = 0; row < dy.size() / columns; ++row) {
      if (index(row) != i) continue;
      for (std::size_t c = 0; c < columns; ++c) result[i * columns + c] += dy[row * columns + c];
    }
  }
  return result;
}

}  // namespace megalith::reference
