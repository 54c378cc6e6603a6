#include "apps/run/rank_actions.h"

#include <algorithm>

#include "apps/config/parallel_options.h"
#include "core/device/copy.h"
#include "core/device/cuda_memory.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/optim/grad_norm.h"
#include "moe/ops/expert_bias.h"

namespace megalith {

namespace {

// Sums the rows of the tensor-parallel ranks. Rows that stay on their rank are not sent.
void sum_experts(Rank& rank) {
  constexpr std::int64_t kFirst = index_of(StepSum::kAuxLoss);
  Stream& compute = rank.streams.compute;
  const Tensor& sums = rank.step.sums;
  rank.layers.tensor.sum(compute, sums.slice(0, kFirst, sums.numel() - kFirst), "losses of routers");
  if (const Tensor& sent = rank.step.rows_sent)
    launch(compute, Fill{.x = sent.slice(1, rank.mesh.dispatch().rank(), 1), .value = 0});
  rank.layers.tensor.sum(compute, rank.step.counts, "rows of experts");
  if (rank.step.room_needed) rank.layers.tensor.maximum(compute, rank.step.room_needed, "room");
}

// Updates the biases of this stage's layers, which are contiguous, from their counts within the whole model.
void update_expert_biases(Rank& rank) {
  const ModelConfig& model = rank.options.model;
  const MoeConfig& moe = rank.options.moe();
  if (!moe.router_enable_expert_bias) return;
  const Tensor& biases = rank.model.gpt.parameters->buffer_values();
  std::int64_t done = 0;
  for (const GptPart& part : rank.model.parts) {
    const std::int64_t first = moe_layers_before(model, part.first_layer);
    const std::int64_t layers = moe_layers_before(model, part.first_layer + part.num_layers) - first;
    if (layers == 0) continue;
    const std::int64_t experts = moe.num_experts;
    launch(rank.streams.compute,
           UpdateExpertBias{.counts = rank.step.expert_counts.slice(0, first, layers),
                            .bias = biases.slice(0, done * experts, layers * experts).view({layers, experts}),
                            .rate = static_cast<float>(moe.router_bias_update_rate),
                            .parameters = rank.step.parameters});
    done += layers;
  }
}

// Sums over the ranks. One of the ranks that share a unit gives each piece, the others give 0. Over ranks with other
// parts of the model, a tensor has one part from each rank or from one rank alone. For experts these are the expert-
// and not the tensor-parallel ranks. The bits are equal on all ranks for any order of the sum.
void sum_tensors(Rank& rank, const TensorSums& sums, const std::string& label) {
  Stream& compute = rank.streams.compute;
  const auto sum_pieces = [&](const ReplicaGroups& groups, const Tensor& pieces) {
    if (rank.options.parallel.shards_optimizer() && groups.shard_sums().size() > 1 && pieces.numel() > 0)
      launch(compute, AllReduce{.group = groups.shard_sums(), .buffer = pieces, .label = label});
  };
  sums.sum(compute);
  if (const ReplicaGroups* experts = rank.groups.experts.get()) {
    sum_pieces(rank.groups, sums.pieces(UnitKind::kDense));
    sum_pieces(*experts, sums.pieces(UnitKind::kExperts));
  } else {
    sum_pieces(rank.groups, sums.pieces());
  }
  sums.add_pieces(compute);
  rank.layers.tensor.sum(compute, sums.tensors(UnitKind::kDense), label);
  if (Communicator* const group = rank.groups.expert_sums.get())
    launch(compute, AllReduce{.group = *group, .buffer = sums.tensors(UnitKind::kExperts), .label = label});
  launch(compute, AllReduce{.group = rank.mesh.pp(), .buffer = sums.tensors(), .label = label});
}

}  // namespace

SharedSample document_sharing(const Rank& rank) {
  const ContextGroup& group = rank.layers.context;
  const bool splits_heads = rank.options.parallel.cp_comm_type == ContextCommunication::kAllToAll;
  const std::int64_t length = rank.config.seq_length;
  if (splits_heads || group.size() == 1) return {.length = length};
  return {.length = length, .rank = group.rank(), .ranks = group.size()};
}

void begin_step(Rank& rank, const StagedStep& step) {
  launch(rank.streams.compute, Fill{.x = rank.step.sums, .value = 0});
  const StepMemory& memory = rank.step;
  for (const Tensor& counts : {memory.counts, memory.balance_counts, memory.room_needed, memory.moved_bytes})
    if (counts) launch(rank.streams.compute, Fill{.x = counts, .value = 0});
  launch(rank.streams.compute, WriteStepParameters{.iteration = step.iteration,
                                                   .learning_rate = step.rates.main,
                                                   .decoupled_learning_rate = step.rates.decoupled,
                                                   .weight_decay_scale = step.rates.weight_decay_scale,
                                                   .parameters = rank.step.parameters});
}

void zero_gradients(Rank& rank) {
  rank.model.gpt.parameters->zero_gradients(rank.streams.compute);
  if (rank.units.sharded) rank.units.sharded->begin_sums();
}

void load_microbatch(Rank& rank, const StagedStep& step, const Action& action, Mode mode,
                     MicrobatchParameters* parameters) {
  const RunConfig& config = rank.config;
  const GptPart& part = rank.model.parts[static_cast<std::size_t>(action.chunk)];
  const auto m = static_cast<std::size_t>(action.microbatch);
  rank.memory.arena.begin_scope({.column = action.column, .segment = -1, .verb = kLoadScope});
  Microbatch microbatch{.mode = mode,
                        .sequences = config.sequences,
                        .seq_length = config.rank_length(),
                        .part = rank.layers.context.part(config.seq_length),
                        .parameters = parameters,
                        .sums = rank.step.sums,
                        .expert_counts = rank.step.expert_counts,
                        .balance_counts = rank.step.balance_counts,
                        .room_needed = rank.step.room_needed,
                        .rows_sent = rank.step.rows_sent};
  const auto copy = [&](const std::int32_t* from, std::int64_t count, const char* owner) {
    const Tensor to = rank.ctx.empty({count}, DType::kInt32, owner);
    copy_from_host(rank.streams.compute, to.data, from + action.microbatch * count, to.bytes());
    return to;
  };
  const std::int64_t tokens = config.rank_tokens(), documents = config.documents();
  if (part.has_embedding) microbatch.tokens = copy(step.tokens, tokens, "tokens");
  if (part.has_head) microbatch.labels = copy(step.labels, tokens, "labels");
  if (config.marks.has_positions()) microbatch.positions = copy(step.positions, tokens, "positions");
  if (documents > 0) {
    microbatch.documents = {{.begin = copy(step.document_begins, documents, "first rows of documents"),
                             .length = copy(step.document_lengths, documents, "lengths of documents")},
                            config.seq_length,
                            config.marks.pairs * static_cast<double>(config.sequences),
                            {}};
    if (const SharedSample sharing = document_sharing(rank); sharing.ranks > 1) {
      const std::int64_t others = sharing.ranks - 1, sequences = config.sequences;
      microbatch.documents.max_length = config.rank_length();
      microbatch.documents.shared =
          copy(step.shared_documents, others * 4 * sequences, "shared documents").view({others, 4, sequences});
    }
  }
  launch(rank.streams.compute, WriteMicrobatchParameters{.value = {.iteration = step.iteration,
                                                                   .first_sample = step.first_samples[m],
                                                                   .loss_scale = step.loss_scales[m],
                                                                   .router_scale = step.router_scales[m]},
                                                         .out = parameters});
  rank.runner.begin(action.column, microbatch);
}

void tie_gradients(Rank& rank) {
  if (!rank.groups.embedding) return rank.model.gpt.parameters->add_tied_gradients(rank.streams.compute);
  launch(rank.streams.compute, AllReduce{.group = *rank.groups.embedding,
                                         .buffer = rank.model.gpt.words->main_grad,
                                         .label = "gradients of the tied embedding"});
}

void copy_tied(Rank& rank, Stream& stream, const Tensor& from_first_stage) {
  launch(stream, Broadcast{.group = *rank.groups.embedding, .buffer = from_first_stage, .label = "tied embedding"});
}

void finish_reduce(Rank& rank) {
  if (rank.units.sharded) rank.units.sharded->finish_sums();
  rank.buckets.reducer->finish();  // after finish(), which the end of the communication stream includes
}

// Sums the losses. One stage has the loss, the others 0. Tensor-parallel ranks have the same loss but separate rows of
// routers.
void reduce_sums(Rank& rank) {
  Stream& compute = rank.streams.compute;
  const Tensor &counts = rank.step.counts, &room = rank.step.room_needed;
  if (counts) sum_experts(rank);
  for (Communicator* group : {rank.groups.sums.get(), &rank.mesh.pp()}) {
    if (counts) launch(compute, AllReduce{.group = *group, .buffer = counts, .label = "rows of experts"});
    if (room) launch(compute, AllReduce{.group = *group, .buffer = room, .op = ReduceOp::kMax, .label = "room"});
    launch(compute, AllReduce{.group = *group, .buffer = rank.step.sums, .label = "loss"});
  }
}

void reduce_norm(Rank& rank) {
  const AdamWOptimizer& adamw = rank.optimizer.adamw;
  sum_tensors(rank, adamw.squares(), "squares of the gradients");
  const std::optional<TensorSums>& zeros = adamw.grad_zeros();
  if (!zeros) return;
  sum_tensors(rank, *zeros, "zeros of the gradients");
  launch(rank.streams.compute, StoreTotal{.sums = zeros->tensors(), .total = &rank.step.parameters->grad_zeros});
}

void update_parameters(Rank& rank, const ExpertRoom& room) {
  const Tensor loss = rank.step.sums.slice(0, index_of(StepSum::kLoss), 1);
  rank.optimizer.adamw.update(rank.streams.compute, loss, rank.step.parameters,
                              {.needed = rank.step.room_needed, .arrived = room.arrived, .rows = room.rows});
  update_expert_biases(rank);
  if (const std::optional<TensorSums>& squares = rank.optimizer.adamw.params_squares()) {
    sum_tensors(rank, *squares, "squares of the parameters");
    launch(rank.streams.compute,
           StoreTotal{.sums = squares->tensors(), .root = true, .total = &rank.step.parameters->params_norm});
  }
  shards_updated(rank);
}

void shards_updated(Rank& rank) {
  if (rank.units.sharded) rank.units.sharded->updated();
  rank.buckets.gatherer->updated();  // the communication stream then waits for both at once
}

// Only the rounded size of the block counts; other changes of free memory come from other processes.
void use_arena(Rank& rank, const ArenaPlan& plan, std::optional<std::size_t>& driver_bytes) {
  constexpr std::size_t kRounding = std::size_t{4} << 20;
  Arena& arena = rank.memory.arena;
  if (rank.streams.compute.device() != DeviceType::kCuda || arena.block_bytes() >= plan.peak_bytes)
    return arena.use(plan);
  const std::size_t free = cuda_memory().free;
  arena.use(plan);
  const std::size_t left = cuda_memory().free, taken = free - std::min(free, left), block = arena.block_bytes();
  driver_bytes = taken >= block && taken <= block + kRounding ? std::optional(taken) : std::nullopt;
}

void drop_step(Rank& rank) {
  rank.drain();
  rank.buckets.reducer->reset();
  rank.buckets.gatherer->reset();
  if (rank.units.sharded) rank.units.sharded->reset();
  if (rank.offload) rank.offload->transfer.reset();
}

void poison_memory(Rank& rank, bool on) {
  if (rank.units.sharded) rank.units.sharded->poison_slots(on);
  if (rank.offload) rank.offload->transfer.poison(on);
}

}  // namespace megalith
