// What an op reads and writes: the input of the hazard checker and of the plan backend.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace megalith {

// A byte range of device memory. A strided view is described by the range that encloses it.
struct AccessRange {
  const void* begin = nullptr;
  std::size_t bytes = 0;
  bool write = false;
};

// Filled by each op's access(op, Access&). T is anything with `data` and `extent_bytes()`, i.e. Tensor; an absent
// tensor (null data) or an empty one is skipped.
class Access {
 public:
  explicit Access(std::string_view name) : name_(name) {}

  template <class T>
  void reads(const T& t) {
    add(t.data, t.extent_bytes(), false);
  }
  template <class T>
  void writes(const T& t) {
    add(t.data, t.extent_bytes(), true);
  }
  void add(const void* begin, std::size_t bytes, bool write) {
    if (begin != nullptr && bytes > 0) ranges_.push_back({begin, bytes, write});
  }
  void add_flops(double flops) { flops_ += flops; }

  std::string_view name() const { return name_; }  // a string with static lifetime
  const std::vector<AccessRange>& ranges() const { return ranges_; }
  double flops() const { return flops_; }

 private:
  std::string_view name_;
  std::vector<AccessRange> ranges_;
  double flops_ = 0;
};

}  // namespace megalith
