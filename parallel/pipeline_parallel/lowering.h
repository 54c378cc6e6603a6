// Lowering: from the schedule of one stage to the list the executor runs. Each pass is a function from list to list.
#pragma once

#include <set>
#include <vector>

#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

// The list of one stage with its messages (messages.h): the receive of each is posted kReceiveAhead blocks before its
// use at the latest, in the order in which they are sent; it is waited for right before its use; a send follows the
// block that made the tensor, and is waited for kSendsAhead blocks later. Where the neighbour part is on the same stage
// the tensor is handed over right before its use.
std::vector<Action> insert_messages(const Schedule& schedule, int stage);

// Weaker than to block until the message has arrived, which verify(Schedule) shows to be free of deadlocks.
inline constexpr int kSendsAhead = 2;

// What evaluation runs: the forwards alone, in their order.
Schedule forwards_of(const Schedule& schedule);

// Gives each in-flight (chunk, microbatch) a column by interval colouring, from its first action to its last. A column
// is one chunk's for good. Where chunks hand tensors to each other on the stage, a microbatch lives from the first of
// them to the last, and a column's tensors always go to the same one of the other chunk.
std::vector<Action> assign_columns(std::vector<Action> actions);
int num_columns(const std::vector<Action>& actions);

// How many segments each chunk of the stage has. They are numbered through, chunk after chunk.
using ChunkSegments = std::vector<int>;
int first_segment(const ChunkSegments& segments, int chunk);  // of chunk == number of chunks: one past the last

// Segments whose backward_data leaves gradients on their way. Each has a kWaitReturn before the next backward_data of
// its microbatch: right after its own, or, with `beside_weights`, after the backward_weight of the segment above, which
// then comes after both verbs of the segment where these are one block.
struct ReturnPoints {
  std::set<int> segments;
  bool beside_weights = false;
};

// Expands chunks into their segments. A backward_data that is one block with its backward_weight is interleaved with it
// per segment, so that gradients of late layers are ready early and stashes die early.
std::vector<Action> expand_segments(const std::vector<Action>& actions, const ChunkSegments& segments,
                                    const ReturnPoints& returns = {});

// A load before each chunk's first forward of a microbatch, and before the input of that is waited for.
std::vector<Action> insert_loads(const std::vector<Action>& actions);

// Where gradients of a bucket's segments are complete: after the last backward_weight of the last of them.
struct ReducePoints {
  std::vector<std::vector<int>> segments_of_bucket;
  int tied_segment = -1;  // the segment whose parameters have tied uses (the embedding); -1: none
  // The tied uses are on other stages: their gradients meet after the stage's last message, so that a stage that waits
  // there keeps nobody else waiting.
  bool tied_across_stages = false;
  bool sums_shared = false;  // tensor-parallel ranks hold copies whose gradients they sum
  bool copies_tied = false;  // the last stage takes the first one's gradients of a tied embedding
};
std::vector<Action> insert_reductions(const std::vector<Action>& actions, const ReducePoints& points);

// The weights that data-parallel ranks update a shard each of, and gather after that in the order of their first use.
// With `overlap` each bucket is waited for before the first forward that reads it, in whichever list comes next, or
// else all of them at the end of the step.
struct GatherPoints {
  std::vector<std::vector<int>> segments_of_bucket;  // that read its weights; those of none are waited for first
  bool overlap = false;
  int tied_bucket = -1;  // whose weights the last stage takes from the first; -1: none
};
std::vector<Action> insert_gathers(const std::vector<Action>& actions, const GatherPoints& gathers);

// The whole training step of one stage; its messages have been inserted.
std::vector<Action> lower_training_step(const std::vector<Action>& stage, const ChunkSegments& segments,
                                        const ReducePoints& points, const GatherPoints& gathers = {},
                                        const ReturnPoints& returns = {});
// Forward only, for evaluation.
std::vector<Action> lower_evaluation_step(const std::vector<Action>& stage, const ChunkSegments& segments,
                                          const GatherPoints& gathers = {});

// Fails with exit code 9 where a training step's list is not executable: an action missing, twice or before what it
// needs, a backward_weight out of order or after its gradient was reduced or tied, two microbatches or two chunks in
// one column, a hand-over to another column than before, a message that is not made yet, or not waited for, weights
// that are read or left before they were gathered, gradients that are read before their kWaitReturn.
void verify(const std::vector<Action>& actions, const ChunkSegments& segments, const ReducePoints& points,
            const GatherPoints& gathers = {}, const ReturnPoints& returns = {});

// The same for a schedule: an action missing, twice or out of its order in a stage's list, or stages that wait for each
// other in a circle, even where sends block until they are received.
void verify(const Schedule& schedule);

}  // namespace megalith
