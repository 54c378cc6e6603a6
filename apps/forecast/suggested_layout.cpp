#include "apps/forecast/suggested_layout.h"

#include <algorithm>

#include "apps/config/memory_options.h"
#include "apps/config/offload_options.h"
#include "apps/config/optimizer_options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/training_options.h"
#include "apps/run/own_model.h"
#include "core/model/config.h"

namespace megalith {

namespace {

constexpr std::int64_t kRecorded = 4;  // microbatches; the first is cheaper, as it does not add gradients

bool shards_gradients(const SuggestedLayout& layout) {
  return layout.sharding == ShardingStrategy::kOptimGrads || layout.sharding == ShardingStrategy::kOptimGradsParams;
}

}  // namespace

bool has_replicas(const ModelConfig& model, std::int64_t world, const SuggestedLayout& layout) {
  return world > layout.tp * layout.pp || (model.moe.num_experts > 0 && world > layout.ep * layout.pp);
}

std::vector<std::string> cheap_modules(const Options& options) {
  if (has_mlp(options.model, true)) return {"mlp_act", "layernorm"};
  return {"layernorm"};
}

Options with_layout(Options options, const SuggestedLayout& layout, RecomputeGranularity recompute) {
  ParallelOptions& parallel = options.parallel;
  parallel.tensor_model_parallel_size = layout.tp;
  parallel.sequence_parallel = layout.tp > 1 && options.model.seq_length % layout.tp == 0;
  parallel.tp_comm_overlap = layout.overlaps;
  parallel.overlap_moe_expert_parallel_comm = layout.pairs;
  parallel.pipeline_model_parallel_size = layout.pp;
  parallel.expert_model_parallel_size = layout.ep;
  parallel.moe_shared_expert_overlap |= layout.ep > 1 && options.model.moe.shared_expert_intermediate_size > 0;
  parallel.num_virtual_stages_per_pipeline_rank = layout.chunks > 1 ? layout.chunks : 0;
  if (layout.zero_bubble) parallel.pipeline_schedule = PipelineSchedule::kZbH1;
  parallel.overlap_grad_reduce = has_replicas(options.model, parallel.world_size, layout);
  parallel.use_distributed_optimizer = layout.sharding == ShardingStrategy::kOptim;
  if (shards_gradients(layout)) parallel.data_parallel_sharding_strategy = layout.sharding;
  parallel.num_distributed_optimizer_instances = layout.instances;
  parallel.expert_data_parallel_sharding_strategy = ShardingStrategy::kAuto;
  parallel.overlap_param_gather = layout.sharding != ShardingStrategy::kNoShard;
  options.train.micro_batch_size = layout.micro_batch_size;
  MemoryOptions& memory = options.memory;
  memory.recompute_granularity = recompute;
  if (recompute == RecomputeGranularity::kSelective) memory.recompute_modules = cheap_modules(options);
  return options;
}

bool can_overlap(const ModelConfig& model, const SuggestedLayout& layout) {
  return layout.tp > 1 && model.seq_length % layout.tp == 0;
}

bool can_pair(const ModelConfig& model, const SuggestedLayout& layout) {
  return model.moe.num_experts > 0 && layout.ep > 1 && (layout.pp == 1 || layout.chunks > 1);
}

double LayoutBounds::microbatches(const SuggestedLayout& layout) const {
  const std::int64_t replicas = world_ / (layout.tp * layout.pp);
  const std::int64_t microbatches = options_.train.global_batch_size / (replicas * layout.micro_batch_size);
  return static_cast<double>(microbatches);
}

LayerCosts LayoutBounds::costs(const SuggestedLayout& layout, RecomputeGranularity recompute) {
  const bool sharded = shards_gradients(layout);  // each microbatch starts its gradients
  const std::int64_t recorded = std::min<std::int64_t>(kRecorded, static_cast<std::int64_t>(microbatches(layout)));
  std::shared_future<LayerCosts> found;
  {
    const std::lock_guard lock(mutex_);
    std::shared_future<LayerCosts>& known = costs_[{layout.tp, layout.ep, layout.micro_batch_size, layout.overlaps,
                                                    layout.pairs, sharded, recorded, recompute}];
    if (!known.valid()) {
      SuggestedLayout alone = layout;
      alone.pp = alone.chunks = 1;
      alone.zero_bubble = false;
      alone.instances = 1;
      alone.sharding = sharded ? ShardingStrategy::kOptimGradsParams : ShardingStrategy::kNoShard;
      known = std::async(std::launch::deferred, [this, alone, recompute, recorded] {
                Options options = with_layout(options_, alone, recompute);
                options.train.global_batch_size = recorded * alone.micro_batch_size * (world_ / alone.tp);
                return costs_of_layers(options, world_, rates_);
              }).share();
    }
    found = known;
  }
  return found.get();  // one of the concurrent callers computes it
}

// Seconds for units: each microbatch gathers sharded weights for forward and backward, and reduces sharded gradients. A
// few layers, embedding and head are left out, as they may stay unsharded.
double LayoutBounds::unit_seconds(const SuggestedLayout& layout) const {
  constexpr double kKept = 3;
  if (!shards_gradients(layout)) return 0;
  const double stages = static_cast<double>(layout.pp);
  const double share = std::max(0.0, 1 - kKept * stages / static_cast<double>(options_.model.num_layers));
  const ParameterCount count = count_parameters(options_);
  const std::int64_t dense = count.total - count.routed_experts - count.embedding - count.output;
  const auto sent = [&](std::int64_t parameters, std::int64_t parts) {  // bytes per rank for one pass over all of them
    const std::int64_t sharers = world_ / parts / layout.instances, held = parameters / parts;
    const auto ranks = static_cast<double>(sharers);
    return static_cast<double>(held) * (ranks - 1) / ranks;
  };
  const std::size_t gathered = layout.sharding == ShardingStrategy::kOptimGradsParams ? 2 : 0;
  const auto bytes = static_cast<double>(gathered * size_of(options_.model.params_dtype) +
                                         size_of(options_.optimizer.slot_grads_dtype()));
  return microbatches(layout) * share * bytes *
         (sent(dense, layout.tp * layout.pp) + sent(count.routed_experts, layout.ep * layout.pp)) /
         rates_.host.bandwidth;
}

// Lower bound for the last and a mean stage. It works for each microbatch, and waits for at least one microbatch of
// each other stage: of a chunk, or a third with delayed weight gradients. Hidden collectives slow the work down.
double LayoutBounds::seconds(const SuggestedLayout& layout, RecomputeGranularity recompute) {
  constexpr double kUniform = 0.995;  // a step's first microbatch and last layers differ by an op
  constexpr double kHead = 0.8;       // minimum fraction of both ends
  constexpr double kPaired = 0.95;    // the first and the last of the recorded microbatches have no partner
  const LayerCosts whole = costs(layout, recompute);
  const double share = layout.zero_bubble ? 1.0 / 3 : 1.0 / static_cast<double>(layout.chunks);
  const auto stages = static_cast<double>(layout.pp);
  const double mean = whole.seconds / stages;
  const double last = layout.pp == 1 ? mean : (whole.seconds - whole.ends) / stages + kHead * whole.ends;
  const double work = microbatches(layout) * std::max(mean, last) + share * (whole.seconds - std::max(mean, last));
  const double units = unit_seconds(layout);
  const double least = kUniform * std::max(units, work + (1 - rates_.overlap) * units);
  return layout.pairs ? kPaired * least : least;
}

double LayoutBounds::states(const SuggestedLayout& layout) const {
  const OptimizerOptions& optimizer = options_.optimizer;
  const auto weights = static_cast<double>(size_of(options_.model.params_dtype));
  const auto gradients = static_cast<double>(size_of(optimizer.main_grads_dtype));
  const std::size_t main = options_.model.params_dtype == DType::kFp32 ? 0 : size_of(DType::kFp32);
  const auto moments =
      static_cast<double>(main + size_of(optimizer.exp_avg_dtype) + size_of(optimizer.exp_avg_sq_dtype));
  const auto bytes = [&](std::int64_t parameters, std::int64_t parts) {  // each of `parts` has copies
    const std::int64_t copies_of_instance = world_ / parts / layout.instances;
    const auto copies = static_cast<double>(copies_of_instance);
    return static_cast<double>(parameters) / static_cast<double>(parts) *
           (weights / (layout.sharding == ShardingStrategy::kOptimGradsParams ? copies : 1) +
            gradients / (shards_gradients(layout) ? copies : 1) +
            moments / (layout.sharding == ShardingStrategy::kNoShard ? 1 : copies));
  };
  const ParameterCount count = count_parameters(options_);
  return bytes(count.total - count.routed_experts, layout.tp * layout.pp) +
         bytes(count.routed_experts, layout.ep * layout.pp);
}

// Bytes of the first stage, which keeps activations of as many microbatches as there are stages, and more with chunks.
double LayoutBounds::memory(const SuggestedLayout& layout, RecomputeGranularity recompute) {
  if (options_.offload.fine_grained_activation_offloading) return states(layout);
  const LayerCosts of_layers = costs(layout, recompute);
  if (layout.pp == 1) return states(layout) + of_layers.bytes;
  const std::int64_t layers = options_.model.num_layers / (layout.pp * layout.chunks);  // per chunk
  const std::int64_t begun = layout.chunks == 1 ? layout.pp : 2 * (layout.pp - 1) + (layout.chunks - 1) * layout.pp;
  const double kept = std::min(static_cast<double>(begun), microbatches(layout) * static_cast<double>(layout.chunks));
  return states(layout) + of_layers.bytes_per_layer * static_cast<double>(layers) * kept;
}

}  // namespace megalith
