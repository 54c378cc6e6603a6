// The lowering pass of slots that are on the host between forward and backward. Of each slot and microbatch four
// actions:
//
//   offload       behind its last writer: the copy to the host starts
//   wait_offload  `lag` layers behind its last forward reader: its memory is free
//   reload        `ahead` layers before its first backward reader: the copy back starts, into other memory
//   wait_reload   right before that reader
//
// between layers alone where points say so: then the copy to the host stands behind the layer and starts at an event in
// it, and the compute stream waits before the layer. They are in this order also where backward follows so closely that
// there is no room for it: a slot has left before the first backward verb of those that may hold it. A layer's verbs of
// one microbatch and direction that stand together in the list count as a layer there, whichever microbatch they are
// of.
#pragma once

#include <vector>

#include "offload/slots.h"

namespace megalith {

// Behind the pass of sharded units and before runs are cut for graphs.
std::vector<Action> insert_offloads(const std::vector<Action>& actions, const OffloadPoints& points);

// Fails with exit code 9 where a slot's four actions are not there once in each microbatch of its chunk, in its column,
// in their order and around the verbs that write and read it.
void verify_offloads(const std::vector<Action>& actions, const OffloadPoints& points);

}  // namespace megalith
