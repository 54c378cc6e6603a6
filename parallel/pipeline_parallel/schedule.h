// A schedule is data: per stage the order in which chunks run the verbs of their microbatches. Lowering (lowering.h)
// expands it; one executor (executor.h) runs it; the memory plan, the report and later features read the same list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline_parallel/placement.h"

namespace megalith {

enum class ActionKind : std::uint8_t {
  kZeroGradients,  // step begins
  kLoad,           // a microbatch's tokens and parameters to the device
  kForward,
  kBackwardData,
  kBackwardWeight,
  // A tensor between a chunk of this stage and the part of the model before or behind it: the output of a forward, or
  // its gradient where `gradient` is set. `peer` is the other stage, or kThisStage. Inserted by insert_messages.
  kPostReceive,   // the channel's stream may receive it
  kWaitReceive,   // the compute stream waits for it; the chunk's next verb reads it
  kSend,          // the channel's stream sends it
  kWaitSend,      // the compute stream waits until it has left; its memory may be written again
  kTieGradients,  // gradients of tied uses join their parameter's
  kReduce,        // `bucket`: start its gradient reduction
  kFinishReduce,  // the compute stream may use the reduced gradients
  kReduceLoss,    // sum over data-parallel ranks, known to all stages
  kReduceNorm,    // squares of the gradients, of all stages
  kOptimizerStep,
  kGatherParameters,  // `bucket`: start to gather the weights that each rank has updated a shard of
  kWaitParameters,    // `bucket`: the compute stream may use its weights
};
inline constexpr int kNumActionKinds = 17;
std::string_view name_of(ActionKind kind);

inline constexpr int kThisStage = -1;

struct Action {
  ActionKind kind = ActionKind::kForward;
  int chunk = 0;
  int microbatch = 0;
  int segment = -1;  // set by lowering; -1: the whole chunk
  int column = 0;    // set by lowering: which in-flight microbatch's memory
  int bucket = -1;   // kReduce, kGatherParameters, kWaitParameters
  // Set by schedules: one block with the action that follows it in the list. A backward_data and its backward_weight
  // are interleaved by segment; a forward may overlap another microbatch's backward. What a block makes for other
  // stages leaves at its end.
  bool with_next = false;
  bool gradient = false;  // of messages
  int peer = kThisStage;  // of messages: another stage, or this one, which hands a tensor from chunk to chunk
  friend bool operator==(const Action&, const Action&) = default;
};
std::string to_string(const Action& action);

constexpr bool is_message(ActionKind kind) { return kind >= ActionKind::kPostReceive && kind <= ActionKind::kWaitSend; }
// Has a chunk and a microbatch.
constexpr bool is_of_microbatch(ActionKind kind) { return kind >= ActionKind::kLoad && kind <= ActionKind::kWaitSend; }

constexpr bool is_of_bucket(ActionKind kind) {
  return kind == ActionKind::kReduce || kind >= ActionKind::kGatherParameters;
}

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

// Actions that `with_next` joins are a block. The block of the action at `first` ends before the returned index.
std::size_t end_of_block(const std::vector<Action>& actions, std::size_t first);

}  // namespace megalith
