// Executor of a stage's verbs, with hooks, stashes and the tensors between segments, for the microbatches in flight.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "core/layers/hooks.h"
#include "core/layers/segment.h"
#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

// Arena scopes outside of segments. Their segment is -1, and they replace the verb.
enum StepScope : std::int32_t { kLoadScope, kReceiveOutputScope, kReceiveGradientScope, kSendScope };
// Scope of a kStartExchange: this number plus its verb replaces the verb.
inline constexpr std::int32_t kExchangeScope = kNumVerbs;

Verb verb_of(ActionKind kind);  // kind must be kForward, kBackwardData or kBackwardWeight

class SegmentRunner {
 public:
  struct Entry {
    std::string name;
    const Segment* segment = nullptr;
    SlotPolicies policies = {};
    SegmentModule module = SegmentModule::kOther;
    int unit = 0;  // equal for segments of one layer
    HookTable hooks = {};
  };
  // `ctx` outlives the runner.
  SegmentRunner(const Context& ctx, std::vector<Entry> entries) : ctx_(ctx), entries_(std::move(entries)) {}

  // Sets the microbatch of the column's next verbs.
  void begin(int column, const Microbatch& microbatch);
  // Runs a verb with its hooks: kForward, kBackwardData or kBackwardWeight.
  void run(const Action& action, Phase phase = Phase::kEager);
  // Parts of run(), for callers with several verbs between two hooks.
  void run_hooks(HookPoint point, const Action& action, Phase phase) const;
  void run_verb(const Action& action);
  // Run kStartExchange and kWaitExchange. `enqueue` replaces the work on the exchange's stream, which
  // enqueue_exchange() enqueues.
  void start_exchange(const Action& action);
  void start_exchange(const Action& action, const std::function<void(Stream&)>& enqueue);
  void enqueue_exchange(const Action& action);
  Stream& exchange_stream(const Action& action) const { return exchanging(action.item).exchange_stream(); }
  void wait_exchange(const Action& action) const;

  int num_segments() const { return static_cast<int>(entries_.size()); }
  const Entry& entry(int segment) const { return entries_[static_cast<std::size_t>(segment)]; }
  bool has_hooks() const;
  HookTable& hooks(int segment) { return entries_[static_cast<std::size_t>(segment)].hooks; }
  // Sets one table per segment; another number of tables is an error that reports both numbers.
  void set_hooks(std::vector<HookTable> hooks);

  // Microbatch of the column, after begin().
  const Microbatch& microbatch(int column) const { return columns_.at(column).microbatch; }
  // Output of the last forward of a column: the logits in generate mode.
  const TensorList& outputs(int column) { return columns_[column].hidden; }
  // Output of the last backward_data of a column.
  const TensorList& input_gradients(int column) { return columns_[column].gradients; }
  // Sets the input of the column's next forward, or next backward_data, after begin().
  void set_inputs(int column, const TensorList& hidden) { columns_[column].hidden = hidden; }
  void set_output_gradients(int column, const TensorList& gradients) { columns_[column].gradients = gradients; }

  // Moves the views in the column's stashes from memory at `begin` to `to`. Returns the number of views.
  int rebind(int column, const void* begin, std::size_t bytes, void* to);
  template <class Visitor>  // visits each slot of the column's stashes
  void for_each_slot(int column, const Visitor& visitor) const {
    const Column& c = columns_.at(column);
    for (const Stash& stash : c.stashes) stash.for_each(visitor);
    for (const auto& [unit, stash] : c.layers) stash.for_each(visitor);
  }

  // Host state after verbs: tensors between segments, and the stashes of segments [first, first + stashes.size()) and
  // of their layers.
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
    std::map<int, Stash> layers;  // layers' stashes of experts; key: Entry::unit
  };

  bool is_of_experts(int segment) const;
  bool share_experts(int a, int b) const;  // segments of one layer of experts
  bool begins_experts(int segment) const;  // first segment of a layer of experts
  bool ends_experts(int segment) const;    // last segment of a layer of experts
  void classify(const Stash& stash) const;
  void forward(Column& column, const Action& action);
  // Runs what the verb does with the column's list: all of it, or the part ahead of its exchange.
  TensorList run_or_begin(Column& column, const Action& action, const TensorList& inputs);
  // Finishes the exchange of the segment whose outputs the verb reads.
  void finish_exchange(Column& column, const Action& action);
  const ExchangingSegment& exchanging(int segment) const;

  const Context& ctx_;
  std::vector<Entry> entries_;
  std::map<int, Column> columns_;
};

}  // namespace megalith
