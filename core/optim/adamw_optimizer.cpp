#include "core/optim/adamw_optimizer.h"

#include <map>

#include "core/ops/adamw.h"
#include "core/ops/elementwise.h"
#include "core/ops/grad_norm.h"
#include "core/ops/op.h"

namespace megalith {

AdamWOptimizer::AdamWOptimizer(ParameterStore& store, MemoryPool& pool, const Spec& spec) : store_(store), spec_(spec) {
  const auto buffer = [&](const ParameterUnit& unit, MemoryCategory category) {
    return Tensor(pool.allocate(static_cast<std::size_t>(unit.numel) * 4, category, unit.name), DType::kFp32,
                  {unit.numel});
  };
  std::map<std::string, Tensor> by_name;
  for (std::size_t u = 0; u < store.units().size(); ++u) {
    const ParameterUnit& unit = store.units()[u];
    own_main_params_ = unit.weights.dtype != DType::kFp32;
    states_.push_back({.main_params = own_main_params_ ? buffer(unit, MemoryCategory::kMainParameters) : unit.weights,
                       .exp_avg = buffer(unit, MemoryCategory::kOptimizer),
                       .exp_avg_sq = buffer(unit, MemoryCategory::kOptimizer)});
    for (const Parameter* parameter : unit.parameters) {
      if (!ranges_.empty() && ranges_.back().unit == u && ranges_.back().decay == parameter->decay) {
        ranges_.back().count = parameter->offset + parameter->shape.numel() - ranges_.back().begin;
      } else {
        ranges_.push_back(
            {.unit = u, .begin = parameter->offset, .count = parameter->shape.numel(), .decay = parameter->decay});
      }
      for (std::size_t i = 0; i < parameter->parts.size(); ++i) {
        by_name[parameter->parts[i].name] = parameter->part_of(parameter->main_grad, i);
      }
    }
  }
  for (const auto& [name, gradient] : by_name) norm_inputs_.push_back(gradient);
  const auto count = static_cast<std::int64_t>(norm_inputs_.size());
  sums_ = Tensor(pool.allocate(static_cast<std::size_t>(count) * 8, MemoryCategory::kWorkspace, "gradient norm"),
                 DType::kFp64, {count});
}

void AdamWOptimizer::initialize(Stream& stream) {
  for (std::size_t u = 0; u < states_.size(); ++u) {
    if (own_main_params_) launch(stream, Cast{.x = store_.units()[u].weights, .y = states_[u].main_params});
    launch(stream, Fill{.x = states_[u].exp_avg, .value = 0});
    launch(stream, Fill{.x = states_[u].exp_avg_sq, .value = 0});
  }
}

void AdamWOptimizer::write_weights(Stream& stream) {
  if (!own_main_params_) return;
  for (std::size_t u = 0; u < states_.size(); ++u)
    launch(stream, Cast{.x = states_[u].main_params, .y = store_.units()[u].weights});
}

void AdamWOptimizer::step(Stream& stream, const Tensor& loss, StepParameters* parameters) {
  for (std::size_t i = 0; i < norm_inputs_.size(); ++i) {
    launch(stream, SumOfSquares{.x = norm_inputs_[i], .out = sums_.slice(0, static_cast<std::int64_t>(i), 1)});
  }
  launch(stream, GradNormFinalize{.sums = sums_, .loss = loss, .clip_grad = spec_.clip_grad, .parameters = parameters});
  for (const Range& range : ranges_) {
    const UnitState& state = states_[range.unit];
    const ParameterUnit& unit = store_.units()[range.unit];
    launch(stream, AdamW{.param = unit.weights.slice(0, range.begin, range.count),
                         .main_param = state.main_params.slice(0, range.begin, range.count),
                         .grad = unit.main_grads.slice(0, range.begin, range.count),
                         .exp_avg = state.exp_avg.slice(0, range.begin, range.count),
                         .exp_avg_sq = state.exp_avg_sq.slice(0, range.begin, range.count),
                         .beta1 = spec_.beta1,
                         .beta2 = spec_.beta2,
                         .eps = spec_.eps,
                         .weight_decay = range.decay ? spec_.weight_decay : 0.0,
                         .parameters = parameters});
  }
}

}  // namespace megalith
