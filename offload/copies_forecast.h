// Choice of the slots that move, from the times of a plain step, and forecast of their copies during it.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "offload/forecast.h"
#include "offload/policy.h"
#include "offload/stats.h"

namespace megalith {

// A recorded training step without offload, and the available links and memory.
struct CopiesForecastSpec {
  const std::vector<Action>& actions;  // outlives the forecast
  std::vector<double> seconds;         // of each action on the compute stream
  std::int64_t microbatches = 1;       // of the recorded step
  CopyRates rates;
  double slowdown = 0;  // stalls allowed, as a share of the step's computation
  int distance = -1;    // layers between a slot's readers and its copies; -1: best
  double host_room = std::numeric_limits<double>::infinity();  // bytes of the host for slots
  double room = std::numeric_limits<double>::infinity();       // bytes of the device for live memory
};

class CopiesForecast {
 public:
  explicit CopiesForecast(CopiesForecastSpec spec) : spec_(std::move(spec)) {}

  // Sets the distances of the slots that `choices` move; `bytes` is the used size of each candidate. Slots that do not
  // fit on the host stay. The others are placed again, since fewer slots then share the links.
  void place(const OffloadRecording& recording, const std::vector<OffloadCandidate>& candidates,
             const std::vector<double>& bytes, OffloadPoints& points, std::vector<OffloadChoice>& choices) const;
  // Times per microbatch; `bytes` is the used size of each slot.
  OffloadStats times(const std::vector<double>& bytes, const OffloadPoints& points) const;

 private:
  void place_all(const OffloadRecording& recording, const std::vector<OffloadCandidate>& candidates,
                 const std::vector<double>& bytes, OffloadPoints& points, std::vector<OffloadChoice>& choices) const;
  StepSeconds step() const { return {.actions = spec_.actions, .seconds = spec_.seconds}; }

  CopiesForecastSpec spec_;
};

}  // namespace megalith
