#include "apps/run/rank.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "apps/config/dispatcher_choice.h"
#include "apps/config/layer_offload.h"
#include "apps/config/memory_options.h"
#include "apps/config/own.h"
#include "apps/config/parallel_options.h"
#include "apps/config/training_options.h"
#include "core/device/copy.h"
#include "core/model/config.h"
#include "core/model/layer_recompute.h"
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

// True if rows may return while the experts' weight gradients run. A graph holds both the verb that sends rows and
// their wait, or neither.
bool returns_after_weights(const Options& options, const RunConfig& config) {
  if (options.memory.cuda_graph_impl == CudaGraphImpl::kNone) return true;
  const GraphModules modules = graph_modules(options, config.pipeline);
  if (config.pipeline.splits_backward() || modules.moe_dispatch) return false;
  // Between the two, the experts' gradients get their slot, which ends a graph.
  const bool binds_gradients = config.mesh.edp > 1 &&
                               options.parallel.expert_sharding() >= ShardingStrategy::kOptimGrads &&
                               options.parallel.fsdp_reduce_grads == GradientReduction::kEach;
  return !binds_gradients || !(modules.layer || modules.moe);
}

// Groups of one rank have nothing to sum.
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
          .own = own_segments(options),
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
  instruments.observer = nullptr;  // it would wait for a receive ahead of the peer's send
  return {.placement = config.pipeline.placement,
          .shape = {tensor.rows(config.rank_tokens()), options.model.hidden_size},
          .dtype = options.model.params_dtype,
          .device = device,
          .instruments = instruments};
}

Tensor allocate(MemoryPool& pool, DType dtype, const Shape& shape, const char* owner) {
  const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  return Tensor(pool.allocate(bytes, MemoryCategory::kOther, owner), dtype, shape);
}

}  // namespace

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
    : tensor(mesh.tp(), streams.tensor ? *streams.tensor : streams.communication,
             {.sequence_parallel = options.parallel.sequence_parallel,
              .overlap = options.parallel.tp_comm_overlap,
              .splits_backward =
                  options.memory.cuda_graph_impl != CudaGraphImpl::kNone && config.pipeline.splits_backward()}),
      context(mesh.cp(), streams.context ? *streams.context : streams.communication) {
  if (!streams.dispatch) return;
  dispatcher = std::make_unique<Dispatcher>(
      mesh.dispatch(), *streams.dispatch,
      Dispatcher::Options{.way = dispatcher_of(options),
                          .copies = mesh.sizes().etp,
                          .capacity_factor = options.parallel.moe_expert_rank_capacity_factor});
}

RankModel::RankModel(const Options& options, const Mesh& mesh, std::vector<GptPart> parts_of_stage, LayerGroups& layers,
                     Communicator& replicas)
    : parts(std::move(parts_of_stage)),
      gpt(build_gpt(options.model, recompute_layers(options.memory, parts), factories(options, mesh, layers, replicas),
                    options.memory.loss_chunk_size, parts)),
      all_parameters(build_gpt(options.model, {}, {.own = own_segments(options), .moe = moe_factory()}).parameters) {}

