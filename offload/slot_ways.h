// Where in a rank's list the actions of each slot and microbatch may stand and where they do: what lowering.h puts
// there and what placement.h chooses by.
#pragma once

#include <cstddef>
#include <vector>

#include "offload/slots.h"

namespace megalith {

// A layer's verbs of one microbatch and direction that stand together in the list: actions [begin, end), and others
// between them.
struct LayerVerbs {
  std::size_t begin = 0, end = 0;
};

// A slot of one microbatch: before which actions of the list its own stand.
struct SlotWay {
  Action load;  // of the microbatch
  int item = 0;
  std::size_t written = 0;  // by this action
  std::size_t starts = 0, read = 0, left = 0, reload = 0, needed = 0;
  int layer_read = 0, layer_needed = 0;  // LayerVerbs of its last reader in forward, and of its first in backward
};

struct SlotWays {
  std::vector<LayerVerbs> layers;  // of the whole list
  std::vector<int> layer_of;       // of each action; -1: no verb
  std::vector<SlotWay> ways;       // as the slots are written, which is how their copies follow each other
};
SlotWays slot_ways(const std::vector<Action>& actions, const OffloadPoints& points);

}  // namespace megalith
