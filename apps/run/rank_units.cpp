// Units of a rank: which are resident and which are sharded, who updates them and who exchanges them.
#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

#include "apps/config/logging_options.h"
#include "apps/config/machine_facts.h"
#include "apps/config/memory_options.h"
#include "apps/config/optimizer_options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/training_options.h"
#include "apps/run/rank.h"
#include "fsdp/model_units.h"

namespace megalith {

namespace {

FlatShard shard_of_units(const Options& options, const Communicator& shards) {
  if (!options.parallel.shards_optimizer()) return {};
  return {.rank = shards.rank(), .ranks = shards.size()};
}

FlatShard owned_of(const FlatShard& shard, const ReplicaGroups& groups) {
  if (!groups.shards_instances) return shard;
  const int instances = groups.instances()->size();
  return {.rank = shard.rank * instances + groups.instances()->rank(), .ranks = shard.ranks * instances};
}

// Allocates the parameters ahead of their users.
ParameterStore& allocate(const Options& options, const RankGroups& groups, const GptModel& gpt, MemoryPool& pool) {
  const ParallelOptions& parallel = options.parallel;
  const std::vector<int> ends = end_units(gpt);
  // The head's forward writes gradients, in some schedules ahead of the backward_weight of another microbatch. The
  // embedding's gradients then have a separate slot, which only a smaller dtype makes smaller.
  const bool keeps_head = options.memory.loss_chunk_size > 0;
  const bool keeps_embedding = keeps_head && options.optimizer.slot_grads_dtype() == options.optimizer.main_grads_dtype;
  std::vector<ParameterUnit>& units = gpt.parameters->units();
  for (int u = 0; u < static_cast<int>(units.size()); ++u) {
    ParameterUnit& unit = units[static_cast<std::size_t>(u)];
    const ShardingStrategy sharding =
        unit.kind == UnitKind::kExperts ? parallel.expert_sharding() : parallel.sharding();
    const bool weights = sharding == ShardingStrategy::kOptimGradsParams;
    const bool gradients =
        sharding >= ShardingStrategy::kOptimGrads && parallel.fsdp_reduce_grads == GradientReduction::kEach;
    // Tied words are used by both ends at once, on any stages.
    unit.shard = shard_of_units(options, groups.of(unit.kind).shards());
    unit.owned = owned_of(unit.shard, groups.of(unit.kind));
    const bool is_end = std::ranges::find(ends, u) != ends.end();
    const bool may =
        !unit.shard.is_whole() &&
        (!is_end || (!options.ties_embeddings() &&
                     (parallel.fsdp_embedding_and_head == EndUnits::kSharded || options.machine.ends_exceed_memory)));
    unit.resident_weights = !(weights && may);
    unit.resident_gradients = !(gradients && may) || (is_end && (is_head(gpt, u) ? keeps_head : keeps_embedding));
  }
  gpt.parameters->allocate(pool, options.params_dtype(), options.optimizer.main_grads_dtype);
  return *gpt.parameters;
}

AdamWOptimizer::Spec adamw_spec(const Options& options, const RankGroups& groups,
                                const ParameterStore& all_parameters) {
  const OptimizerOptions& o = options.optimizer;
  AdamWOptimizer::Spec spec;
  spec.beta1 = o.adam_beta1;
  spec.beta2 = o.adam_beta2;
  spec.eps = o.adam_eps;
  spec.weight_decay = o.weight_decay;
  spec.clip_grad = o.clip_grad;
  spec.exp_avg_dtype = o.exp_avg_dtype;
  spec.exp_avg_sq_dtype = o.exp_avg_sq_dtype;
  if (options.train.schedule.decoupled_lr > 0)
    spec.decoupled_names = {"embedding.word_embeddings.weight", "output_layer.weight"};
  spec.counts_zeros = options.logging.log_num_zeros_in_grad;
  spec.sums_params = options.logging.log_params_norm;
  if (const Communicator* const parts = groups.expert_sums.get()) {
    spec.expert_part = parts->rank();
    spec.expert_parts = parts->size();
  }
  all_parameters.for_each_part([&](const ParameterStore::Held& held) {
    (held.unit.kind == UnitKind::kDense ? spec.all_names : spec.all_expert_names).push_back(held.part.name);
  });
  return spec;
}

// Units of each bucket, for units that `counts`.
std::vector<std::vector<int>> units_of_buckets(const ParallelOptions& options, const std::vector<ParameterUnit>& units,
                                               const std::function<bool(const ParameterUnit&)>& counts) {
  std::vector<std::int64_t> ready_numels;  // backward reaches the last unit first
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit)
    ready_numels.push_back(counts(*unit) ? unit->numel : 0);
  // Without overlap a second bucket gains nothing.
  const std::int64_t size =
      options.overlap_grad_reduce ? options.ddp_bucket_size : std::numeric_limits<std::int64_t>::max();
  std::vector<std::vector<int>> buckets = assign_buckets(ready_numels, size);
  for (std::vector<int>& bucket : buckets) {
    for (int& unit : bucket) unit = static_cast<int>(units.size()) - 1 - unit;
  }
  return buckets;
}

std::vector<std::vector<int>> segments_of_units(const GptModel& gpt, std::size_t units) {
  std::vector<std::vector<int>> segments(units);
  for (std::size_t s = 0; s < gpt.segments.size(); ++s) {
    for (int unit = gpt.segments[s].first_unit; unit <= gpt.segments[s].last_unit; ++unit)
      segments[static_cast<std::size_t>(unit)].push_back(static_cast<int>(s));
  }
  return segments;
}

}  // namespace

