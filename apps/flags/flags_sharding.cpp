#include "apps/flags/flags_check.h"

#include <fmt/format.h>

#include <array>

#include "apps/config/optimizer_options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/program_options.h"
#include "core/base/error.h"

namespace megalith {

namespace {

std::string flag_value(ShardingStrategy strategy) {
  return std::array{"auto", "no_shard", "optim", "optim_grads",
                    "optim_grads_params"}[static_cast<std::size_t>(strategy)];
}

// Texts of messages about the strategies; experts may have a separate strategy.
struct ShardingText {
  std::string got, weights, gradients;
};
ShardingText describe_sharding_options(const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  const std::string flag = "--data-parallel-sharding-strategy ";
  const std::string of_experts = "--expert-data-parallel-sharding-strategy";
  ShardingText text{.got = flag + flag_value(parallel.sharding()),
                    .weights = flag + "optim_grads_params",
                    .gradients = flag + "optim_grads_params or optim_grads"};
  if (options.moe().num_experts == 0) return text;
  if (parallel.expert_sharding() != parallel.sharding())
    text.got += fmt::format(" and {} {}", of_experts, flag_value(parallel.expert_sharding()));
  if (parallel.sharding() == ShardingStrategy::kNoShard) return text;  // experts are not sharded either
  for (std::string* needs : {&text.weights, &text.gradients}) *needs += ", or the same value of " + of_experts;
  return text;
}

void check_slot_grads(const Options& options, const ShardingText& text) {
  const GradientDType dtype = options.optimizer.megatron_fsdp_grad_comm_dtype;
  if (dtype == GradientDType::kAuto) return;
  const std::string flag =
      fmt::format("--megatron-fsdp-grad-comm-dtype {}", dtype == GradientDType::kBf16 ? "bf16" : "fp32");
  only_with(options.parallel.max_sharding() >= ShardingStrategy::kOptimGrads || options.forecast.suggest,
            {.flag = flag, .needs = text.gradients, .got = text.got});
  only_with(options.parallel.fsdp_reduce_grads == GradientReduction::kEach,
            {.flag = flag, .needs = "--fsdp-reduce-grads each", .got = "--fsdp-reduce-grads last"});
  if (dtype == GradientDType::kBf16) {
    only_with(options.params_dtype() == DType::kBf16, {.flag = flag, .needs = "--bf16"});
  } else {
    not_both(options.optimizer.grad_reduce_in_bf16, "--grad-reduce-in-bf16", flag);
    only_with(options.optimizer.main_grads_dtype == DType::kFp32,
              {.flag = flag, .needs = "--main-grads-dtype fp32", .got = "--main-grads-dtype bf16"});
  }
}

void check_sharded_units(const ParallelOptions& parallel, const ShardingText& text) {
  const ParallelOptions defaults;
  const ShardingStrategy most = parallel.max_sharding();
  const bool shards_weights = most == ShardingStrategy::kOptimGradsParams;
  const bool shards_gradients = most >= ShardingStrategy::kOptimGrads;
  for (const auto& [is_set, flag] :
       {std::pair{parallel.fsdp_unit_slots != defaults.fsdp_unit_slots, "--fsdp-unit-slots"},
        {parallel.fsdp_gradient_slots != defaults.fsdp_gradient_slots, "--fsdp-gradient-slots"}})
    only_with(shards_gradients || !is_set, {.flag = flag, .needs = text.gradients, .got = text.got});
  for (const auto& [is_set, flag] :
       {std::pair{parallel.fsdp_prefetch != defaults.fsdp_prefetch, "--fsdp-prefetch"},
        {parallel.fsdp_reduce_grads != defaults.fsdp_reduce_grads, "--fsdp-reduce-grads last"},
        {parallel.outer_dp_sharding_strategy != defaults.outer_dp_sharding_strategy,
         "--outer-dp-sharding-strategy optim"}})
    only_with(shards_weights || !is_set, {.flag = flag, .needs = text.weights, .got = text.got});
  only_with(parallel.sharding() == ShardingStrategy::kOptimGradsParams ||
                parallel.fsdp_embedding_and_head == defaults.fsdp_embedding_and_head,
            {.flag = "--fsdp-embedding-and-head",
             .needs = "--data-parallel-sharding-strategy optim_grads_params",
             .got = text.got});
  const std::int64_t prefetch = parallel.fsdp_prefetch, slots = parallel.fsdp_unit_slots;
  if (shards_weights && prefetch >= slots)
    refuse_numbers({"--fsdp-prefetch", prefetch}, {"--fsdp-unit-slots", slots},
                   "--fsdp-prefetch < --fsdp-unit-slots, as the unit in use also has a slot",
                   fmt::format("use --fsdp-unit-slots {} or --fsdp-prefetch {}", prefetch + 1, slots - 1));
}

// Rejects --fsdp-reduce-grads last with optim_grads, which adds each microbatch to gradient shards.
void check_reduction(const ParallelOptions& parallel, const ShardingText& text) {
  const bool keeps_shares = parallel.sharding() == ShardingStrategy::kOptimGrads ||
                            parallel.expert_sharding() == ShardingStrategy::kOptimGrads;
  if (parallel.fsdp_reduce_grads != GradientReduction::kLast || !keeps_shares) return;
  refuse_usage("--fsdp-reduce-grads last and optim_grads",
               {.expected = "optim or optim_grads_params for experts and for the rest, as a rank holds only gradient "
                            "shards with optim_grads",
                .got = text.got,
                .remedy = "use optim instead of optim_grads, or remove --fsdp-reduce-grads last"});
}

void check_sharding_of_experts(const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  const bool of_experts = parallel.expert_sharding() != ShardingStrategy::kNoShard;
  if (of_experts == parallel.shards_optimizer()) return;
  refuse_usage("--expert-data-parallel-sharding-strategy and --data-parallel-sharding-strategy",
               {.expected = "no_shard for both flags or for neither",
                .got = of_experts ? "no_shard for the parameters outside of experts" : "no_shard for experts",
                .remedy = "use optim for these, which shards main parameters and moments"});
}

}  // namespace

void check_sharding(const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  not_both(parallel.use_distributed_optimizer && parallel.sharding() == ShardingStrategy::kNoShard,
           "--use-distributed-optimizer", "--data-parallel-sharding-strategy no_shard",
           "remove --use-distributed-optimizer, or use --data-parallel-sharding-strategy optim");
  const ShardingText text = describe_sharding_options(options);
  // --use-distributed-optimizer is incompatible with any other strategy that is given.
  const bool is_given = parallel.data_parallel_sharding_strategy != ShardingStrategy::kAuto;
  const std::string needs = is_given ? "--data-parallel-sharding-strategy optim" : "--use-distributed-optimizer";
  const std::string got = is_given ? text.got : "";
  only_with(!parallel.overlap_param_gather || parallel.shards_optimizer(),
            {.flag = "--overlap-param-gather", .needs = needs, .got = got});
  if (options.moe().num_experts > 0) check_reduction(parallel, text);
  check_sharded_units(parallel, text);
  check_slot_grads(options, text);
  only_with(parallel.num_distributed_optimizer_instances == 1 || parallel.shards_optimizer(),
            {.flag = "--num-distributed-optimizer-instances", .needs = needs, .got = is_given ? got : "no sharding"});
  check_sharding_of_experts(options);
}

}  // namespace megalith
