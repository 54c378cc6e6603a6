// Forecast of slots' copies that run concurrently with a step's computation, and of the stalls. No device, no flags.
#pragma once

#include <vector>

#include "offload/slot_ways.h"
#include "offload/stats.h"

namespace megalith {

// Rates of each direction in bytes/s, while the host's other devices copy too.
struct CopyRates {
  double out = 0;   // to the host
  double back = 0;  // from the host
};

struct StepSeconds {
  const std::vector<Action>& actions;  // without actions of slots
  const std::vector<double>& seconds;  // of each action on the compute stream
};

// Times of the slots of `points`; `bytes` is the used size of each slot.
OffloadStats forecast_copies(const StepSeconds& step, const OffloadPoints& points, const std::vector<double>& bytes,
                             const CopyRates& rates);
// Times of the slots in `ways`, as slot_ways() returns them. Entries of `bytes` for other slots are not read.
OffloadStats forecast_copies(const StepSeconds& step, const std::vector<SlotWay>& ways,
                             const std::vector<double>& bytes, const CopyRates& rates);

}  // namespace megalith
