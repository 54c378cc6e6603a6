// What an op reads and writes: the input of the hazard checker, of the finite checker and of the plan backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace megalith {

// A byte range of device memory. A strided view is described by the range that encloses it.
struct AccessRange {
  const void* begin = nullptr;
  std::size_t bytes = 0;
  bool write = false;
  int dtype = -1;                     // DType (core/tensor) as a number; -1: bytes whose type nobody told
  std::vector<std::int64_t> sizes;    // of a strided view; empty: dense
  std::vector<std::int64_t> strides;  // in elements
};

// Filled by each op's access(op, Access&). T is anything with `data` and `extent_bytes()`, i.e. Tensor; an absent
// tensor (null data) or an empty one is skipped.
class Access {
 public:
  explicit Access(std::string_view name) : name_(name) {}

  template <class T>
  void reads(const T& t) {
    add(t.data, t.extent_bytes(), false);
    describe(t);
  }
  template <class T>
  void writes(const T& t) {
    add(t.data, t.extent_bytes(), true);
    describe(t);
  }
  void add(const void* begin, std::size_t bytes, bool write) {
    if (begin != nullptr && bytes > 0) ranges_.push_back({.begin = begin, .bytes = bytes, .write = write});
  }
  void add_flops(double flops) { flops_ += flops; }

  std::string_view name() const { return name_; }  // a string with static lifetime
  const std::vector<AccessRange>& ranges() const { return ranges_; }
  double flops() const { return flops_; }

 private:
  // Completes the range just added; for a bounded tensor, of which only some rows are touched, it stays without type.
  template <class T>
  void describe(const T& t) {
    if constexpr (requires { t.bound; }) {
      if (ranges_.empty() || ranges_.back().begin != t.data || t.bound != nullptr) return;
      AccessRange& range = ranges_.back();
      range.dtype = static_cast<int>(t.dtype);
      if (t.bytes() == range.bytes) return;
      for (int d = 0; d < t.rank(); ++d) {
        range.sizes.push_back(t.size(d));
        range.strides.push_back(t.stride(d));
      }
    }
  }

  std::string_view name_;
  std::vector<AccessRange> ranges_;
  double flops_ = 0;
};

}  // namespace megalith