RankOptimizer::RankOptimizer(const Options& options, const RankGroups& groups, RankMemory& memory, LayerGroups& layers,
                             RankModel& model)
    : shared_gradients(layers.tensor, allocate(options, groups, model.gpt, memory.pool), memory.pool),
      adamw(*model.gpt.parameters, memory.pool, adamw_spec(options, groups, *model.all_parameters)) {}

RankUnits::RankUnits(const Options& options, const RankGroups& groups, RankStreams& streams, RankMemory& memory,
                     const PipelineLayout& pipeline, const GptModel& gpt) {
  std::vector<ParameterUnit>& units = gpt.parameters->units();
  // A V schedule has both ends on one stage, where their uses overlap.
  const std::vector<int> in_turn = pipeline.placement.is_v ? std::vector<int>{} : end_units(gpt);
  const std::int64_t slots = options.parallel.fsdp_unit_slots, of_gradients = options.parallel.fsdp_gradient_slots;
  points.slots = assign_slots(
      units,
      {.weights = static_cast<int>(slots), .gradients = static_cast<int>(of_gradients > 0 ? of_gradients : slots)},
      in_turn);
  points.slots.gradient_dtype = options.optimizer.slot_grads_dtype();
  points.prefetch = static_cast<int>(options.parallel.fsdp_prefetch);
  points.gradients_as_weights = of_gradients == 0;
  points.sums_instances = groups.instances() != nullptr;
  points.gathers_instances = groups.shards_instances;
  if (!points.slots.has_weights() && !points.slots.has_gradients()) return;
  points.segments = units_of_segments(gpt);
  std::vector<UnitGroups> unit_groups;
  for (const ReplicaGroups* each : groups.all()) {
    unit_groups.push_back({.gather = each->unshard ? *each->unshard : each->shards(),
                           .reduce = each->shards(),
                           .instances = each->instances()});
  }
  sharded = std::make_unique<ShardedUnits>(
      *gpt.parameters, points.slots, std::move(unit_groups),
      UnitStreams{.compute = streams.compute, .gather = *streams.unshard, .reduce = streams.communication}, memory.pool,
      options.device == DeviceType::kCuda ? kSumRoom : 0, options.train.check_hazards);
}

RankBuckets::RankBuckets(const Options& options, const RankGroups& groups, RankStreams& streams, const GptModel& gpt) {
  const std::vector<ParameterUnit>& units = gpt.parameters->units();
  const bool shards = options.parallel.shards_optimizer();
  const std::vector<std::vector<int>> segments_of_unit = segments_of_units(gpt, units.size());
  const auto collect = [&](const ReplicaGroups& of, bool ParameterUnit::*resident, Tensor ParameterUnit::*whole,
                           std::vector<std::vector<int>>& segments) {
    const auto counts = [&](const ParameterUnit& unit) { return unit.*resident && &groups.of(unit.kind) == &of; };
    std::vector<std::vector<Tensor>> tensors;
    for (const std::vector<int>& bucket : units_of_buckets(options.parallel, units, counts)) {
      tensors.emplace_back();
      segments.emplace_back();
      for (const int unit : bucket) {
        tensors.back().push_back(units[static_cast<std::size_t>(unit)].*whole);
        std::ranges::copy(segments_of_unit[static_cast<std::size_t>(unit)], std::back_inserter(segments.back()));
      }
    }
    return tensors;
  };
  const auto gradients = [&](const ReplicaGroups& of) {
    return collect(of, &ParameterUnit::resident_gradients, &ParameterUnit::main_grads, reduced_segments);
  };
  const auto gathered = [&](const ReplicaGroups& of) {
    if (!shards) return std::vector<std::vector<Tensor>>{};
    return collect(of, &ParameterUnit::resident_weights, &ParameterUnit::weights, gathered_segments);
  };
  const std::vector<std::vector<Tensor>> weights = gathered(groups);
  for (std::size_t bucket = 0; bucket < weights.size() && gpt.words != nullptr; ++bucket) {
    const Tensor& whole = units[static_cast<std::size_t>(gpt.words->unit)].weights;
    const auto is_words = [&](const Tensor& tensor) { return tensor.data == whole.data; };
    if (std::ranges::any_of(weights[bucket], is_words)) words = static_cast<int>(bucket);
  }
  const BucketStreams bucket_streams{.compute = streams.compute, .communication = streams.communication};
  using Result = GradientReducer::Result;
  const Result result = groups.shards_instances ? Result::kOwned : shards ? Result::kShard : Result::kWhole;
  const auto owners = [](const ReplicaGroups& of) { return of.shards_instances ? of.instances() : nullptr; };
  reducer =
      std::make_unique<GradientReducer>(groups.shards(), bucket_streams, gradients(groups), result, groups.instances());
  gatherer = std::make_unique<ParameterGatherer>(groups.shards(), bucket_streams, weights, owners(groups));
  if (!groups.experts) return;
  const ReplicaGroups& experts = *groups.experts;
  reducer->add_buckets(experts.shards(), gradients(experts), experts.instances());
  gatherer->add_buckets(experts.shards(), gathered(experts), owners(experts));
}

}  // namespace megalith
