#include "apps/rank.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "apps/layer_recompute.h"
#include "core/device/copy.h"
#include "moe/moe_layer.h"
#include "parallel/context_parallel/context_parallel.h"

namespace megalith {

namespace {

MoeOptions moe_options(LayerGroups& layers) {
  const auto sum_counts = [&layers](const Context& ctx, const Tensor& counts) {
    layers.tensor.sum(ctx.compute, counts, "expert counts");
    CommLane& context = layers.context.keys;
    if (context.group.size() == 1) return;
    context.start(ctx.compute, AllReduce{.group = context.group, .buffer = counts, .label = "expert counts"});
    context.wait(ctx.compute);
  };
  return {.sharers = layers.tensor.split().ranks * layers.context.size(), .sum_counts = sum_counts};
}

GptFactories factories(const Options& options, LayerGroups& layers) {
  return {.rows = &layers.tensor,
          .core_attention = context_parallel_attention(options.parallel.cp_comm_type, layers.context),
          .moe = moe_factory(moe_options(layers))};
}

std::vector<SegmentRunner::Entry> entries(const Options& options, const RankModel& model) {
  std::vector<SegmentRunner::Entry> entries;
  for (const NamedSegment& named : model.gpt.segments) {
    entries.push_back({.name = named.name,
                       .segment = named.segment.get(),
                       .policies = stash_policies(options.train, model.parts, named.layer),
                       .module = named.module,
                       .unit = named.layer_unit});
  }
  return entries;
}

PipelineTransfer::Spec transfer_spec(const Options& options, const RunConfig& config, const TensorGroup& tensor,
                                     DeviceType device, Instruments instruments) {
  instruments.observer = nullptr;  // which would wait for a receive before the peer is asked to send
  return {.placement = config.pipeline.placement,
          .shape = {tensor.rows(config.rank_tokens()), options.model.hidden_size},
          .dtype = options.model.params_dtype,
          .device = device,
          .instruments = instruments};
}

FlatShard optimizer_shard(const Options& options, const Communicator& shards) {
  if (!options.parallel.shards_optimizer()) return {};
  return {.rank = shards.rank(), .ranks = shards.size()};
}

// Of what stands before and behind the layers: embedding and head.
std::vector<int> end_units(const GptModel& gpt) {
  std::vector<int> units;
  for (const NamedSegment& segment : gpt.segments) {
    if (segment.module == SegmentModule::kOther) units.push_back(segment.first_unit);
  }
  return units;
}

// Memory for the parameters, before those who look at it.
ParameterStore& allocate(const Options& options, const FlatShard& shard, const GptModel& gpt, MemoryPool& pool) {
  const ParallelOptions& parallel = options.parallel;
  const ShardingStrategy strategy = shard.is_whole() ? ShardingStrategy::kNoShard : parallel.sharding();
  const bool weights = strategy == ShardingStrategy::kOptimGradsParams;
  const bool gradients =
      parallel.fsdp_reduce_grads == GradientReduction::kEach && (weights || strategy == ShardingStrategy::kOptimGrads);
  const std::vector<int> ends = end_units(gpt);
  // Its forward writes gradients, in some schedules before the backward_weight of another microbatch.
  const bool keeps_head = options.train.loss_chunk_size > 0;
  std::vector<ParameterUnit>& units = gpt.parameters->units();
  for (int u = 0; u < static_cast<int>(units.size()); ++u) {
    ParameterUnit& unit = units[static_cast<std::size_t>(u)];
    // Tied words are used by both ends at once, whichever stages these are on.
    const bool may =
        std::ranges::find(ends, u) == ends.end() ||
        (options.model.untie_embeddings_and_output_weights && parallel.fsdp_embedding_and_head == EndUnits::kSharded);
    unit.shard = shard;
    unit.resident_weights = !(weights && may);
    unit.resident_gradients = !(gradients && may) || (keeps_head && unit.name == "head");
  }
  gpt.parameters->allocate(pool, options.model.params_dtype, options.train.main_grads_dtype);
  return *gpt.parameters;
}

AdamWOptimizer::Spec adamw_spec(const TrainingOptions& train, const ParameterStore& all_parameters) {
  AdamWOptimizer::Spec spec{.beta1 = train.adam_beta1,
                            .beta2 = train.adam_beta2,
                            .eps = train.adam_eps,
                            .weight_decay = train.weight_decay,
                            .clip_grad = train.clip_grad,
                            .exp_avg_dtype = train.exp_avg_dtype,
                            .exp_avg_sq_dtype = train.exp_avg_sq_dtype};
  all_parameters.for_each_part([&](const ParameterStore::Held& held) { spec.all_names.push_back(held.part.name); });
  return spec;
}

// Of those that are resident.
std::vector<std::vector<int>> units_of_buckets(const ParallelOptions& options, const std::vector<ParameterUnit>& units,
                                               bool ParameterUnit::*resident) {
  std::vector<std::int64_t> ready_numels;  // backward reaches the last unit first
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit)
    ready_numels.push_back(*unit.*resident ? unit->numel : 0);
  // Without overlap nothing is gained by a second bucket.
  const std::int64_t size =
      options.overlap_grad_reduce ? options.ddp_bucket_size : std::numeric_limits<std::int64_t>::max();
  std::vector<std::vector<int>> buckets = assign_buckets(ready_numels, size);
  for (std::vector<int>& bucket : buckets) {
    for (int& unit : bucket) unit = static_cast<int>(units.size()) - 1 - unit;
  }
  return buckets;
}

std::vector<int> segments_of_unit(const GptModel& gpt, int unit) {
  std::vector<int> segments;
  for (int s = 0; s < static_cast<int>(gpt.segments.size()); ++s) {
    const NamedSegment& segment = gpt.segments[static_cast<std::size_t>(s)];
    if (segment.first_unit <= unit && unit <= segment.last_unit) segments.push_back(s);
  }
  return segments;
}

InstanceGroups instances_of(Communicator& replicas, const ParallelOptions& parallel) {
  const auto instances = static_cast<int>(parallel.num_distributed_optimizer_instances);
  return instances > 1 ? split_into_instances(replicas, instances) : InstanceGroups{};
}

}  // namespace

