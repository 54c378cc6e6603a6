// Units of a model for the tests of fsdp/: an embedding, layers of two segments each, a head.
#pragma once

#include <string>
#include <vector>

#include "fsdp/unshard_lowering.h"
#include "parallel/pipeline_parallel/lowering.h"

namespace megalith::test {

struct UnitSpec {
  int layers = 4;
  int slots = 2;
  int gradient_slots = 0;  // 0: same as `slots`
  int prefetch = 1;
  bool ends = false;        // embedding and head are sharded too
  bool gradients = true;    // gradients of sharded units are sharded too
  int layers_together = 0;  // layers that are one segment; 0: a layer is two segments
  bool instances = false;   // hybrid sharding; each instance owns a part of each shard
  bool experts = false;     // the second segment of a layer is a unit of experts
};

inline int layer_units(const UnitSpec& spec) { return spec.experts ? 2 * spec.layers : spec.layers; }

// Units 0 (embedding), 1 to U (layers) and U + 1 (head), not allocated. With experts, even layer units hold experts.
inline std::vector<ParameterUnit> units_of(const UnitSpec& spec) {
  std::vector<ParameterUnit> units;
  for (int u = 0; u < layer_units(spec) + 2; ++u) {
    const bool is_end = u == 0 || u == layer_units(spec) + 1;
    ParameterUnit& unit = units.emplace_back();
    unit.name = "unit " + std::to_string(u);
    if (spec.experts && !is_end && u % 2 == 0) unit.kind = UnitKind::kExperts;
    unit.numel = is_end ? 1024 : 512;
    unit.resident_weights = is_end && !spec.ends;
    unit.resident_gradients = unit.resident_weights || !spec.gradients;
  }
  return units;
}

inline UnshardPoints points_of(const UnitSpec& spec) {
  const std::vector<ParameterUnit> units = units_of(spec);
  UnshardPoints points{.segments = {},
                       .slots = {},
                       .prefetch = spec.prefetch,
                       .sums_instances = spec.instances,
                       .gathers_instances = spec.instances};
  const std::vector<int> ends{0, layer_units(spec) + 1};
  points.slots = assign_slots(
      units, {.weights = spec.slots, .gradients = spec.gradient_slots > 0 ? spec.gradient_slots : spec.slots}, ends);
  const auto add = [&](int first, int count) -> SegmentUnits& {
    SegmentUnits& segment = points.segments.emplace_back();
    for (int u = first; u < first + count; ++u) {
      if (!units[static_cast<std::size_t>(u)].resident_weights) segment.weights.push_back(u);
      if (!units[static_cast<std::size_t>(u)].resident_gradients) segment.gradients.push_back(u);
    }
    return segment;
  };
  add(0, 1).forward_alone = true;
  const int together = spec.layers_together > 0 ? spec.layers_together : 1;
  for (int unit = 1; unit <= layer_units(spec); unit += together) {
    add(unit, together);
    if (spec.layers_together == 0 && !spec.experts) add(unit, 1);
  }
  add(layer_units(spec) + 1, 1);
  return points;
}

struct UnitLists {
  std::vector<Action> train, evaluate;
  UnshardPoints points;  // including `ahead`
};

// Lists of a stage that has all segments, split evenly over its chunks.
inline UnitLists lists_of(const UnitSpec& spec, const Schedule& schedule, int stage = 0) {
  UnitLists lists{.train = {}, .evaluate = {}, .points = points_of(spec)};
  const auto segments = static_cast<int>(lists.points.segments.size());
  const int chunks = schedule.placement.num_chunks;
  ChunkSegments parts(static_cast<std::size_t>(chunks), segments / chunks);
  parts.back() += segments % chunks;
  lists.train = lower_training_step(insert_messages(schedule, stage), parts, {});
  lists.evaluate = lower_evaluation_step(insert_messages(forwards_of(schedule), stage), parts);
  lists.points.ahead = units_ahead(lists.train, lists.points);
  for (std::vector<Action>* list : {&lists.train, &lists.evaluate}) *list = insert_unshards(*list, lists.points);
  return lists;
}

inline UnitLists lists_of(const UnitSpec& spec, int microbatches = 1) {
  return lists_of(spec, make_schedule(ScheduleKind::k1F1B, 1, 1, microbatches));
}

}  // namespace megalith::test
