// Runs the verbs of a stage's segments, with their hooks, stashes and the tensors between segments, for the
// microbatches in flight.
#pragma once

#include <map>
#include <vector>

#include "core/layers/hooks.h"
#include "core/layers/segment.h"
#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

// Arena scopes of what is outside of segments, whose index is then -1; in place of the verb.
enum StepScope : std::int32_t { kLoadScope, kReceiveOutputScope, kReceiveGradientScope, kSendScope };

class SegmentRunner {
 public:
  struct Entry {
    std::string name;
    const Segment* segment = nullptr;
    StashPolicies policies = {};
    HookTable hooks = {};
  };
  // `ctx` lives as long as the runner.
  SegmentRunner(const Context& ctx, std::vector<Entry> entries) : ctx_(ctx), entries_(std::move(entries)) {}

  // The microbatch that the column's next verbs run on.
  void begin(int column, const Microbatch& microbatch);
  void run(const Action& action);  // kForward, kBackwardData, kBackwardWeight
  int num_segments() const { return static_cast<int>(entries_.size()); }
  HookTable& hooks(int segment) { return entries_[static_cast<std::size_t>(segment)].hooks; }
  // What the last segment's forward returned for a column: the logits in generate mode.
  const TensorList& outputs(int column) { return columns_[column].hidden; }
  // What its last backward_data returned.
  const TensorList& input_gradients(int column) { return columns_[column].gradients; }
  // What the column's next forward, or next backward_data, takes; after begin().
  void set_inputs(int column, const TensorList& hidden) { columns_[column].hidden = hidden; }
  void set_output_gradients(int column, const TensorList& gradients) { columns_[column].gradients = gradients; }

 private:
  struct Column {
    Microbatch microbatch;
    TensorList hidden;     // between segments, forward
    TensorList gradients;  // between segments, backward
    std::vector<Stash> stashes;
  };

  void forward(Column& column, int segment);

  const Context& ctx_;
  std::vector<Entry> entries_;
  std::map<int, Column> columns_;
};

}  // namespace megalith
