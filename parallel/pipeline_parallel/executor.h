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

class ActionTable {
 public:
  using Function = std::function<void(const Action&)>;
  void set(ActionKind kind, Function function) { functions_[static_cast<std::size_t>(kind)] = std::move(function); }
  // An action whose kind has no function is an error.
  void run(const std::vector<Action>& actions) const;

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
