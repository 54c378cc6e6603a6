// The one place where all features meet: builds, for one rank and any backend, the model, its memory, its optimizer,
// the gradient reduction and the action lists of a step, and fills the executor's table. The trainer's loop (trainer.h)
// only says which samples and which learning rate.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/options.h"
#include "apps/pipeline_options.h"
#include "core/device/arena.h"
#include "core/device/host_arena.h"
#include "core/device/memory_pool.h"
#include "core/device/stream.h"
#include "core/device/timeline.h"
#include "core/model/gpt.h"
#include "core/optim/adamw_optimizer.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/plan_communicator.h"
#include "parallel/context_parallel/context_group.h"
#include "parallel/data_parallel/gradient_reducer.h"
#include "parallel/data_parallel/parameter_gatherer.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline_parallel/executor.h"
#include "parallel/pipeline_parallel/lowering.h"
#include "parallel/pipeline_parallel/transfer.h"
#include "parallel/tensor_parallel/shared_gradients.h"

namespace megalith {

// Memory layouts of the steps of a run, made on the plan backend before anything is allocated.
struct StepPlans {
  ArenaPlan train;
  ArenaPlan evaluate;
  double train_flops = 0;              // per rank and step, as the ops count them (recompute included)
  std::size_t train_ops = 0;           // launched per step
  std::size_t checkpoint_staging = 0;  // bytes of host memory, with --async-save
  std::size_t block_bytes() const { return std::max(train.peak_bytes, evaluate.peak_bytes); }
};

// Bytes of one rank by owner: what plan forecasts and what a run measures.
struct MemoryUse {
  CategoryBytes persistent{};  // parameters, main parameters, gradients, optimizer, ... outside the arena
  std::size_t arena = 0;       // size of the step's block
  CategoryBytes arena_live{};  // its content at the fullest moment of a training step
  std::vector<std::pair<std::string, std::size_t>> activations;  // of these, kept activations by kind
  std::size_t total() const;
};

// Inputs of one step on this rank: M microbatches of B sequences of S tokens.
struct StepInput {
  std::int64_t iteration = 0;  // from 1
  float learning_rate = 0;
  std::vector<std::int64_t> first_samples;  // [M] global index of this rank's first sequence
  std::span<const std::int32_t> tokens;     // [M, B, S + 1], whole sequences; labels are the same shifted by one
};

struct StepResult {
  std::int64_t iteration = 0;
  float loss = 0;       // mean over the tokens of the global batch
  float grad_norm = 0;  // before clipping
  bool skipped = false;
  std::int64_t adam_count = 0;
  double enqueue_seconds = 0;  // of the host
  double seconds = 0;          // from the end of the step before, if this one was enqueued by then, or from its start
};

class TrainingModel {
 public:
  // `options` is complete and valid and outlives the model, as does `mesh`. Holds what this rank's pipeline stage and
  // tensor-parallel rank have of the model, and computes its context-parallel part of each sequence. Plan streams need
  // instruments.timeline. `memory_limit` in bytes, 0: the machine's. Collective.
  TrainingModel(const Options& options, DeviceType device, const Mesh& mesh, Instruments instruments,
                std::size_t memory_limit = 0);
  ~TrainingModel();

  void initialize();                 // weights from the seed, optimizer state zero
  void use(const StepPlans& plans);  // before the first step, not on the plan backend

  // Enqueues one training step. At most two may be pending, so that the host prepares a step while the device computes
  // the one before. `updates`, if given, is called when all but the update of the parameters is enqueued, and may read
  // the result of the step before; where it returns false the step is dropped: nothing has changed but gradients. It
  // returns the same on all ranks. False if the step was dropped.
  bool train_step(const StepInput& input, const std::function<bool()>& updates = nullptr);
  int pending_steps() const { return pending_steps_; }
  // Waits for the oldest pending step.
  StepResult read_result();
  // Runs forward over M microbatches and waits: mean loss over the tokens of the global batch. No step may be pending.
  float evaluate_step(const StepInput& input);

  // Runs a training step but for its update, and waits. `before` is called before each action is enqueued. What a step
  // reads stays as it is, and all memory between steps is zero before, so that only what the step computes can be NaN.
  // No step may be pending.
  void repeat_step(const StepInput& input, const std::function<void(const Action&)>& before);

  // Runs the first microbatch's forward and backward, and its forward in evaluation, on tokens of no meaning and waits,
  // so that libraries load their kernels and GEMMs are known before the first step. Stages send each other nothing.
  // Changes nothing that a step reads.
  void warm_up();

  std::int64_t num_microbatches() const { return num_microbatches_; }
  std::int64_t tokens_per_step() const;  // of the global batch
  GptModel& gpt() { return gpt_; }
  AdamWOptimizer& optimizer() { return *optimizer_; }
  SegmentRunner& runner() { return *runner_; }
  MemoryPool& pool() { return pool_; }
  Arena& arena() { return arena_; }
  Stream& compute() { return compute_; }
  StepParameters* step_parameters() { return step_parameters_; }
  // Of the steps' collectives, in an order that no two ranks see differently.
  std::vector<Communicator*> groups() const;
  // Those that read each other's part of the step's memory where the GPUs can (Communicator::share_memory).
  std::vector<Communicator*> sharing_groups() const;
  const Communicator& tensor_group() const { return tensor_.communicator(); }
  const Communicator& context_group() const { return context_.communicator(); }
  // The ranks with copies of the same weights: data- and context-parallel ones.
  Communicator& replicas() const { return data_parallel_; }
  const GradientReducer& reducer() const { return *reducer_; }
  const ParameterGatherer& gatherer() const { return *gatherer_; }
  // The next update of parameters and optimizer state waits for `read`, which a stream that reads them has recorded.
  void hold_update(Event& read) { before_update_ = &read; }
  // With --overlap-param-gather the weights of a step may still be on their way when its result is read: before
  // anything but a step reads them on the compute stream.
  void wait_for_parameters() { gatherer_->wait_for_all(); }
  const PipelineTransfer& transfer() const { return *transfer_; }
  const PipelineLayout& pipeline() const { return pipeline_; }
  int stage() const { return mesh_.coordinates().pp; }
  // The whole model's parameters, declared and not allocated.
  const ParameterStore& all_parameters() const { return *all_parameters_; }
  const std::vector<Action>& train_actions() const { return train_actions_; }
  // On the plan backend: where in the timeline each action of the last step begins.
  const std::vector<std::size_t>& action_entries() const { return action_entries_; }
  Context& context() { return ctx_; }
  // What the memory at an address is called at this moment: a parameter, its gradient, a tensor of the current verb.
  std::string name_of(const void* address) const;

