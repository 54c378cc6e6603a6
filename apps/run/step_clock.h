// Times of a step's parts on the compute stream, by events around actions. Work within a graph is not split: it counts
// as compute, as does communication within a layer.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>

#include "core/device/event.h"
#include "core/device/stream.h"
#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

enum class StepPart : std::uint8_t { kCommunication, kCopies, kForward, kBackward, kOptimizer };
inline constexpr std::size_t kNumStepParts = 5;

// Seconds of a step. compute + communication + copies + host is the step's time.
struct StepSplit {
  double compute = 0;
  double communication = 0;  // waits of the compute stream for other ranks, and sums on it
  double copies = 0;         // waits for copies of offloaded activations
  double host = 0;           // between the end of the previous step and the begin of this one
  // Parts of `compute`; absent below --timing-log-level 2.
  std::optional<double> forward{}, backward{}, optimizer{};
};

class StepClock {
 public:
  // Called ahead of a step's actions. Level 0: nothing is timed; 1: communication and copies; 2: all parts.
  void begin(std::int64_t level);
  // Called ahead of and after an action, or actions from `first` to `last` in one graph.
  void before(const Action& first, const Action& last, Stream& compute);
  void after(Stream& compute);
  std::int64_t level() const { return level_; }
  // Seconds by part, once the stream has passed the step.
  std::array<double, kNumStepParts> read() const;

 private:
  struct Span {
    StepPart part = StepPart::kCommunication;
    Event begun{"part begin", true}, done{"part end", true};
  };

  std::int64_t level_ = 0;
  std::deque<Span> spans_;  // kept from step to step
  std::size_t used_ = 0;
  std::optional<StepPart> open_;      // part of the current action
  std::optional<StepPart> previous_;  // part of the action ahead of it
};

}  // namespace megalith
