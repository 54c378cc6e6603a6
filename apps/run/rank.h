// Rank of a run on any backend: model, memory, optimizer and groups, as plain members in the order of their
// construction. Step (step.h) runs the actions of a step on it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/config/options.h"
#include "apps/config/run_config.h"
#include "core/device/stream.h"
#include "core/layers/microbatch.h"
#include "core/memory/arena.h"
#include "core/memory/memory_pool.h"
#include "core/model/gpt.h"
#include "core/optim/adamw_optimizer.h"
#include "fsdp/sharded_units.h"
#include "fsdp/unshard_lowering.h"
#include "graphs/graphed_runner.h"
#include "moe/dispatcher.h"
#include "offload/rank_offload.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/memory_sharing.h"
#include "parallel/context_parallel/context_group.h"
#include "parallel/data_parallel/gradient_reducer.h"
#include "parallel/data_parallel/parameter_gatherer.h"
#include "parallel/mesh/instance_groups.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline_parallel/lowering.h"
#include "parallel/pipeline_parallel/segment_runner.h"
#include "parallel/pipeline_parallel/transfer.h"
#include "parallel/tensor_parallel/shared_gradients.h"

namespace megalith {

// Ranks that hold copies of the same units, and how they shard them.
struct ReplicaGroups {
  ReplicaGroups(Communicator& replicas, const ParallelOptions& parallel);

  Communicator& replicas;
  std::unique_ptr<Communicator> sums;           // of the same ranks, for sums on the compute stream
  InstanceGroups by_instance;                   // of these ranks; null for one instance
  bool shards_instances;                        // each instance updates a part of its shards
  std::unique_ptr<Communicator> instance_sums;  // like shards(), for sums; null if `sums` serves
  std::unique_ptr<Communicator> unshard;        // like shards(), for gathers of sharded units; null without any

  // Ranks that share one sharded copy, for the communication and the compute stream.
  Communicator& shards() const { return by_instance.shards ? *by_instance.shards : replicas; }
  Communicator& shard_sums() const { return instance_sums ? *instance_sums : *sums; }
  Communicator* instances() const { return by_instance.instances.get(); }  // null: one
};

// Groups in addition to the mesh's; `replicas` are the data- and context-parallel ranks of dense units.
struct RankGroups : ReplicaGroups {
  RankGroups(const Mesh& mesh, const Options& options, const RunConfig& config);

  // Groups of experts if other ranks hold their copies than those of dense units; otherwise both are null.
  std::unique_ptr<Communicator> expert_replicas;
  std::unique_ptr<ReplicaGroups> experts;
  // Expert-parallel ranks, for sums on the compute stream; null for one rank.
  std::unique_ptr<Communicator> expert_sums;
  // First and last stage if they share a tied embedding; null on other stages.
  std::unique_ptr<Communicator> embedding;

  const ReplicaGroups& of(UnitKind kind) const {
    if (kind == UnitKind::kExperts && experts) return *experts;
    return *this;
  }
  std::vector<const ReplicaGroups*> all() const;
  std::vector<UnitKind> kinds_of(const ReplicaGroups& groups) const;  // of the units of these groups
};

struct RankStreams {
  RankStreams(DeviceType device, const Mesh& mesh, const RankGroups& groups, const Instruments& instruments);

  Stream compute;
  Stream communication;              // of gradient reduction
  std::unique_ptr<Stream> unshard;   // null without sharded units
  std::unique_ptr<Stream> tensor;    // null without tensor parallelism
  std::unique_ptr<Stream> context;   // null without context parallelism
  std::unique_ptr<Stream> dispatch;  // null if each rank has all experts
};

struct RankMemory {
  RankMemory(DeviceType device, std::size_t limit, CaptureGuard* captures);

  MemoryPool pool;
  Arena arena;  // of a step
};

// Groups through which layers reach ranks with other parts of them.
struct LayerGroups {
  LayerGroups(const Mesh& mesh, const Options& options, const RunConfig& config, RankStreams& streams);

  TensorGroup tensor;
  ContextGroup context;
  std::unique_ptr<Dispatcher> dispatcher;  // null if each rank has all experts
};

struct RankModel {
  // `replicas` serves the compute stream.
  RankModel(const Options& options, const Mesh& mesh, std::vector<GptPart> parts, LayerGroups& layers,
            Communicator& replicas);

  std::vector<GptPart> parts;  // of this stage, by chunk
  GptModel gpt;                // of these parts and this tensor-parallel rank
  // Parameters of the whole model, declared without memory.
  std::unique_ptr<ParameterStore> all_parameters;
};

// Values of parameters on this rank, and their optimizer.
struct RankOptimizer {
  RankOptimizer(const Options& options, const RankGroups& groups, RankMemory& memory, LayerGroups& layers,
                RankModel& model);

