#include "fsdp/sharded_forward.h"

#include <exception>

#include "core/model/config.h"
#include "fsdp/model_units.h"

namespace megalith {

void shard_units(GptModel& model, const Communicator& ranks) {
  const bool tied = !model.config->untie_embeddings_and_output_weights;
  std::vector<ParameterUnit>& units = model.parameters->units();
  for (int u = 0; u < std::ssize(units); ++u) {
    ParameterUnit& unit = units[static_cast<std::size_t>(u)];
    if (tied && model.words->unit == u) continue;  // embedding and head read it
    unit.shard = {.rank = ranks.rank(), .ranks = ranks.size()};
    unit.resident_weights = false;
  }
}

ShardedForward::ShardedForward(GptModel& model, Communicator& ranks, Stream& compute, MemoryPool& pool,
                               const Instruments& instruments)
    : gather_group_(ranks.duplicate("units")),
      tokens_group_(ranks.duplicate("tokens")),
      gather_(compute.device(), "unit communication", instruments) {
  constexpr int kSlots = 2;
  points_.segments = units_of_segments(model);
  points_.slots = assign_slots(model.parameters->units(), {.weights = kSlots}, end_units(model));
  points_.prefetch = kSlots - 1;
  for (int s = 0; s < std::ssize(model.segments); ++s) actions_.push_back({.kind = ActionKind::kForward, .segment = s});
  points_.ahead = units_ahead(actions_, points_);
  actions_ = insert_unshards(actions_, points_);
  units_ = std::make_unique<ShardedUnits>(
      *model.parameters, points_.slots, std::vector<UnitGroups>{{.gather = *gather_group_, .reduce = *gather_group_}},
      UnitStreams{.compute = compute, .gather = gather_, .reduce = gather_}, pool, 0, false);
}

ShardedForward::~ShardedForward() {
  try {
    gather_.synchronize();  // gathers for a next step that never runs
  } catch (const std::exception&) {
  }
}

void ShardedForward::forward(SegmentRunner& runner) {
  units_->begin(points_.ahead);
  for (const Action& action : actions_) {
    switch (action.kind) {
      case ActionKind::kUnshard: units_->unshard(action.item); break;
      case ActionKind::kWaitUnshard: units_->wait_unshard(action.item); break;
      case ActionKind::kReshard: units_->reshard(action.item); break;
      default: runner.run(action); break;
    }
  }
}

void ShardedForward::agree(Stream& compute, const Tensor& drawn) {
  launch(compute, Broadcast{.group = *tokens_group_, .buffer = drawn, .label = "tokens"});
}

}  // namespace megalith
