#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/lowering.h"
#include "parallel/pipeline_parallel/simulator.h"

namespace megalith {

namespace {

// Walks a list once and remembers what was done.
class Verifier {
 public:
  Verifier(const std::vector<Action>& actions, const ChunkSegments& segments, const ReducePoints& points,
           const GatherPoints& gathers)
      : segments_(segments), points_(points), gathers_(gathers) {
    for (const Action& a : actions) {
      if (is_of_microbatch(a.kind)) ++left_[{a.chunk, a.microbatch}];
    }
  }

  void take(const Action& a) {
    if (is_of_microbatch(a.kind)) {
      take_column(a);
      return is_message(a.kind) ? take_message(a) : take_microbatch(a);
    }
    if (a.kind == ActionKind::kReduce) return take_reduce(a);
    if (is_of_bucket(a.kind)) return take_gather(a);
    if (!once_.insert(a.kind).second) broken(a, "stands twice");
    const bool begins = a.kind == ActionKind::kBeginStep || a.kind == ActionKind::kZeroGradients;
    if (begins && !done_.empty()) broken(a, "comes after a verb");
    if (a.kind == ActionKind::kTieGradients && reduced_tied()) broken(a, "comes after its gradient was reduced");
    if (a.kind == ActionKind::kFinishReduce && reduced_.size() < points_.segments_of_bucket.size()) {
      broken(a, "comes before a reduction");
    }
    const bool reads_reduced = a.kind == ActionKind::kReduceNorm || a.kind == ActionKind::kSumSharedGradients ||
                               a.kind == ActionKind::kCopyTiedGradients;
    if (reads_reduced && !once_.contains(ActionKind::kFinishReduce))
      broken(a, "comes before the gradients were reduced");
    const bool changes = reads_reduced && a.kind != ActionKind::kReduceNorm;
    if (changes && once_.contains(ActionKind::kReduceNorm)) broken(a, "comes after the norm of the gradients");
    if (a.kind == ActionKind::kOptimizerStep &&
        !(once_.contains(ActionKind::kReduceNorm) && once_.contains(ActionKind::kReduceSums))) {
      broken(a, "comes before the reductions have finished");
    }
  }

  void finish() const {
    for (const auto& [kind, chunk, microbatch, segment] : done_) {
      if (kind != ActionKind::kLoad) continue;
      for (int s = first(chunk); s < first(chunk + 1); ++s) {
        const Action weight{
            .kind = ActionKind::kBackwardWeight, .chunk = chunk, .microbatch = microbatch, .segment = s};
        if (!has(weight, weight.kind, s)) broken(weight, "is missing");
      }
    }
    const std::pair<ActionKind, bool> needed[] = {{ActionKind::kBeginStep, true},
                                                  {ActionKind::kZeroGradients, true},
                                                  {ActionKind::kTieGradients, points_.tied_segment >= 0},
                                                  {ActionKind::kFinishReduce, true},
                                                  {ActionKind::kSumSharedGradients, points_.sums_shared},
                                                  {ActionKind::kCopyTiedGradients, points_.copies_tied},
                                                  {ActionKind::kReduceSums, true},
                                                  {ActionKind::kReduceNorm, true},
                                                  {ActionKind::kOptimizerStep, true}};
    for (const auto& [kind, is_needed] : needed) {
      if (is_needed && !once_.contains(kind)) broken({.kind = kind}, "is missing");
    }
    for (int bucket = 0; bucket < static_cast<int>(gathers_.segments_of_bucket.size()); ++bucket) {
      const Action gather{.kind = ActionKind::kGatherParameters, .item = bucket};
      if (std::find(gathered_.begin(), gathered_.end(), bucket) == gathered_.end()) broken(gather, "is missing");
    }
    if (gathers_.tied_bucket >= 0 && !copied_.contains(gathers_.tied_bucket))
      broken({.kind = ActionKind::kCopyTiedWeights, .item = gathers_.tied_bucket}, "is missing");
    if (!gathers_.overlap && !gathered_.empty() && !waited_.contains(gathered_.back()))
      broken({.kind = ActionKind::kWaitParameters, .item = gathered_.back()}, "is missing");
    for (const auto& [kind, chunk, microbatch, gradient] : messages_) {
      if (kind != ActionKind::kPostReceive && kind != ActionKind::kSend) continue;
      const Action wait{.kind = kind == ActionKind::kSend ? ActionKind::kWaitSend : ActionKind::kWaitReceive,
                        .chunk = chunk,
                        .microbatch = microbatch,
                        .gradient = gradient};
      if (!has_message(wait, wait.kind) && !handed_over_.contains({chunk, microbatch, gradient}))
        broken(wait, "is missing");
    }
  }