RankGroups::RankGroups(const Mesh& mesh, const Options& options, const RunConfig& config)
    : replicas(mesh.cp().size() == 1 ? mesh.dp() : mesh.dp_cp()),
      sums(replicas.duplicate("dp loss")),
      by_instance(instances_of(replicas, options.parallel)),
      instance_sums(by_instance.shards ? shards().duplicate(shards().name() + " norm") : nullptr),
      unshard(shards().size() > 1 && options.parallel.sharding() >= ShardingStrategy::kOptimGrads
                  ? shards().duplicate(shards().name() + " units")
                  : nullptr),
      stages(mesh.pp().duplicate("pp sums")) {
  const int last = mesh.pp().size() - 1, stage = mesh.coordinates().pp;
  const bool tied = !options.model.untie_embeddings_and_output_weights;
  if (last == 0 || !tied || config.pipeline.placement.is_v) return;
  const bool has_end = stage == 0 || stage == last;
  const std::vector<int> ranks = has_end ? std::vector<int>{0, last} : std::vector<int>{stage};
  embedding = mesh.pp().subgroup(ranks, "embedding");
  if (!has_end) embedding.reset();
}

RankStreams::RankStreams(DeviceType device, const Mesh& mesh, const RankGroups& groups, const Instruments& instruments)
    : compute(device, "compute", instruments), communication(device, "communication", instruments) {
  if (groups.unshard) unshard = std::make_unique<Stream>(device, "unit communication", instruments);
  if (mesh.tp().size() > 1) tensor = std::make_unique<Stream>(device, "tensor communication", instruments);
  if (mesh.cp().size() > 1) context = std::make_unique<Stream>(device, "context communication", instruments);
}

RankMemory::RankMemory(DeviceType device, std::size_t limit, CaptureGuard* captures)
    : pool(device, limit), arena(pool, device == DeviceType::kPlan ? Arena::Mode::kRecording : Arena::Mode::kPlanned) {
  if (captures != nullptr) pool.set_capture_guard(captures);
}