StepMemory::StepMemory(MemoryPool& pool, const GptModel& gpt, std::int64_t dispatch_ranks, bool moves_rows)
    : parameters(static_cast<StepParameters*>(
          pool.allocate(sizeof(StepParameters), MemoryCategory::kOther, "step parameters"))),
      sums(allocate(pool, DType::kFp32, {num_step_sums(moe_layers_before(*gpt.config, gpt.config->num_layers))},
                    "loss")) {
  const std::int64_t layers = moe_layers_before(*gpt.config, gpt.config->num_layers);
  if (layers == 0) return;
  const MoeConfig& moe = gpt.config->moe;
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
      groups(mesh, options, config),  // first, ahead of failures on one rank
      streams(device, mesh, groups, instruments),
      memory(device, memory_limit, instruments.captures),
      layers(mesh, options, config, streams),
      model(options, mesh, config.pipeline.parts_of(mesh.coordinates().pp), layers, *groups.sums),
      ctx{.compute = streams.compute,
          .arena = memory.arena,
          .seed = static_cast<std::uint64_t>(options.train.seed),
          .planned_for = options.device,
          .deterministic = options.deterministic_mode},
      runner(ctx, entries(options, model)),
      graphs(options.memory.cuda_graph_impl == CudaGraphImpl::kNone || device == DeviceType::kPlan
                 ? nullptr
                 : std::make_unique<GraphedRunner>(ctx, runner, graph_modules(options, config.pipeline))),
      offload(offloaded.empty() ? nullptr
                                : std::make_unique<RankOffload>(device, offloaded, instruments, ctx, runner,
                                                                options.train.check_hazards)),
      transfer(mesh.pp(), ctx, runner, transfer_spec(options, config, layers.tensor, device, instruments)),
      optimizer(options, groups, memory, layers, model),
      units(options, groups, streams, memory, config.pipeline, model.gpt),
      buckets(options, groups, streams, model.gpt),
      step(memory.pool, model.gpt, mesh.sizes().etp * mesh.sizes().ep, offload && offload->moves_rows()) {
  if (offload) offload->transfer.count_into(step.moved_bytes);
  if (graphs) graphs->synchronize_by([this] { synchronize(); });
  if (graphs && offload)
    graphs->after_captured_verb([this](const Action& verb) { offload->transfer.written_in_graph(verb); });
  add_own_hooks(*this);
  if (device == DeviceType::kCuda) transfer.connect(step.sums.slice(0, 0, 1));
}

GraphModules graph_modules(const Options& options, const PipelineLayout& pipeline) {
  const std::vector<std::string>& modules = options.memory.cuda_graph_modules;
  const auto has = [&](std::string_view module) { return std::ranges::find(modules, module) != modules.end(); };
  return {.attention = has("attn"),
          .mlp = has("mlp"),
          .moe_router = has("moe_router"),
          .moe_dispatch = has("moe_preprocess"),
          .moe = has("moe"),
          .own = has("own"),
          .layer = has("layer"),
          .joins_backward = options.parallel.tp_comm_overlap && !pipeline.splits_backward()};
}

ReturnPoints return_points(const Rank& rank) {
  const bool captures = rank.options.memory.cuda_graph_impl != CudaGraphImpl::kNone;
  // An exchange inside of a graph of computation would not be ordered with one that an action starts.
  const bool splits = rank.config.pipeline.overlaps_exchanges && !(captures && recomputes_exchanges(rank.options));
  ReturnPoints points{.segments = {}, .after_weights = !splits && returns_after_weights(rank.options, rank.config)};
  const SegmentRunner& runner = rank.runner;
  for (int s = 0; s < runner.num_segments(); ++s)
    if (runner.entry(s).module == SegmentModule::kMoeDispatch) points.segments.insert(s);
  if (!splits) return points;
  const auto has_hook = [&](int segment, HookPoint point) { return runner.entry(segment).hooks.size(point) > 0; };
  ReturnPoints split = points;
  bool splits_all = true;
  for (int s = 0; s < runner.num_segments(); ++s) {
    if (runner.entry(s).segment->exchanging() == nullptr) continue;
    // Hooks read complete tensors.
    const bool forward = !has_hook(s, HookPoint::kPostForward) && !has_hook(s + 1, HookPoint::kPreForward);
    const bool backward = !has_hook(s, HookPoint::kPostBackward) && !has_hook(s - 1, HookPoint::kPreBackward);
    splits_all = splits_all && forward && backward;
    if (forward) split.split.forward.insert(s);
    if (!backward) continue;
    split.split.backward.insert(s);
    split.segments.erase(s);
  }
  return captures && !splits_all ? points : split;
}

GraphRunPlan graph_runs(const Rank& rank, const std::vector<Action>& actions) {
  if (rank.options.memory.cuda_graph_impl == CudaGraphImpl::kNone) return {};
  return group_runs(actions, rank.runner, graph_modules(rank.options, rank.config.pipeline));
}

void Rank::wait_for_parameters() {
  buckets.gatherer->wait_for_all();
  if (units.sharded) units.sharded->wait_for_all();
}

void Rank::synchronize() {
  std::exception_ptr first;
  const auto wait = [&first](auto& each) {
    try {
      each.synchronize();
    } catch (const std::exception&) {
      if (first == nullptr) first = std::current_exception();
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
  if (first != nullptr) std::rethrow_exception(first);
}

void Rank::drain() noexcept {
  try {
    synchronize();
  } catch (const std::exception&) {
  }
}

Rank::~Rank() {
  drain();
  if (std::uncaught_exceptions() > 0) return;  // peers of a failed rank are ended without a wait
  std::vector<MemorySharing*> sharing = sharing_groups(*this);
  if (units.sharded) std::ranges::copy(units.sharded->sharing(), std::back_inserter(sharing));
  for (MemorySharing* group : sharing) {
    try {
      group->unshare_memory();
    } catch (const std::exception&) {
    }
  }
  try {
    transfer.unshare();
  } catch (const std::exception&) {
  }
}

void initialize(Rank& rank) {
  Stream& compute = rank.streams.compute;
  const TrainingOptions& train = rank.options.train;
  rank.model.gpt.parameters->initialize(compute, static_cast<std::uint64_t>(train.seed),
                                        train.init_method_xavier_uniform);
  rank.optimizer.adamw.initialize(compute);
  const StepParameters start;
  copy_from_host(compute, rank.step.parameters, &start, sizeof(start));
  compute.synchronize();
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
