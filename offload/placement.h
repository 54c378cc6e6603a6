// How far from their readers slots leave and come back, and which of them leave at all: by what the device holds in
// each action and how long the copies take. Pure, as policy.h.
//
// Given the most memory that a step may take, a slot leaves where that would be exceeded, the first one written before
// the others, and no sooner; it comes back as early as there is room again, the first one needed before the others. Of
// such placements, and of some with all slots as far from their readers, the one tried with the least memory is taken
// whose waits stay within a share of the step; a slot that need not leave for it stays, and takes nothing of the link.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "offload/candidates.h"
#include "offload/forecast.h"

namespace megalith {

// Bytes of the device at the fullest moment of each action, as recorded.
std::vector<double> bytes_alive(const OffloadRecording& recording);

struct PlacementRequest {
  const std::vector<double>& bytes;  // of each slot, that are copied
  const std::vector<double>& alive;  // of each action, slots included, in a list that moves none
  CopyRates rates;
  double most_stalls = 0.005;  // of the step's computing
  int layers = -1;             // of each copy from its readers, at all of them; -1: as many as is best
  // Bytes that a step may hold; where more are alive, computing waits as long as it takes.
  double room = std::numeric_limits<double>::infinity();
};

enum class SlotFate : std::uint8_t {
  kMoves,
  kFreesNothing,  // no moment is the fuller for it
  kStalls,        // it would be needed again before it has left, or computing would wait too long
};

// Of each slot of `points`, whose lag and ahead are set where it moves.
std::vector<SlotFate> place_copies(const StepSeconds& step, const PlacementRequest& request, OffloadPoints& points);

}  // namespace megalith