LayerGroups::LayerGroups(const Mesh& mesh, const Options& options, const RunConfig& config, RankStreams& streams)
    : tensor(
          mesh.tp(), streams.tensor ? *streams.tensor : streams.communication,
          {.sequence_parallel = options.parallel.sequence_parallel,
           .overlap = options.parallel.tp_comm_overlap,
           .weights_apart = options.train.cuda_graph_impl != CudaGraphImpl::kNone && config.pipeline.weights_apart()}),
      context(mesh.cp(), streams.context ? *streams.context : streams.communication) {}

RankModel::RankModel(const Options& options, std::vector<GptPart> parts_of_stage, LayerGroups& layers)
    : parts(std::move(parts_of_stage)),
      gpt(build_gpt(options.model, recompute_layers(options.train, parts), factories(options, layers),
                    options.train.loss_chunk_size, parts)),
      all_parameters(build_gpt(options.model, {}, {.moe = moe_factory()}).parameters) {}

RankOptimizer::RankOptimizer(const Options& options, const RankGroups& groups, RankMemory& memory, LayerGroups& layers,
                             RankModel& model)
    : shard(optimizer_shard(options, groups.shards())),
      shared_gradients(layers.tensor, allocate(options, shard, model.gpt, memory.pool), memory.pool),
      adamw(*model.gpt.parameters, memory.pool, adamw_spec(options.train, *model.all_parameters)) {}

// Room for copies of the peers' gradients: a sum waits for the product that runs at the moment, so few are better.
constexpr std::size_t kSumRoom = std::size_t{512} << 20;

RankUnits::RankUnits(const Options& options, const RankGroups& groups, RankStreams& streams, RankMemory& memory,
                     const PipelineLayout& pipeline, const GptModel& gpt) {
  std::vector<ParameterUnit>& units = gpt.parameters->units();
  // A V has both ends on one stage, where their uses overlap.
  const std::vector<int> in_turn = pipeline.placement.is_v ? std::vector<int>{} : end_units(gpt);
  points.slots = assign_slots(units, static_cast<int>(options.parallel.fsdp_unit_slots), in_turn);
  points.prefetch = static_cast<int>(options.parallel.fsdp_prefetch);
  points.sums_instances = groups.instances() != nullptr;
  if (!points.slots.has_weights() && !points.slots.has_gradients()) return;
  for (const NamedSegment& segment : gpt.segments) {
    SegmentUnits& used = points.segments.emplace_back();
    for (int u = segment.first_unit; u <= segment.last_unit; ++u) {
      const ParameterUnit& unit = units[static_cast<std::size_t>(u)];
      if (!unit.resident_weights) used.weights.push_back(u);
      if (!unit.resident_gradients) used.gradients.push_back(u);
    }
    used.forward_alone = segment.name == "embedding";
  }
  sharded = std::make_unique<ShardedUnits>(
      *gpt.parameters, points.slots,
      UnitGroups{.gather = *groups.unshard, .reduce = groups.shards(), .instances = groups.instances()},
      UnitStreams{.compute = streams.compute, .gather = *streams.unshard, .reduce = streams.communication}, memory.pool,
      options.train.device == DeviceType::kCuda ? kSumRoom : 0, options.train.check_hazards);
}

