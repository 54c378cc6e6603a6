// What the trainer does when numbers go wrong: it names the first NaN or Inf of a step that was skipped, the rank
// whose copy of the parameters differs, accesses that no event orders, and files of the data that have changed.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <compare>
#include <limits>
#include <map>
#include <utility>

#include "apps/trainer.h"
#include "core/base/counted.h"
#include "core/base/log.h"

namespace megalith {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kAfterMicrobatches = std::numeric_limits<std::int64_t>::max();

std::string place_of(const Action& action, const GptModel& gpt) {
  std::string place(name_of(action.kind));
  if (action.segment >= 0) {
    const NamedSegment& segment = gpt.segments[static_cast<std::size_t>(action.segment)];
    return fmt::format("{}, {}, microbatch {}", segment.name, place, action.microbatch);
  }
  if (is_message(action.kind)) return to_string(action);
  if (is_of_bucket(action.kind)) return fmt::format("{} of bucket {}", place, action.bucket);
  return place;
}

// The place of a microbatch's action in the order of the data: forward through the parts of the model, and back. What
// comes after the microbatches comes last.
std::int64_t order_of(const Action& action, const PipelineLayout& pipeline, int stage) {
  if (!is_of_microbatch(action.kind)) return action.kind == ActionKind::kZeroGradients ? -1 : kAfterMicrobatches;
  const std::int64_t parts = pipeline.placement.num_parts();
  const std::int64_t part = pipeline.placement.part({.stage = stage, .chunk = action.chunk});
  const bool backward =
      action.gradient || action.kind == ActionKind::kBackwardData || action.kind == ActionKind::kBackwardWeight;
  return (2 * action.microbatch + (backward ? 1 : 0)) * parts + (backward ? parts - 1 - part : part);
}

// Of a rank's own first finding. All ranks of a stage run the same ops in the same order, and collectives spread what
// goes wrong: the lowest comes first.
struct FindingOrder {
  std::int64_t action = std::numeric_limits<std::int64_t>::max();  // order_of it; as here: nothing is found
  std::int64_t ordinal = std::numeric_limits<std::int64_t>::max();
  auto operator<=>(const FindingOrder&) const = default;
};

}  // namespace

void Trainer::explain_skip() {
  if (!skipped_) return;
  const SkippedStep step = *std::exchange(skipped_, std::nullopt);
  const std::string what = fmt::format("step {} was skipped (loss {}, grad norm {})", step.result.iteration,
                                       std::abs(step.result.loss), std::abs(step.result.grad_norm));
  StepInput input;
  const std::optional<RankFailure> problem = failure_of_any(
      world_, [&] { input = input_of(setup_.data.train, step.consumed_samples, step.result.iteration, tokens_); });
  if (problem) {
    data_problem_ = problem;
    if (is_main()) log_warning(what + ": its data cannot be read again to find the reason");
    return;
  }
  finite_.start([this](const void* address) { return model_->name_of(address); });
  std::optional<NonFinite> found;
  std::map<std::string, std::int64_t> orders;  // by place
  const auto before = [&](const Action& action) {
    const std::string place = place_of(action, model_->gpt());
    orders[place] = order_of(action, model_->pipeline(), model_->stage());
    finite_.set_place(place);
  };
  try {
    model_->repeat_step(input, before);
    found = finite_.stop();
  } catch (...) {
    finite_.cancel();
    throw;
  }
  const FindingOrder mine =
      found ? FindingOrder{.action = orders[found->place], .ordinal = found->ordinal} : FindingOrder{};
  const std::vector<FindingOrder> all = world_.host_gather(mine);
  const auto first = std::min_element(all.begin(), all.end());
  const auto rank = static_cast<int>(first - all.begin());
  const std::string text =
      world_.host_broadcast(found ? fmt::format("{}: {}", found->place, to_string(*found)) : "", rank);
  if (!is_main()) return;
  if (*first == FindingOrder{}) {
    log_warning(what +
                ": run again, all its tensors were finite: a value that does not repeat (a hook, or the hardware), or "
                "a norm beyond fp32");
    return;
  }
  log_warning(fmt::format("{}; the first value that is not finite: rank {}, {}", what, rank, text));
}

bool Trainer::over_budget() {
  const std::int64_t budget = options_.train.max_skipped_steps;
  if (state_.skipped_steps <= budget) return false;
  failure_ = fmt::format(
      "steps with NaN or Inf: expected at most {} (--max-skipped-steps) in the run, got {}, the last after step {}; "
      "see the warnings for where they begin, lower --lr or go on from an older checkpoint",
      budget, state_.skipped_steps, state_.step);
  return true;
}

