// Runs of verbs as captured graphs: a run is captured at its first occurrence and replayed at once, so that capturing
// is a real step; from then on it is replayed, for any microbatch of its column. Hooks stay outside. Bit for bit what
// SegmentRunner gives.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/digest.h"
#include "core/device/graph.h"
#include "graphs/run.h"
#include "graphs/signature.h"

namespace megalith {

class GraphedRunner {
 public:
  // Both outlive the object.
  GraphedRunner(const Context& ctx, SegmentRunner& runner, const GraphModules& modules)
      : ctx_(ctx), runner_(runner), modules_(modules) {}
  GraphedRunner(const GraphedRunner&) = delete;
  GraphedRunner& operator=(const GraphedRunner&) = delete;

  // Called before a capture where there are hooks, and before each one ahead: waits until all that hooks and units have
  // enqueued is complete. By default for the compute stream alone.
  void synchronize_by(std::function<void()> call) { synchronize_ = std::move(call); }
  // Called behind each verb that is captured, while the stream captures: may add what the graph is to record.
  void after_captured_verb(std::function<void(const Action&)> call) { after_captured_verb_ = std::move(call); }

  // Exit code 9 where a hook stands inside of what is to be one graph: known before the warm-up.
  void check_hooks(const std::vector<Action>& actions) const { group_runs(actions, runner_, modules_); }
  // Before each step that captures or replays. Exit code 9 where the graphs do not fit it any more.
  void begin_step(const std::vector<Action>& actions, const GraphSignature& signature);
  // The run that begins with this action of the list; null: none does.
  const Run* run_at(std::size_t action) const;
  // Captures or replays it, with the hooks before its first and after its last verb. A capture that fails drops all
  // graphs, leaves everything else as it was before and names segment, verb and op; the next step captures anew.
  void run(const std::vector<Action>& actions, const Run& run);
  // Captures it ahead of the run, which is then a replay, or leaves on the host what the captured one does; with the
  // same hooks.
  void capture_ahead(const std::vector<Action>& actions, const Run& run);
  void drop();
  // Drops all graphs and says why the capture of `what` failed: at this action, after this op ("": none).
  [[noreturn]] void fail_capture(const std::string& what, const Action& at, std::string_view op,
                                 const std::exception& error);

  struct Stats {  // of the graphs that are held; replays since construction
    int graphs = 0;
    std::int64_t ops = 0;
    std::uint64_t digest_of_ops = kEmptyDigest;  // of the graphs' digests, in the order of their captures
    std::int64_t nodes = 0;
    std::size_t device_bytes = 0;  // of a GPU (Graph::device_bytes)
    double capture_seconds = 0;
    std::int64_t replays = 0;
  };
  const Stats& stats() const { return stats_; }
  const RunPlan& plan() const { return plan_; }
  bool complete() const { return stats_.graphs > 0 && stats_.graphs == plan_.graphs; }

 private:
  struct Held {
    std::unique_ptr<Graph> graph;
    Microbatch microbatch;  // what it was captured with
    TensorList inputs;
    SegmentRunner::HostState after;
    bool weights_alone = false;  // no other verb
  };

  const TensorList& inputs(const Action& first);
  void capture(const std::vector<Action>& actions, const Run& run, Held& held);
  void check(const Action& first, const Held& held);
  void restore(int column, const Held& held);

  const Context& ctx_;
  SegmentRunner& runner_;
  GraphModules modules_;
  RunPlan plan_;
  std::vector<int> run_of_action_;  // index into plan_.runs; -1
  GraphSignature signature_;
  std::vector<Held> held_;  // by Run::graph
  Stats stats_;
  std::function<void()> synchronize_ = [this] { ctx_.compute.synchronize(); };
  std::function<void(const Action&)> after_captured_verb_;
};

}  // namespace megalith