RankBuckets::RankBuckets(const Options& options, const RankGroups& groups, RankStreams& streams, const GptModel& gpt) {
  const std::vector<ParameterUnit>& units = gpt.parameters->units();
  const bool shards = options.parallel.shards_optimizer();
  const auto collect = [&](bool ParameterUnit::*resident, Tensor ParameterUnit::*whole,
                           std::vector<std::vector<int>>& segments) {
    std::vector<std::vector<Tensor>> tensors;
    for (const std::vector<int>& bucket : units_of_buckets(options.parallel, units, resident)) {
      tensors.emplace_back();
      segments.emplace_back();
      for (const int unit : bucket) {
        tensors.back().push_back(units[static_cast<std::size_t>(unit)].*whole);
        for (const int segment : segments_of_unit(gpt, unit)) segments.back().push_back(segment);
      }
    }
    return tensors;
  };
  const std::vector<std::vector<Tensor>> gradients =
      collect(&ParameterUnit::resident_gradients, &ParameterUnit::main_grads, reduced_segments);
  std::vector<std::vector<Tensor>> weights;
  if (shards) weights = collect(&ParameterUnit::resident_weights, &ParameterUnit::weights, gathered_segments);
  for (std::size_t bucket = 0; bucket < weights.size() && gpt.words != nullptr; ++bucket) {
    const Tensor& whole = units[static_cast<std::size_t>(gpt.words->unit)].weights;
    const auto is_words = [&](const Tensor& tensor) { return tensor.data == whole.data; };
    if (std::ranges::any_of(weights[bucket], is_words)) words = static_cast<int>(bucket);
  }
  const BucketStreams bucket_streams{.compute = streams.compute, .communication = streams.communication};
  reducer = std::make_unique<GradientReducer>(
      groups.shards(), bucket_streams, gradients,
      shards ? GradientReducer::Result::kShard : GradientReducer::Result::kWhole, groups.instances());
  gatherer = std::make_unique<ParameterGatherer>(groups.shards(), bucket_streams, weights);
}

StepMemory::StepMemory(MemoryPool& pool, const GptModel& gpt)
    : parameters(static_cast<StepParameters*>(
          pool.allocate(sizeof(StepParameters), MemoryCategory::kOther, "step parameters"))),
      sums(pool.allocate(kNumStepSums * sizeof(float), MemoryCategory::kOther, "loss"), DType::kFp32, {kNumStepSums}) {
  const Shape shape{std::ssize(gpt.parameters->buffers()), gpt.config.moe.num_experts};
  if (shape[0] == 0) return;
  expert_counts = Tensor(pool.allocate(static_cast<std::size_t>(shape.numel()) * 4, MemoryCategory::kOther, "counts"),
                         DType::kInt32, shape);
}

Rank::Rank(const Options& run_options, const RunConfig& derived, DeviceType device, const Mesh& ranks,
           const Instruments& instruments, std::size_t memory_limit)
    : options(run_options),
      config(derived),
      mesh(ranks),
      groups(mesh, options, config),  // first, before anything can fail on one rank alone
      streams(device, mesh, groups, instruments),
      memory(device, memory_limit, instruments.captures),
      layers(mesh, options, config, streams),
      model(options, config.pipeline.parts_of(mesh.coordinates().pp), layers),
      ctx{.compute = streams.compute,
          .arena = memory.arena,
          .seed = static_cast<std::uint64_t>(options.train.seed),
          .planned_for = options.train.device,
          .deterministic = options.train.deterministic_mode},
      runner(ctx, entries(options, model)),
      graphs(options.train.cuda_graph_impl == CudaGraphImpl::kNone || device == DeviceType::kPlan
                 ? nullptr
                 : std::make_unique<GraphedRunner>(ctx, runner, graph_modules(options, config.pipeline))),
      transfer(mesh.pp(), ctx, runner, transfer_spec(options, config, layers.tensor, device, instruments)),
      optimizer(options, groups, memory, layers, model),
      units(options, groups, streams, memory, config.pipeline, model.gpt),
      buckets(options, groups, streams, model.gpt),
      step(memory.pool, model.gpt) {
  if (device == DeviceType::kCuda) transfer.connect(step.sums.slice(0, 0, 1));
}

GraphModules graph_modules(const Options& options, const PipelineLayout& pipeline) {
  const std::vector<std::string>& modules = options.train.cuda_graph_modules;
  const auto has = [&](std::string_view module) { return std::ranges::find(modules, module) != modules.end(); };
  return {.attention = has("attn"),
          .mlp = has("mlp"),
          .moe_router = has("moe_router"),
          .moe = has("moe"),
          .layer = has("layer"),
          .weights_behind = options.parallel.tp_comm_overlap && !pipeline.weights_apart()};
}

