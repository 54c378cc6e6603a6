#include "parallel/pipeline_parallel/lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/action_order.h"

namespace megalith {

namespace {

using InFlight = std::pair<int, int>;  // chunk, microbatch

struct Life {
  std::size_t begin = std::numeric_limits<std::size_t>::max(), end = 0;  // positions of the first and last action
  void add(std::size_t i) {
    begin = std::min(begin, i);
    end = std::max(end, i);
  }
};

// Interval coloring: assigns the lowest color that no overlapping life has.
std::map<InFlight, int> colors_of(const std::map<InFlight, Life>& lives) {
  std::map<std::size_t, InFlight> begins;
  for (const auto& [key, life] : lives) begins.emplace(life.begin, key);
  std::vector<std::size_t> ends;  // per color
  std::map<InFlight, int> colors;
  for (const auto& [begin, key] : begins) {
    auto color = std::find_if(ends.begin(), ends.end(), [begin = begin](std::size_t end) { return end < begin; });
    if (color == ends.end()) color = ends.insert(ends.end(), 0);
    *color = lives.at(key).end;
    colors[key] = static_cast<int>(color - ends.begin());
  }
  return colors;
}

}  // namespace

std::vector<Action> assign_columns(std::vector<Action> actions) {
  std::set<int> takers;  // chunks that receive from the previous chunk on this stage
  for (const Action& a : actions) {
    if (a.kind == ActionKind::kWaitReceive && a.peer == kThisStage) takers.insert(a.gradient ? a.chunk + 1 : a.chunk);
  }
  const auto key_of = [&](const Action& a) {
    InFlight key{a.chunk, a.microbatch};
    while (takers.contains(key.first)) --key.first;
    return key;
  };
  std::map<InFlight, Life> all, verbs;
  std::set<InFlight> begun;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& a = actions[i];
    const bool is_backward = a.kind == ActionKind::kBackwardData || a.kind == ActionKind::kBackwardWeight;
    if (begun.emplace(a.chunk, a.microbatch).second && is_backward)
      fail({.subject = fmt::format("action list: {} comes before its forward", to_string(a))});
    all[key_of(a)].add(i);
    if (!is_message(a.kind)) verbs[key_of(a)].add(i);
  }
  // Messages extend a column's life beyond its stashes. Columns of one place never have live stashes at once, so they
  // share memory. Only their messages are separate.
  std::map<InFlight, int> places = colors_of(verbs);
  std::map<std::pair<int, int>, std::map<InFlight, Life>> sharers;  // key: chunk, place
  for (const auto& [key, life] : all) sharers[{key.first, places[key]}].emplace(key, life);
  std::map<InFlight, int> copies;
  for (const auto& [place, lives] : sharers) copies.merge(colors_of(lives));
  std::map<std::tuple<int, int, int>, int> columns;  // key: chunk, place, copy
  const auto column_of = [&](const Action& a) -> int& {
    return columns[{a.chunk, places[key_of(a)], copies[key_of(a)]}];
  };
  for (const Action& a : actions) column_of(a) = 0;
  int next = 0;
  for (auto& [key, column] : columns) column = next++;
  for (Action& a : actions) a.column = column_of(a);
  return actions;
}

int num_columns(const std::vector<Action>& actions) {
  int columns = 0;
  for (const Action& action : actions) columns = std::max(columns, action.column + 1);
  return columns;
}

int first_segment(const ChunkSegments& segments, int chunk) {
  return std::accumulate(segments.begin(), segments.begin() + chunk, 0);
}

std::vector<Action> expand_segments(const std::vector<Action>& actions, const ChunkSegments& segments,
                                    const ReturnPoints& returns) {
  std::vector<Action> expanded;
  const auto add = [&](Action action, ActionKind kind, int segment) {
    action.kind = kind;
    action.segment = segment;
    action.with_next = false;
    expanded.push_back(action);
  };
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const int begin = first_segment(segments, action.chunk), end = first_segment(segments, action.chunk + 1);
    if (is_message(action.kind)) {
      add(action, action.kind, -1);
      continue;
    }
    if (action.kind == ActionKind::kForward) {
      for (int s = begin; s < end; ++s) add(action, ActionKind::kForward, s);
      continue;
    }
    const bool both = action.kind == ActionKind::kBackwardData && action.with_next && i + 1 < actions.size() &&
                      actions[i + 1].kind == ActionKind::kBackwardWeight && actions[i + 1].chunk == action.chunk &&
                      actions[i + 1].microbatch == action.microbatch;
    const auto returns_after = [&](int s) {
      return returns.after_weights && s >= begin && returns.segments.contains(s);
    };
    const auto add_wait = [&](int s) {
      add(action, ActionKind::kWaitExchange, -1);
      expanded.back().item = s;
      expanded.back().gradient = true;
    };
    for (int s = end - 1; s >= begin; --s) {
      const bool leaves = action.kind == ActionKind::kBackwardData && returns.segments.contains(s);
      add(action, action.kind, s);
      if (leaves && !returns.after_weights) add_wait(s);
      if (both && !returns_after(s - 1)) add(action, ActionKind::kBackwardWeight, s);
      if (!leaves || !returns.after_weights) continue;
      if (both && s + 1 < end) add(action, ActionKind::kBackwardWeight, s + 1);
      add_wait(s);
    }
    if (both) ++i;
  }
  return expanded;
}

