// The reference that clocks are compared with: a trace as an explicit graph and its transitive closure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace megalith {

// Lane 0 is the host: its actions, and all that it waited for, precede all later enqueued work on any lane.
class HappensBefore {
 public:
  explicit HappensBefore(int num_lanes) : last_(static_cast<std::size_t>(num_lanes), kNone) {}

  int add_lane_after(int other) {
    last_.push_back(last_[static_cast<std::size_t>(other)]);
    return static_cast<int>(last_.size()) - 1;
  }
  int op(int lane) { return add(lane, kNone); }
  void record(int lane, std::uint64_t event) { events_[event] = add(lane, kNone); }
  void wait(int lane, std::uint64_t event) {
    const auto found = events_.find(event);
    if (found != events_.end()) add(lane, found->second);
  }
  void join(int lane, int other) { add(lane, last_[static_cast<std::size_t>(other)]); }

  bool ordered(int first, int second) const {
    return before_[static_cast<std::size_t>(second)][static_cast<std::size_t>(first)];
  }

 private:
  static constexpr int kNone = -1;

  int add(int lane, int other) {
    const std::size_t node = before_.size();
    std::vector<bool> before(node + 1, false);
    for (int predecessor : {last_[static_cast<std::size_t>(lane)], last_[0], other}) {
      if (predecessor == kNone) continue;
      const std::vector<bool>& known = before_[static_cast<std::size_t>(predecessor)];
      for (std::size_t i = 0; i < known.size(); ++i) before[i] = before[i] || known[i];
      before[static_cast<std::size_t>(predecessor)] = true;
    }
    before_.push_back(std::move(before));
    last_[static_cast<std::size_t>(lane)] = static_cast<int>(node);
    return static_cast<int>(node);
  }

  std::vector<std::vector<bool>> before_;  // [node]: the earlier nodes that precede it
  std::vector<int> last_;                  // [lane]
  std::map<std::uint64_t, int> events_;
};

}  // namespace megalith
