// Lowering from the schedule of one stage to the list that a step executes. Each pass maps a list to a list.
#pragma once

#include <set>
#include <vector>

#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

// Inserts the messages (messages.h) of a stage. Receives are posted in send order, at least kReceiveAhead blocks ahead
// of use, and waited for right before use. A send follows the block that produced the tensor, and is waited for
// kSendsAhead blocks later. If the neighbor part is on the same stage, the tensor is passed right before its use.
std::vector<Action> insert_messages(const Schedule& schedule, int stage);

// Weaker than blocking until the message has arrived; verify(Schedule) shows that blocking is free of deadlocks.
inline constexpr int kSendsAhead = 2;

// Schedule for evaluation: only the forwards, in order.
Schedule forwards_of(const Schedule& schedule);

// Assigns a column to each in-flight (chunk, microbatch) by interval coloring, from its first to its last action. A
// column belongs to one chunk. If chunks pass tensors to each other on the stage, a microbatch lives from the first to
// the last of them. A column's tensors then always go to the same column of the other chunk.
std::vector<Action> assign_columns(std::vector<Action> actions);
int num_columns(const std::vector<Action>& actions);

// Number of segments of each chunk of the stage. Segments are numbered consecutively over the chunks.
using ChunkSegments = std::vector<int>;
int first_segment(const ChunkSegments& segments, int chunk);  // chunk == number of chunks: one past the last

// Exchanges of verbs (ExchangingSegment). A kWaitExchange precedes the next verb of the microbatch that reads them.
struct ReturnPoints {
  // Segments whose backward_data starts its exchange and leaves it in flight. The wait is right after it, or after the
  // backward_weight of the segment above. `after_weights` selects the latter. That backward_weight then follows both
  // verbs of the segment if these are one block.
  std::set<int> segments;
  bool after_weights = false;
  // Exchanges that are actions, by direction; for expand_overlapped. Their segments are in no other set.
  struct Split {
    std::set<int> forward, backward;
    bool empty() const { return forward.empty() && backward.empty(); }
  } split = {};
};

// Expands chunks into segments. A backward_data in one block with its backward_weight is interleaved with it by
// segment. Gradients of late layers are then ready early, and stashes are freed early.
std::vector<Action> expand_segments(const std::vector<Action>& actions, const ChunkSegments& segments,
                                    const ReturnPoints& returns = {});

// The same with split exchanges, so that each has other work between its start and its wait. The forward and the
// backward of a block alternate: one continues where the other has started an exchange. Weight gradients follow the
// next start of an exchange of their microbatch. A block's messages are ahead of it.
std::vector<Action> expand_overlapped(const std::vector<Action>& actions, const ChunkSegments& segments,
                                      const ReturnPoints& returns);

// Inserts a load before each chunk's first forward of a microbatch, and before the wait for its input.
std::vector<Action> insert_loads(const std::vector<Action>& actions);

// Points at which a bucket's gradients are complete: after the last backward_weight of its segments.
struct ReducePoints {
  std::vector<std::vector<int>> segments_of_bucket;
  int tied_segment = -1;  // segment whose parameters have tied uses (the embedding); -1: none
  // The tied uses are on different stages. Their gradients are summed after the stage's last message, so that a waiting
  // stage blocks no other stage.
  bool tied_across_stages = false;
  bool sums_shared = false;  // tensor-parallel ranks sum gradients of replicated parameters
  bool copies_tied = false;  // the last stage copies a tied embedding's gradients from the first
};
std::vector<Action> insert_reductions(const std::vector<Action>& actions, const ReducePoints& points);

// Weights whose shards data-parallel ranks update and then gather in order of first use. With `overlap`, each bucket is
// waited for before the first forward that reads it, in the same or the next list. Otherwise all buckets are waited for
// at the end of the step.
struct GatherPoints {
  std::vector<std::vector<int>> segments_of_bucket;  // readers of its weights; empty: waited for first
  bool overlap = false;
  int tied_bucket = -1;  // bucket whose weights the last stage copies from the first; -1: none
};
std::vector<Action> insert_gathers(const std::vector<Action>& actions, const GatherPoints& gathers);

// Lowers the complete training step of one stage, with messages inserted.
std::vector<Action> lower_training_step(const std::vector<Action>& stage, const ChunkSegments& segments,
                                        const ReducePoints& points, const GatherPoints& gathers = {},
                                        const ReturnPoints& returns = {});
// Lowers an evaluation step, with forwards only.
std::vector<Action> lower_evaluation_step(const std::vector<Action>& stage, const ChunkSegments& segments,
                                          const GatherPoints& gathers = {});

// Fails with exit code 9 unless a training step's list is executable. Each action occurs once and after its inputs. A
// segment's backward_weight is in order, and precedes its reduction and tie. A column holds one chunk and one
// microbatch at a time, and passes tensors to one column. Messages are produced and waited for. Weights are gathered,
// and gradients have had their kWaitExchange, before they are read.
void verify(const std::vector<Action>& actions, const ChunkSegments& segments, const ReducePoints& points,
            const GatherPoints& gathers = {}, const ReturnPoints& returns = {});

// Verifies a schedule. Fails if an action is missing, doubled or out of order, or if stages deadlock with blocking
// sends.
void verify(const Schedule& schedule);

}  // namespace megalith
