#include "apps/train/numerics_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/config/training_options.h"
#include "core/base/counted.h"
#include "core/base/log.h"
#include "parallel/comm/sequence_check.h"
#include "parallel/data_parallel/replicated_units.h"

namespace megalith {

namespace {

constexpr std::int64_t kAfterMicrobatches = std::numeric_limits<std::int64_t>::max();

std::string place_of(const Action& action, const GptModel& gpt) {
  std::string place(name_of(action.kind));
  if (action.segment >= 0) {
    const NamedSegment& segment = gpt.segments[static_cast<std::size_t>(action.segment)];
    return fmt::format("{}, {}, microbatch {}", segment.name, place, action.microbatch);
  }
  if (is_message(action.kind)) return to_string(action);
  if (is_exchange(action.kind)) {
    const NamedSegment& segment = gpt.segments[static_cast<std::size_t>(action.item)];
    return fmt::format("{}, {} of {}, microbatch {}", segment.name, place, action.gradient ? "gradients" : "outputs",
                       action.microbatch);
  }
  if (is_of_bucket(action.kind)) return fmt::format("{} of bucket {}", place, action.item);
  if (is_of_unit(action.kind)) return fmt::format("{} of unit {}", place, action.item);
  if (is_of_slot(action.kind)) return to_string(action);
  return place;
}

bool is_first(ActionKind kind) { return kind == ActionKind::kBeginStep || kind == ActionKind::kZeroGradients; }

// Order of a microbatch's action along the data: forward through the parts of the model, and back. Actions after the
// microbatches come last.
std::int64_t order_of(const Action& action, const PipelineLayout& pipeline, int stage) {
  if (!is_of_microbatch(action.kind)) return is_first(action.kind) ? -1 : kAfterMicrobatches;
  const std::int64_t parts = pipeline.placement.num_parts();
  const std::int64_t part = pipeline.placement.part({.stage = stage, .chunk = action.chunk});
  const bool backward =
      action.gradient || action.kind == ActionKind::kBackwardData || action.kind == ActionKind::kBackwardWeight;
  return (2 * action.microbatch + (backward ? 1 : 0)) * parts + (backward ? parts - 1 - part : part);
}

std::string named(std::int64_t layer, std::int64_t expert) {
  return fmt::format(" (layer {}, expert {})", layer, expert);
}

// Text such as " (layer 3, expert 5)" for tensors of experts' ops, and for experts' weights in a gather ahead of these
// ops; else "". Layers that are recomputed together are one segment; a weight's name there has its layer. Ops number
// this rank's experts, the text the model's experts.
std::string expert_of(const NonFinite& found, const Rank& rank) {
  constexpr std::string_view kLayers = "decoder.layers.";
  const GptModel& gpt = rank.model.gpt;
  const std::int64_t experts = rank.options.moe().num_experts / rank.mesh.sizes().ep;
  const std::int64_t first_expert = rank.mesh.coordinates().ep * experts;
  const std::vector<ParameterUnit>& units = gpt.parameters->units();
  for (const NamedSegment& segment : gpt.segments) {
    if (found.expert >= 0 && found.place.starts_with(segment.name + ",")) {
      if (found.tensor.starts_with(kLayers))
        return named(std::atoll(found.tensor.data() + kLayers.size()), first_expert + found.expert);
      if (segment.name.starts_with("layers ")) return fmt::format(" (expert {})", first_expert + found.expert);
      return named(segment.layer, first_expert + found.expert);
    }
    for (int u = segment.first_unit; u <= segment.last_unit; ++u) {
      if (found.place != fmt::format("{} of unit {}", name_of(ActionKind::kUnshard), u)) continue;
      const ParameterUnit& unit = units[static_cast<std::size_t>(u)];
      const bool is_whole = found.elements == unit.numel;  // or this rank's shard
      const std::int64_t element = found.element + (is_whole ? 0 : unit.shard.range(unit.numel).begin);
      for (const Parameter* parameter : unit.parameters) {
        const std::int64_t inside = element - parameter->offset, numel = parameter->shape.numel();
        if (unit.kind == UnitKind::kExperts && inside >= 0 && inside < numel)
          return named(segment.layer, first_expert + inside / (numel / experts));
      }
    }
  }
  return "";
}

// Rank's own first finding: the order of its action, and its number within the op. All ranks of a stage run the same
// ops in the same order, and collectives spread bad values, so the lowest order comes first.
using FindingOrder = std::array<std::int64_t, 2>;
constexpr FindingOrder kNothingFound = {std::numeric_limits<std::int64_t>::max(),
                                        std::numeric_limits<std::int64_t>::max()};

}  // namespace

NumericsGuard::NumericsGuard(const TrainingOptions& options, Communicator& world) : options_(options), world_(world) {
  if (options.check_hazards) hazards_ = std::make_unique<HazardChecker>();
}

std::optional<RankFailure> NumericsGuard::explain(Rank& rank, Step& step, StepSamples& samples) {
  if (!skipped_) return {};
  const SkippedStep skipped = *std::exchange(skipped_, std::nullopt);
  const std::string what = fmt::format("step {} was skipped (loss {}, grad norm {})", skipped.result.iteration,
                                       std::abs(skipped.result.loss), std::abs(skipped.result.grad_norm));
  StepInput input;
  std::optional<RankFailure> problem = failure_of_any(world_, [&] {
    input = samples.again({.steps = skipped.result.iteration - 1, .samples = skipped.consumed_samples});
  });
  if (problem) {
    if (world_.rank() == 0) log_warning(what + ": its data cannot be read again to find the reason");
    return problem;
  }
  samples.count(world_, input);
  finite_.start([&rank](const void* address) { return name_of(rank, address); });
  std::optional<NonFinite> found;
  std::map<std::string, std::int64_t> orders;  // by place
  const auto before = [&](const Action& action) {
    const std::string place = place_of(action, rank.model.gpt);
    orders[place] = order_of(action, rank.config.pipeline, rank.stage());
    finite_.set_place(place);
  };
  try {
    step.repeat(input, before);
    found = finite_.stop();
  } catch (...) {
    finite_.cancel();
    throw;
  }
  const FindingOrder mine = found ? FindingOrder{orders[found->place], found->ordinal} : kNothingFound;
  const std::vector<FindingOrder> all = world_.host_gather(mine);
  const auto first = std::min_element(all.begin(), all.end());
  const auto of = static_cast<int>(first - all.begin());
  const std::string text = world_.host_broadcast(
      found ? fmt::format("{}{}: {}", found->place, expert_of(*found, rank), to_string(*found)) : "", of);
  if (world_.rank() != 0) return {};
  if (*first == kNothingFound) {
    log_warning(what +
                ": in the rerun all tensors were finite; a value that does not repeat (from a hook or the hardware) or "
                "a norm beyond fp32 is the cause");
    return {};
  }
  log_warning(fmt::format("{}; the first value that is not finite: rank {}, {}", what, of, text));
  return {};
}

std::string NumericsGuard::over_budget(const TrainState& state) const {
  const std::int64_t budget = options_.max_skipped_steps;
  if (state.skipped_steps <= budget) return {};
  return fmt::format(
      "steps with NaN or Inf: expected at most {} (--max-skipped-steps) in the run, got {}, the last after step {}; "
      "see the warnings for their origin, lower --lr or resume from an older checkpoint",
      budget, state.skipped_steps, state.step);
}

std::optional<ReplicaDifference> replica_difference(Rank& rank) {
  rank.wait_for_parameters();
  const auto compare = [&](const ReplicaGroups& groups, std::initializer_list<Axis> axes) {
    return difference_of({.parameters = *rank.model.gpt.parameters,
                          .optimizer = rank.optimizer.adamw,
                          .kinds = rank.groups.kinds_of(groups),
                          .replicas = groups.replicas,
                          .shards = groups.shards(),
                          .instances = groups.instances()},
                         rank.streams.compute, group_of(rank.mesh.sizes(), rank.mesh.rank(), axes));
  };
  std::optional<ReplicaDifference> difference = compare(rank.groups, {Axis::kCp, Axis::kDp});
  if (!rank.groups.experts) return difference;
  // Compares other ranks, which may have found nothing so far.
  std::optional<ReplicaDifference> of_experts = compare(*rank.groups.experts, {Axis::kEdp});
  return difference ? difference : of_experts;
}

std::string NumericsGuard::difference_of_replicas(Rank& rank, std::int64_t step) {
  const std::optional<ReplicaDifference> difference = replica_difference(rank);
  for (const std::string& message : world_.host_all_gather(difference ? difference->message : "")) {
    // Each stage compares its own replicas.
    if (!message.empty()) return fmt::format("--check-weight-hash-interval, after step {}: {}", step, message);
  }
  return {};
}

bool NumericsGuard::found_hazards() {
  if (!hazards_) return false;
  const bool found = hazards_->count() > 0;
  if (found) {
    for (const Hazard& hazard : hazards_->hazards()) log_warning("hazard: " + to_string(hazard));
    log_warning(fmt::format("--check-hazards: {} on rank {}",
                            counted(hazards_->count(), "unordered access", "unordered accesses"), world_.rank()));
  }
  return world_.host_any(found);
}

// Compares enqueued calls, not completed calls, so that a call is reported ahead of its hang.
void NumericsGuard::check_calls(const Rank& rank) {
  constexpr std::int64_t kCheckedSteps = 2;  // later steps repeat these calls
  if (++steps_checked_ > kCheckedSteps) return;
  std::string mine;  // other ranks have other groups
  for (Communicator* group : groups_of_steps(rank)) {
    const std::string difference = difference_of_sequences(*group);
    if (mine.empty()) mine = difference;
    if (steps_checked_ == kCheckedSteps) group->recorder().forget();
  }
  on_all_ranks(world_, [&] {
    if (!mine.empty()) throw Error(ExitCode::kCommunication, mine);
  });
}

}  // namespace megalith
