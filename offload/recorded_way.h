// Check that a recorded step accesses offloaded slots only while they are on the device. An access that bypasses the
// stash, such as a pointer kept by a segment, would read other data.
#pragma once

#include <vector>

#include "core/instruments/timeline.h"
#include "core/memory/arena.h"
#include "offload/slots.h"

namespace megalith {

// `entries`: timeline position at which each action begins. Fails with exit code 9 and reports op, action and slot.
void verify_recording(const Timeline& timeline, const Arena& arena, const std::vector<Action>& actions,
                      const std::vector<std::size_t>& entries, const OffloadPoints& points);

}  // namespace megalith
