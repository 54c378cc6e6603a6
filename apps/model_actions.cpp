// The lists of actions of a step, and what each kind of action does.
#include <algorithm>
#include <limits>
#include <utility>

#include "apps/model_builder.h"

namespace megalith {

// The units of each gradient bucket, in the order in which backward completes them.
std::vector<std::vector<int>> TrainingModel::buckets() const {
  const std::vector<ParameterUnit>& units = gpt_.parameters->units();
  std::vector<std::int64_t> ready_numels;  // backward reaches the last unit first
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) ready_numels.push_back(unit->numel);
  // Without overlap nothing is gained by a second bucket.
  const std::int64_t size = options_.parallel.overlap_grad_reduce ? options_.parallel.ddp_bucket_size
                                                                  : std::numeric_limits<std::int64_t>::max();
  std::vector<std::vector<int>> buckets = assign_buckets(ready_numels, size);
  for (std::vector<int>& bucket : buckets) {
    for (int& unit : bucket) unit = static_cast<int>(units.size()) - 1 - unit;
  }
  return buckets;
}

void TrainingModel::build_actions() {
  const std::vector<ParameterUnit>& units = gpt_.parameters->units();
  std::vector<std::vector<Tensor>> gradients, weights;
  ReducePoints points{.segments_of_bucket = {}, .tied_segment = -1, .tied_across_stages = embedding_group_ != nullptr};
  GatherPoints gathers{.segments_of_bucket = {}, .overlap = options_.parallel.overlap_param_gather};
  if (!options_.model.untie_embeddings_and_output_weights && gpt_.words != nullptr)
    points.tied_segment = gpt_.words->is_copy ? runner_->num_segments() - 1 : 0;  // the head, or the embedding
  for (const std::vector<int>& bucket : buckets()) {
    gradients.emplace_back();
    weights.emplace_back();
    std::vector<int> segments;
    for (const int unit : bucket) {
      gradients.back().push_back(units[static_cast<std::size_t>(unit)].main_grads);
      weights.back().push_back(units[static_cast<std::size_t>(unit)].weights);
      for (int s = 0; s < runner_->num_segments(); ++s) {
        const NamedSegment& segment = gpt_.segments[static_cast<std::size_t>(s)];
        if (segment.first_unit <= unit && unit <= segment.last_unit) segments.push_back(s);
      }
      if (gpt_.words != nullptr && gpt_.words->unit == unit) words_bucket_ = static_cast<int>(gradients.size()) - 1;
    }
    points.segments_of_bucket.push_back(std::move(segments));
  }
  const bool shards = options_.parallel.use_distributed_optimizer;
  reducer_ = std::make_unique<GradientReducer>(
      data_parallel_, GradientReducer::Streams{.compute = compute_, .communication = communication_}, gradients,
      shards ? GradientReducer::Result::kShard : GradientReducer::Result::kWhole);
  if (!shards) weights.clear();
  // A tied head reads the words too, but after the embedding, which is in this list then.
  if (shards) gathers.segments_of_bucket = points.segments_of_bucket;
  gatherer_ = std::make_unique<ParameterGatherer>(
      data_parallel_, ParameterGatherer::Streams{.compute = compute_, .communication = communication_}, weights);
  const Schedule schedule = schedule_of(pipeline_, num_microbatches_);
  train_actions_ = lower_training_step(insert_messages(schedule, stage()), gpt_.part_segments, points, gathers);
  evaluate_actions_ =
      lower_evaluation_step(insert_messages(forwards_of(schedule), stage()), gpt_.part_segments, gathers);
  for (int column = 0; column < std::max(num_columns(train_actions_), num_columns(evaluate_actions_)); ++column) {
    microbatch_parameters_.push_back(allocate_one<MicrobatchParameters>(pool_, "microbatch parameters"));
  }
}

