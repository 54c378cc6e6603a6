#include "parallel/pipeline_parallel/lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "core/base/error.h"

namespace megalith {

namespace {

using InFlight = std::pair<int, int>;  // chunk, microbatch

// The last action of each.
std::map<InFlight, std::size_t> last_actions(const std::vector<Action>& actions) {
  std::map<InFlight, std::size_t> last;
  for (std::size_t i = 0; i < actions.size(); ++i) last[{actions[i].chunk, actions[i].microbatch}] = i;
  for (bool changed = true; changed;) {
    changed = false;
    for (const Action& a : actions) {
      if (a.kind != ActionKind::kWaitReceive || a.peer != kThisStage) continue;
      std::size_t& taker = last.at({a.chunk, a.microbatch});
      std::size_t& giver = last.at({a.gradient ? a.chunk + 1 : a.chunk - 1, a.microbatch});
      changed = changed || taker != giver;
      taker = giver = std::max(taker, giver);
    }
  }
  return last;
}

}  // namespace

std::vector<Action> assign_columns(std::vector<Action> actions) {
  const std::map<InFlight, std::size_t> last = last_actions(actions);
  std::map<std::size_t, std::vector<int>> ending;  // columns, by the action after which they are free
  std::map<InFlight, int> column_of;
  std::set<int> free;
  int made = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    Action& action = actions[i];
    const InFlight key{action.chunk, action.microbatch};
    const auto [column, is_first] = column_of.try_emplace(key, -1);
    if (is_first) {
      if (action.kind == ActionKind::kBackwardData || action.kind == ActionKind::kBackwardWeight)
        fail({.subject = fmt::format("action list: {} comes before its forward", to_string(action))});
      if (free.empty()) free.insert(made++);
      column->second = *free.begin();
      free.erase(free.begin());
      ending[last.at(key)].push_back(column->second);
    }
    action.column = column->second;
    if (const auto ends = ending.find(i); ends != ending.end()) free.insert(ends->second.begin(), ends->second.end());
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
  // The last backward_weight of each segment, by position.
  std::map<int, std::size_t> last;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].kind == ActionKind::kBackwardWeight) last[actions[i].segment] = i;
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
  std::multimap<std::size_t, int> bucket_at;  // by the position of its first use
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
    // Of one stream: the last of them comes after all.
    if (!gathers.overlap) gathered.push_back({.kind = ActionKind::kWaitParameters, .item = bucket_at.rbegin()->second});
  }
  return gathered;
}

std::vector<Action> lower_training_step(const std::vector<Action>& stage, const ChunkSegments& segments,
                                        const ReducePoints& points, const GatherPoints& gathers) {
  std::vector<Action> step{{.kind = ActionKind::kBeginStep}, {.kind = ActionKind::kZeroGradients}};
  const std::vector<Action> body =
      insert_reductions(insert_loads(expand_segments(assign_columns(stage), segments)), points);
  step.insert(step.end(), body.begin(), body.end());
  step.push_back({.kind = ActionKind::kFinishReduce});
  if (points.sums_shared) step.push_back({.kind = ActionKind::kSumSharedGradients});
  if (points.copies_tied) step.push_back({.kind = ActionKind::kCopyTiedGradients});
  step.push_back({.kind = ActionKind::kReduceSums});
  step.push_back({.kind = ActionKind::kReduceNorm});
  step.push_back({.kind = ActionKind::kOptimizerStep});
  step = insert_gathers(step, gathers);
  verify(step, segments, points, gathers);
  return step;
}

std::vector<Action> lower_evaluation_step(const std::vector<Action>& stage, const ChunkSegments& segments,
                                          const GatherPoints& gathers) {
  std::vector<Action> forwards;
  std::copy_if(stage.begin(), stage.end(), std::back_inserter(forwards),
               [](const Action& a) { return a.kind == ActionKind::kForward || is_message(a.kind); });
  // Nothing is kept between microbatches: one column, unless messages of others are under way.
  std::vector<Action> step{{.kind = ActionKind::kBeginStep}};
  const std::vector<Action> body = insert_loads(expand_segments(assign_columns(std::move(forwards)), segments));
  step.insert(step.end(), body.begin(), body.end());
  step.push_back({.kind = ActionKind::kReduceSums});
  return insert_gathers(step, gathers);
}

}  // namespace megalith
