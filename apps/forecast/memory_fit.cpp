#include "apps/forecast/memory_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "apps/config/memory_options.h"
#include "apps/config/optimizer_options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/training_options.h"
#include "apps/forecast/forecast.h"
#include "apps/forecast/suggested_layout.h"
#include "core/base/error.h"

namespace megalith {

namespace {

// Change of flags. `apply` returns false where it does not apply.
struct Change {
  std::string flags;
  std::function<bool(Options&)> apply;
};

bool shard(Options& options, ShardingStrategy sharding) {
  ParallelOptions& parallel = options.parallel;
  const bool has_replicas =
      parallel.world_size > parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size;
  if (!has_replicas || parallel.sharding() >= sharding) return false;
  parallel.use_distributed_optimizer |= sharding == ShardingStrategy::kOptim;
  if (sharding != ShardingStrategy::kOptim) parallel.data_parallel_sharding_strategy = sharding;
  return true;
}

bool recompute(Options& options, RecomputeGranularity granularity) {
  MemoryOptions& memory = options.memory;
  if (memory.recompute_granularity >= granularity) return false;
  memory.recompute_granularity = granularity;
  memory.recompute_num_layers = 0;
  memory.recompute_modules.clear();
  if (granularity == RecomputeGranularity::kSelective) memory.recompute_modules = cheap_modules(options);
  return true;
}

bool narrow_states(Options& options) {
  OptimizerOptions& optimizer = options.optimizer;
  if (options.params_dtype() != DType::kBf16 || optimizer.main_grads_dtype == DType::kBf16) return false;
  optimizer.main_grads_dtype = optimizer.exp_avg_dtype = optimizer.exp_avg_sq_dtype = DType::kBf16;
  return true;
}

// Changes in the order of the time that they cost.
std::vector<Change> changes_of(const Options& options) {
  const std::int64_t micro = options.train.micro_batch_size;
  return {
      {"--use-distributed-optimizer", [](Options& o) { return shard(o, ShardingStrategy::kOptim); }},
      {fmt::format("--micro-batch-size {}", micro / 2),
       [](Options& o) {
         if (o.train.micro_batch_size % 2 != 0) return false;
         o.train.micro_batch_size /= 2;
         return true;
       }},
      {"--loss-chunk-size 1024",
       [](Options& o) {
         constexpr std::int64_t kTokens = 1024;
         if (o.memory.loss_chunk_size != 0) return false;
         o.memory.loss_chunk_size = kTokens;
         return true;
       }},
      {fmt::format("--recompute-granularity selective --recompute-modules {}", fmt::join(cheap_modules(options), " ")),
       [](Options& o) { return recompute(o, RecomputeGranularity::kSelective); }},
      {"--main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", narrow_states},
      {"--data-parallel-sharding-strategy optim_grads_params",
       [](Options& o) { return shard(o, ShardingStrategy::kOptimGradsParams); }},
      {"--recompute-granularity full", [](Options& o) { return recompute(o, RecomputeGranularity::kFull); }}};
}

// Largest rank; none if the options contradict each other.
std::optional<std::size_t> max_memory_of(const Options& options, int world, const Rates& rates) {
  try {
    const Forecast forecast = make_forecast(options, world, {.rates = &rates, .one_of_equal = true});
    std::size_t bytes = 0;
    for (const StageForecast& stage : forecast.stages) bytes = std::max(bytes, stage.memory.total());
    return bytes;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<FittingFlags> find_fitting_flags(const Options& options, int world, const Rates& rates,
                                             std::size_t max_memory) {
  constexpr std::size_t kMost = 3;
  const std::vector<Change> changes = changes_of(options);
  std::vector<FittingFlags> found;
  for (const Change& change : changes) {
    Options changed = options;
    if (found.size() == kMost || !change.apply(changed)) continue;
    const std::optional<std::size_t> bytes = max_memory_of(changed, world, rates);
    if (bytes && *bytes <= max_memory) found.push_back({change.flags, *bytes});
  }
  if (!found.empty()) return found;
  Options changed = options;
  std::vector<std::string> flags;
  for (const Change& change : changes) {
    Options next = changed;
    if (!change.apply(next)) continue;
    const std::optional<std::size_t> bytes = max_memory_of(next, world, rates);
    if (!bytes) continue;
    changed = std::move(next);
    // A flag given again replaces the earlier one.
    const std::string first = change.flags.substr(0, change.flags.find(' '));
    std::erase_if(flags, [&](const std::string& earlier) { return earlier.starts_with(first); });
    flags.push_back(change.flags);
    if (*bytes <= max_memory) return {{.flags = fmt::format("{}", fmt::join(flags, " ")), .bytes = *bytes}};
  }
  return {};
}

}  // namespace megalith
