// Which slots move by a forecast of the plain step, and how long their copies take during it.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "offload/forecast.h"
#include "offload/policy.h"
#include "offload/stats.h"

namespace megalith {

// Of a recorded training step without offload, and of what there is for it.
struct CopiesForecastSpec {
  const std::vector<Action>& actions;  // which outlive the forecast
  std::vector<double> seconds;         // of each, on the compute stream
  std::int64_t microbatches = 1;       // of the recorded step
  CopyRates rates;
  double slowdown = 0;  // share of the step's computing that may wait for copies
  int distance = -1;    // layers between a slot's readers and its copies; -1: as many as is best
  double host_room = std::numeric_limits<double>::infinity();  // bytes for slots
  double room = std::numeric_limits<double>::infinity();       // bytes of the device for what is alive in a step
};

class CopiesForecast {
 public:
  explicit CopiesForecast(CopiesForecastSpec spec) : spec_(std::move(spec)) {}

  // Sets the distances of the slots that `choices` move; `bytes` is what is used of each candidate. Slots that do not
  // fit on the host stay, and the others are placed again, as they then have the links to themselves.
  void place(const OffloadRecording& recording, const std::vector<OffloadCandidate>& candidates,
             const std::vector<double>& bytes, OffloadPoints& points, std::vector<OffloadChoice>& choices) const;
  // Times of a microbatch; `bytes` is what is used of each slot.
  OffloadStats times(const std::vector<double>& bytes, const OffloadPoints& points) const;

 private:
  void place_all(const OffloadRecording& recording, const std::vector<OffloadCandidate>& candidates,
                 const std::vector<double>& bytes, OffloadPoints& points, std::vector<OffloadChoice>& choices) const;
  StepSeconds step() const { return {.actions = spec_.actions, .seconds = spec_.seconds}; }

  CopiesForecastSpec spec_;
};

}  // namespace megalith
