// Runs an action list: each kind through one function of a table, so that this room knows none of the features that
// fill it. SegmentRunner supplies the three verbs, with their hooks, stashes and the tensors between segments.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <vector>

#include "core/layers/hooks.h"
#include "core/layers/segment.h"
#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

// Arena scopes of what is outside of segments, whose index is then -1; in place of the verb.
enum StepScope : std::int32_t { kLoadScope, kReceiveOutputScope, kReceiveGradientScope, kSendScope };

class ActionTable {
 public:
  using Function = std::function<void(const Action&)>;
  void set(ActionKind kind, Function function) { functions_[static_cast<std::size_t>(kind)] = std::move(function); }
  // An action whose kind has no function is an error.
  void run(const std::vector<Action>& actions) const;
  void run_one(const Action& action) const;

 private:
  std::array<Function, kNumActionKinds> functions_;
};

class SegmentRunner {
 public:
  struct Entry {
    std::string name;
    const Segment* segment = nullptr;
    HookTable hooks;
  };
  // `ctx` lives as long as the runner; the batch of the action's column is put into it before each verb.
  SegmentRunner(Context& ctx, std::vector<Entry> entries) : ctx_(ctx), entries_(std::move(entries)) {}

  void set_batch(int column, const Batch& batch, const MicrobatchParameters* parameters);
  void run(const Action& action);  // kForward, kBackwardData, kBackwardWeight
  int num_segments() const { return static_cast<int>(entries_.size()); }
  HookTable& hooks(int segment) { return entries_[static_cast<std::size_t>(segment)].hooks; }
  // What the last segment's forward returned for a column: the logits in generate mode.
  const TensorList& outputs(int column) { return columns_[column].hidden; }
  // What its last backward_data returned.
  const TensorList& input_gradients(int column) { return columns_[column].gradients; }
  // What the column's next forward, or next backward_data, takes; after set_batch().
  void set_inputs(int column, const TensorList& hidden) { columns_[column].hidden = hidden; }
  void set_output_gradients(int column, const TensorList& gradients) { columns_[column].gradients = gradients; }

 private:
  struct Column {
    Batch batch;
    const MicrobatchParameters* parameters = nullptr;
    TensorList hidden;     // between segments, forward
    TensorList gradients;  // between segments, backward
    std::vector<Stash> stashes;
  };

  void forward(Column& column, int segment);

  Context& ctx_;
  std::vector<Entry> entries_;
  std::map<int, Column> columns_;
};

}  // namespace megalith
