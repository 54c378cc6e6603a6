#include "apps/rank.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <limits>
#include <utility>

#include "apps/dispatcher_choice.h"
#include "apps/layer_offload.h"
#include "apps/layer_recompute.h"
#include "apps/model_units.h"
#include "core/device/copy.h"
#include "moe/moe_layer.h"
#include "parallel/context_parallel/context_parallel.h"

namespace megalith {

namespace {

ExpertSplit expert_split(const Mesh& mesh) {
  return {.rank = mesh.coordinates().ep,
          .ranks = static_cast<int>(mesh.sizes().ep),
          .column_rank = mesh.coordinates().etp,
          .column_ranks = static_cast<int>(mesh.sizes().etp)};
}

// Or the router: a graph waits for nothing that began outside of it.
bool graphs_hold_experts(const TrainingOptions& train) {
  if (train.cuda_graph_impl == CudaGraphImpl::kNone) return false;
  return std::ranges::any_of(train.cuda_graph_modules,
                             [](const std::string& module) { return module == "layer" || module.starts_with("moe"); });
}

// Groups of one rank have nothing to add up.
MoeOptions moe_options(const Mesh& mesh, bool overlap, LayerGroups& layers, Communicator& replicas) {
  MoeOptions options{
      .experts = expert_split(mesh), .dispatcher = layers.dispatcher.get(), .shared_expert_overlap = overlap};
  const int tensor = layers.tensor.split().ranks;
  if (tensor * layers.context.size() > 1) {
    options.sum_counts = [&layers](const Context& ctx, const Tensor& counts) {
      layers.tensor.sum(ctx.compute, counts, "expert counts");
      CommLane& context = layers.context.keys;
      if (context.group.size() == 1) return;
      context.start(ctx.compute, AllReduce{.group = context.group, .buffer = counts, .label = "expert counts"});
      context.wait(ctx.compute);
    };
  }
  if (tensor * replicas.size() > 1) {
    options.sum_all_counts = [&layers, &replicas](const Context& ctx, const Tensor& counts) {
      layers.tensor.sum(ctx.compute, counts, "expert counts");
      if (replicas.size() == 1) return;
      launch(ctx.compute, AllReduce{.group = replicas, .buffer = counts, .label = "expert counts of all"});
    };
  }
  return options;
}

GptFactories factories(const Options& options, const Mesh& mesh, LayerGroups& layers, Communicator& replicas) {
  return {.rows = &layers.tensor,
          .core_attention = context_parallel_attention(options.parallel.cp_comm_type, layers.context),
          .moe = moe_factory(moe_options(mesh, options.parallel.moe_shared_expert_overlap, layers, replicas))};
}

std::vector<SegmentRunner::Entry> entries(const Options& options, const RankModel& model) {
  const StashPolicies policies = stash_policies(options, model.parts);
  std::vector<SegmentRunner::Entry> entries;
  for (const NamedSegment& named : model.gpt.segments) {
    entries.push_back({.name = named.name,
                       .segment = named.segment.get(),
                       .policies = policies.of(named.layer),
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

FlatShard shard_of_units(const Options& options, const Communicator& shards) {
  if (!options.parallel.shards_optimizer()) return {};
  return {.rank = shards.rank(), .ranks = shards.size()};
}

FlatShard owned_of(const FlatShard& shard, const ReplicaGroups& groups) {
  if (!groups.shards_instances) return shard;
  const int instances = groups.instances()->size();
  return {.rank = shard.rank * instances + groups.instances()->rank(), .ranks = shard.ranks * instances};
}

// Memory for the parameters, before those who look at it.
ParameterStore& allocate(const Options& options, const RankGroups& groups, const GptModel& gpt, MemoryPool& pool) {
  const ParallelOptions& parallel = options.parallel;
  const bool weights = parallel.sharding() == ShardingStrategy::kOptimGradsParams;
  const bool gradients = parallel.fsdp_reduce_grads == GradientReduction::kEach &&
                         (weights || parallel.sharding() == ShardingStrategy::kOptimGrads);
  const std::vector<int> ends = end_units(gpt);
  // Its forward writes gradients, in some schedules before the backward_weight of another microbatch.
  const bool keeps_head = options.train.loss_chunk_size > 0;
  std::vector<ParameterUnit>& units = gpt.parameters->units();
  for (int u = 0; u < static_cast<int>(units.size()); ++u) {
    ParameterUnit& unit = units[static_cast<std::size_t>(u)];
    // Tied words are used by both ends at once, whichever stages these are on.
    unit.shard = shard_of_units(options, groups.of(unit.kind).shards());
    unit.owned = owned_of(unit.shard, groups.of(unit.kind));
    const bool may = !unit.shard.is_whole() &&
                     (std::ranges::find(ends, u) == ends.end() ||
                      (options.model.untie_embeddings_and_output_weights &&
                       (parallel.fsdp_embedding_and_head == EndUnits::kSharded || parallel.ends_exceed_memory)));
    unit.resident_weights = !(weights && may);
    unit.resident_gradients = !(gradients && may) || (keeps_head && is_head(gpt, u));
  }
  gpt.parameters->allocate(pool, options.model.params_dtype, options.train.main_grads_dtype);
  return *gpt.parameters;
}

AdamWOptimizer::Spec adamw_spec(const TrainingOptions& train, const RankGroups& groups,
                                const ParameterStore& all_parameters) {
  AdamWOptimizer::Spec spec{.beta1 = train.adam_beta1,
                            .beta2 = train.adam_beta2,
                            .eps = train.adam_eps,
                            .weight_decay = train.weight_decay,
                            .clip_grad = train.clip_grad,
                            .exp_avg_dtype = train.exp_avg_dtype,
                            .exp_avg_sq_dtype = train.exp_avg_sq_dtype};
  if (const Communicator* const parts = groups.expert_sums.get()) {
    spec.expert_part = parts->rank();
    spec.expert_parts = parts->size();
  }
  all_parameters.for_each_part([&](const ParameterStore::Held& held) {
    (held.unit.kind == UnitKind::kDense ? spec.all_names : spec.all_expert_names).push_back(held.part.name);
  });
  return spec;
}

// Of those units that `counts`.
std::vector<std::vector<int>> units_of_buckets(const ParallelOptions& options, const std::vector<ParameterUnit>& units,
                                               const std::function<bool(const ParameterUnit&)>& counts) {
  std::vector<std::int64_t> ready_numels;  // backward reaches the last unit first
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit)
    ready_numels.push_back(counts(*unit) ? unit->numel : 0);
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

Tensor allocate(MemoryPool& pool, DType dtype, const Shape& shape, const char* owner) {
  const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  return Tensor(pool.allocate(bytes, MemoryCategory::kOther, owner), dtype, shape);
}

InstanceGroups instances_of(Communicator& replicas, const ParallelOptions& parallel) {
  const auto instances = static_cast<int>(parallel.num_distributed_optimizer_instances);
  return instances > 1 ? split_into_instances(replicas, instances) : InstanceGroups{};
}

}  // namespace

ReplicaGroups::ReplicaGroups(Communicator& of, const ParallelOptions& parallel)
    : replicas(of),
      sums(replicas.duplicate(replicas.name() + " loss")),
      by_instance(instances_of(replicas, parallel)),
      shards_instances(by_instance.instances && parallel.outer_dp_sharding_strategy == OuterSharding::kOptim),
      instance_sums(by_instance.shards && !shards_instances ? shards().duplicate(shards().name() + " norm") : nullptr),
      unshard(shards().size() > 1 && parallel.sharding() >= ShardingStrategy::kOptimGrads
                  ? shards().duplicate(shards().name() + " units")
                  : nullptr) {}

RankGroups::RankGroups(const Mesh& mesh, const Options& options, const RunConfig& config)
    : ReplicaGroups(mesh.cp().size() == 1 ? mesh.dp() : mesh.dp_cp(), options.parallel),
      // Replicas of dense units are tp ranks apart from each other, those of experts etp x ep.
      experts(options.model.moe.num_experts > 0 && mesh.sizes().tp != mesh.sizes().etp * mesh.sizes().ep
                  ? std::make_unique<ReplicaGroups>(mesh.edp(), options.parallel)
                  : nullptr),
      stages(mesh.pp().duplicate("pp sums")),
      expert_sums(mesh.dispatch().size() > 1 ? mesh.dispatch().duplicate("dispatch sums") : nullptr) {
  const int last = mesh.pp().size() - 1, stage = mesh.coordinates().pp;
  const bool tied = !options.model.untie_embeddings_and_output_weights;
  if (last == 0 || !tied || config.pipeline.placement.is_v) return;
  const bool has_end = stage == 0 || stage == last;
  const std::vector<int> ranks = has_end ? std::vector<int>{0, last} : std::vector<int>{stage};
  embedding = mesh.pp().subgroup(ranks, "embedding");
  if (!has_end) embedding.reset();
}

std::vector<const ReplicaGroups*> RankGroups::all() const {
  std::vector<const ReplicaGroups*> all{this};
  if (experts) all.push_back(experts.get());
  return all;
}

RankStreams::RankStreams(DeviceType device, const Mesh& mesh, const RankGroups& groups, const Instruments& instruments)
    : compute(device, "compute", instruments), communication(device, "communication", instruments) {
  if (std::ranges::any_of(groups.all(), [](const ReplicaGroups* each) { return each->unshard != nullptr; }))
    unshard = std::make_unique<Stream>(device, "unit communication", instruments);
  if (mesh.tp().size() > 1) tensor = std::make_unique<Stream>(device, "tensor communication", instruments);
  if (mesh.cp().size() > 1) context = std::make_unique<Stream>(device, "context communication", instruments);
  if (mesh.dispatch().size() > 1) dispatch = std::make_unique<Stream>(device, "rows of experts", instruments);
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
      context(mesh.cp(), streams.context ? *streams.context : streams.communication) {
  if (!streams.dispatch) return;
  dispatcher = std::make_unique<Dispatcher>(
      mesh.dispatch(), *streams.dispatch,
      Dispatcher::Options{.way = dispatcher_of(options),
                          .copies = mesh.sizes().etp,
                          .capacity_factor = options.parallel.moe_expert_rank_capacity_factor,
                          .waits_behind = !graphs_hold_experts(options.train)});
}

RankModel::RankModel(const Options& options, const Mesh& mesh, std::vector<GptPart> parts_of_stage, LayerGroups& layers,
                     Communicator& replicas)
    : parts(std::move(parts_of_stage)),
      gpt(build_gpt(options.model, recompute_layers(options.train, parts), factories(options, mesh, layers, replicas),
                    options.train.loss_chunk_size, parts)),
      all_parameters(build_gpt(options.model, {}, {.moe = moe_factory()}).parameters) {}

RankOptimizer::RankOptimizer(const Options& options, const RankGroups& groups, RankMemory& memory, LayerGroups& layers,
                             RankModel& model)
    : shared_gradients(layers.tensor, allocate(options, groups, model.gpt, memory.pool), memory.pool),
      adamw(*model.gpt.parameters, memory.pool, adamw_spec(options.train, groups, *model.all_parameters)) {}

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
      options.train.device == DeviceType::kCuda ? kSumRoom : 0, options.train.check_hazards);
}

RankBuckets::RankBuckets(const Options& options, const RankGroups& groups, RankStreams& streams, const GptModel& gpt) {
  const std::vector<ParameterUnit>& units = gpt.parameters->units();
  const bool shards = options.parallel.shards_optimizer();
  const auto collect = [&](const ReplicaGroups& of, bool ParameterUnit::*resident, Tensor ParameterUnit::*whole,
                           std::vector<std::vector<int>>& segments) {
    const auto counts = [&](const ParameterUnit& unit) { return unit.*resident && &groups.of(unit.kind) == &of; };
    std::vector<std::vector<Tensor>> tensors;
    for (const std::vector<int>& bucket : units_of_buckets(options.parallel, units, counts)) {
      tensors.emplace_back();
      segments.emplace_back();
      for (const int unit : bucket) {
        tensors.back().push_back(units[static_cast<std::size_t>(unit)].*whole);
        for (const int segment : segments_of_unit(gpt, unit)) segments.back().push_back(segment);
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

StepMemory::StepMemory(MemoryPool& pool, const GptModel& gpt, std::int64_t dispatch_ranks, bool moves_rows)
    : parameters(static_cast<StepParameters*>(
          pool.allocate(sizeof(StepParameters), MemoryCategory::kOther, "step parameters"))),
      sums(
          allocate(pool, DType::kFp32, {num_step_sums(moe_layers_before(gpt.config, gpt.config.num_layers))}, "loss")) {
  const std::int64_t layers = moe_layers_before(gpt.config, gpt.config.num_layers);
  if (layers == 0) return;
  const MoeConfig& moe = gpt.config.moe;
  const std::int64_t experts = layers * moe.num_experts, sent = dispatch_ranks > 1 ? layers * dispatch_ranks : 0;
  counts = allocate(pool, DType::kInt32, {experts + sent}, "counts");
  expert_counts = counts.slice(0, 0, experts).view({layers, moe.num_experts});
  if (moe.balancing_coeff(MoeBalancing::kGlobal) != 0)
    balance_counts = allocate(pool, DType::kInt32, {layers, moe.num_experts}, "balance counts");
  if (dispatch_ranks == 1) return;
  room_needed = allocate(pool, DType::kInt32, {2}, "room needed");
  rows_sent = counts.slice(0, experts, sent).view({layers, dispatch_ranks});
  if (moves_rows) moved_bytes = allocate(pool, DType::kInt64, {2}, "moved bytes");
}

Rank::Rank(const Options& run_options, const RunConfig& derived, DeviceType device, const Mesh& ranks,
           const Instruments& instruments, std::size_t memory_limit, const OffloadPoints& offloaded)
    : options(run_options),
      config(derived),
      mesh(ranks),
      groups(mesh, options, config),  // first, before anything can fail on one rank alone
      streams(device, mesh, groups, instruments),
      memory(device, memory_limit, instruments.captures),
      layers(mesh, options, config, streams),
      model(options, mesh, config.pipeline.parts_of(mesh.coordinates().pp), layers, *groups.sums),
      ctx{.compute = streams.compute,
          .arena = memory.arena,
          .seed = static_cast<std::uint64_t>(options.train.seed),
          .planned_for = options.train.device,
          .deterministic = options.train.deterministic_mode},
      runner(ctx, entries(options, model)),
      graphs(options.train.cuda_graph_impl == CudaGraphImpl::kNone || device == DeviceType::kPlan
                 ? nullptr
                 : std::make_unique<GraphedRunner>(ctx, runner, graph_modules(options, config.pipeline))),
      offload(make_offload(options, device, offloaded, instruments, ctx, runner)),
      transfer(mesh.pp(), ctx, runner, transfer_spec(options, config, layers.tensor, device, instruments)),
      optimizer(options, groups, memory, layers, model),
      units(options, groups, streams, memory, config.pipeline, model.gpt),
      buckets(options, groups, streams, model.gpt),
      step(memory.pool, model.gpt, mesh.sizes().etp * mesh.sizes().ep, offload && offload->moves_rows()) {
  if (offload) offload->transfer.count_into(step.moved_bytes);
  if (graphs && offload)
    graphs->after_captured_verb([this](const Action& verb) { offload->transfer.written_in_graph(verb); });
  if (device == DeviceType::kCuda) transfer.connect(step.sums.slice(0, 0, 1));
}

GraphModules graph_modules(const Options& options, const PipelineLayout& pipeline) {
  const std::vector<std::string>& modules = options.train.cuda_graph_modules;
  const auto has = [&](std::string_view module) { return std::ranges::find(modules, module) != modules.end(); };
  return {.attention = has("attn"),
          .mlp = has("mlp"),
          .moe_router = has("moe_router"),
          .moe_dispatch = has("moe_preprocess"),
          .moe = has("moe"),
          .layer = has("layer"),
          .weights_behind = options.parallel.tp_comm_overlap && !pipeline.weights_apart()};
}

RunPlan graph_runs(const Rank& rank, const std::vector<Action>& actions) {
  if (rank.options.train.cuda_graph_impl == CudaGraphImpl::kNone) return {};
  return group_runs(actions, rank.runner, graph_modules(rank.options, rank.config.pipeline));
}

std::unique_ptr<Rank> build_rank(const Options& options, const RunConfig& config, DeviceType device, const Mesh& mesh,
                                 const Instruments& instruments, std::size_t memory_limit,
                                 const OffloadPoints& offloaded) {
  return std::make_unique<Rank>(options, config, device, mesh, instruments, memory_limit, offloaded);
}

void Rank::wait_for_parameters() {
  buckets.gatherer->wait_for_all();
  if (units.sharded) units.sharded->wait_for_all();
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
  if (streams.dispatch) wait(*streams.dispatch);
  wait(transfer);
  if (offload) wait(offload->transfer);
  wait(streams.compute);
}

Rank::~Rank() {
  drain();
  if (std::uncaught_exceptions() > 0) return;  // the peers of a rank that failed are ended, not waited for
  std::vector<MemorySharing*> sharing = sharing_groups(*this);
  if (units.sharded) std::ranges::copy(units.sharded->sharing(), std::back_inserter(sharing));
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
  std::vector<Communicator*> groups;
  for (const ReplicaGroups* each : own.all()) {
    for (Communicator* group : {&each->replicas, each->sums.get(), each->unshard.get(), each->by_instance.shards.get(),
                                each->instance_sums.get(), each->instances()})
      if (group != nullptr) groups.push_back(group);
  }
  groups.insert(groups.end(), {own.stages.get(), &rank.layers.tensor.communicator()});
  if (own.expert_sums) groups.push_back(own.expert_sums.get());
  if (rank.layers.context.size() > 1) groups.push_back(&rank.layers.context.communicator());
  if (rank.layers.dispatcher) groups.push_back(&rank.layers.dispatcher->communicator());
  if (own.embedding) groups.push_back(own.embedding.get());
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
  if (rank.layers.dispatcher && rank.layers.dispatcher->reads_peers()) add(rank.layers.dispatcher->communicator());
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
