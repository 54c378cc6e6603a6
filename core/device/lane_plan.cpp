#include "core/device/lane_plan.h"

#include <algorithm>
#include <cstdint>
#include <tuple>

namespace megalith {

namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

class Planner {
 public:
  Planner(const Dependencies& follows, const std::vector<double>& seconds, int lanes, double between)
      : follows_(follows),
        seconds_(seconds),
        between_(between),
        way_(seconds),
        end_(seconds.size(), 0),
        open_(seconds.size()),
        followers_(seconds.size()),
        free_(static_cast<std::size_t>(lanes), 0),
        last_(static_cast<std::size_t>(lanes), kNone),
        plan_{.lane = std::vector<int>(seconds.size(), -1), .follows = follows} {
    for (std::size_t op = seconds.size(); op-- > 0;) {
      open_[op] = follows[op].size();
      if (open_[op] == 0) ready_.push_back(op);
      for (const std::size_t other : follows[op]) {
        way_[other] = std::max(way_[other], seconds[other] + way_[op]);
        followers_[other].push_back(op);
      }
    }
  }

  LanePlan run() {
    while (!ready_.empty()) place(next());
    reduce();
    return std::move(plan_);
  }

 private:
  struct Choice {
    std::size_t at;  // index in ready_
    std::size_t lane;
    double begin;
  };

  Choice next() const {
    Choice best{.at = 0, .lane = 0, .begin = begin_of(ready_[0], 0)};
    for (std::size_t at = 0; at < ready_.size(); ++at) {
      const std::size_t op = ready_[at];
      for (std::size_t lane = 0; lane < free_.size(); ++lane) {
        const std::size_t best_op = ready_[best.at];
        const double begin = begin_of(op, lane);
        if (std::tuple(begin, -way_[op], op) < std::tuple(best.begin, -way_[best_op], best_op))
          best = {.at = at, .lane = lane, .begin = begin};
      }
    }
    return best;
  }

  double begin_of(std::size_t op, std::size_t lane) const {
    double begin = free_[lane];
    for (const std::size_t other : follows_[op]) {
      const bool here = plan_.lane[other] == static_cast<int>(lane);
      begin = std::max(begin, end_[other] + (here ? 0 : between_));
    }
    return begin;
  }

  void place(const Choice& choice) {
    const std::size_t op = ready_[choice.at];
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(choice.at));
    plan_.lane[op] = static_cast<int>(choice.lane);
    plan_.order.push_back(op);
    end_[op] = free_[choice.lane] = choice.begin + seconds_[op];
    if (last_[choice.lane] != kNone) plan_.follows[op].push_back(last_[choice.lane]);
    last_[choice.lane] = op;
    for (const std::size_t other : followers_[op]) {
      if (--open_[other] == 0) ready_.push_back(other);
    }
  }

  // Removes implied dependencies. Per lane, an op keeps the latest op that it follows there. Of other lanes, it drops
  // those that the preceding op or another dependency already follows.
  void reduce() {
    const std::size_t lanes = free_.size();
    std::vector<std::size_t> place(seconds_.size());
    std::vector<std::vector<std::int64_t>> known(seconds_.size());  // per lane, the latest op known to be done
    for (std::size_t i = 0; i < plan_.order.size(); ++i) {
      const std::size_t op = plan_.order[i];
      place[op] = i;
      known[op].assign(lanes, -1);
      std::vector<std::size_t>& others = plan_.follows[op];
      std::sort(others.begin(), others.end(), [&place](std::size_t a, std::size_t b) { return place[a] > place[b]; });
      std::erase_if(others, [&](std::size_t other) {
        const auto lane = static_cast<std::size_t>(plan_.lane[other]);
        if (known[op][lane] >= static_cast<std::int64_t>(place[other])) return true;
        for (std::size_t l = 0; l < lanes; ++l) known[op][l] = std::max(known[op][l], known[other][l]);
        known[op][lane] = static_cast<std::int64_t>(place[other]);
        return false;
      });
    }
  }

  const Dependencies& follows_;
  const std::vector<double>& seconds_;
  const double between_;
  std::vector<double> way_;  // from an op's begin to the end of all ops
  std::vector<double> end_;
  std::vector<std::size_t> open_;
  Dependencies followers_;
  std::vector<std::size_t> ready_;
  std::vector<double> free_;
  std::vector<std::size_t> last_;
  LanePlan plan_;
};

}  // namespace

LanePlan plan_lanes(const Dependencies& follows, const std::vector<double>& seconds, int lanes, double between) {
  return Planner(follows, seconds, lanes, between).run();
}

}  // namespace megalith
