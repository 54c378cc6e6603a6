#include "core/optim/adamw_optimizer.h"

#include <algorithm>

#include "core/ops/elementwise/elementwise.h"
#include "core/ops/op.h"

namespace megalith {

namespace {

std::vector<AdamWOptimizer::UnitState> states_of(const ParameterStore& store, MemoryPool& pool,
                                                 const AdamWOptimizer::Spec& spec) {
  const auto buffer = [&](const ParameterUnit& unit, MemoryCategory category, DType dtype) {
    const std::int64_t numel = unit.owned_weights.numel();
    return Tensor(pool.allocate(static_cast<std::size_t>(numel) * size_of(dtype), category, unit.name), dtype, {numel});
  };
  std::vector<AdamWOptimizer::UnitState> states;
  for (const ParameterUnit& unit : store.units()) {
    const bool has_own = unit.owned_weights.dtype != DType::kFp32;
    states.push_back(
        {.begin = unit.owned.range(unit.numel).begin,
         .main_params = has_own ? buffer(unit, MemoryCategory::kMainParameters, DType::kFp32) : unit.owned_weights,
         .exp_avg = buffer(unit, MemoryCategory::kOptimizer, spec.exp_avg_dtype),
         .exp_avg_sq = buffer(unit, MemoryCategory::kOptimizer, spec.exp_avg_sq_dtype)});
  }
  return states;
}

}  // namespace

AdamWOptimizer::AdamWOptimizer(ParameterStore& store, MemoryPool& pool, const Spec& spec)
    : store_(store),
      spec_(spec),
      own_main_params_(!store.units().empty() && store.units().back().owned_weights.dtype != DType::kFp32),
      states_(states_of(store, pool, spec)),
      update_{.ranges = {}, .beta1 = spec.beta1, .beta2 = spec.beta2, .eps = spec.eps},
      squares_(store, pool, spec, owned_grads(), "gradient norm") {
  for (std::size_t u = 0; u < states_.size(); ++u) add_ranges(store.units()[u], states_[u]);
  if (spec.counts_zeros) grad_zeros_.emplace(store, pool, spec, owned_grads(), "zeros of gradients", true);
  if (!spec.sums_params) return;
  const auto main_params = [this](std::size_t u) -> const Tensor& { return states_[u].main_params; };
  params_squares_.emplace(store, pool, spec, main_params, "parameter norm");
}

TensorSums::Values AdamWOptimizer::owned_grads() const {
  return [this](std::size_t u) -> const Tensor& { return store_.units()[u].owned_grads; };
}

// Adds one range per run of neighboring parameters with one decay rule and learning rate, with the padding between
// them.
void AdamWOptimizer::add_ranges(const ParameterUnit& unit, const UnitState& state) {
  const auto is_decoupled = [this](const Parameter& parameter) {
    return std::ranges::find(spec_.decoupled_names, parameter.name()) != spec_.decoupled_names.end();
  };
  for (std::size_t i = 0; i < unit.parameters.size();) {
    const Parameter& first = *unit.parameters[i];
    const bool decoupled = is_decoupled(first);
    const auto is_alike = [&](const Parameter& p) { return p.decay == first.decay && is_decoupled(p) == decoupled; };
    std::int64_t end = first.offset;
    for (; i < unit.parameters.size() && is_alike(*unit.parameters[i]); ++i)
      end = unit.parameters[i]->offset + unit.parameters[i]->shape.numel();
    const FlatShard::Range held = unit.owned.clip({first.offset, end}, unit.numel);
    if (held.size() == 0) continue;
    const auto of_owned = [&](const Tensor& own) { return own.slice(0, held.begin - state.begin, held.size()); };
    update_.ranges.push_back({.param = of_owned(unit.owned_weights),
                              .main_param = of_owned(state.main_params),
                              .grad = of_owned(unit.owned_grads),
                              .exp_avg = of_owned(state.exp_avg),
                              .exp_avg_sq = of_owned(state.exp_avg_sq),
                              .weight_decay = first.decay ? spec_.weight_decay : 0.0,
                              .decoupled = decoupled});
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

void AdamWOptimizer::update(Stream& stream, const Tensor& loss, StepParameters* parameters, const RowRoom& room) {
  launch(stream, GradNormFinalize{.sums = squares_.tensors(),
                                  .loss = loss,
                                  .clip_grad = spec_.clip_grad,
                                  .room = room,
                                  .parameters = parameters});
  update_.parameters = parameters;
  launch(stream, update_);
}

}  // namespace megalith
