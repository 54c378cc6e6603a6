// The lowering pass of sharded units: where in a rank's list a unit's weights are gathered, waited for and given up,
// and where its gradients are bound and reduced. Each stands at a hook point of a segment: a unit's weights before and
// behind the forward and backward_data of its segments, its gradients around backward_weight. What comes back to the
// same slot at once stays there; gathers then start up to `prefetch` units of their family (unit_slots.h) before their
// use, as soon as the slot is free, in the order of their uses.
#pragma once

#include <vector>

#include "fsdp/unit_slots.h"
#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

// Sharded units that a segment uses.
struct SegmentUnits {
  std::vector<int> weights;    // read by forward and backward_data
  bool forward_alone = false;  // or by forward alone: of an embedding
  std::vector<int> gradients;  // written by backward_weight
};

struct UnshardPoints {
  std::vector<SegmentUnits> segments;
  UnitSlots slots;
  int prefetch = 1;                  // units of each family
  bool gradients_as_weights = true;  // as many slots, by one flag
  bool sums_instances = false;       // of hybrid sharding
  bool gathers_instances = false;    // likewise, where each instance updates a part of its shards
  // Units whose gathers a list finds started, and starts again at its end.
  std::vector<int> ahead;
};

// The units of each family that a training list uses first, up to its first prefetch.
std::vector<int> units_ahead(const std::vector<Action>& actions, const UnshardPoints& points);

// A segment that uses two units of one slot is an error with exit code 2 that says how many slots it needs.
std::vector<Action> insert_unshards(const std::vector<Action>& actions, const UnshardPoints& points);

// Fails with exit code 9 where a list's verbs do not find their units whole, a slot would hold two units, or a
// microbatch's gradients are not reduced exactly once, a shard is summed over the instances before that or not once, or
// a unit is gathered from parts of shards.
void verify_units(const std::vector<Action>& actions, const UnshardPoints& points);

}  // namespace megalith
