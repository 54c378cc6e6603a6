// Extents of a tensor, int64, without allocation. Negative extents are errors.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/base/error.h"

namespace megalith {

inline constexpr int kMaxDims = 6;

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents) {
    require(extents.size() <= kMaxDims, "Shape: more than 6 dims");
    for (std::int64_t extent : extents) push_back(extent);
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int dim) const { return extents_[static_cast<std::size_t>(dim)]; }
  std::int64_t& operator[](int dim) { return extents_[static_cast<std::size_t>(dim)]; }
  std::int64_t back() const { return (*this)[rank_ - 1]; }
  void push_back(std::int64_t extent) {
    require(rank_ < kMaxDims && extent >= 0, "Shape: too many dims or a negative extent");
    extents_[static_cast<std::size_t>(rank_++)] = extent;
  }
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (const std::int64_t extent : *this) n *= extent;
    return n;
  }
  const std::int64_t* begin() const { return extents_.data(); }
  const std::int64_t* end() const { return begin() + rank_; }
  friend bool operator==(const Shape& a, const Shape& b) {  // a loop: std::equal calls memcmp, which is slower
    bool same = a.rank_ == b.rank_;
    for (int d = 0; same && d < a.rank_; ++d) same = a[d] == b[d];
    return same;
  }

 private:
  std::array<std::int64_t, kMaxDims> extents_{};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);  // "[4096, 8]"

}  // namespace megalith
