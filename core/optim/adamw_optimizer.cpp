#include "core/optim/adamw_optimizer.h"

#include <algorithm>
#include <map>

#include "core/ops/elementwise/elementwise.h"
#include "core/ops/op.h"

namespace megalith {

AdamWOptimizer::AdamWOptimizer(ParameterStore& store, MemoryPool& pool, const Spec& spec)
    : store_(store), spec_(spec), update_{.ranges = {}, .beta1 = spec.beta1, .beta2 = spec.beta2, .eps = spec.eps} {
  const auto buffer = [&](const ParameterUnit& unit, MemoryCategory category, DType dtype) {
    const std::int64_t numel = unit.owned_weights.numel();
    return Tensor(pool.allocate(static_cast<std::size_t>(numel) * size_of(dtype), category, unit.name), dtype, {numel});
  };
  for (const ParameterUnit& unit : store.units()) {
    own_main_params_ = unit.owned_weights.dtype != DType::kFp32;
    states_.push_back({.begin = unit.owned.range(unit.numel).begin,
                       .main_params = own_main_params_ ? buffer(unit, MemoryCategory::kMainParameters, DType::kFp32)
                                                       : unit.owned_weights,
                       .exp_avg = buffer(unit, MemoryCategory::kOptimizer, spec.exp_avg_dtype),
                       .exp_avg_sq = buffer(unit, MemoryCategory::kOptimizer, spec.exp_avg_sq_dtype)});
    add_ranges(unit, states_.back());
  }
  cut_pieces(pool);
}

void AdamWOptimizer::cut_pieces(MemoryPool& pool) {
  const auto doubles = [&pool](std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(double);
    return Tensor(pool.allocate(bytes, MemoryCategory::kWorkspace, "gradient norm"), DType::kFp64, {count});
  };
  std::map<std::string, ParameterStore::Held> by_name;
  store_.for_each_part([&](const ParameterStore::Held& held) {
    if (!held.parameter.is_copy) by_name.emplace(held.part.name, held);
  });
  std::vector<std::string> names = spec_.all_names, experts = spec_.all_expert_names;
  if (names.empty() && experts.empty()) {
    for (const auto& [name, held] : by_name) (held.unit.kind == UnitKind::kDense ? names : experts).push_back(name);
  }
  std::sort(names.begin(), names.end());
  std::sort(experts.begin(), experts.end());
  dense_names_ = std::ssize(names);
  for (int part = 0; part < spec_.expert_parts; ++part) {
    for (const std::string& name : experts) names.push_back(part == spec_.expert_part ? name : "");  // "": not here
  }
  std::int64_t count = 0;
  for (const std::string& name : names) {
    const auto found = by_name.find(name);
    if (found != by_name.end() && found->second.part.counted && found->second.begin < found->second.end) {
      const std::int64_t block = found->second.unit.block;
      count += (found->second.end - 1) / block - found->second.begin / block + 1;
    }
    add_pieces_.ends.push_back(count);
    if (std::ssize(add_pieces_.ends) == dense_names_) dense_pieces_ = count;
  }
  pieces_ = add_pieces_.pieces = doubles(count);
  squares_ = add_pieces_.out = doubles(static_cast<std::int64_t>(names.size()));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::int64_t first = i == 0 ? 0 : add_pieces_.ends[i - 1];
    if (first == add_pieces_.ends[i]) continue;
    const ParameterStore::Held& held = by_name.at(names[i]);
    const ParameterUnit& unit = held.unit;
    has_shards_ = has_shards_ || !unit.owned.is_whole();
    const FlatShard::Range own = unit.owned.clip({held.begin, held.end}, unit.numel);
    if (own.size() == 0) continue;
    SquaredTensor tensor{.x = unit.owned_grads.slice(0, own.begin - unit.owned.range(unit.numel).begin, own.size()),
                         .begin = own.begin % unit.block,
                         .block = unit.block};
    tensor.pieces = pieces_.slice(0, first + own.begin / unit.block - held.begin / unit.block, tensor.num_pieces());
    sum_squares_.tensors.push_back(tensor);
  }
}

// Adds one range per run of neighboring parameters with one decay rule, with the padding between them.
void AdamWOptimizer::add_ranges(const ParameterUnit& unit, const UnitState& state) {
  for (std::size_t i = 0; i < unit.parameters.size();) {
    const Parameter& first = *unit.parameters[i];
    std::int64_t end = first.offset;
    for (; i < unit.parameters.size() && unit.parameters[i]->decay == first.decay; ++i)
      end = unit.parameters[i]->offset + unit.parameters[i]->shape.numel();
    const FlatShard::Range held = unit.owned.clip({first.offset, end}, unit.numel);
    if (held.size() == 0) continue;
    const auto of_owned = [&](const Tensor& own) { return own.slice(0, held.begin - state.begin, held.size()); };
    update_.ranges.push_back({.param = of_owned(unit.owned_weights),
                              .main_param = of_owned(state.main_params),
                              .grad = of_owned(unit.owned_grads),
                              .exp_avg = of_owned(state.exp_avg),
                              .exp_avg_sq = of_owned(state.exp_avg_sq),
                              .weight_decay = first.decay ? spec_.weight_decay : 0.0});
  }
}

void AdamWOptimizer::initialize(Stream& stream) {
  for (std::size_t u = 0; u < states_.size(); ++u) {
    if (own_main_params_) {
      launch(stream, CastRows{.x = store_.units()[u].owned_weights, .y = states_[u].main_params});
    }
    launch(stream, Fill{.x = states_[u].exp_avg, .value = 0});
    launch(stream, Fill{.x = states_[u].exp_avg_sq, .value = 0});
  }
}

void AdamWOptimizer::sum_squares(Stream& stream) {
  if (has_shards_) launch(stream, Fill{.x = pieces_, .value = 0});
  launch(stream, sum_squares_);
}

void AdamWOptimizer::add_pieces(Stream& stream) { launch(stream, add_pieces_); }

void AdamWOptimizer::update(Stream& stream, const Tensor& loss, StepParameters* parameters, const RowRoom& room) {
  launch(stream,
         GradNormFinalize{
             .sums = squares_, .loss = loss, .clip_grad = spec_.clip_grad, .room = room, .parameters = parameters});
  update_.parameters = parameters;
  launch(stream, update_);
}

}  // namespace megalith