 private:
  [[noreturn]] static void broken(const Action& action, std::string_view why) {
    fail({.subject = fmt::format("action list: {} {}", to_string(action), why),
          .remedy = "mend the lowering pass that made the list"});
  }

  int first(int chunk) const { return first_segment(segments_, chunk); }

  bool has(const Action& a, ActionKind kind, int segment) const {
    return done_.contains({kind, a.chunk, a.microbatch, segment});
  }

  bool has_message(const Action& a, ActionKind kind) const {
    return messages_.contains({kind, a.chunk, a.microbatch, a.gradient});
  }

  bool reduced_tied() const {
    for (const int bucket : reduced_) {
      for (const int segment : points_.segments_of_bucket[static_cast<std::size_t>(bucket)]) {
        if (segment == points_.tied_segment) return true;
      }
    }
    return false;
  }

  void take_microbatch(const Action& a) {
    if (has(a, a.kind, a.segment)) broken(a, "stands twice");
    if (once_.contains(ActionKind::kOptimizerStep)) broken(a, "comes after the optimizer's step");
    const bool is_first = a.segment == first(a.chunk), is_last = a.segment == first(a.chunk + 1) - 1;
    if (a.kind != ActionKind::kLoad && (a.segment < first(a.chunk) || a.segment >= first(a.chunk + 1)))
      broken(a, "names a segment of another chunk");
    switch (a.kind) {
      case ActionKind::kLoad: break;
      case ActionKind::kForward:
        if (!has(a, is_first ? ActionKind::kLoad : ActionKind::kForward, is_first ? -1 : a.segment - 1))
          broken(a, "comes before its input");
        if (once_.contains(ActionKind::kReduceSums)) broken(a, "comes after its loss was reduced");
        if (gathers_.overlap) check_weights(a);
        break;
      case ActionKind::kBackwardData:
        if (!has(a, is_last ? ActionKind::kForward : ActionKind::kBackwardData, is_last ? a.segment : a.segment + 1))
          broken(a, "comes before its gradient");
        break;
      default: take_weight(a);
    }
    done_.insert({a.kind, a.chunk, a.microbatch, a.segment});
  }

  // A tensor comes before the verb that reads it, and leaves after the one that makes it. A chunk without segments
  // hands on what it gets.
  void take_message(const Action& a) {
    if (has_message(a, a.kind)) broken(a, "stands twice");
    if (once_.contains(ActionKind::kFinishReduce)) broken(a, "comes after the reductions have finished");
    const int begin = first(a.chunk), last = first(a.chunk + 1) - 1;
    const ActionKind verb = a.gradient ? ActionKind::kBackwardData : ActionKind::kForward;
    switch (a.kind) {
      case ActionKind::kPostReceive: break;
      case ActionKind::kWaitReceive:
        if (a.peer != kThisStage && !has_message(a, ActionKind::kPostReceive)) broken(a, "comes before its receive");
        if (!has(a, ActionKind::kLoad, -1)) broken(a, "comes before its load");
        if (begin <= last && has(a, verb, a.gradient ? last : begin)) broken(a, "comes after the verb that reads it");
        break;
      case ActionKind::kSend:
        if (begin <= last ? !has(a, verb, a.gradient ? begin : last) : !has_message(a, ActionKind::kWaitReceive))
          broken(a, "comes before what it sends");
        if (a.peer == kThisStage) handed_over_.insert({a.chunk, a.microbatch, a.gradient});
        break;
      default:
        if (!has_message(a, ActionKind::kSend)) broken(a, "comes before its send");
    }
    messages_.insert({a.kind, a.chunk, a.microbatch, a.gradient});
  }

  void take_weight(const Action& a) {
    if (!has(a, ActionKind::kBackwardData, a.segment)) broken(a, "comes before its backward_data");
    if (!once_.contains(ActionKind::kZeroGradients)) broken(a, "comes before the gradients are zero");
    if (reduced_segments_.contains(a.segment)) broken(a, "comes after its gradient was reduced");
    if (once_.contains(ActionKind::kTieGradients)) broken(a, "comes after tied gradients were added");
    const auto [latest, first] = latest_weight_.try_emplace({a.chunk, a.segment}, a.microbatch);
    if (!first && latest->second > a.microbatch) broken(a, "comes after that of a later microbatch");
    latest->second = a.microbatch;
  }

