// Waiting time while this process runs. Suspensions of the process or machine do not count. A gap between two looks
// counts as at most one second, so waits on a repeatedly stalled machine still time out.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>

namespace megalith {

class AwakeTime {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kMost{1};

  // Called regularly from the start, by one thread, as are all functions here.
  void look(Clock::time_point now) {
    if (last_ != Clock::time_point{} && now - last_ > kMost) {
      lost_.push_back({.from = last_ + kMost, .to = now});
      if (lost_.size() > kKept) lost_.pop_front();
    }
    last_ = now;
  }

  // Time from `begin` to the last look.
  Clock::duration since(Clock::time_point begin) const {
    Clock::duration time = std::max(last_ - begin, Clock::duration::zero());
    for (auto lost = lost_.rbegin(); lost != lost_.rend() && lost->to > begin; ++lost)
      time -= lost->to - std::max(lost->from, begin);
    return time;
  }

 private:
  static constexpr std::size_t kKept = 4096;  // older gaps count as waiting time
  struct Lost {
    Clock::time_point from, to;
  };

  Clock::time_point last_{};
  std::deque<Lost> lost_;  // ascending, disjoint
};

}  // namespace megalith
