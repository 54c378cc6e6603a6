#include "graphs/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/base/error.h"

namespace megalith {

namespace {

bool is_verb(const Action& action) { return action.segment >= 0; }

// Two consecutive verbs of a microbatch: kind and segment of both.
using Joint = std::array<int, 4>;

Joint joint(const Action& from, const Action& to) {
  return {static_cast<int>(from.kind), from.segment, static_cast<int>(to.kind), to.segment};
}

// Joints with another action in between, in any microbatch. A kWaitExchange does not end a run, since a graph can hold
// it.
std::set<Joint> borders(const std::vector<Action>& actions) {
  std::set<Joint> borders;
  struct Last {
    const Action* verb = nullptr;
    std::size_t next = 0;  // index after the verb and its kWaitExchange
  };
  std::map<std::pair<int, int>, Last> last_of;  // key: chunk, microbatch
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (!is_verb(action) && action.kind != ActionKind::kWaitExchange) continue;
    Last& last = last_of[{action.chunk, action.microbatch}];
    const bool follows = last.next == i;
    if (is_verb(action)) {
      if (last.verb != nullptr && !follows) borders.insert(joint(*last.verb, action));
      last = {.verb = &action, .next = i + 1};
    } else if (follows) {
      last.next = i + 1;
    }
  }
  return borders;
}

class Grouping {
 public:
  Grouping(const std::vector<Action>& actions, const SegmentRunner& segments, const GraphModules& modules)
      : actions_(actions), segments_(segments), modules_(modules), borders_(borders(actions)) {
    for (const Action& action : actions)
      if (action.kind == ActionKind::kStartExchange) started_.emplace(action.gradient, action.item);
  }

  GraphRunPlan group() {
    GraphRunPlan plan;
    Graphs graphs;
    for (std::size_t i = 0; i < actions_.size();) {
      GraphRun run{.first = i, .count = 1};
      if (actions_[i].kind == ActionKind::kStartExchange && captures(verb_of_exchange(actions_[i]))) {
        add(run, {verb_in(actions_[i++])}, graphs, plan);
        continue;
      }
      if (!captures(actions_[i])) {
        check_wait(actions_[i++]);
        continue;
      }
      std::vector<Verb> verbs{verb_in(actions_[i])};
      for (const Action* last = &actions_[i++]; i < actions_.size() && joins(verbs, *last, actions_[i]);
           ++i, ++run.count) {
        verbs.push_back(verb_in(actions_[i]));
        if (is_verb(actions_[i])) last = &actions_[i];
      }
      add(run, std::move(verbs), graphs, plan);
    }
    plan.graphs = static_cast<int>(graphs.size());
    return plan;
  }

 private:
  using Verb = std::tuple<ActionKind, int, bool>;                   // kind, segment, is an exchange of a gradient
  using Graphs = std::map<std::pair<int, std::vector<Verb>>, int>;  // key: column, verbs
  static Verb verb_in(const Action& a) { return {a.kind, is_verb(a) ? a.segment : a.item, a.gradient}; }
  static Action verb_of_exchange(Action action) {
    action.kind = action.gradient ? ActionKind::kBackwardData : ActionKind::kForward;
    action.segment = action.item;
    return action;
  }

  void add(GraphRun run, std::vector<Verb> verbs, Graphs& graphs, GraphRunPlan& plan) const {
    const auto next = static_cast<int>(graphs.size());
    run.graph = graphs.try_emplace({actions_[run.first].column, std::move(verbs)}, next).first->second;
    plan.runs.push_back(run);
  }

  bool joins(const std::vector<Verb>& verbs, const Action& last, const Action& next) const {
    if (next.kind != ActionKind::kWaitExchange) return continues(last, next);
    return last.chunk == next.chunk && last.microbatch == next.microbatch &&
           std::ranges::find(verbs, Verb(ActionKind::kBackwardData, next.item, false)) != verbs.end();
  }

  // For actions outside of all runs. Exchanges that an action starts are outside, too.
  void check_wait(const Action& action) const {
    if (action.kind != ActionKind::kWaitExchange || started_.contains({action.gradient, action.item})) return;
    require(!captures(verb_of_exchange(action)),
            "a graph leaves gradients in flight that are waited for outside of the graph");
  }

  bool captures(const Action& action) const {
    if (!is_verb(action)) return false;
    switch (segments_.entry(action.segment).module) {
      case SegmentModule::kOther:
      case SegmentModule::kEmbedding:
      case SegmentModule::kHead: return false;
      case SegmentModule::kAttention: return modules_.attention || modules_.layer;
      case SegmentModule::kMlp: return modules_.mlp || modules_.layer;
      case SegmentModule::kMoeRouter: return modules_.moe_router || modules_.moe || modules_.layer;
      case SegmentModule::kMoeDispatch: return modules_.moe_dispatch || modules_.moe || modules_.layer;
      case SegmentModule::kMoe: return modules_.moe || modules_.layer;
      case SegmentModule::kOwn: return modules_.own || modules_.layer;
      case SegmentModule::kLayer: return modules_.layer;
    }
    return false;
  }

