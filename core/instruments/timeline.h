// Recording of a plan: every op, record and wait of the real code path in enqueue order. The arena's layout, the memory
// forecast and the FLOP count are computed from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/instruments/access.h"

namespace megalith {

class Timeline {
 public:
  enum class Kind : std::uint8_t { kOp, kRecord, kWait };
  struct Entry {
    Kind kind;
    int lane;
    std::uint64_t event = 0;  // kRecord, kWait
    Access access{""};        // kOp
  };

  // Adds a stream. Lane 0 is the first stream: the compute stream.
  int add_lane(std::string_view name) {
    lanes_.emplace_back(name);
    return static_cast<int>(lanes_.size()) - 1;
  }
  void op(int lane, const Access& access) { entries_.push_back({Kind::kOp, lane, 0, access}); }
  void record(int lane, std::uint64_t event) { entries_.push_back({Kind::kRecord, lane, event, Access("")}); }
  void wait(int lane, std::uint64_t event) { entries_.push_back({Kind::kWait, lane, event, Access("")}); }

  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<std::string>& lanes() const { return lanes_; }
  double flops() const {
    double flops = 0;
    for (const Entry& entry : entries_) flops += entry.access.flops();
    return flops;
  }
  void clear() { entries_.clear(); }

 private:
  std::vector<Entry> entries_;
  std::vector<std::string> lanes_;
};

}  // namespace megalith