RunPlan graph_runs(const Rank& rank, const std::vector<Action>& actions) {
  if (rank.options.train.cuda_graph_impl == CudaGraphImpl::kNone) return {};
  return group_runs(actions, rank.runner, graph_modules(rank.options, rank.config.pipeline));
}

std::unique_ptr<Rank> build_rank(const Options& options, const RunConfig& config, DeviceType device, const Mesh& mesh,
                                 const Instruments& instruments, std::size_t memory_limit) {
  return std::make_unique<Rank>(options, config, device, mesh, instruments, memory_limit);
}

void Rank::drain() noexcept {
  const auto wait = [](auto& each) {
    try {
      each.synchronize();
    } catch (const std::exception&) {
    }
  };
  wait(streams.communication);
  if (streams.unshard) wait(*streams.unshard);
  if (streams.tensor) wait(*streams.tensor);
  if (streams.context) wait(*streams.context);
  wait(transfer);
  wait(streams.compute);
}

Rank::~Rank() {
  drain();
  if (std::uncaught_exceptions() > 0) return;  // the peers of a rank that failed are ended, not waited for
  std::vector<MemorySharing*> sharing = sharing_groups(*this);
  if (units.sharded && units.sharded->gathers_by_copies()) sharing.push_back(memory_sharing(*groups.unshard));
  if (units.sharded && units.sharded->sums_by_copies()) sharing.push_back(memory_sharing(groups.shards()));
  for (MemorySharing* group : sharing) {
    try {
      group->unshare_memory();
    } catch (const std::exception&) {
    }
  }
}

void initialize(Rank& rank) {
  Stream& compute = rank.streams.compute;
  rank.model.gpt.parameters->initialize(compute, static_cast<std::uint64_t>(rank.options.train.seed));
  rank.optimizer.adamw.initialize(compute);
  const StepParameters start;
  copy_from_host(compute, rank.step.parameters, &start, sizeof(start));
  compute.synchronize();
}

std::vector<Communicator*> groups_of_steps(const Rank& rank) {
  const RankGroups& own = rank.groups;
  std::vector<Communicator*> groups{&own.replicas, own.sums.get(), own.stages.get(),
                                    &rank.layers.tensor.communicator()};
  if (own.unshard) groups.push_back(own.unshard.get());
  if (rank.layers.context.size() > 1) groups.push_back(&rank.layers.context.communicator());
  if (own.embedding) groups.push_back(own.embedding.get());
  for (Communicator* group : {own.by_instance.shards.get(), own.instance_sums.get(), own.instances()})
    if (group != nullptr) groups.push_back(group);
  return groups;
}

std::vector<MemorySharing*> sharing_groups(const Rank& rank) {
  std::vector<MemorySharing*> groups;
  const auto add = [&](Communicator& group) {
    if (MemorySharing* const sharing = memory_sharing(group)) groups.push_back(sharing);
  };
  if (rank.layers.tensor.overlaps()) add(rank.layers.tensor.communicator());
  if (rank.layers.context.size() > 1 && rank.options.parallel.cp_comm_type == ContextCommunication::kP2p)
    add(rank.layers.context.communicator());
  return groups;
}

std::string name_of(const Rank& rank, const void* address) {
  const auto within = [address](const Tensor& t) {
    const auto* begin = t.as<std::byte>();
    return t.present() && address >= begin && address < begin + t.bytes();
  };
  if (within(rank.step.sums)) return "loss";
  for (const ParameterUnit& unit : rank.model.gpt.parameters->units()) {
    for (const Parameter* parameter : unit.parameters) {
      for (std::size_t i = 0; i < parameter->parts.size(); ++i) {
        const std::string& name = parameter->parts[i].name;
        const auto holds = [&](const Tensor& whole) { return whole.present() && within(parameter->part_of(whole, i)); };
        if (holds(parameter->weight)) return name;
        if (holds(parameter->main_grad)) return "gradient of " + name;
      }
    }
    if (within(unit.main_grads) || within(unit.grad_shard)) return "gradients of unit " + unit.name;
    if (within(unit.weight_shard)) return "weights of unit " + unit.name;
  }
  return rank.memory.arena.owner_of(address);
}

}  // namespace megalith
