// A schedule is data: per stage the order in which chunks run the verbs of their microbatches. Lowering (lowering.h)
// expands it; one Step (apps/run/step.h) runs it; the memory plan, the report and later features read the same list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline_parallel/placement.h"

namespace megalith {

enum class ActionKind : std::uint8_t {
  kBeginStep,      // the step's parameters to the device, its sums to 0
  kZeroGradients,  // before the first weight gradient
  kLoad,           // a microbatch's tokens and parameters to the device
  kForward,
  kBackwardData,
  kBackwardWeight,
  kWaitReturn,  // the compute stream waits for gradients that a backward_data has left on their way from other ranks
  // A tensor between a chunk of this stage and the part of the model before or after it: the output of a forward, or
  // its gradient where `gradient` is set. `peer` is the other stage, or kThisStage. Inserted by insert_messages.
  kPostReceive,         // the channel's stream may receive it
  kWaitReceive,         // the compute stream waits for it; the chunk's next verb reads it
  kSend,                // the channel's stream sends it
  kWaitSend,            // the compute stream waits until it has left; its memory may be written again
  kTieGradients,        // gradients of tied uses join their parameter's
  kReduce,              // starts the reduction of a bucket of gradients over the replicas
  kFinishReduce,        // the compute stream may use the reduced gradients
  kSumSharedGradients,  // of what several tensor-parallel ranks hold in copies
  kCopyTiedGradients,   // the last stage's of a tied embedding become the first one's
  kReduceSums,          // the step's sums over all ranks that see other tokens, and to all stages
  kReduceNorm,          // squares of the gradients, of all stages
  kOptimizerStep,
  kGatherParameters,  // starts to gather a bucket's weights, of which each rank has updated a shard
  kCopyTiedWeights,   // the last stage's of a tied embedding become the first one's, after that bucket's gather
  kWaitParameters,    // the compute stream may use a bucket's weights
  // Of a unit that is whole only for a while; inserted by fsdp/.
  kUnshard,          // starts to gather its weights
  kWaitUnshard,      // the compute stream may read them
  kReshard,          // their slot may be written again
  kBindGradients,    // a slot for its gradients, of zeros
  kReduceShard,      // starts to add their sum over the ranks to each one's shard; the slot is free behind it
  kSumInstances,     // starts to sum the shard over the instances of hybrid sharding, behind its last kReduceShard
  kGatherInstances,  // starts to gather what each instance has updated of the shard
  // Of kept activations that are on the host between forward and backward; inserted by offload/.
  kOffload,      // starts to copy them there
  kWaitOffload,  // their memory may be written again
  kReload,       // starts to copy them back, into other memory
  kWaitReload,   // the compute stream may read them
};

// What an action is about.
enum class ActionScope : std::uint8_t {
  kStep,        // all of it
  kMicrobatch,  // a chunk and a microbatch
  kReturn,      // likewise; `item` is the segment whose backward_data it is about
  kMessage,     // a chunk and a microbatch, between two parts of the model
  kBucket,      // `item` is a bucket of gradients or weights
  kUnit,        // `item` is a unit of parameters
  kSlot,        // as kMicrobatch; `item` is a storage of the stage's kept activations
};

struct ActionFacts {
  ActionKind kind;
  std::string_view name;
  ActionScope scope;
};
inline constexpr ActionFacts kActionFacts[] = {
    {ActionKind::kBeginStep, "begin_step", ActionScope::kStep},
    {ActionKind::kZeroGradients, "zero_gradients", ActionScope::kStep},
    {ActionKind::kLoad, "load", ActionScope::kMicrobatch},
    {ActionKind::kForward, "forward", ActionScope::kMicrobatch},
    {ActionKind::kBackwardData, "backward_data", ActionScope::kMicrobatch},
    {ActionKind::kBackwardWeight, "backward_weight", ActionScope::kMicrobatch},
    {ActionKind::kWaitReturn, "wait_return", ActionScope::kReturn},
    {ActionKind::kPostReceive, "post_receive", ActionScope::kMessage},
    {ActionKind::kWaitReceive, "wait_receive", ActionScope::kMessage},
    {ActionKind::kSend, "send", ActionScope::kMessage},
    {ActionKind::kWaitSend, "wait_send", ActionScope::kMessage},
    {ActionKind::kTieGradients, "tie_gradients", ActionScope::kStep},
    {ActionKind::kReduce, "reduce", ActionScope::kBucket},
    {ActionKind::kFinishReduce, "finish_reduce", ActionScope::kStep},
    {ActionKind::kSumSharedGradients, "sum_shared_gradients", ActionScope::kStep},
    {ActionKind::kCopyTiedGradients, "copy_tied_gradients", ActionScope::kStep},
    {ActionKind::kReduceSums, "reduce_sums", ActionScope::kStep},
    {ActionKind::kReduceNorm, "reduce_norm", ActionScope::kStep},
    {ActionKind::kOptimizerStep, "optimizer_step", ActionScope::kStep},
    {ActionKind::kGatherParameters, "gather_parameters", ActionScope::kBucket},
    {ActionKind::kCopyTiedWeights, "copy_tied_weights", ActionScope::kBucket},
    {ActionKind::kWaitParameters, "wait_parameters", ActionScope::kBucket},
    {ActionKind::kUnshard, "unshard", ActionScope::kUnit},
    {ActionKind::kWaitUnshard, "wait_unshard", ActionScope::kUnit},
    {ActionKind::kReshard, "reshard", ActionScope::kUnit},
    {ActionKind::kBindGradients, "bind_gradients", ActionScope::kUnit},
    {ActionKind::kReduceShard, "reduce_shard", ActionScope::kUnit},
    {ActionKind::kSumInstances, "sum_instances", ActionScope::kUnit},
    {ActionKind::kGatherInstances, "gather_instances", ActionScope::kUnit},
    {ActionKind::kOffload, "offload", ActionScope::kSlot},
    {ActionKind::kWaitOffload, "wait_offload", ActionScope::kSlot},
    {ActionKind::kReload, "reload", ActionScope::kSlot},
    {ActionKind::kWaitReload, "wait_reload", ActionScope::kSlot},
};
inline constexpr int kNumActionKinds = static_cast<int>(std::size(kActionFacts));
constexpr const ActionFacts& facts_of(ActionKind kind) { return kActionFacts[static_cast<std::size_t>(kind)]; }
static_assert([] {
  for (int i = 0; i < kNumActionKinds; ++i) {
    if (kActionFacts[i].kind != static_cast<ActionKind>(i)) return false;
  }
  return true;
}());
constexpr std::string_view name_of(ActionKind kind) { return facts_of(kind).name; }
constexpr bool is_message(ActionKind kind) { return facts_of(kind).scope == ActionScope::kMessage; }
constexpr bool is_of_slot(ActionKind kind) { return facts_of(kind).scope == ActionScope::kSlot; }
// Has a chunk and a microbatch.
constexpr bool is_of_microbatch(ActionKind kind) {
  const ActionScope scope = facts_of(kind).scope;
  return scope == ActionScope::kMicrobatch || scope == ActionScope::kReturn || is_message(kind) || is_of_slot(kind);
}
constexpr bool is_of_bucket(ActionKind kind) { return facts_of(kind).scope == ActionScope::kBucket; }
constexpr bool is_of_unit(ActionKind kind) { return facts_of(kind).scope == ActionScope::kUnit; }

inline constexpr int kThisStage = -1;

struct Action {
  ActionKind kind = ActionKind::kForward;
  int chunk = 0;
  int microbatch = 0;
  int segment = -1;  // set by lowering; -1: the whole chunk
  int column = 0;    // set by lowering: which in-flight microbatch's memory
  int item = -1;     // what else it is about: ActionScope says
  // Set by schedules, of a backward_data: one block with its backward_weight, which follows it in the list and is
  // interleaved with it by segment. What a block makes for other stages leaves at its end.
  bool with_next = false;
  bool gradient = false;  // of messages
  int peer = kThisStage;  // of messages: another stage, or this one, which hands a tensor from chunk to chunk
  friend bool operator==(const Action&, const Action&) = default;
};
std::string to_string(const Action& action);

// By the values of --pipeline-schedule: gpipe, 1f1b, interleaved, zb-h1, zb-v, dualpipe-v.
enum class ScheduleKind : std::uint8_t { kGpipe, k1F1B, kInterleaved, kZbH1, kZbV, kDualPipeV };
inline constexpr int kNumScheduleKinds = 6;
std::string_view name_of(ScheduleKind kind);
bool is_v_shaped(ScheduleKind kind);  // chunks are placed as a V (placement.h)

// Actions of each stage: forward, backward_data and backward_weight of each chunk and microbatch, each exactly once,
// backward_weight of a chunk ascending in microbatches. The orders are in schedules.h.
struct Schedule {
  ScheduleKind kind = ScheduleKind::k1F1B;
  Placement placement;
  int num_microbatches = 1;
  std::vector<std::vector<Action>> stages;
};
// A kind that has no such number of chunks or microbatches is an error with exit code 2.
Schedule make_schedule(ScheduleKind kind, int num_stages, int num_chunks, int num_microbatches);

// The same with each backward_weight as a block of its own behind its backward_data, whose gradient leaves before it.
Schedule delay_weights(Schedule schedule);

// Actions that `with_next` joins are a block. The block of the action at `first` ends before the returned index.
std::size_t end_of_block(const std::vector<Action>& actions, std::size_t first);

}  // namespace megalith
