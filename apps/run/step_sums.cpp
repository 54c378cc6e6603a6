// Of a step: what ranks add up.
#include "apps/config/parallel_options.h"
#include "apps/run/step.h"

namespace megalith {

void Step::tie_gradients() {
  if (!rank_.groups.embedding) return rank_.model.gpt.parameters->add_tied_gradients(rank_.streams.compute);
  launch(rank_.streams.compute, AllReduce{.group = *rank_.groups.embedding,
                                          .buffer = rank_.model.gpt.words->main_grad,
                                          .label = "gradients of the tied embedding"});
}

void Step::copy_tied(Stream& stream, const Tensor& from_first_stage) {
  launch(stream, Broadcast{.group = *rank_.groups.embedding, .buffer = from_first_stage, .label = "tied embedding"});
}

// One of the stages has the loss, the others 0. Tensor-parallel ranks have the same loss, but routers of their own
// rows.
void Step::reduce_sums() {
  Stream& compute = rank_.streams.compute;
  const Tensor &counts = rank_.step.counts, &room = rank_.step.room_needed;
  if (counts) sum_of_experts();
  for (Communicator* group : {rank_.groups.sums.get(), &rank_.mesh.pp()}) {
    if (counts) launch(compute, AllReduce{.group = *group, .buffer = counts, .label = "rows of experts"});
    if (room) launch(compute, AllReduce{.group = *group, .buffer = room, .op = ReduceOp::kMax, .label = "room"});
    launch(compute, AllReduce{.group = *group, .buffer = rank_.step.sums, .label = "loss"});
  }
}

// Each piece has its sum of squares from one rank of those that share out the units, 0 from the others. Each tensor
// has, over the ranks that hold other parts of the model, one part from each or from one alone: of experts these are
// not the tensor-parallel ranks but those that share them out, whose parts are apart: the same bits on all ranks, in
// whatever order a group adds.
void Step::reduce_norm() {
  Stream& compute = rank_.streams.compute;
  AdamWOptimizer& adamw = rank_.optimizer.adamw;
  const std::string label = "squares of the gradients";
  const auto sum_pieces = [&](const ReplicaGroups& groups, const Tensor& pieces) {
    if (rank_.options.parallel.shards_optimizer() && groups.shard_sums().size() > 1 && pieces.numel() > 0)
      launch(compute, AllReduce{.group = groups.shard_sums(), .buffer = pieces, .label = label});
  };
  adamw.sum_squares(compute);
  if (const ReplicaGroups* experts = rank_.groups.experts.get()) {
    sum_pieces(rank_.groups, adamw.pieces(UnitKind::kDense));
    sum_pieces(*experts, adamw.pieces(UnitKind::kExperts));
  } else {
    sum_pieces(rank_.groups, adamw.pieces());
  }
  adamw.add_pieces(compute);
  rank_.layers.tensor.sum(compute, adamw.squares(UnitKind::kDense), "squares of gradients");
  if (Communicator* const group = rank_.groups.expert_sums.get())
    launch(compute, AllReduce{.group = *group, .buffer = adamw.squares(UnitKind::kExperts), .label = label});
  launch(compute, AllReduce{.group = rank_.mesh.pp(), .buffer = adamw.squares(), .label = label});
}

void Step::finish_reduce() {
  if (rank_.units.sharded) rank_.units.sharded->finish_sums();
  rank_.buckets.reducer->finish();  // after it: what ends all of the communication stream ends its buckets too
}

}  // namespace megalith