// NCCL may add the replicas in another order for the first stage than for the last, whose copies of a tied embedding
// must stay alike. The last stage then takes what the first has: gradients, or weights where each updates shards.
bool TrainingModel::repeats_tied_words() const {
  return embedding_group_ && pool_.device() == DeviceType::kCuda && data_parallel_.size() > 2;
}

void TrainingModel::fill_table() {
  const auto run_verb = [this](const Action& action) { runner_->run(action); };
  table_.set(ActionKind::kZeroGradients, [this](const Action&) { gpt_.parameters->zero_gradients(compute_); });
  table_.set(ActionKind::kLoad, [this](const Action& action) { load(action); });
  table_.set(ActionKind::kForward, run_verb);
  table_.set(ActionKind::kBackwardData, run_verb);
  table_.set(ActionKind::kBackwardWeight, run_verb);
  table_.set(ActionKind::kPostReceive, [this](const Action& action) { transfer_->post_receive(action); });
  table_.set(ActionKind::kWaitReceive, [this](const Action& action) { transfer_->wait_receive(action); });
  table_.set(ActionKind::kSend, [this](const Action& action) { transfer_->send(action); });
  table_.set(ActionKind::kWaitSend, [this](const Action& action) { transfer_->wait_send(action); });
  table_.set(ActionKind::kTieGradients, [this](const Action&) {
    if (!embedding_group_) return gpt_.parameters->add_tied_gradients(compute_);
    launch(compute_, AllReduce{.group = *embedding_group_,
                               .buffer = gpt_.words->main_grad,
                               .label = "gradients of the tied embedding"});
  });
  table_.set(ActionKind::kReduce, [this](const Action& action) { reducer_->reduce(action.bucket); });
  table_.set(ActionKind::kFinishReduce, [this](const Action&) {
    reducer_->finish();
    shared_gradients_->sum(compute_);
    if (!repeats_tied_words() || !shard_.is_whole()) return;
    launch(compute_, Broadcast{.group = *embedding_group_,
                               .buffer = gpt_.words->main_grad,
                               .label = "gradients of the tied embedding"});
  });
  table_.set(ActionKind::kReduceLoss, [this](const Action&) {
    for (Communicator* group : {loss_group_.get(), stages_group_.get()}) {  // of the stages one has other than 0
      launch(compute_, AllReduce{.group = *group, .buffer = ctx_.loss_sum, .label = "loss"});
    }
  });
  table_.set(ActionKind::kReduceNorm, [this](const Action&) { reduce_norm(); });
  table_.set(ActionKind::kOptimizerStep, [this](const Action&) {
    if (Event* read = std::exchange(before_update_, nullptr)) compute_.wait(*read);
    optimizer_->update(compute_, ctx_.loss_sum, step_parameters_);
    gatherer_->updated();
  });
  table_.set(ActionKind::kGatherParameters, [this](const Action& action) {
    if (!repeats_tied_words() || action.bucket != words_bucket_) return gatherer_->gather(action.bucket);
    gatherer_->gather(action.bucket, [this](Stream& communication) {
      launch(communication,
             Broadcast{.group = *embedding_group_, .buffer = gpt_.words->weight, .label = "tied embedding"});
    });
  });
  table_.set(ActionKind::kWaitParameters, [this](const Action& action) { gatherer_->wait(action.bucket); });
}

// Each sum of squares has, over the ranks that hold other parts of the model, one part from each or from one alone.
void TrainingModel::reduce_norm() {
  optimizer_->sum_squares(compute_);
  const std::string label = "squares of the gradients";
  if (!shard_.is_whole())
    launch(compute_, AllReduce{.group = *loss_group_, .buffer = optimizer_->squares(), .label = label});
  tensor_.all_reduce(compute_, optimizer_->squares(), ReduceOp::kSum, "squares of gradients");
  // Of the stages one has other than 0.
  launch(compute_, AllReduce{.group = *stages_group_, .buffer = optimizer_->squares(), .label = label});
}

}  // namespace megalith