std::vector<Action> insert_loads(const std::vector<Action>& actions) {
  std::vector<Action> loaded;
  std::set<std::pair<int, int>> begun;  // key: chunk, microbatch
  for (const Action& action : actions) {
    const bool begins =
        action.kind == ActionKind::kForward || (action.kind == ActionKind::kWaitReceive && !action.gradient);
    if (begins && begun.emplace(action.chunk, action.microbatch).second) {
      loaded.push_back(
          {.kind = ActionKind::kLoad, .chunk = action.chunk, .microbatch = action.microbatch, .column = action.column});
    }
    loaded.push_back(action);
  }
  return loaded;
}

std::vector<Action> insert_reductions(const std::vector<Action>& actions, const ReducePoints& points) {
  // Position of each segment's last backward_weight, or of the kWaitExchange after it, since one graph holds both.
  std::map<int, std::size_t> last;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].kind == ActionKind::kBackwardWeight) last[actions[i].segment] = end_of_verb(actions, i) - 1;
  }
  const bool ties = points.tied_segment >= 0;
  const std::size_t tied_after = !ties                       ? actions.size()
                                 : points.tied_across_stages ? actions.size() - 1
                                                             : last.at(points.tied_segment);
  std::multimap<std::size_t, int> bucket_after;
  for (std::size_t bucket = 0; bucket < points.segments_of_bucket.size(); ++bucket) {
    std::size_t at = 0;
    for (int segment : points.segments_of_bucket[bucket])
      at = std::max(at, segment == points.tied_segment ? tied_after : last.at(segment));
    bucket_after.emplace(at, static_cast<int>(bucket));
  }
  std::vector<Action> reduced;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    reduced.push_back(actions[i]);
    if (i == tied_after) reduced.push_back({.kind = ActionKind::kTieGradients});
    const auto [begin, end] = bucket_after.equal_range(i);
    for (auto b = begin; b != end; ++b) reduced.push_back({.kind = ActionKind::kReduce, .item = b->second});
  }
  return reduced;
}

std::vector<Action> insert_gathers(const std::vector<Action>& actions, const GatherPoints& gathers) {
  std::multimap<std::size_t, int> bucket_at;  // key: position of the first use
  for (std::size_t bucket = 0; bucket < gathers.segments_of_bucket.size(); ++bucket) {
    const std::vector<int>& readers = gathers.segments_of_bucket[bucket];
    const auto first = std::find_if(actions.begin(), actions.end(), [&](const Action& a) {
      return a.kind == ActionKind::kForward && std::find(readers.begin(), readers.end(), a.segment) != readers.end();
    });
    bucket_at.emplace(readers.empty() ? 0 : first - actions.begin(), static_cast<int>(bucket));
  }
  std::vector<Action> gathered;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const auto [begin, end] = bucket_at.equal_range(i);
    for (auto b = begin; gathers.overlap && b != end; ++b)
      gathered.push_back({.kind = ActionKind::kWaitParameters, .item = b->second});
    gathered.push_back(actions[i]);
    if (actions[i].kind != ActionKind::kOptimizerStep || bucket_at.empty()) continue;
    for (const auto& [at, bucket] : bucket_at) {
      gathered.push_back({.kind = ActionKind::kGatherParameters, .item = bucket});
      if (bucket == gathers.tied_bucket) gathered.push_back({.kind = ActionKind::kCopyTiedWeights, .item = bucket});
    }
    // Gathers run on one stream, so the last one completes after all others.
    if (!gathers.overlap) gathered.push_back({.kind = ActionKind::kWaitParameters, .item = bucket_at.rbegin()->second});
  }
  return gathered;
}

std::vector<Action> lower_training_step(const std::vector<Action>& stage, const ChunkSegments& segments,
                                        const ReducePoints& points, const GatherPoints& gathers,
                                        const ReturnPoints& returns) {
  std::vector<Action> step{{.kind = ActionKind::kBeginStep}, {.kind = ActionKind::kZeroGradients}};
  const std::vector<Action> columns = assign_columns(stage);
  const std::vector<Action> expanded = returns.split.empty() ? expand_segments(columns, segments, returns)
                                                             : expand_overlapped(columns, segments, returns);
  const std::vector<Action> body = insert_reductions(insert_loads(expanded), points);
  step.insert(step.end(), body.begin(), body.end());
  step.push_back({.kind = ActionKind::kFinishReduce});
  if (points.sums_shared) step.push_back({.kind = ActionKind::kSumSharedGradients});
  if (points.copies_tied) step.push_back({.kind = ActionKind::kCopyTiedGradients});
  step.push_back({.kind = ActionKind::kReduceSums});
  step.push_back({.kind = ActionKind::kReduceNorm});
  step.push_back({.kind = ActionKind::kOptimizerStep});
  step = insert_gathers(step, gathers);
  verify(step, segments, points, gathers, returns);
  return step;
}

std::vector<Action> lower_evaluation_step(const std::vector<Action>& stage, const ChunkSegments& segments,
                                          const GatherPoints& gathers) {
  std::vector<Action> forwards;
  std::copy_if(stage.begin(), stage.end(), std::back_inserter(forwards),
               [](const Action& a) { return a.kind == ActionKind::kForward || is_message(a.kind); });
  // Evaluation keeps nothing between microbatches: one column, unless messages of others are in flight.
  std::vector<Action> step{{.kind = ActionKind::kBeginStep}};
  const std::vector<Action> body = insert_loads(expand_segments(assign_columns(std::move(forwards)), segments));
  step.insert(step.end(), body.begin(), body.end());
  step.push_back({.kind = ActionKind::kReduceSums});
  return insert_gathers(step, gathers);
}

}  // namespace megalith
