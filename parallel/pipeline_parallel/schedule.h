// Schedules as data: for each stage, the order in which chunks run the verbs of their microbatches. Lowering
// (lowering.h) expands a schedule. A Step (apps/run/step.h), memory plans and reports read the result.
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
  kBeginStep,      // copies the step's parameters to the device and zeroes its sums
  kZeroGradients,  // ahead of the first weight gradient
  kLoad,           // copies a microbatch's tokens and parameters to the device
  kForward,
  kBackwardData,
  kBackwardWeight,
  // An exchange between ranks at the end of a forward or, if `gradient` is set, of a backward_data
  // (ExchangingSegment).
  kStartExchange,  // its stream starts it
  kWaitExchange,   // the compute stream waits for it
  // Messages between a chunk of this stage and an adjacent part of the model: the output of a forward, or its gradient
  // if `gradient` is set. `peer` is the other stage, or kThisStage. Inserted by insert_messages.
  kPostReceive,         // the channel's stream may receive it
  kWaitReceive,         // the compute stream waits for it; the chunk's next verb reads it
  kSend,                // the channel's stream sends it
  kWaitSend,            // the compute stream waits until it has left; its memory is then free
  kTieGradients,        // adds gradients of tied uses to their parameter's
  kReduce,              // starts the reduction of a gradient bucket over the replicas
  kFinishReduce,        // the compute stream may use the reduced gradients
  kSumSharedGradients,  // sums gradients of parameters that tensor-parallel ranks replicate
  kCopyTiedGradients,   // copies a tied embedding's gradients from the first stage to the last
  kReduceSums,          // sums the step's sums over all ranks with other tokens, and sends them to all stages
  kReduceNorm,          // sums squares of gradients over all stages
  kOptimizerStep,
  kGatherParameters,  // starts to gather a bucket's weights, whose shards the ranks have updated
  kCopyTiedWeights,   // copies tied weights from the first stage to the last, after that bucket's gather
  kWaitParameters,    // the compute stream may use a bucket's weights
  // Actions of a sharded unit; inserted by fsdp/.
  kUnshard,          // starts to gather its weights
  kWaitUnshard,      // the compute stream may read them
  kReshard,          // frees its slot for the next gather
  kBindGradients,    // binds a slot for its gradients, filled with zeros
  kReduceShard,      // starts to reduce them into each rank's shard; frees the slot
  kSumInstances,     // starts to sum the shard over the instances of hybrid sharding, after its last kReduceShard
  kGatherInstances,  // starts to gather the parts of the shard that the instances updated
  // Actions of activations that are on the host between forward and backward; inserted by offload/.
  kOffload,      // starts the copy to the host
  kWaitOffload,  // frees their device memory
  kReload,       // starts the copy back, into other memory
  kWaitReload,   // the compute stream may read them
};

// Object of an action.
enum class ActionScope : std::uint8_t {
  kStep,        // the step
  kMicrobatch,  // a chunk and a microbatch
  kExchange,    // a chunk and a microbatch; `item` is the segment of the verb
  kMessage,     // a chunk and a microbatch, between two parts of the model
  kBucket,      // `item` is a bucket of gradients or weights
  kUnit,        // `item` is a unit of parameters
  kSlot,        // a chunk and a microbatch; `item` is a kept activation's storage
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
    {ActionKind::kStartExchange, "start_exchange", ActionScope::kExchange},
    {ActionKind::kWaitExchange, "wait_exchange", ActionScope::kExchange},
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
constexpr bool is_exchange(ActionKind kind) { return facts_of(kind).scope == ActionScope::kExchange; }
// True for actions with a chunk and a microbatch.
constexpr bool is_of_microbatch(ActionKind kind) {
  const ActionScope scope = facts_of(kind).scope;
  return scope == ActionScope::kMicrobatch || is_exchange(kind) || is_message(kind) || is_of_slot(kind);
}
constexpr bool is_of_bucket(ActionKind kind) { return facts_of(kind).scope == ActionScope::kBucket; }
constexpr bool is_of_unit(ActionKind kind) { return facts_of(kind).scope == ActionScope::kUnit; }

inline constexpr int kThisStage = -1;

struct Action {
  ActionKind kind = ActionKind::kForward;
  int chunk = 0;
  int microbatch = 0;
  int segment = -1;  // set by lowering; -1: the complete chunk
  int column = 0;    // set by lowering: memory of an in-flight microbatch
  int item = -1;     // meaning by ActionScope
  // Set by schedules on a verb that forms one block with the following one: a backward_data with its backward_weight,
  // or a forward and the backward of another microbatch. Lowering interleaves them by segment. A block's messages to
  // other stages leave at its end.
  bool with_next = false;
  bool gradient = false;  // for messages and exchanges
  // Set by lowering on verbs. The verb leaves its exchange to the next kStartExchange, and the verb of the adjacent
  // segment finishes it.
  bool leaves_exchange = false;
  bool finishes_exchange = false;
  int peer = kThisStage;  // for messages: another stage, or this stage for a tensor passed between its chunks
  friend bool operator==(const Action&, const Action&) = default;
};
std::string to_string(const Action& action);

// Values of --pipeline-schedule: gpipe, 1f1b, interleaved, zb-h1, zb-v, dualpipe-v.
enum class ScheduleKind : std::uint8_t { kGpipe, k1F1B, kInterleaved, kZbH1, kZbV, kDualPipeV };
inline constexpr int kNumScheduleKinds = 6;
std::string_view name_of(ScheduleKind kind);
bool is_v_shaped(ScheduleKind kind);  // chunks are placed as a V (placement.h)

// Actions of each stage. Each chunk and microbatch has one forward, backward_data and backward_weight. A chunk's
// backward_weight calls are in ascending order of microbatches. Orders are in schedules.h.
struct Schedule {
  ScheduleKind kind = ScheduleKind::k1F1B;
  Placement placement;
  int num_microbatches = 1;
  std::vector<std::vector<Action>> stages;
  int kept_ahead = 0;  // messages that a stage keeps between chunks: of interleaved, a group's beyond one per stage
};
// Exit code 2 if the kind does not support the number of chunks or microbatches.
// With `forwards_ahead`, 1F1B and interleaved schedules start with that number of additional forwards. `group`:
// microbatches of a group of interleaved schedules; 0: the number of stages.
Schedule make_schedule(ScheduleKind kind, int num_stages, int num_chunks, int num_microbatches, int forwards_ahead = 0,
                       int group = 0);

// Schedule whose exchanges of experts' rows have another microbatch's work next to them
// (--overlap-moe-expert-parallel-comm): a forward and an adjacent backward of another microbatch become one block. 1F1B
// on one stage, and interleaved schedules, run one more forward first (Megatron-LM's order). Pairs that would make a
// step of equal verbs longer are left out, so that 1F1B and ZB-H1 on several stages have few or none.
Schedule pair_microbatches(ScheduleKind kind, int num_stages, int num_chunks, int num_microbatches, int group = 0);
int num_pairs(const Schedule& schedule);

// Makes each backward_weight a separate block after its backward_data. The gradient is sent between the two.
Schedule delay_weights(Schedule schedule);

// Actions joined by `with_next` form a block. Returns the end of the block of the action at `first`.
std::size_t end_of_block(const std::vector<Action>& actions, std::size_t first);

}  // namespace megalith
