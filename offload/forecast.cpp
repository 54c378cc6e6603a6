#include "offload/forecast.h"

#include <algorithm>
#include <map>
#include <utility>

#include "offload/lowering.h"

namespace megalith {

namespace {

// A list with the actions of slots, played on three clocks: of computing, and of each direction's copies.
class CopyPlayer {
 public:
  CopyPlayer(const std::vector<double>& seconds, const std::vector<double>& bytes, const CopyRates& rates)
      : seconds_(seconds), bytes_(bytes), rates_(rates) {}

  CopyForecast play(const std::vector<Action>& list) {
    std::size_t next = 0;
    for (const Action& action : list) {
      if (!is_of_slot(action.kind)) {
        clock_ += seconds_[next++];
      } else {
        pass(action);
      }
    }
    return forecast_;
  }

 private:
  void pass(const Action& action) {
    const double bytes = bytes_[static_cast<std::size_t>(action.item)];
    double& copied = copied_[{action.item, action.column}];
    const auto wait = [&](double& stalls) {
      stalls += std::max(0.0, copied - clock_);
      clock_ = std::max(clock_, copied);
    };
    switch (action.kind) {
      case ActionKind::kOffload:
        out_ = std::max(out_, clock_) + bytes / rates_.out;
        forecast_.out_seconds += bytes / rates_.out;
        copied = out_;
        return;
      case ActionKind::kWaitOffload: return wait(forecast_.out_stalls);
      case ActionKind::kReload:
        back_ = std::max(back_, clock_) + bytes / rates_.back;
        forecast_.back_seconds += bytes / rates_.back;
        copied = back_;
        return;
      default: return wait(forecast_.back_stalls);
    }
  }

  const std::vector<double>& seconds_;
  const std::vector<double>& bytes_;
  const CopyRates rates_;
  double clock_ = 0, out_ = 0, back_ = 0;
  std::map<std::pair<int, int>, double> copied_;  // when the copy under way is over, by slot and column
  CopyForecast forecast_;
};

}  // namespace

CopyForecast forecast_copies(const StepSeconds& step, const OffloadPoints& points, const std::vector<double>& bytes,
                             const CopyRates& rates) {
  return CopyPlayer(step.seconds, bytes, rates).play(insert_offloads(step.actions, points));
}

}  // namespace megalith