  // A column is one microbatch's from its first action to its last.
  void take_column(const Action& a) {
    const std::pair owner{a.chunk, a.microbatch};
    const auto [column, is_first] = column_of_.try_emplace(owner, a.column);
    if (column->second != a.column) broken(a, "is in another microbatch's column");
    if (is_first && !owner_.try_emplace(a.column, owner).second) broken(a, "takes a column that is in use");
    if (--left_[owner] == 0) owner_.erase(a.column);
  }

  void take_reduce(const Action& a) {
    const auto bucket = static_cast<std::size_t>(a.item);
    if (bucket >= points_.segments_of_bucket.size()) broken(a, "names no bucket");
    if (!reduced_.insert(a.item).second) broken(a, "stands twice");
    const std::vector<int>& segments = points_.segments_of_bucket[bucket];
    reduced_segments_.insert(segments.begin(), segments.end());
    if (points_.tied_segment >= 0 && !once_.contains(ActionKind::kTieGradients) && reduced_tied()) {
      broken(a, "comes before tied gradients were added");
    }
  }

  void check_weights(const Action& forward) const {
    for (std::size_t bucket = 0; bucket < gathers_.segments_of_bucket.size(); ++bucket) {
      const std::vector<int>& readers = gathers_.segments_of_bucket[bucket];
      if (std::find(readers.begin(), readers.end(), forward.segment) == readers.end()) continue;
      if (!waited_.contains(static_cast<int>(bucket))) broken(forward, "comes before its weights were gathered");
    }
  }

  void take_gather(const Action& a) {
    if (static_cast<std::size_t>(a.item) >= gathers_.segments_of_bucket.size()) broken(a, "names no bucket");
    const bool gathered = std::find(gathered_.begin(), gathered_.end(), a.item) != gathered_.end();
    if (a.kind == ActionKind::kWaitParameters) {
      if (!gathers_.overlap && !gathered) broken(a, "comes before its gather");
      if (!waited_.insert(a.item).second) broken(a, "stands twice");
      return;
    }
    if (a.kind == ActionKind::kCopyTiedWeights) {
      if (!gathered) broken(a, "comes before its gather");
      if (!copied_.insert(a.item).second) broken(a, "stands twice");
      return;
    }
    if (!once_.contains(ActionKind::kOptimizerStep)) broken(a, "comes before the optimizer's step");
    if (gathered) broken(a, "stands twice");
    gathered_.push_back(a.item);
  }

  const ChunkSegments& segments_;
  const ReducePoints& points_;
  const GatherPoints& gathers_;
  std::vector<int> gathered_;  // buckets, in order
  std::set<int> copied_, waited_;
  std::set<std::tuple<ActionKind, int, int, int>> done_;  // kind, chunk, microbatch, segment
  std::set<ActionKind> once_;
  std::set<int> reduced_;
  std::set<int> reduced_segments_;
  std::map<std::pair<int, int>, int> latest_weight_;           // (chunk, segment): microbatch
  std::set<std::tuple<ActionKind, int, int, bool>> messages_;  // kind, chunk, microbatch, gradient
  std::set<std::tuple<int, int, bool>> handed_over_;           // chunk, microbatch, gradient
  std::map<std::pair<int, int>, int> left_;                    // actions of (chunk, microbatch)
  std::map<int, std::pair<int, int>> owner_;                   // column: (chunk, microbatch)
  std::map<std::pair<int, int>, int> column_of_;
};

}  // namespace

void verify(const std::vector<Action>& actions, const ChunkSegments& segments, const ReducePoints& points,
            const GatherPoints& gathers) {
  Verifier verifier(actions, segments, points, gathers);
  for (const Action& action : actions) verifier.take(action);
  verifier.finish();
}

void verify(const Schedule& schedule) {
  const Placement& placement = schedule.placement;
  const ChunkSegments segments(static_cast<std::size_t>(placement.num_chunks), 1);
  const auto num_actions = 3 * segments.size() * static_cast<std::size_t>(schedule.num_microbatches);
  require(schedule.stages.size() == static_cast<std::size_t>(placement.num_stages), "a schedule has all its stages");
  for (const std::vector<Action>& actions : schedule.stages) {
    if (actions.size() != num_actions) {
      fail({.subject = fmt::format("schedule {}: {} actions of a stage", name_of(schedule.kind), actions.size()),
            .expected = fmt::format("{}", num_actions)});
    }
    lower_training_step(actions, segments, {});  // each verb once, where the others of its stage allow it
  }
  const Simulation played = simulate(schedule, {.blocking_sends = true});
  if (!played.deadlock.empty())
    fail({.subject = fmt::format("schedule {}: {}", name_of(schedule.kind), played.deadlock)});
}

}  // namespace megalith
