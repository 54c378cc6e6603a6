// One rank of a run, any backend: what it has of model, memory, optimizer and groups, as plain members in the order in
// which they are built. Step (step.h) runs the actions of a step on it.
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

// Ranks that hold copies of the same units, and how they share out what is sharded.
struct ReplicaGroups {
  ReplicaGroups(Communicator& replicas, const ParallelOptions& parallel);

  Communicator& replicas;
  std::unique_ptr<Communicator> sums;           // the same ranks, for sums on the compute stream
  InstanceGroups by_instance;                   // of these ranks; null where there is one instance
  bool shards_instances;                        // each instance updates a part of its shards
  std::unique_ptr<Communicator> instance_sums;  // as shards(), likewise; null where sums serves
  std::unique_ptr<Communicator> unshard;        // as shards(), for gathers of sharded units; null where there are none

  // The ranks that share out one copy of what is sharded, for the communication and for the compute stream.
  Communicator& shards() const { return by_instance.shards ? *by_instance.shards : replicas; }
  Communicator& shard_sums() const { return instance_sums ? *instance_sums : *sums; }
  Communicator* instances() const { return by_instance.instances.get(); }  // null: one
};

// Groups beside those of the mesh; the replicas are those of dense units, data- and context-parallel ranks.
struct RankGroups : ReplicaGroups {
  RankGroups(const Mesh& mesh, const Options& options, const RunConfig& config);

  // Of experts, where other ranks hold copies of them than of the rest; else both null.
  std::unique_ptr<Communicator> expert_replicas;
  std::unique_ptr<ReplicaGroups> experts;
  // Ranks that share out experts, for sums on the compute stream; null: there are none but this one.
  std::unique_ptr<Communicator> expert_sums;
  // The first and the last stage where they share a tied embedding; null on all others.
  std::unique_ptr<Communicator> embedding;

  const ReplicaGroups& of(UnitKind kind) const {
    if (kind == UnitKind::kExperts && experts) return *experts;
    return *this;
  }
  std::vector<const ReplicaGroups*> all() const;
  std::vector<UnitKind> kinds_of(const ReplicaGroups& groups) const;  // of the units whose groups these are
};

struct RankStreams {
  RankStreams(DeviceType device, const Mesh& mesh, const RankGroups& groups, const Instruments& instruments);

  Stream compute;
  Stream communication;              // of the gradients' reduction
  std::unique_ptr<Stream> unshard;   // null without sharded units
  std::unique_ptr<Stream> tensor;    // null without tensor parallelism
  std::unique_ptr<Stream> context;   // null without context parallelism
  std::unique_ptr<Stream> dispatch;  // null where each rank has all experts
};

struct RankMemory {
  RankMemory(DeviceType device, std::size_t limit, CaptureGuard* captures);

  MemoryPool pool;
  Arena arena;  // of a step
};

// How layers reach the ranks that hold other parts of them.
struct LayerGroups {
  LayerGroups(const Mesh& mesh, const Options& options, const RunConfig& config, RankStreams& streams);

  TensorGroup tensor;
  ContextGroup context;
  std::unique_ptr<Dispatcher> dispatcher;  // null where each rank has all experts
};

struct RankModel {
  // `replicas` serves the compute stream.
  RankModel(const Options& options, const Mesh& mesh, std::vector<GptPart> parts, LayerGroups& layers,
            Communicator& replicas);

  std::vector<GptPart> parts;  // this stage's, chunk after chunk
  GptModel gpt;                // of these parts and this tensor-parallel rank
  // The whole model's parameters, declared and not allocated.
  std::unique_ptr<ParameterStore> all_parameters;
};

// Parameters' values on this rank, and who computes them.
struct RankOptimizer {
  RankOptimizer(const Options& options, const RankGroups& groups, RankMemory& memory, LayerGroups& layers,
                RankModel& model);

  SharedGradients shared_gradients;
  AdamWOptimizer adamw;
};

// Units that are whole only for a while (fsdp/); null and empty where all are resident.
struct RankUnits {
  RankUnits(const Options& options, const RankGroups& groups, RankStreams& streams, RankMemory& memory,
            const PipelineLayout& pipeline, const GptModel& gpt);

  UnshardPoints points;
  std::unique_ptr<ShardedUnits> sharded;
};

