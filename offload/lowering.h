// Lowering pass of slots that are on the host between forward and backward. It inserts four actions for each slot and
// microbatch:
//   offload       after the last writer: the copy to the host starts
//   wait_offload  `lag` layers after the last forward reader: the device memory is free
//   reload        `ahead` layers before the first backward reader: the copy back starts, into other memory
//   wait_reload   right before that reader
// If `points.between_layers` is set, actions stand only between layers. The copy to the host then stands after the
// layer but starts at an event inside of it. The compute stream waits before the layer. The four actions keep their
// order even if backward follows immediately. A slot has left before the first backward verb that may read it. `lag`
// and `ahead` count groups of adjacent verbs of one layer, direction and microbatch, over all microbatches.
#pragma once

#include <vector>

#include "offload/slots.h"

namespace megalith {

// Runs after the pass of sharded units, and before runs are grouped for graphs.
std::vector<Action> insert_offloads(const std::vector<Action>& actions, const OffloadPoints& points);

// Fails with exit code 9 unless each slot has its four actions once in each microbatch of its chunk. They must be in
// the microbatch's column, in order, and around the verbs that write and read the slot.
void verify_offloads(const std::vector<Action>& actions, const OffloadPoints& points);

}  // namespace megalith
