#include "graphs/graphed_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/base/code_of.h"
#include "core/base/seconds_since.h"

namespace megalith {

namespace {

bool same_addresses(const TensorList& a, const TensorList& b) {
  if (a.size() != b.size()) return false;
  for (int i = 0; i < a.size(); ++i) {
    if (a[i].data != b[i].data || !(a[i].shape == b[i].shape)) return false;
  }
  return true;
}

bool same_addresses(const Microbatch& a, const Microbatch& b) {
  return a.tokens.data == b.tokens.data && a.labels.data == b.labels.data && a.parameters == b.parameters &&
         a.sums.data == b.sums.data && a.expert_counts.data == b.expert_counts.data &&
         a.balance_counts.data == b.balance_counts.data && a.room_needed.data == b.room_needed.data &&
         a.rows_sent.data == b.rows_sent.data && a.positions.data == b.positions.data &&
         a.documents.begin.data == b.documents.begin.data && a.documents.length.data == b.documents.length.data &&
         a.documents.shared.data == b.documents.shared.data;
}

// Lowest segment of a run, and the number of segments from there.
std::pair<int, int> segments_of(const std::vector<Action>& actions, const GraphRun& run) {
  const Action& first = actions[run.first];
  int low = first.segment, high = low;
  for (std::size_t i = run.first; i < run.first + run.count; ++i) {
    if (actions[i].segment < 0) continue;
    low = std::min(low, actions[i].segment);
    high = std::max(high, actions[i].segment);
  }
  return {low, high - low + 1};
}

}  // namespace

void GraphedRunner::begin_step(const std::vector<Action>& actions, const GraphSignature& signature) {
  if (stats_.graphs > 0) {
    const std::string_view changed = difference(signature_, signature);
    if (changed.empty()) return;
    fail({.subject = "captured graphs",
          .expected = "the step that they were captured in",
          .got = fmt::format("a different one: {} has changed", changed),
          .remedy = "change it before the first captured step, or use --cuda-graph-impl none",
          .show_place = false});
  }
  signature_ = signature;
  plan_ = group_runs(actions, runner_, modules_);
  held_.clear();
  held_.resize(static_cast<std::size_t>(plan_.graphs));
  run_of_action_.assign(actions.size(), -1);
  for (std::size_t r = 0; r < plan_.runs.size(); ++r) run_of_action_[plan_.runs[r].first] = static_cast<int>(r);
}

const GraphRun* GraphedRunner::run_at(std::size_t action) const {
  const int run = run_of_action_[action];
  return run < 0 ? nullptr : &plan_.runs[static_cast<std::size_t>(run)];
}

const TensorList& GraphedRunner::inputs(const Action& first) {
  const bool forward = first.kind == ActionKind::kForward || (is_exchange(first.kind) && !first.gradient);
  return forward ? runner_.outputs(first.column) : runner_.input_gradients(first.column);
}

void GraphedRunner::check(const Action& first, const Held& held) {
  const Microbatch& now = runner_.microbatch(first.column);
  const char* changed = nullptr;
  if (now.mode != held.microbatch.mode)
    changed = "the mode";
  else if (now.sequences != held.microbatch.sequences || now.seq_length != held.microbatch.seq_length)
    changed = "the size of the microbatch";
  else if (!same_addresses(now, held.microbatch))
    changed = "an address of the microbatch";
  else if (first.kind != ActionKind::kBackwardWeight && !same_addresses(inputs(first), held.inputs))
    changed = "the address of an input";
  if (changed == nullptr) return;
  fail({.subject = fmt::format("replay of graph {}, microbatch {}", held.graph->name(), first.microbatch),
        .expected = "a microbatch like the captured one",
        .got = fmt::format("a different one: {} has changed", changed),
        .remedy = "run such microbatches with --cuda-graph-impl none"});
}

void GraphedRunner::run(const std::vector<Action>& actions, const GraphRun& run) {
  const Action &first = actions[run.first], &last = last_verb(actions, run);
  Held& held = held_[static_cast<std::size_t>(run.graph)];
  const bool is_held = held.graph != nullptr;
  if (first.kind == ActionKind::kStartExchange) {
    if (is_held) {
      check(first, held);
    } else if (runner_.has_hooks()) {
      synchronize_();
    }
    runner_.start_exchange(first, [&](Stream& stream) {
      if (!is_held) capture_exchange(actions, run, held, stream);
      held.graph->replay(stream);
    });
    ++stats_.replays;
    return;
  }
  const Phase phase = is_held ? Phase::kReplay : Phase::kCapture;
  runner_.run_hooks(before(verb_of(first.kind)), first, phase);
  if (is_held) {
    check(first, held);
  } else {
    if (runner_.has_hooks()) synchronize_();
    capture(actions, run, held);
  }
  held.graph->replay(ctx_.compute);
  ++stats_.replays;
  if (is_held) restore(first.column, held);
  runner_.run_hooks(after(verb_of(last.kind)), last, phase);
}

// A graph of backward_weight alone outputs nothing, so the column keeps its current tensors.
void GraphedRunner::restore(int column, const Held& held) {
  SegmentRunner::HostState after = held.after;
  if (held.weights_alone) {
    after.hidden = runner_.outputs(column);
    after.gradients = runner_.input_gradients(column);
  }
  runner_.restore(column, after);
}

void GraphedRunner::capture_ahead(const std::vector<Action>& actions, const GraphRun& run) {
  const Action &first = actions[run.first], &last = last_verb(actions, run);
  Held& held = held_[static_cast<std::size_t>(run.graph)];
  if (first.kind == ActionKind::kStartExchange) {
    if (held.graph) return;
    synchronize_();
    return capture_exchange(actions, run, held, runner_.exchange_stream(first));
  }
  runner_.run_hooks(before(verb_of(first.kind)), first, Phase::kCaptureAhead);
  if (held.graph) {
    restore(first.column, held);
  } else {
    synchronize_();
    capture(actions, run, held);
  }
  runner_.run_hooks(after(verb_of(last.kind)), last, Phase::kCaptureAhead);
}

// Making a graph executable may wait for the device, and so for a hook's collective that a peer has not joined. That
// peer may in turn wait for this rank. Therefore the work of hooks, and of units in the pass ahead, completes first.
void GraphedRunner::capture(const std::vector<Action>& actions, const GraphRun& run, Held& held) {
  const auto start = std::chrono::steady_clock::now();
  const int column = actions[run.first].column;
  const auto [segment, segments] = segments_of(actions, run);
  const SegmentRunner::HostState before = runner_.host_state(column, segment, segments);
  Held taken{.microbatch = runner_.microbatch(column), .inputs = inputs(actions[run.first])};
  taken.graph = std::make_unique<Graph>(name_of(actions, run, runner_));
  Graph& graph = *taken.graph;
  std::size_t at = run.first;
  std::string op;
  try {
    graph.begin_capture(ctx_.compute);
    for (; at < run.first + run.count; ++at) {
      if (actions[at].kind == ActionKind::kWaitExchange) {
        runner_.wait_exchange(actions[at]);
        continue;
      }
      runner_.run_verb(actions[at]);
      op = graph.last_op();
      if (after_captured_verb_) after_captured_verb_(actions[at]);
    }
    graph.end_capture();
  } catch (const std::exception& error) {
    if (!graph.last_op().empty()) op = graph.last_op();
    graph.abort_capture();
    runner_.restore(column, before);
    fail_capture("graph " + graph.name(), actions[std::min(at, run.first + run.count - 1)], op, error);
  }
  taken.after = runner_.host_state(column, segment, segments);
  taken.weights_alone = std::all_of(actions.begin() + static_cast<std::ptrdiff_t>(run.first),
                                    actions.begin() + static_cast<std::ptrdiff_t>(run.first + run.count),
                                    [](const Action& a) { return a.kind == ActionKind::kBackwardWeight; });
  keep(std::move(taken), held, seconds_since(start));
}

void GraphedRunner::capture_exchange(const std::vector<Action>& actions, const GraphRun& run, Held& held,
                                     Stream& stream) {
  const auto start = std::chrono::steady_clock::now();
  const Action& action = actions[run.first];
  Held taken{.microbatch = runner_.microbatch(action.column), .inputs = inputs(action)};
  taken.graph = std::make_unique<Graph>(name_of(actions, run, runner_));
  Graph& graph = *taken.graph;
  try {
    graph.begin_capture(stream);
    runner_.enqueue_exchange(action);
    graph.end_capture();
  } catch (const std::exception& error) {
    const std::string op(graph.last_op());
    graph.abort_capture();
    fail_capture("graph " + graph.name(), action, op, error);
  }
  keep(std::move(taken), held, seconds_since(start));
}

void GraphedRunner::keep(Held taken, Held& held, double seconds) {
  held = std::move(taken);
  const Graph& graph = *held.graph;
  ++stats_.graphs;
  stats_.ops += graph.num_ops();
  fold(stats_.digest_of_ops, graph.digest_of_ops());
  stats_.nodes += static_cast<std::int64_t>(graph.num_nodes());
  stats_.device_bytes += graph.device_bytes();
  stats_.capture_seconds += seconds;
}

void GraphedRunner::drop() {
  for (Held& held : held_) held = {};
  stats_ = {.replays = stats_.replays};
}

void GraphedRunner::fail_capture(const std::string& what, const Action& at, std::string_view op,
                                 const std::exception& error) {
  drop();
  const std::string where =
      at.segment < 0 ? to_string(at)
                     : fmt::format("segment {}, {}", runner_.entry(at.segment).name, name_of(verb_of(at.kind)));
  fail({.code = code_of(error),
        .subject = fmt::format("capture of {}, in {}{}: {}", what, where,
                               op.empty() ? "" : fmt::format(" after op {}", op), error.what()),
        .remedy = "all graphs were dropped; use --cuda-graph-impl none to run without graphs",
        .show_place = false});
}

}  // namespace megalith
