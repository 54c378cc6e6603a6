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

Verb verb_of(ActionKind kind);  // of kForward, kBackwardData, kBackwardWeight

class SegmentRunner {
 public:
  struct Entry {
    std::string name;
    const Segment* segment = nullptr;
    SlotPolicies policies = {};
    SegmentModule module = SegmentModule::kOther;
    int unit = 0;  // segments of a layer have the same
    HookTable hooks = {};
  };
  // `ctx` lives as long as the runner.
  SegmentRunner(const Context& ctx, std::vector<Entry> entries) : ctx_(ctx), entries_(std::move(entries)) {}

  // The microbatch that the column's next verbs run on.
  void begin(int column, const Microbatch& microbatch);
  // kForward, kBackwardData, kBackwardWeight: the hooks before the verb, the verb, those after it.
  void run(const Action& action, Phase phase = Phase::kEager);
  // Its parts, for who has several verbs between two hooks.
  void run_hooks(HookPoint point, const Action& action, Phase phase) const;
  void run_verb(const Action& action);
  // kWaitReturn.
  void wait_return(const Action& action) const { entry(action.item).segment->wait_return(ctx_); }

  int num_segments() const { return static_cast<int>(entries_.size()); }
  const Entry& entry(int segment) const { return entries_[static_cast<std::size_t>(segment)]; }
  bool has_hooks() const;
  HookTable& hooks(int segment) { return entries_[static_cast<std::size_t>(segment)].hooks; }
  // All of them, one table a segment; another number is an error that names both.
  void set_hooks(std::vector<HookTable> hooks);

  // What the column's microbatch is, once it has begun.
  const Microbatch& microbatch(int column) const { return columns_.at(column).microbatch; }
  // What the last segment's forward returned for a column: the logits in generate mode.
  const TensorList& outputs(int column) { return columns_[column].hidden; }
  // What its last backward_data returned.
  const TensorList& input_gradients(int column) { return columns_[column].gradients; }
  // What the column's next forward, or next backward_data, takes; after begin().
  void set_inputs(int column, const TensorList& hidden) { columns_[column].hidden = hidden; }
  void set_output_gradients(int column, const TensorList& gradients) { columns_[column].gradients = gradients; }

  // Memory from `begin` on has moved to `to`: so have the views of it in all of the column's stashes. How many were.
  int rebind(int column, const void* begin, std::size_t bytes, void* to);
  template <class Visitor>  // called with each slot of the column's stashes
  void for_each_slot(int column, const Visitor& visitor) const {
    const Column& c = columns_.at(column);
    for (const Stash& stash : c.stashes) stash.for_each(visitor);
    for (const auto& [unit, stash] : c.layers) stash.for_each(visitor);
  }

  // What verbs leave on the host: tensors between segments, and the stashes of segments [first, first +
  // stashes.size()) and of their layers.
  struct HostState {
    TensorList hidden;
    TensorList gradients;
    int first = 0;
    std::vector<Stash> stashes;
    std::map<int, Stash> layers = {};
  };
  HostState host_state(int column, int first, int segments) const;
  void restore(int column, const HostState& state);

 private:
  struct Column {
    Microbatch microbatch;
    TensorList hidden;     // between segments, forward
    TensorList gradients;  // between segments, backward
    std::vector<Stash> stashes;
    std::map<int, Stash> layers;  // what the segments of a layer of experts share; by Entry::unit
  };

  bool is_of_experts(int segment) const;
  bool share_experts(int a, int b) const;  // segments of one layer of experts
  bool begins_experts(int segment) const;  // of a layer
  bool ends_experts(int segment) const;    // likewise
  void classify(const Stash& stash) const;
  void forward(Column& column, int segment);

  const Context& ctx_;
  std::vector<Entry> entries_;
  std::map<int, Column> columns_;
};

}  // namespace megalith