  // True for segments of one layer of experts if the layer is captured as one graph.
  bool are_of_experts(const Action& from, const Action& to) const {
    const auto is_of_experts = [](const SegmentRunner::Entry& entry) {
      return entry.module == SegmentModule::kMoeRouter || entry.module == SegmentModule::kMoeDispatch ||
             entry.module == SegmentModule::kMoe;
    };
    const SegmentRunner::Entry &a = segments_.entry(from.segment), &b = segments_.entry(to.segment);
    return modules_.moe && is_of_experts(a) && is_of_experts(b) && a.unit == b.unit;
  }

  // Module after attention in a layer whose graphs end at each segment.
  std::string_view module_after_attention(int unit) const {
    std::string_view module = "mlp";
    for (int s = 0; s < segments_.num_segments(); ++s) {
      const SegmentRunner::Entry& entry = segments_.entry(s);
      if (entry.unit == unit && entry.module == SegmentModule::kMoeRouter) return "moe_router";
      if (entry.unit == unit && entry.module == SegmentModule::kMoe) module = "moe";
    }
    return module;
  }

  bool continues(const Action& from, const Action& to) const {
    if (!captures(to) || to.chunk != from.chunk || to.microbatch != from.microbatch) return false;
    if ((to.kind == ActionKind::kForward) != (from.kind == ActionKind::kForward)) return false;
    if (!modules_.layer && to.segment != from.segment && !are_of_experts(from, to)) return false;
    if (borders_.contains(joint(from, to))) return false;
    for (const auto& [action, point] :
         {std::pair(&from, after(verb_of(from.kind))), std::pair(&to, before(verb_of(to.kind)))}) {
      const SegmentRunner::Entry& entry = segments_.entry(action->segment);
      if (entry.hooks.size(point) == 0) continue;
      const std::string subject = fmt::format("hook {} of segment {}", name_of(point), entry.name);
      if (modules_.joins_backward && from.kind == ActionKind::kBackwardData && from.segment == to.segment) {
        refuse(subject, "no hook between backward_data and backward_weight, since rows are in flight between them",
               "use --delay-wgrad-compute, or leave out --tp-comm-overlap");
      }
      if (modules_.layer && entry.unit == segments_.entry((action == &from ? to : from).segment).unit) {
        refuse(subject, "hooks only at the ends of a graph of --cuda-graph-modules layer",
               fmt::format("use --cuda-graph-modules attn {}, whose graphs end at each segment, or move the hook to "
                           "the layer's first or last verb",
                           module_after_attention(entry.unit)));
      }
      if (are_of_experts(from, to) && module_after_attention(entry.unit) == "moe_router") {
        refuse(subject, "hooks only at the ends of a graph of --cuda-graph-modules moe",
               "use moe_router instead of moe, since its graphs end at each segment, or move the hook to the first or "
               "last verb of the layer of experts");
      }
      return false;
    }
    return true;
  }

  [[noreturn]] static void refuse(const std::string& subject, const char* expected, const std::string& remedy) {
    fail({.subject = subject, .expected = expected, .got = "a hook inside", .remedy = remedy, .show_place = false});
  }

  const std::vector<Action>& actions_;
  const SegmentRunner& segments_;
  const GraphModules& modules_;
  const std::set<Joint> borders_;
  std::set<std::pair<bool, int>> started_;  // by kStartExchange; key: is gradient, segment
};

}  // namespace

GraphRunPlan group_runs(const std::vector<Action>& actions, const SegmentRunner& segments,
                        const GraphModules& modules) {
  return Grouping(actions, segments, modules).group();
}

const Action& last_verb(const std::vector<Action>& actions, const GraphRun& run) {
  std::size_t last = run.first + run.count - 1;
  while (last > run.first && !is_verb(actions[last])) --last;
  return actions[last];
}

std::vector<int> graph_of_each(const std::vector<Action>& actions, const GraphRunPlan& plan) {
  std::vector<int> graphs(actions.size(), -1);
  for (const GraphRun& run : plan.runs)
    std::fill_n(graphs.begin() + static_cast<std::ptrdiff_t>(run.first), run.count, run.graph);
  return graphs;
}

std::string name_of(const std::vector<Action>& actions, const GraphRun& run, const SegmentRunner& segments) {
  const auto verb = [&](const Action& action) {
    return fmt::format("{} {}", segments.entry(action.segment).name, name_of(verb_of(action.kind)));
  };
  const Action &first = actions[run.first], &last = last_verb(actions, run);
  if (!is_verb(first)) {
    return fmt::format("{} exchange of {}, column {}", segments.entry(first.item).name,
                       first.gradient ? "gradients" : "outputs", first.column);
  }
  const std::string to = run.count > 1 ? " to " + verb(last) : "";
  return fmt::format("{}{}, column {}", verb(first), to, first.column);
}

}  // namespace megalith
