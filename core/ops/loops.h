// Loops over rows of fp32 or bf16 with plain arithmetic bodies: a body gets eight elements at a time, as fp32.
//   for_each_element(n, [=](auto i) { y.set(i, (x[i] - mean) * rstd * weight[i]); });
// Rows belong to tensors with equal leading dims (up to three) and different strides:
//   for_each_row(op.x, [&](std::int64_t row, const RowIndex& at) { const Row x = xs[at]; ... });
// For *_cpu.cpp files. An element's result does not depend on its position in a row or in memory. core/ops is compiled
// without contraction, so that only fma() fuses, and sums have a fixed order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/ops/simd_math.h"
#include "core/tensor/tensor.h"

namespace megalith {

using simd::F32x8;

// Elements of a body: eight from `at` on, or fewer at a row's end.
struct Eight {
  std::int64_t at;
};
struct Fewer {
  std::int64_t at, count;
};

// Elements are fp32 when read, and rounded to T when set. False if absent.
template <class T>
class Row {
 public:
  Row(T* first) : first_(first) {}
  operator Row<const T>() const { return first_; }
  explicit operator bool() const { return first_ != nullptr; }
  Row operator+(std::int64_t elements) const { return first_ + elements; }

  F32x8 operator[](Eight i) const { return simd::load(first_ + i.at); }
  F32x8 operator[](Fewer i) const { return simd::load_partial(first_ + i.at, i.count); }  // the others read as 0
  void set(Eight i, F32x8 x) const { simd::store(first_ + i.at, x); }
  void set(Fewer i, F32x8 x) const { simd::store_partial(first_ + i.at, x, i.count); }

 private:
  T* first_;
};

inline F32x8 broadcast(float x) { return simd::set1(x); }
inline F32x8 broadcast(F32x8 x) { return x; }
// x y + z, rounded once.
template <class X, class Y, class Z>
F32x8 fma(X x, Y y, Z z) {
  return _mm256_fmadd_ps(broadcast(x), broadcast(y), broadcast(z));
}

inline F32x8 sqrt(F32x8 x) { return _mm256_sqrt_ps(x); }

// Calls body(i) for all elements below n. Of a row that it sets, the body may read only the elements i.
template <class Body>
void for_each_element(std::int64_t n, Body&& body) {
  std::int64_t i = 0;
#pragma GCC unroll 2  // short bodies would be bound by the loop
  for (; i + 8 <= n; i += 8) body(Eight{i});
  if (i < n) body(Fewer{i, n - i});
}

// Sums over a row in a fixed order: element i goes to lane i % 32, by add(lanes, i) on eight lanes of each sum. The 32
// lanes are then added by halves.
//   const auto [total] = sum_elements<1>(n, [=](auto& lanes, auto i) { lanes[0] += x[i]; });
template <int Count, class Add>
std::array<float, Count> sum_elements(std::int64_t n, Add&& add) {
  using Lanes = F32x8[Count];
  Lanes lanes[4] = {};
  std::int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    for (int k = 0; k < 4; ++k) add(lanes[k], Eight{i + 8 * k});
  }
#pragma GCC unroll 4  // otherwise the lanes would be in memory
  for (int k = 0; k < 4; ++k, i += 8) {
    if (i + 8 <= n) {
      add(lanes[k], Eight{i});
    } else if (i < n) {
      Lanes last;
      for (int c = 0; c < Count; ++c) last[c] = lanes[k][c];
      add(last, Fewer{i, n - i});
      for (int c = 0; c < Count; ++c) lanes[k][c] = simd::select_first(n - i, last[c], lanes[k][c]);
    }
  }
  std::array<float, Count> sums;
  for (std::size_t c = 0; c < Count; ++c) {
    sums[c] = simd::horizontal_sum((lanes[0][c] + lanes[2][c]) + (lanes[1][c] + lanes[3][c]));
  }
  return sums;
}

// Index of a row in the leading dims; missing dims come first, the last varies fastest.
using RowIndex = std::array<std::int64_t, 3>;

// The rows of one tensor; an absent tensor has absent rows.
template <class T>
class Rows {
 public:
  explicit Rows(const Tensor& x) : data_(x.as<T>()) {
    for (int d = x.rank() - 2, i = 2; d >= 0; --d, --i) strides_[i] = x.stride(d);
  }
  Row<T> operator[](const RowIndex& at) const {
    if (data_ == nullptr) return nullptr;
    return data_ + (at[0] * strides_[0] + at[1] * strides_[1] + at[2] * strides_[2]);
  }

 private:
  T* data_;
  std::int64_t strides_[3] = {0, 0, 0};
};

// Returns the used rows: all, or the bound of dim 0.
inline std::int64_t live_rows(const Tensor& x) {
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < x.rank(); ++d) rows *= d == 0 && x.bound != nullptr ? *x.bound : x.size(d);
  return rows;
}

// Calls visit(row, at) for the rows of x from `first` to below `end`.
template <class Visit>
void for_each_row(const Tensor& x, std::int64_t first, std::int64_t end, Visit&& visit) {
  if (first >= end) return;
  std::int64_t sizes[3] = {1, 1, 1};
  for (int d = x.rank() - 2, i = 2; d >= 0; --d, --i) sizes[i] = x.size(d);
  RowIndex at = {first / (sizes[1] * sizes[2]), first / sizes[2] % sizes[1], first % sizes[2]};
  for (std::int64_t row = first; row < end; ++row) {
    visit(row, at);
    if (++at[2] < sizes[2]) continue;
    at[2] = 0;
    if (++at[1] < sizes[1]) continue;
    at[1] = 0;
    ++at[0];
  }
}
// Calls visit(row, at) for all used rows.
template <class Visit>
void for_each_row(const Tensor& x, Visit&& visit) {
  for_each_row(x, 0, live_rows(x), visit);
}

}  // namespace megalith
