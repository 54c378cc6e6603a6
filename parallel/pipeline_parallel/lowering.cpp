#include "parallel/pipeline_parallel/lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "core/base/error.h"

namespace megalith {

std::vector<Action> assign_columns(std::vector<Action> actions) {
  std::map<std::pair<int, int>, int> column_of;  // (chunk, microbatch)
  std::set<int> free;
  int made = 0;
  for (Action& action : actions) {
    const std::pair key{action.chunk, action.microbatch};
    if (action.kind == ActionKind::kForward) {
      if (free.empty()) free.insert(made++);
      column_of[key] = *free.begin();
      free.erase(free.begin());
    }
    const auto column = column_of.find(key);
    if (column == column_of.end())
      fail({.subject = fmt::format("action list: {} comes before its forward", to_string(action))});
    action.column = column->second;
    if (action.kind == ActionKind::kBackwardWeight) free.insert(action.column);
  }
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

std::vector<Action> expand_segments(const std::vector<Action>& actions, const ChunkSegments& segments) {
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
    if (action.kind == ActionKind::kForward) {
      for (int s = begin; s < end; ++s) add(action, ActionKind::kForward, s);
      continue;
    }
    const bool both = action.kind == ActionKind::kBackwardData && action.with_next && i + 1 < actions.size() &&
                      actions[i + 1].kind == ActionKind::kBackwardWeight && actions[i + 1].chunk == action.chunk &&
                      actions[i + 1].microbatch == action.microbatch;
    for (int s = end - 1; s >= begin; --s) {
      add(action, action.kind, s);
      if (both) add(action, ActionKind::kBackwardWeight, s);
    }
    if (both) ++i;
  }
  return expanded;
}

std::vector<Action> insert_loads(const std::vector<Action>& actions) {
  std::vector<Action> loaded;
  std::set<std::pair<int, int>> begun;  // (chunk, microbatch)
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kForward && begun.emplace(action.chunk, action.microbatch).second) {
      loaded.push_back(action);
      loaded.back().kind = ActionKind::kLoad;
      loaded.back().segment = -1;
    }
    loaded.push_back(action);
  }
  return loaded;
}

std::vector<Action> insert_reductions(const std::vector<Action>& actions, const ReducePoints& points) {
  // The last backward_weight of each segment, by position.
  std::map<int, std::size_t> last;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].kind == ActionKind::kBackwardWeight) last[actions[i].segment] = i;
  }
  std::multimap<std::size_t, int> bucket_after;
  for (std::size_t bucket = 0; bucket < points.segments_of_bucket.size(); ++bucket) {
    std::size_t at = 0;
    for (int segment : points.segments_of_bucket[bucket]) at = std::max(at, last.at(segment));
    bucket_after.emplace(at, static_cast<int>(bucket));
  }
  std::vector<Action> reduced;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    reduced.push_back(actions[i]);
    if (points.tied_segment >= 0 && last.at(points.tied_segment) == i)
      reduced.push_back({.kind = ActionKind::kTieGradients});
    const auto [begin, end] = bucket_after.equal_range(i);
    for (auto b = begin; b != end; ++b) reduced.push_back({.kind = ActionKind::kReduce, .bucket = b->second});
  }
  return reduced;
}

std::vector<Action> lower_training_step(const std::vector<Action>& stage, const ChunkSegments& segments,
                                        const ReducePoints& points) {
  std::vector<Action> step{{.kind = ActionKind::kZeroGradients}};
  const std::vector<Action> body =
      insert_reductions(insert_loads(expand_segments(assign_columns(stage), segments)), points);
  step.insert(step.end(), body.begin(), body.end());
  step.push_back({.kind = ActionKind::kFinishReduce});
  step.push_back({.kind = ActionKind::kReduceLoss});
  step.push_back({.kind = ActionKind::kOptimizerStep});
  verify(step, segments, points);
  return step;
}

std::vector<Action> lower_evaluation_step(const std::vector<Action>& stage, const ChunkSegments& segments) {
  std::vector<Action> forwards;
  std::copy_if(stage.begin(), stage.end(), std::back_inserter(forwards),
               [](const Action& a) { return a.kind == ActionKind::kForward; });
  // Nothing is kept between microbatches: one column.
  std::vector<Action> step = insert_loads(expand_segments(forwards, segments));
  step.push_back({.kind = ActionKind::kReduceLoss});
  return step;
}

}  // namespace megalith
