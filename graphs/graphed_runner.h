// Executes runs of verbs as captured graphs. The first occurrence of a run is captured and replayed at once, so
// capturing is a real step. Later occurrences are replays, for any microbatch of the run's column. Hooks run outside of
// graphs. Results are bitwise equal to SegmentRunner's.
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
  // All arguments outlive the object.
  GraphedRunner(const Context& ctx, SegmentRunner& runner, const GraphModules& modules)
      : ctx_(ctx), runner_(runner), modules_(modules) {}
  GraphedRunner(const GraphedRunner&) = delete;
  GraphedRunner& operator=(const GraphedRunner&) = delete;

  // Sets the call that waits for all work enqueued by hooks and units. It runs before each capture ahead, and before
  // other captures if there are hooks. The default waits for the compute stream only.
  void synchronize_by(std::function<void()> call) { synchronize_ = std::move(call); }
  // Sets the call after each captured verb, while the stream captures; the call may add work to the graph.
  void after_captured_verb(std::function<void(const Action&)> call) { after_captured_verb_ = std::move(call); }

  // Fails with exit code 9 if a hook lies inside of one graph. Called before the warm-up.
  void check_hooks(const std::vector<Action>& actions) const { group_runs(actions, runner_, modules_); }
  // Called before each step that captures or replays. Exit code 9 if the captured graphs no longer fit the step.
  void begin_step(const std::vector<Action>& actions, const GraphSignature& signature);
  // Run that begins with this action of the list; null if there is none.
  const GraphRun* run_at(std::size_t action) const;
  // Captures or replays the run, with hooks before its first and after its last verb. A failed capture drops all
  // graphs, restores all other state and reports segment, verb and op; the next step captures again.
  void run(const std::vector<Action>& actions, const GraphRun& run);
  // Captures the run ahead of its execution, with the same hooks. If the graph exists, only the captured verbs' host
  // state is restored.
  void capture_ahead(const std::vector<Action>& actions, const GraphRun& run);
  void drop();
  // Drops all graphs and fails. The error reports what was captured, the action and the last op ("": none).
  [[noreturn]] void fail_capture(const std::string& what, const Action& at, std::string_view op,
                                 const std::exception& error);

  struct Stats {  // of the current graphs; replays since construction
    int graphs = 0;
    std::int64_t ops = 0;
    std::uint64_t digest_of_ops = kEmptyDigest;  // over the graphs' digests, in order of capture
    std::int64_t nodes = 0;
    std::size_t device_bytes = 0;  // GPU only (Graph::device_bytes)
    double capture_seconds = 0;
    std::int64_t replays = 0;
  };
  const Stats& stats() const { return stats_; }
  const GraphRunPlan& plan() const { return plan_; }
  bool complete() const { return stats_.graphs > 0 && stats_.graphs == plan_.graphs; }

 private:
  struct Held {
    std::unique_ptr<Graph> graph;
    Microbatch microbatch;  // at capture
    TensorList inputs;
    SegmentRunner::HostState after;
    bool weights_alone = false;  // all verbs are backward_weight
  };

  const TensorList& inputs(const Action& first);
  void capture(const std::vector<Action>& actions, const GraphRun& run, Held& held);
  void capture_exchange(const std::vector<Action>& actions, const GraphRun& run, Held& held, Stream& stream);
  void keep(Held taken, Held& held, double seconds);
  void check(const Action& first, const Held& held);
  void restore(int column, const Held& held);

  const Context& ctx_;
  SegmentRunner& runner_;
  GraphModules modules_;
  GraphRunPlan plan_;
  std::vector<int> run_of_action_;  // index into plan_.runs; -1: none
  GraphSignature signature_;
  std::vector<Held> held_;  // by Run::graph
  Stats stats_;
  std::function<void()> synchronize_ = [this] { ctx_.compute.synchronize(); };
  std::function<void(const Action&)> after_captured_verb_;
};

}  // namespace megalith
