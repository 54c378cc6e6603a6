// Lowering pass of sharded units. It inserts gathers, waits and reshards of weights, and binds and reductions of
// gradients, at hook points of segments. Weights are needed around forward and backward_data, gradients around
// backward_weight. A unit stays in its slot if it is also the slot's next occupant. Gathers start up to `prefetch`
// units of the same family (unit_slots.h) ahead of use. A gather starts as soon as its slot is free, in order of use.
#pragma once

#include <vector>

#include "fsdp/unit_slots.h"
#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

// Sharded units that a segment uses.
struct SegmentUnits {
  std::vector<int> weights;    // read by forward and backward_data
  bool forward_alone = false;  // embedding: weights are read by forward only
  std::vector<int> gradients;  // written by backward_weight
};

struct UnshardPoints {
  std::vector<SegmentUnits> segments;
  UnitSlots slots;
  int prefetch = 1;                  // units of each family
  bool gradients_as_weights = true;  // one flag sets both slot counts
  bool sums_instances = false;       // hybrid sharding
  bool gathers_instances = false;    // hybrid sharding where each instance updates a part of its shards
  // Units whose gathers are in flight when a list starts; the list restarts these gathers at its end.
  std::vector<int> ahead;
};

// Units of each family that a training list uses first, up to the first prefetch.
std::vector<int> units_ahead(const std::vector<Action>& actions, const UnshardPoints& points);

// Inserts the actions and verifies them. A segment that uses two units of one slot is an error with exit code 2. The
// error reports the number of slots that the segment needs.
std::vector<Action> insert_unshards(const std::vector<Action>& actions, const UnshardPoints& points);

// Fails with exit code 9 if a list breaks a rule: a verb finds its units gathered; a slot holds one unit at a time; a
// microbatch's gradients are reduced once; a shard is then summed over the instances once; gathers read complete
// shards.
void verify_units(const std::vector<Action>& actions, const UnshardPoints& points);

}  // namespace megalith