 private:
  struct HostStep;

  void make_groups();
  GptFactories factories();
  std::int64_t rank_length() const { return context_.tokens(options_.model.seq_length); }  // of a sequence, in tokens
  void build_optimizer();
  // model_actions.cpp
  std::vector<std::vector<int>> buckets() const;
  void build_actions();
  void fill_table();
  void reduce_norm();
  bool repeats_tied_words() const;
  void allocate_staging();
  void stage(const StepInput& input);
  void load(const Action& action);
  void run(const Action& action);
  void run_step(Mode mode, const std::vector<Action>& actions, const StepInput& input,
                const std::function<bool(const Action&)>& proceeds = nullptr);
  HostStep& staged(int steps_ago);
  HostStep& last_step() { return staged(0); }

  const Options& options_;
  const Mesh& mesh_;
  Communicator& data_parallel_;                    // and context-parallel: over it gradients are summed
  std::unique_ptr<Communicator> loss_group_;       // the same ranks, for sums on the compute stream
  std::unique_ptr<Communicator> stages_group_;     // this pipeline's ranks, for sums on the compute stream
  std::unique_ptr<Communicator> embedding_group_;  // of them the first and the last, where they share a tied embedding
  PipelineLayout pipeline_;
  std::vector<GptPart> parts_;  // this stage's, chunk after chunk
  std::unique_ptr<ParameterStore> all_parameters_;
  MemoryPool pool_;
  Stream compute_;
  Stream communication_;
  std::unique_ptr<Stream> tensor_communication_;  // null without tensor parallelism
  TensorGroup tensor_;
  std::unique_ptr<Stream> context_communication_;  // null without context parallelism
  ContextGroup context_;
  Arena arena_;
  GptModel gpt_;
  FlatShard shard_;  // of the optimizer's state
  std::unique_ptr<SharedGradients> shared_gradients_;
  std::int64_t num_microbatches_ = 0;
  std::unique_ptr<AdamWOptimizer> optimizer_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<ParameterGatherer> gatherer_;
  int words_bucket_ = -1;  // of the word embedding
  Context ctx_;
  std::unique_ptr<SegmentRunner> runner_;
  std::unique_ptr<PipelineTransfer> transfer_;
  ActionTable table_;
  std::vector<Action> train_actions_;
  std::vector<Action> evaluate_actions_;
  std::vector<std::size_t> action_entries_;
  StepParameters* step_parameters_ = nullptr;                 // device
  std::vector<MicrobatchParameters*> microbatch_parameters_;  // device, per column
  std::unique_ptr<HostArena> host_arena_;
  std::vector<std::unique_ptr<HostStep>> host_;  // used in turn
  std::int64_t steps_staged_ = 0;
  int pending_steps_ = 0;
  Event* before_update_ = nullptr;  // of hold_update(), until it was waited for
  const StepPlans* plans_ = nullptr;
};

// Records a training and an evaluation step of rank `rank` of `world` without computing anything.
// `persistent`, if given, receives what lives outside the arena.
StepPlans plan_steps(const Options& options, int rank, int world, CategoryBytes* persistent = nullptr);

// What one rank enqueues in a training step, in the order in which it does. The step may have fewer microbatches than
// the run's, which would add the same actions once more.
struct StepRecording {
  StepPlans plans;
  CategoryBytes persistent{};
  Timeline timeline;                 // of two steps with --overlap-param-gather, else of one
  std::vector<PlannedCall> calls;    // of all groups
  std::vector<Action> actions;       // of the last step
  std::vector<std::size_t> entries;  // where in the timeline each of them begins
  std::int64_t microbatches = 0;     // of the recorded step
};
// A step of more than `most_microbatches` is recorded with as many as show the schedule's pattern.
StepRecording record_step(const Options& options, int rank, int world, std::int64_t most_microbatches);
MemoryUse memory_use(const StepPlans& plans, const CategoryBytes& persistent);

// Modules of --recompute-modules and ranges of --recompute-granularity full.
StashPolicies stash_policies(const TrainingOptions& options);
// The ranges are counted within each part, as Megatron counts them within a stage.
RecomputeLayers recompute_layers(const Options& options, const std::vector<GptPart>& parts);

// Exit code 2 for sizes of a step whose products do not fit, which no machine has memory for.
void check_step_size(const Options& options);

// A value of its own in the pool.
template <class T>
T* allocate_one(MemoryPool& pool, std::string_view owner) {
  return static_cast<T*>(pool.allocate(sizeof(T), MemoryCategory::kOther, owner));
}

// Microbatches per step and rank; exit code 2 where the sizes do not divide, naming the flags and values that would.
std::int64_t count_microbatches(const TrainingOptions& options, int data_parallel_size);

}  // namespace megalith