// Sums and copies of resident units over the replicas, by buckets in the order in which backward completes them.
struct RankBuckets {
  RankBuckets(const Options& options, const RankGroups& groups, RankStreams& streams, const GptModel& gpt);

  std::vector<std::vector<int>> reduced_segments;   // of the units of each bucket of gradients
  std::vector<std::vector<int>> gathered_segments;  // likewise of weights
  int words = -1;                                   // the bucket of weights of the word embedding
  std::unique_ptr<GradientReducer> reducer;
  std::unique_ptr<ParameterGatherer> gatherer;
};

// What a step reads and writes on the device outside of the arena.
struct StepMemory {
  // `dispatch_ranks`: P, over which experts are spread. `moves_rows`: of experts, to the host.
  StepMemory(MemoryPool& pool, const GptModel& gpt, std::int64_t dispatch_ranks, bool moves_rows);

  StepParameters* parameters;
  Tensor sums;            // [num_step_sums] fp32
  Tensor counts;          // int32, the next two one after the other
  Tensor expert_counts;   // rows of a step: [layers of experts in the whole model, E] int32; absent: there are none
  Tensor rows_sent;       // [layers, P] int32, as in Microbatch; absent, as room_needed, where no ranks share experts
  Tensor balance_counts;  // likewise, as in Microbatch; absent: there is no such loss
  Tensor room_needed;     // [2] int32, as in Microbatch
  Tensor moved_bytes;     // [2] int64: of such rows, to the host and back in a step; absent: none move
};

struct Rank {
  // `options` is complete, `config` is of it; both and `mesh` outlive the rank. Plan streams need instruments.timeline.
  // `memory_limit` in bytes, 0: the machine's. `offloaded`: what a training step keeps on the host. Collective.
  Rank(const Options& options, const RunConfig& config, DeviceType device, const Mesh& mesh,
       const Instruments& instruments, std::size_t memory_limit, const OffloadPoints& offloaded = {});
  ~Rank();
  // Weights of a step may still be on their way when its result is read: before anything but a step reads them on the
  // compute stream.
  void wait_for_parameters();
  // Waits until the streams are empty and rethrows the first error of their work.
  void synchronize();
  // Likewise, so that what they read and write may go; errors were reported where they arose.
  void drain() noexcept;
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  const Options& options;
  RunConfig config;  // its number of microbatches may change between steps (Step::set_microbatches)
  const Mesh& mesh;
  RankGroups groups;
  RankStreams streams;
  RankMemory memory;
  LayerGroups layers;
  RankModel model;
  Context ctx;
  SegmentRunner runner;
  std::unique_ptr<GraphedRunner> graphs;  // null with --cuda-graph-impl none, and in a plan
  std::unique_ptr<RankOffload> offload;   // null where nothing is
  PipelineTransfer transfer;
  RankOptimizer optimizer;
  RankUnits units;
  RankBuckets buckets;
  StepMemory step;

  // Called once before all warm-up, and once behind it: the library pass and, with graphs, the warm-up steps.
  struct WarmUpHooks {
    std::vector<std::function<void()>> before, after;  // pre_warmup, post_warmup
  } warm_up_hooks;

  int stage() const { return mesh.coordinates().pp; }
  bool is_plan() const { return streams.compute.device() == DeviceType::kPlan; }
};

GraphModules graph_modules(const Options& options, const PipelineLayout& pipeline);
// Of this rank's dispatches to experts of others.
ReturnPoints return_points(const Rank& rank);
// What --cuda-graph-impl makes of a training step's actions, on any backend; without graphs no runs.
RunPlan graph_runs(const Rank& rank, const std::vector<Action>& actions);

// Weights from the seed, optimizer state zero.
void initialize(Rank& rank);

// The groups that segments' verbs call, which graphs may hold.
std::vector<Communicator*> groups_of_verbs(const Rank& rank);
// The groups of the steps' collectives, in an order that no two ranks see differently.
std::vector<Communicator*> groups_of_steps(const Rank& rank);
// Those whose ranks read each other's part of the step's memory, where they can.
std::vector<MemorySharing*> sharing_groups(const Rank& rank);

// What the memory at an address is called at this moment: a parameter, its gradient, a tensor of the current verb.
std::string name_of(const Rank& rank, const void* address);

}  // namespace megalith
