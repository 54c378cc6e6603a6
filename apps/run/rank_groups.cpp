// Groups of a rank in addition to the mesh's, and their use in a step.
#include <memory>

#include "apps/config/parallel_options.h"
#include "apps/run/rank.h"

namespace megalith {

namespace {

InstanceGroups instances_of(Communicator& replicas, const ParallelOptions& parallel) {
  const auto instances = static_cast<int>(parallel.num_distributed_optimizer_instances);
  return instances > 1 ? split_into_instances(replicas, instances) : InstanceGroups{};
}

std::vector<Communicator*> groups_of_layers(const Rank& rank) {
  std::vector<Communicator*> groups{&rank.layers.tensor.communicator()};
  if (rank.layers.context.size() > 1) groups.push_back(&rank.layers.context.communicator());
  if (rank.layers.dispatcher) groups.push_back(&rank.layers.dispatcher->communicator());
  return groups;
}

}  // namespace

ReplicaGroups::ReplicaGroups(Communicator& of, const ParallelOptions& parallel)
    : replicas(of),
      sums(replicas.duplicate(replicas.name() + " loss")),
      by_instance(instances_of(replicas, parallel)),
      shards_instances(by_instance.instances && parallel.outer_dp_sharding_strategy == OuterSharding::kOptim),
      instance_sums(by_instance.shards && !shards_instances ? shards().duplicate(shards().name() + " norm") : nullptr),
      unshard(shards().size() > 1 && parallel.max_sharding() >= ShardingStrategy::kOptimGrads
                  ? shards().duplicate(shards().name() + " units")
                  : nullptr) {}

RankGroups::RankGroups(const Mesh& mesh, const Options& options, const RunConfig& config)
    : ReplicaGroups(mesh.dp_cp(), options.parallel),
      // Replicas of dense units have a stride of tp ranks, those of experts etp x ep.
      expert_replicas(options.moe().num_experts > 0 && mesh.sizes().tp != mesh.sizes().etp * mesh.sizes().ep
                          ? mesh.make_group({Axis::kEdp}, std::string(name_of(Axis::kEdp)))
                          : nullptr),
      experts(expert_replicas ? std::make_unique<ReplicaGroups>(*expert_replicas, options.parallel) : nullptr),
      expert_sums(mesh.dispatch().size() > 1 ? mesh.dispatch().duplicate("dispatch sums") : nullptr) {
  const int last = mesh.pp().size() - 1, stage = mesh.coordinates().pp;
  const bool tied = options.ties_embeddings();
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

std::vector<UnitKind> RankGroups::kinds_of(const ReplicaGroups& groups) const {
  std::vector<UnitKind> kinds;
  for (const UnitKind kind : {UnitKind::kDense, UnitKind::kExperts})
    if (&of(kind) == &groups) kinds.push_back(kind);
  return kinds;
}

std::vector<Communicator*> groups_of_verbs(const Rank& rank) {
  std::vector<Communicator*> groups = groups_of_layers(rank);
  groups.push_back(rank.groups.sums.get());
  return groups;
}

std::vector<Communicator*> groups_of_steps(const Rank& rank) {
  const RankGroups& own = rank.groups;
  std::vector<Communicator*> groups;
  for (const ReplicaGroups* each : own.all()) {
    for (Communicator* group : {&each->replicas, each->sums.get(), each->unshard.get(), each->by_instance.shards.get(),
                                each->instance_sums.get(), each->instances()})
      if (group != nullptr) groups.push_back(group);
  }
  groups.push_back(&rank.mesh.pp());
  if (own.expert_sums) groups.push_back(own.expert_sums.get());
  const std::vector<Communicator*> of_layers = groups_of_layers(rank);
  groups.insert(groups.end(), of_layers.begin(), of_layers.end());
  if (own.embedding) groups.push_back(own.embedding.get());
  return groups;
}

std::vector<MemorySharing*> sharing_groups(const Rank& rank) {
  std::vector<MemorySharing*> groups;
  const auto add = [&](Communicator& group) {
    if (MemorySharing* const sharing = group.memory_sharing()) groups.push_back(sharing);
  };
  if (rank.layers.tensor.overlaps()) add(rank.layers.tensor.communicator());
  if (rank.layers.context.size() > 1 && rank.options.parallel.cp_comm_type == ContextCommunication::kP2p)
    add(rank.layers.context.communicator());
  if (rank.layers.dispatcher && rank.layers.dispatcher->reads_peers()) add(rank.layers.dispatcher->communicator());
  return groups;
}

}  // namespace megalith
