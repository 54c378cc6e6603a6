// Choice of the slots that leave, and of their distances to their readers. It depends on the device memory of each
// action and on copy times. No device, no flags.
// Placements are tried for several memory limits. If a limit would be exceeded, slots leave, in the order of their
// writers. They return as soon as memory allows, in the order of their use. Uniform distances for all slots are tried
// too. The result is the placement with the least memory whose waits stay within a share of the step. A slot that need
// not leave for it stays, and uses no bandwidth of the link.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "offload/candidates.h"
#include "offload/forecast.h"

namespace megalith {

// Peak device bytes during each action, as recorded.
std::vector<double> bytes_alive(const OffloadRecording& recording);

struct PlacementRequest {
  const std::vector<double>& bytes;  // bytes copied of each slot
  const std::vector<double>& alive;  // bytes during each action, with all slots on the device
  CopyRates rates;
  double max_stalls = 0.005;  // share of the step's computation
  int layers = -1;            // common distance of all copies to their readers; -1: best
  // Bytes that a step may hold. If more would be live, computation waits for as long as needed.
  double room = std::numeric_limits<double>::infinity();
};

enum class SlotFate : std::uint8_t {
  kMoves,
  kFreesNothing,  // it does not lower the peak
  kStalls,        // it would be needed again before it has left, or the stalls would be too long
};

// Returns the fate of each slot of `points`, and sets lag and ahead of the slots that move.
std::vector<SlotFate> place_copies(const StepSeconds& step, const PlacementRequest& request, OffloadPoints& points);

}  // namespace megalith
