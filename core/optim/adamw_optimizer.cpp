#include "core/optim/adamw_optimizer.h"

#include <algorithm>
#include <map>
#include <string>

#include "core/ops/elementwise.h"
#include "core/ops/op.h"

namespace megalith {

AdamWOptimizer::AdamWOptimizer(ParameterStore& store, MemoryPool& pool, const Spec& spec)
    : store_(store), spec_(spec), update_{.ranges = {}, .beta1 = spec.beta1, .beta2 = spec.beta2, .eps = spec.eps} {
  const auto buffer = [&](const ParameterUnit& unit, MemoryCategory category, DType dtype) {
    const std::int64_t numel = unit.weight_shard.numel();
    return Tensor(pool.allocate(static_cast<std::size_t>(numel) * size_of(dtype), category, unit.name), dtype, {numel});
  };
  std::map<std::string, Tensor> by_name;
  for (const ParameterUnit& unit : store.units()) {
    own_main_params_ = unit.weight_shard.dtype != DType::kFp32;
    states_.push_back({.begin = unit.shard.range(unit.numel).begin,
                       .main_params = own_main_params_ ? buffer(unit, MemoryCategory::kMainParameters, DType::kFp32)
                                                       : unit.weight_shard,
                       .exp_avg = buffer(unit, MemoryCategory::kOptimizer, spec.exp_avg_dtype),
                       .exp_avg_sq = buffer(unit, MemoryCategory::kOptimizer, spec.exp_avg_sq_dtype)});
    add_ranges(unit, states_.back());
  }
  store.for_each_part([&](const ParameterStore::Held& held) {
    if (held.parameter.is_copy) return;
    const FlatShard& shard = held.unit.shard;
    const FlatShard::Range own = shard.clip({held.begin, held.end}, held.unit.numel);
    by_name[held.part.name] = held.unit.grad_shard.slice(0, own.begin - shard.range(held.unit.numel).begin,
                                                         held.part.counted ? own.size() : 0);
  });
  std::vector<std::string> names = spec.all_names;
  if (names.empty()) {
    for (const auto& [name, gradient] : by_name) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  const auto count = static_cast<std::int64_t>(names.size());
  squares_ = Tensor(pool.allocate(static_cast<std::size_t>(count) * 8, MemoryCategory::kWorkspace, "gradient norm"),
                    DType::kFp64, {count});
  holds_all_ = by_name.size() == names.size();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto own = by_name.find(names[static_cast<std::size_t>(i)]);
    if (own == by_name.end()) continue;
    const bool follows = i > 0 && by_name.contains(names[static_cast<std::size_t>(i - 1)]);
    if (!follows) sums_.push_back({.tensors = {}, .out = squares_.slice(0, i, 0)});
    sums_.back().tensors.push_back(own->second);
    sums_.back().out = squares_.slice(0, i + 1 - static_cast<std::int64_t>(sums_.back().tensors.size()),
                                      static_cast<std::int64_t>(sums_.back().tensors.size()));
  }
  const DeviceType device = pool.device() == DeviceType::kPlan ? spec.planned_for : pool.device();
  for (SumOfSquares& sum : sums_) {
    sum = with_workspace(sum, device, [&pool](std::int64_t bytes) {
      const auto size = static_cast<std::size_t>(bytes);
      return Tensor(pool.allocate(size, MemoryCategory::kWorkspace, "gradient norm"), DType::kUint8, {bytes});
    });
  }
}

// Neighbouring parameters that share a decay rule make one range, the padding between them included.
void AdamWOptimizer::add_ranges(const ParameterUnit& unit, const UnitState& state) {
  for (std::size_t i = 0; i < unit.parameters.size();) {
    const Parameter& first = *unit.parameters[i];
    std::int64_t end = first.offset;
    for (; i < unit.parameters.size() && unit.parameters[i]->decay == first.decay; ++i)
      end = unit.parameters[i]->offset + unit.parameters[i]->shape.numel();
    const FlatShard::Range held = unit.shard.clip({first.offset, end}, unit.numel);
    if (held.size() == 0) continue;
    const auto of_shard = [&](const Tensor& own) { return own.slice(0, held.begin - state.begin, held.size()); };
    update_.ranges.push_back({.param = of_shard(unit.weight_shard),
                              .main_param = of_shard(state.main_params),
                              .grad = of_shard(unit.grad_shard),
                              .exp_avg = of_shard(state.exp_avg),
                              .exp_avg_sq = of_shard(state.exp_avg_sq),
                              .weight_decay = first.decay ? spec_.weight_decay : 0.0});
  }
}

void AdamWOptimizer::initialize(Stream& stream) {
  for (std::size_t u = 0; u < states_.size(); ++u) {
    if (own_main_params_) {
      launch(stream, CastRows{.x = store_.units()[u].weight_shard, .y = states_[u].main_params});
    }
    launch(stream, Fill{.x = states_[u].exp_avg, .value = 0});
    launch(stream, Fill{.x = states_[u].exp_avg_sq, .value = 0});
  }
}

void AdamWOptimizer::sum_squares(Stream& stream) {
  if (!holds_all_) launch(stream, Fill{.x = squares_, .value = 0});
  for (const SumOfSquares& sum : sums_) launch(stream, sum);
}

void AdamWOptimizer::update(Stream& stream, const Tensor& loss, StepParameters* parameters) {
  launch(stream,
         GradNormFinalize{.sums = squares_, .loss = loss, .clip_grad = spec_.clip_grad, .parameters = parameters});
  update_.parameters = parameters;
  launch(stream, update_);
}

}  // namespace megalith
