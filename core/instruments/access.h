// Memory accesses of an op: input of the hazard checker, of the finite checker and of the plan backend.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace megalith {

// Resource that bounds the time of an op.
enum class Work : std::uint8_t { kMemory, kMatrixProduct, kAttentionForward, kAttentionBackward };

struct Cost {
  Work work = Work::kMemory;
  double flops = 0;
  double bytes = 0;  // bytes through memory: all for kMemory, else those of operations fused to the main work
};

// Experts of the rows (dim 0) of a range, or the maximum number of rows in use.
struct RowsOfExperts {
  std::int64_t experts = 0;               // 0: no experts
  std::int64_t rows = 0;                  // 0: all are in use, without experts
  const std::int32_t* offsets = nullptr;  // device, [experts + 1]: first row of each expert; null: equal row counts
};

// Byte range of device memory. The range of a strided view encloses the view.
struct AccessRange {
  const void* begin = nullptr;
  std::size_t bytes = 0;
  bool write = false;
  int dtype = -1;                     // DType (core/tensor) as a number; -1: untyped bytes
  std::vector<std::int64_t> sizes;    // of a strided view; empty: dense
  std::vector<std::int64_t> strides;  // in elements
  RowsOfExperts experts = {};
};

// Accesses of one op; each op's access(op, Access&) fills them. `t` needs `data` and `extent_bytes()`, as Tensor has.
// Absent tensors (null data) and empty tensors are skipped.
class Access {
 public:
  explicit Access(std::string_view name) : name_(name) {}

  void reads(const auto& t) { add_tensor(t, false); }
  void writes(const auto& t) { add_tensor(t, true); }
  void add(const void* begin, std::size_t bytes, bool write) {
    if (begin == nullptr || bytes == 0) return;
    ranges_.push_back({.begin = begin, .bytes = bytes, .write = write});
    moved_bytes_ += bytes;
  }
  // Adds scratch memory of the op, which no cost counts.
  void uses(const auto& workspace) {
    const std::size_t moved = moved_bytes_;
    add_tensor(workspace, true);
    moved_bytes_ = moved;
  }
  void set_moved_bytes(std::size_t bytes) { moved_bytes_ = bytes; }  // if the ranges enclose more bytes
  // Reduces the workspace at `begin` to its first `bytes`, which the op uses.
  void shorten(const void* begin, std::size_t bytes) {
    for (AccessRange& range : ranges_) {
      if (range.begin == begin) range.bytes = std::min(range.bytes, bytes);
    }
    std::erase_if(ranges_, [](const AccessRange& range) { return range.bytes == 0; });
  }
  void set_cost(const Cost& cost) { cost_ = cost; }
  // Sets the experts of all ranges from index `first` on.
  void set_experts(std::size_t first, const RowsOfExperts& experts) {
    for (std::size_t i = first; i < ranges_.size(); ++i) ranges_[i].experts = experts;
  }
  // Marks an op that only moves bytes, so that copy engines may run it.
  void set_copy() { is_copy_ = true; }

  std::string_view name() const { return name_; }  // a string with static lifetime
  const std::vector<AccessRange>& ranges() const { return ranges_; }
  std::size_t moved_bytes() const { return moved_bytes_; }  // read and written, without gaps and workspaces
  double flops() const { return cost_.flops; }
  bool is_copy() const { return is_copy_; }
  Cost cost() const {
    Cost cost = cost_;
    if (cost.work == Work::kMemory) cost.bytes = static_cast<double>(moved_bytes_);
    return cost;
  }

 private:
  void add_tensor(const auto& t, bool write) {
    const std::size_t before = ranges_.size();
    add(t.data, t.extent_bytes(), write);
    if (ranges_.size() > before) describe(t);
  }

  // Completes the range just added. A bounded tensor's range stays untyped, since the op touches only some rows.
  void describe(const auto& t) {
    if constexpr (requires { t.bound; }) {
      if (t.bound != nullptr) return;
      AccessRange& range = ranges_.back();
      range.dtype = static_cast<int>(t.dtype);
      if (t.bytes() == range.bytes) return;
      moved_bytes_ -= range.bytes - t.bytes();
      for (int d = 0; d < t.rank(); ++d) {
        range.sizes.push_back(t.size(d));
        range.strides.push_back(t.stride(d));
      }
    }
  }

  std::string_view name_;
  std::vector<AccessRange> ranges_;
  Cost cost_;
  std::size_t moved_bytes_ = 0;
  bool is_copy_ = false;
};

}  // namespace megalith
