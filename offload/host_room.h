// Choice of the slots that fit into host memory. No device, no flags.
#pragma once

#include <vector>

#include "offload/forecast.h"
#include "offload/slot_ways.h"

namespace megalith {

// Returns for each slot of `points` whether `room` bytes of host memory hold it, for any distances. Slots that are away
// for the longest time have priority. A slot occupies host memory from the start of its copy until the compute stream
// waits for the copy back.
std::vector<bool> with_room_on_host(const StepSeconds& step, const OffloadPoints& points, double room);

}  // namespace megalith
