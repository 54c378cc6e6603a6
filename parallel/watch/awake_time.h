// For how long something waits while this process runs. Time for which it, or the machine, was suspended does not
// count: of a longer time between two looks one second does, so that who waits on a machine that stalls again and again
// is late in the end.
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

  // From the start on, and often; by one thread, as all here.
  void look(Clock::time_point now) {
    if (last_ != Clock::time_point{} && now - last_ > kMost) {
      lost_.push_back({.from = last_ + kMost, .to = now});
      if (lost_.size() > kKept) lost_.pop_front();
    }
    last_ = now;
  }

  // From `begin` to the last look.
  Clock::duration since(Clock::time_point begin) const {
    Clock::duration time = std::max(last_ - begin, Clock::duration::zero());
    for (auto lost = lost_.rbegin(); lost != lost_.rend() && lost->to > begin; ++lost)
      time -= lost->to - std::max(lost->from, begin);
    return time;
  }

 private:
  static constexpr std::size_t kKept = 4096;  // older ones count
  struct Lost {
    Clock::time_point from, to;
  };

  Clock::time_point last_{};
  std::deque<Lost> lost_;  // ascending, apart
};

}  // namespace megalith