  SharedGradients shared_gradients;
  AdamWOptimizer adamw;
};

// Units that are only temporarily unsharded (fsdp/); null and empty if all units are resident.
struct RankUnits {
  RankUnits(const Options& options, const RankGroups& groups, RankStreams& streams, RankMemory& memory,
            const PipelineLayout& pipeline, const GptModel& gpt);

  UnshardPoints points;
  std::unique_ptr<ShardedUnits> sharded;
};

// Sums and copies of resident units over the replicas, in buckets in the order of backward's completion.
struct RankBuckets {
  RankBuckets(const Options& options, const RankGroups& groups, RankStreams& streams, const GptModel& gpt);

  std::vector<std::vector<int>> reduced_segments;   // by bucket of gradients
  std::vector<std::vector<int>> gathered_segments;  // by bucket of weights
  int words = -1;                                   // bucket of the word embedding's weights
  std::unique_ptr<GradientReducer> reducer;
  std::unique_ptr<ParameterGatherer> gatherer;
};

// Device memory of a step outside of the arena.
struct StepMemory {
  // `dispatch_ranks`: P, the ranks that share the experts. `moves_rows`: rows of experts are offloaded.
  StepMemory(MemoryPool& pool, const GptModel& gpt, std::int64_t dispatch_ranks, bool moves_rows);

  StepParameters* parameters;
  Tensor sums;            // [num_step_sums] fp32
  Tensor counts;          // int32, with the next two in one buffer
  Tensor expert_counts;   // rows of a step: [MoE layers of the model, E] int32; absent without experts
  Tensor rows_sent;       // [layers, P] int32, see Microbatch; absent, as room_needed, without expert parallelism
  Tensor balance_counts;  // see Microbatch; absent without such a loss
  Tensor room_needed;     // [2] int32, see Microbatch
  Tensor moved_bytes;     // [2] int64: bytes of offloaded rows, out and back per step; absent without any
};

struct Rank {
  // `options` is complete and `config` derived from it; both and `mesh` outlive the rank. Plan streams need
  // instruments.timeline. `memory_limit`: bytes; 0: the machine's. `offloaded`: offload of a training step. Collective.
  Rank(const Options& options, const RunConfig& config, DeviceType device, const Mesh& mesh,
       const Instruments& instruments, std::size_t memory_limit, const OffloadPoints& offloaded = {});
  ~Rank();
  // Waits for weights that may still be in transit after a step's result; required ahead of reads on the compute stream
  // outside of steps.
  void wait_for_parameters();
  // Waits until the streams are empty and rethrows their first error.
  void synchronize();
  // Waits until the streams are empty, so that their memory may be freed; errors were already reported.
  void drain() noexcept;
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  const Options& options;
  RunConfig config;  // the number of microbatches may change between steps (Step::set_microbatches)
  const Mesh& mesh;
  RankGroups groups;
  RankStreams streams;
  RankMemory memory;
  LayerGroups layers;
  RankModel model;
  Context ctx;
  SegmentRunner runner;
  std::unique_ptr<GraphedRunner> graphs;  // null with --cuda-graph-impl none, and in a plan
  std::unique_ptr<RankOffload> offload;   // null without offload
  PipelineTransfer transfer;
  RankOptimizer optimizer;
  RankUnits units;
  RankBuckets buckets;
  StepMemory step;

  // Callbacks ahead of and after all warmup: the library pass and, with graphs, the warmup steps.
  struct WarmUpHooks {
    std::vector<std::function<void()>> before, after;  // pre_warmup, post_warmup
  } warm_up_hooks;

  int stage() const { return mesh.coordinates().pp; }
  bool is_plan() const { return streams.compute.device() == DeviceType::kPlan; }
};

GraphModules graph_modules(const Options& options, const PipelineLayout& pipeline);
// Return points of this rank's dispatches to experts of other ranks.
ReturnPoints return_points(const Rank& rank);
// Runs that --cuda-graph-impl makes of a training step's actions, on any backend; empty without graphs.
GraphRunPlan graph_runs(const Rank& rank, const std::vector<Action>& actions);

// Initializes weights from the seed, and the optimizer state with zeros.
void initialize(Rank& rank);

// Groups that verbs of segments call, which graphs may hold.
std::vector<Communicator*> groups_of_verbs(const Rank& rank);
// Groups of the steps' collectives, in an order that is consistent between ranks.
std::vector<Communicator*> groups_of_steps(const Rank& rank);
// Groups whose ranks can read each other's part of the step's memory.
std::vector<MemorySharing*> sharing_groups(const Rank& rank);

// Current name of the memory at an address: a parameter, its gradient, a tensor of the current verb.
std::string name_of(const Rank& rank, const void* address);

}  // namespace megalith
