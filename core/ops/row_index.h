// Walks the rows of tensors that share their leading dims (up to three) but not their strides. For *_cpu.cpp files.
#pragma once

#include <cstdint>

#include "core/ops/loops.h"
#include "core/tensor/tensor.h"

namespace megalith {

// Where one row stands in the leading dims; the last of them runs fastest.
class RowIndex {
 public:
  RowIndex(const Tensor& x, std::int64_t row) {
    const int leading = x.rank() - 1;
    for (int d = 0; d < leading; ++d) sizes_[3 - leading + d] = x.size(d);
    for (int d = 2; d > 0; --d) {
      at_[d] = row % sizes_[d];
      row /= sizes_[d];
    }
    at_[0] = row;
  }
  void advance() {
    if (++at_[2] < sizes_[2]) return;
    at_[2] = 0;
    if (++at_[1] < sizes_[1]) return;
    at_[1] = 0;
    ++at_[0];
  }
  std::int64_t offset(const std::int64_t (&strides)[3]) const {
    return at_[0] * strides[0] + at_[1] * strides[1] + at_[2] * strides[2];
  }

 private:
  std::int64_t sizes_[3] = {1, 1, 1};
  std::int64_t at_[3];
};

// The rows of one tensor; an absent tensor has absent rows.
template <class T>
class Rows {
 public:
  explicit Rows(const Tensor& x) : data_(x.as<T>()) {
    const int leading = x.rank() - 1;
    for (int d = 0; d < leading; ++d) strides_[3 - leading + d] = x.stride(d);
  }
  Row<T> operator[](const RowIndex& row) const { return data_ == nullptr ? nullptr : data_ + row.offset(strides_); }

 private:
  T* data_;
  std::int64_t strides_[3] = {0, 0, 0};
};

// Rows that hold something: all, or as many as the bound of dim 0 says.
inline std::int64_t live_rows(const Tensor& x) {
  std::int64_t rows = x.bound == nullptr ? x.size(0) : *x.bound;
  for (int d = 1; d + 1 < x.rank(); ++d) rows *= x.size(d);
  return rows;
}

// visit(row, at) for the rows of x from `first` to below `end`.
template <class Visit>
void for_each_row(const Tensor& x, std::int64_t first, std::int64_t end, Visit&& visit) {
  if (first >= end) return;
  RowIndex at(x, first);
  for (std::int64_t row = first; row < end; ++row, at.advance()) visit(row, at);
}

}  // namespace megalith
