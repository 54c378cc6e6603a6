#include "parallel/data_parallel/replicated_units.h"

#include <fmt/format.h>

#include <algorithm>

namespace megalith {

namespace {

template <class Visit>
void for_each_unit(const ReplicatedUnits& of, const Visit& visit) {
  const std::vector<ParameterUnit>& units = of.parameters.units();
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (std::ranges::find(of.kinds, units[u].kind) != of.kinds.end()) visit(units[u], of.optimizer.units()[u]);
  }
}

// Shards, which the ranks of the same position in all instances hold.
std::vector<ReplicatedTensor> sharded_tensors(const ReplicatedUnits& of) {
  std::vector<ReplicatedTensor> tensors;
  for_each_unit(of, [&](const ParameterUnit& unit, const AdamWOptimizer::UnitState& state) {
    const auto add = [&](const char* kind, const Tensor& shard) {
      tensors.push_back({fmt::format("{} of a shard of {}", kind, unit.name), shard});
    };
    if (!unit.resident_weights) add("weights", unit.weight_shard);
    if (unit.owned.ranks != unit.shard.ranks) return;  // the rest is owned by one rank each
    if (of.optimizer.has_own_main_params()) add("main parameters", state.main_params);
    add("exp_avg", state.exp_avg);
    add("exp_avg_sq", state.exp_avg_sq);
  });
  return tensors;
}

// Tensors that all replicas hold unsharded.
std::vector<ReplicatedTensor> whole_tensors(const ReplicatedUnits& of) {
  std::vector<ReplicatedTensor> tensors;
  for_each_unit(of, [&](const ParameterUnit& unit, const AdamWOptimizer::UnitState& state) {
    for (const Parameter* parameter : unit.parameters) {
      for (std::size_t i = 0; i < parameter->parts.size(); ++i) {
        // Shards differ within an instance, so they are left out.
        const auto add = [&](const char* kind, const Tensor& flat) {
          if (flat.numel() < unit.numel) return;
          const Tensor whole = flat.slice(0, parameter->offset, parameter->shape.numel()).view(parameter->shape);
          tensors.push_back({fmt::format("{} of {}", kind, parameter->parts[i].name), parameter->part_of(whole, i)});
        };
        add("weight", unit.weights);
        if (of.optimizer.has_own_main_params()) add("main parameter", state.main_params);
        add("exp_avg", state.exp_avg);
        add("exp_avg_sq", state.exp_avg_sq);
      }
    }
  });
  return tensors;
}

}  // namespace

std::optional<ReplicaDifference> difference_of(const ReplicatedUnits& units, Stream& stream,
                                               const std::vector<int>& ranks) {
  std::optional<ReplicaDifference> difference = compare_replicas(units.replicas, stream, whole_tensors(units), ranks);
  if (difference || units.instances == nullptr) return difference;
  const auto instances = static_cast<std::size_t>(units.instances->size());
  const auto rank = static_cast<std::size_t>(units.shards.rank()),
             shards = static_cast<std::size_t>(units.shards.size());
  std::vector<int> of_instances;
  of_instances.reserve(instances);
  for (std::size_t i = 0; i < instances; ++i) of_instances.push_back(ranks[rank + i * shards]);
  return compare_replicas(*units.instances, stream, sharded_tensors(units), of_instances);
}

}  // namespace megalith
