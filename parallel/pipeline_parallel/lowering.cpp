#include "parallel/pipeline_parallel/lowering.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

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
    action.column = column_of.at(key);
    if (action.kind == ActionKind::kBackwardWeight) free.insert(action.column);
  }
  return actions;
}

int num_columns(const std::vector<Action>& actions) {
  int columns = 0;
  for (const Action& action : actions) columns = std::max(columns, action.column + 1);
  return columns;
}

std::vector<Action> expand_segments(const std::vector<Action>& actions, int num_segments) {
  std::vector<Action> expanded;
  const auto add = [&](Action action, ActionKind kind, int segment) {
    action.kind = kind;
    action.segment = segment;
    expanded.push_back(action);
  };
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (action.kind == ActionKind::kForward) {
      for (int s = 0; s < num_segments; ++s) add(action, ActionKind::kForward, s);
      continue;
    }
    const bool with_next = action.kind == ActionKind::kBackwardData && i + 1 < actions.size() &&
                           actions[i + 1].kind == ActionKind::kBackwardWeight && actions[i + 1].chunk == action.chunk &&
                           actions[i + 1].microbatch == action.microbatch;
    for (int s = num_segments - 1; s >= 0; --s) {
      add(action, action.kind, s);
      if (with_next) add(action, ActionKind::kBackwardWeight, s);
    }
    if (with_next) ++i;
  }
  return expanded;
}

std::vector<Action> insert_loads(const std::vector<Action>& actions) {
  std::vector<Action> loaded;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kForward && action.segment == 0) {
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

std::vector<Action> lower_training_step(const std::vector<Action>& stage, int num_segments,
                                        const ReducePoints& points) {
  std::vector<Action> step{{.kind = ActionKind::kZeroGradients}};
  const std::vector<Action> body =
      insert_reductions(insert_loads(expand_segments(assign_columns(stage), num_segments)), points);
  step.insert(step.end(), body.begin(), body.end());
  step.push_back({.kind = ActionKind::kFinishReduce});
  step.push_back({.kind = ActionKind::kReduceLoss});
  step.push_back({.kind = ActionKind::kOptimizerStep});
  verify(step, num_segments, points);
  return step;
}

std::vector<Action> lower_evaluation_step(const std::vector<Action>& stage, int num_segments) {
  std::vector<Action> forwards;
  std::copy_if(stage.begin(), stage.end(), std::back_inserter(forwards),
               [](const Action& a) { return a.kind == ActionKind::kForward; });
  // Nothing is kept between microbatches: one column.
  std::vector<Action> step = insert_loads(expand_segments(forwards, num_segments));
  step.push_back({.kind = ActionKind::kReduceLoss});
  return step;
}

}  // namespace megalith
