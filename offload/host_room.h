// Which slots the host has memory for. Pure, as policy.h.
#pragma once

#include <vector>

#include "offload/forecast.h"
#include "offload/slot_ways.h"

namespace megalith {

// Of each slot of `points` whether it is among those for which `room` bytes are enough, whatever their distances: those
// that are not needed for the longest time first. A slot's place on the host is taken from where its copy starts until
// computing waits for the copy back.
std::vector<bool> with_room_on_host(const StepSeconds& step, const OffloadPoints& points, double room);

}  // namespace megalith
