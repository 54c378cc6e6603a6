// That a recorded step leaves alone what has left the device: a reader that no stash serves, as a pointer that a
// segment or a stream kept, would find another's data there.
#pragma once

#include <vector>

#include "core/instruments/timeline.h"
#include "core/memory/arena.h"
#include "offload/slots.h"

namespace megalith {

// `entries`: where in the timeline each action begins. Fails with exit code 9 and names op, action and slot.
void verify_recording(const Timeline& timeline, const Arena& arena, const std::vector<Action>& actions,
                      const std::vector<std::size_t>& entries, const OffloadPoints& points);

}  // namespace megalith
