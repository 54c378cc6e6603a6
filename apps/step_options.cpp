// What the flags say of a step: its sizes, and what its backward recomputes.
#include <fmt/format.h>

#include <algorithm>

#include "apps/model_builder.h"

namespace megalith {

void check_step_size(const Options& options) {
  constexpr std::int64_t kMaxStep = std::int64_t{1} << 40;
  constexpr std::int64_t kMaxMicrobatch = std::int64_t{1} << 32;
  const auto limit = [&](const char* flag, std::int64_t samples, std::int64_t most) {
    if (samples <= most / options.model.seq_length) return;
    refuse_usage(fmt::format("{} and --seq-length", flag), fmt::format("at most {} tokens", most),
                 fmt::format("{} x {}", samples, options.model.seq_length), "lower one of them");
  };
  limit("--global-batch-size", options.train.global_batch_size, kMaxStep);
  limit("--micro-batch-size", options.train.micro_batch_size, kMaxMicrobatch);
}

std::int64_t count_microbatches(const TrainingOptions& options, int data_parallel_size) {
  const std::int64_t per_microbatch = options.micro_batch_size * data_parallel_size;
  constexpr std::int64_t kMost = 1 << 16;
  if (options.global_batch_size / per_microbatch > kMost) {
    refuse_usage("--global-batch-size",
                 fmt::format("at most {} microbatches per step and rank, {} samples", kMost, kMost * per_microbatch),
                 std::to_string(options.global_batch_size), "raise --micro-batch-size or the number of ranks");
  }
  if (options.global_batch_size % per_microbatch == 0) return options.global_batch_size / per_microbatch;
  const std::int64_t below = options.global_batch_size / per_microbatch * per_microbatch;
  refuse_usage("--global-batch-size",
               fmt::format("a multiple of --micro-batch-size {} x {} data-parallel ranks", options.micro_batch_size,
                           data_parallel_size),
               std::to_string(options.global_batch_size),
               fmt::format("use {}{}", below > 0 ? std::to_string(below) + " or " : "", below + per_microbatch));
}

StashPolicies stash_policies(const TrainingOptions& options) {
  StashPolicies policies{};
  if (options.recompute_granularity != RecomputeGranularity::kSelective) return policies;
  const auto recompute = [&](SlotKind kind) { policies[static_cast<std::size_t>(kind)] = StashPolicy::kRecompute; };
  for (const std::string& module : options.recompute_modules) {
    if (module == "core_attn") recompute(SlotKind::kAttnProj);
    if (module == "layernorm") {
      recompute(SlotKind::kQkvLinear);
      recompute(SlotKind::kFc1);
    }
    if (module == "mlp_act") recompute(SlotKind::kFc2);
  }
  return policies;
}

RecomputeLayers recompute_layers(const Options& options, const std::vector<GptPart>& parts) {
  const TrainingOptions& train = options.train;
  RecomputeLayers recompute;
  if (train.recompute_granularity == RecomputeGranularity::kSelective) {
    recompute.mlp = std::find(train.recompute_modules.begin(), train.recompute_modules.end(), "mlp") !=
                    train.recompute_modules.end();
  }
  if (train.recompute_granularity != RecomputeGranularity::kFull) return recompute;
  const std::int64_t step = train.recompute_num_layers;
  for (const GptPart& part : parts) {
    const std::int64_t end = part.first_layer + part.num_layers;
    if (train.recompute_method == RecomputeMethod::kUniform) {
      for (std::int64_t first = part.first_layer; first < end; first += step)
        recompute.ranges.push_back({.first = first, .count = std::min(step, end - first)});
    } else {
      for (std::int64_t layer = part.first_layer; layer < std::min(part.first_layer + step, end); ++layer)
        recompute.ranges.push_back({.first = layer, .count = 1});
    }
  }
  return recompute;
}

}  // namespace megalith
