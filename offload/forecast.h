// How long the copies of slots take beside a step's computing, and how long that waits for them. Pure, as policy.h.
#pragma once

#include <vector>

#include "offload/slot_ways.h"
#include "offload/stats.h"

namespace megalith {

// Of one direction each, bytes/s, while the host's other devices copy too.
struct CopyRates {
  double out = 0;   // to the host
  double back = 0;  // from it
};

struct StepSeconds {
  const std::vector<Action>& actions;  // without those of slots
  const std::vector<double>& seconds;  // of each, on the compute stream
};

// The times of the actions of `points`; `bytes` is what is used of each slot.
OffloadStats forecast_copies(const StepSeconds& step, const OffloadPoints& points, const std::vector<double>& bytes,
                             const CopyRates& rates);
// Of these ways alone, as slot_ways() gives them; of other slots nothing is asked.
OffloadStats forecast_copies(const StepSeconds& step, const std::vector<SlotWay>& ways,
                             const std::vector<double>& bytes, const CopyRates& rates);

}  // namespace megalith
