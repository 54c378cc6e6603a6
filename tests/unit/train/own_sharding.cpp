#include "tests/unit/train/own_sharding.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tests/support/pairwise.h"

namespace megalith::test {

namespace {

using Units = std::shared_ptr<ShardedUnits>;

// Weights that each user gathers into slots, which evicts others.
class LazyWeights {
 public:
  LazyWeights(Units units, std::vector<int> slots) : units_(std::move(units)), slots_(std::move(slots)) {}

  void use(const std::vector<int>& wanted) {
    for (const int unit : wanted) {
      const auto [tenant, is_new] = tenants_.try_emplace(slots_[static_cast<std::size_t>(unit)], unit);
      if (!is_new && tenant->second == unit) continue;
      if (!is_new) units_->reshard(tenant->second);
      tenant->second = unit;
      units_->unshard(unit);
    }
    for (const int unit : wanted) units_->wait_unshard(unit);
  }
  void release() {
    for (const auto& [slot, unit] : tenants_) units_->reshard(unit);
    tenants_.clear();
  }

 private:
  Units units_;
  std::vector<int> slots_;
  std::map<int, int> tenants_;  // unit, by slot
};

struct Layer {
  int first = 0, last = 0;  // segments
  std::vector<int> weights, gradients;
  bool forward_alone = true;
};

std::vector<Layer> layers_of(const Rank& rank) {
  std::vector<Layer> layers;
  const auto add = [](std::vector<int>& to, const std::vector<int>& units) {
    for (const int unit : units)
      if (std::ranges::find(to, unit) == to.end()) to.push_back(unit);
  };
  for (int s = 0; s < rank.runner.num_segments(); ++s) {
    const bool continues = s > 0 && rank.runner.entry(s).unit == rank.runner.entry(s - 1).unit;
    if (!continues) layers.push_back({.first = s});
    Layer& layer = layers.back();
    const SegmentUnits& units = rank.units.points.segments[static_cast<std::size_t>(s)];
    layer.last = s;
    layer.forward_alone = layer.forward_alone && units.forward_alone;
    add(layer.weights, units.weights);
    add(layer.gradients, units.gradients);
  }
  return layers;
}

}  // namespace

Units shard_by_segment(Rank& rank) {
  const Units units = std::move(rank.units.sharded);
  const std::vector<SegmentUnits> of_segment = rank.units.points.segments;
  std::map<int, std::pair<int, int>> writers;  // first and last segment of each unit
  for (int s = 0; s < std::ssize(of_segment); ++s) {
    for (const int unit : of_segment[static_cast<std::size_t>(s)].gradients)
      writers.try_emplace(unit, s, s).first->second.second = s;
  }
  for (int s = 0; s < std::ssize(of_segment); ++s) {
    HookTable& hooks = rank.runner.hooks(s);
    const SegmentUnits& own = of_segment[static_cast<std::size_t>(s)];
    const auto gather = [units, own](const HookContext&) {
      for (const int unit : own.weights) units->unshard(unit);
      for (const int unit : own.weights) units->wait_unshard(unit);
    };
    const auto release = [units, own](const HookContext&) {
      for (const int unit : own.weights) units->reshard(unit);
    };
    if (s == 0) {
      hooks.add(HookPoint::kPreForward, [units](const HookContext& hook) {
        if (hook.microbatch > 0) return;
        units->updated();  // the preceding step did
        units->begin_sums();
      });
    }
    hooks.add(HookPoint::kPreForward, gather);
    hooks.add(HookPoint::kPostForward, release);
    if (!own.forward_alone) {
      hooks.add(HookPoint::kPreBackward, gather);
      hooks.add(HookPoint::kPostBackward, release);
    }
    hooks.add(HookPoint::kPreWeight, [units, own, writers, s](const HookContext&) {
      for (const int unit : own.gradients)
        if (writers.at(unit).second == s) units->bind_gradients(unit);
    });
    hooks.add(HookPoint::kPostWeight, [units, own, writers, s](const HookContext&) {
      for (const int unit : own.gradients)
        if (writers.at(unit).first == s) units->reduce_shard(unit);
      units->finish_sums();
    });
  }
  return units;
}

Units shard_by_layer(Rank& rank) {
  const Units units = std::move(rank.units.sharded);
  const auto weights = std::make_shared<LazyWeights>(units, rank.units.points.slots.of_weights);
  rank.runner.hooks(0).add(HookPoint::kPreForward, [units, weights](const HookContext& hook) {
    if (hook.microbatch > 0) return;
    weights->release();
    units->updated();  // the preceding step did
    units->begin_sums();
  });
  for (const Layer& layer : layers_of(rank)) {
    const auto use = [weights, layer](const HookContext&) { weights->use(layer.weights); };
    if (!layer.weights.empty()) {
      rank.runner.hooks(layer.first).add(HookPoint::kPreForward, use);
      if (!layer.forward_alone) rank.runner.hooks(layer.last).add(HookPoint::kPreBackward, use);
    }
    if (layer.gradients.empty()) continue;
    const bool together = layer.first < layer.last && !rank.config.pipeline.splits_backward();  // with backward_data
    rank.runner.hooks(layer.last)
        .add(together ? HookPoint::kPreBackward : HookPoint::kPreWeight, [units, layer](const HookContext&) {
          for (const int unit : layer.gradients) units->bind_gradients(unit);
        });
    rank.runner.hooks(layer.first).add(HookPoint::kPostWeight, [units, layer](const HookContext&) {
      for (const int unit : layer.gradients) units->reduce_shard(unit);
      units->finish_sums();
    });
  }
  return units;
}

namespace {

const Words kSchedules = {"1f1b", "interleaved", "zb-v", "dualpipe-v"};
const std::vector<Words> kModuleSets = {{"attn"}, {"mlp"}, {"layer"}, {"moe_router", "moe_preprocess"}};
const std::vector<Words> kOffloads = {{}, offload({"attn_norm", "core_attn", "fc1", "expert_fc1"})};

Matrix<3> own_table(int steps) {
  Layout layout{.pipeline = 2, .data = 2, .sharing = Sharing::kUnits, .expert = 2};
  const Words model = llama_flags() + words(
                                          "--ffn-hidden-size 32 --num-experts 4 --moe-ffn-hidden-size 16 "
                                          "--moe-router-topk 2 --moe-layer-freq 2 --moe-aux-loss-coeff 0.1 "
                                          "--fsdp-embedding-and-head sharded");
  return {.base = {.layout = layout, .more = model, .steps = steps, .eval_interval = 2},
          .columns = {column(kSchedules, [](Cell& cell, const std::string& name) { cell.layout.schedule = name; }),
                      module_column(kModuleSets), flag_column(kOffloads)},
          .is_legal = [](const auto&) { return true; }};
}

}  // namespace

std::vector<Cell> own_cells(int steps, bool few) {
  const Matrix<3> table = own_table(steps);
  const std::vector<Combination<3>> all = table.legal_cases();
  std::vector<Cell> cells;
  for (const Combination<3>& c : few ? pairwise<3>(all) : all) {
    Cell& cell = cells.emplace_back(table.cell(c));
    // Some of its microbatches delay weight gradients and others do not, so no hook at the ends of a layer's graphs
    // precedes the gradients of all microbatches.
    if (cell.layout.schedule == "dualpipe-v" && cell.modules == Words{"layer"})
      cell.layout.sharing = Sharing::kUnitsSummedLast;
  }
  return cells;
}

Units shard_by_hooks(Rank& rank, const Cell& cell) {
  return cell.modules == Words{"layer"} ? shard_by_layer(rank) : shard_by_segment(rank);
}

}  // namespace megalith::test