std::optional<ReplicaDifference> Trainer::replica_difference() {
  model_->wait_for_parameters();
  std::vector<ReplicatedTensor> tensors;
  const std::vector<ParameterUnit>& units = model_->gpt().parameters->units();
  const AdamWOptimizer& optimizer = model_->optimizer();
  for (std::size_t u = 0; u < units.size(); ++u) {
    const AdamWOptimizer::UnitState& state = optimizer.units()[u];
    for (const Parameter* parameter : units[u].parameters) {
      for (std::size_t i = 0; i < parameter->parts.size(); ++i) {
        const auto add = [&](const char* kind, const Tensor& flat) {
          const Tensor whole = flat.slice(0, parameter->offset, parameter->shape.numel()).view(parameter->shape);
          tensors.push_back({fmt::format("{} of {}", kind, parameter->parts[i].name), parameter->part_of(whole, i)});
        };
        add("weight", units[u].weights);
        if (!optimizer.shard().is_whole()) continue;  // each rank has others
        if (optimizer.has_own_main_params()) add("main parameter", state.main_params);
        add("exp_avg", state.exp_avg);
        add("exp_avg_sq", state.exp_avg_sq);
      }
    }
  }
  return compare_replicas(model_->replicas(), model_->compute(), tensors,
                          group_of(mesh_.sizes(), mesh_.rank(), {Axis::kCp, Axis::kDp}));
}

bool Trainer::replicas_agree() {
  const std::optional<ReplicaDifference> difference = replica_difference();
  for (const std::string& message : world_.host_all_gather(difference ? difference->message : "")) {
    if (message.empty()) continue;  // each stage compares its own
    failure_ = fmt::format("--check-weight-hash-interval, after step {}: {}", state_.step, message);
    return false;
  }
  return true;
}

bool Trainer::found_hazards() {
  if (!hazards_) return false;
  const bool found = hazards_->count() > 0;
  if (found) {
    for (const Hazard& hazard : hazards_->hazards()) log_warning("hazard: " + to_string(hazard));
    log_warning(fmt::format("--check-hazards: {} on rank {}",
                            counted(hazards_->count(), "unordered access", "unordered accesses"), world_.rank()));
  }
  return world_.host_any(found);
}

// What was enqueued is compared, not what ran: a call that will hang is named before it does.
void Trainer::check_calls() {
  constexpr std::int64_t kCheckedSteps = 2;  // later ones repeat what they do
  if (++steps_started_ > kCheckedSteps) return;
  std::string mine;  // the other ranks have groups of their own
  for (Communicator* group : model_->groups()) {
    const std::string difference = difference_of_sequences(*group);
    if (mine.empty()) mine = difference;
    if (steps_started_ == kCheckedSteps) group->recorder().forget();
  }
  on_all_ranks(world_, [&] {
    if (!mine.empty()) throw Error(ExitCode::kCommunication, mine);
  });
}

// Every sample was read before its files were found unchanged, so the steps so far are right: the run can be saved
// and ended. Hence the samples of a step are read before the ranks agree on whether there is one.
void Trainer::read_ahead() {
  try {
    read_next();
  } catch (const Error&) {
    data_error_ = std::current_exception();
  }
}

// Of files that the steps at hand do not read.
void Trainer::check_data() {
  const Clock::time_point start = Clock::now();
  if (!is_main() || start < next_data_check_) return;
  try {
    setup_.data.train.check_unchanged();
    setup_.data.valid.check_unchanged();
  } catch (const Error&) {
    data_error_ = std::current_exception();
  }
  constexpr int kShare = 100;  // of the time at most one part, also for many files of a slow file system
  next_data_check_ = Clock::now() + kShare * (Clock::now() - start);
}

ExitCode Trainer::end_for_data(bool saved) {
  const bool saves = !options_.checkpoint.save.empty() && steps_started_ > 0;
  const char* const kept = !saves ? "" : saved ? " and saved" : ", but could not be saved";
  const std::string where =
      state_.step == 0 ? "before the first step" : fmt::format("after step {}, which is right", state_.step);
  failure_ = fmt::format("{}; the run ends {}{}", data_problem_->message, where, kept);
  return data_problem_->code;
}

}  // namespace megalith
