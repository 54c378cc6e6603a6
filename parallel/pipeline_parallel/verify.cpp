#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/action_order.h"
#include "parallel/pipeline_parallel/lowering.h"
#include "parallel/pipeline_parallel/simulator.h"

namespace megalith {

namespace {

// Action of the same chunk, microbatch and direction.
Action other(Action action, ActionKind kind, int segment = -1) {
  action.kind = kind;
  action.segment = segment;
  return action;
}

Action of_bucket(ActionKind kind, std::size_t bucket) { return {.kind = kind, .item = static_cast<int>(bucket)}; }

// Checks that a column belongs to one chunk, and to one microbatch from its first action to its last. Tensors passed on
// the stage always come from the same column.
void verify_columns(const ActionOrder& order) {
  using Owner = std::pair<int, int>;  // chunk, microbatch
  std::map<Owner, int> left, column_of;
  std::map<int, Owner> owner;                   // per column
  std::map<int, int> chunk_of;                  // per column
  std::map<std::pair<int, int>, int> giver_of;  // column of the giver; key: receiving column, giving chunk
  for (const Action& a : order.actions()) left[{a.chunk, a.microbatch}] += is_of_microbatch(a.kind) ? 1 : 0;
  for (const Action& a : order.actions()) {
    if (!is_of_microbatch(a.kind)) continue;
    const Owner mine{a.chunk, a.microbatch};
    const auto [column, is_first] = column_of.try_emplace(mine, a.column);
    if (column->second != a.column) fail_order(a, "is in another microbatch's column");
    if (chunk_of.try_emplace(a.column, a.chunk).first->second != a.chunk) fail_order(a, "is in another chunk's column");
    if (is_first && !owner.try_emplace(a.column, mine).second) fail_order(a, "takes a column that is in use");
    if (--left[mine] == 0) owner.erase(a.column);
    if (a.kind != ActionKind::kWaitReceive || a.peer != kThisStage) continue;
    const int giver = a.gradient ? a.chunk + 1 : a.chunk - 1, from = column_of.at({giver, a.microbatch});
    if (giver_of.try_emplace({a.column, giver}, from).first->second != from)
      fail_order(a, "is handed over by another column than before");
  }
}

// Exchange of a verb.
Action exchange_of(const Action& verb, ActionKind kind) {
  Action action = other(verb, kind);
  action.item = verb.segment;
  action.gradient = verb.kind == ActionKind::kBackwardData;
  return action;
}

// Checks that an exchange starts after its verb, if other actions carry it out, and that its wait precedes the next
// verb.
void verify_exchange(const ActionOrder& order, const Action& a, const ChunkSegments& segments,
                     const ReturnPoints& returns) {
  const bool is_split = (a.gradient ? returns.split.backward : returns.split.forward).contains(a.item);
  const bool is_left = a.gradient && a.kind == ActionKind::kWaitExchange && returns.segments.contains(a.item);
  if (!is_split && !is_left) fail_order(a, "is of an exchange that no segment leaves in flight");
  Action verb = other(a, a.gradient ? ActionKind::kBackwardData : ActionKind::kForward, a.item);
  verb.item = -1;
  verb.gradient = false;
  order.require_before(is_split && a.kind == ActionKind::kWaitExchange ? other(a, ActionKind::kStartExchange) : verb,
                       a);
  if (a.kind == ActionKind::kStartExchange) return order.require(other(a, ActionKind::kWaitExchange));
  verb.segment += a.gradient ? -1 : 1;
  const bool is_last =
      a.gradient ? a.item == first_segment(segments, a.chunk) : a.item + 1 == first_segment(segments, a.chunk + 1);
  if (!is_last) order.require_before(a, verb);
}

// Checks that at most one exchange of each direction is in flight, and that the verbs around it leave and finish it.
void verify_flights(const ActionOrder& order, const ReturnPoints& returns) {
  std::map<bool, const Action*> in_flight;  // key: is gradient
  for (const Action& a : order.actions()) {
    if (a.kind == ActionKind::kStartExchange && !in_flight.try_emplace(a.gradient, &a).second)
      fail_order(a, "starts while another exchange of its direction is in flight");
    if (a.kind == ActionKind::kWaitExchange) in_flight.erase(a.gradient);
    if (a.kind != ActionKind::kForward && a.kind != ActionKind::kBackwardData) continue;
    const bool forward = a.kind == ActionKind::kForward;
    const std::set<int>& split = forward ? returns.split.forward : returns.split.backward;
    if (a.leaves_exchange != split.contains(a.segment) ||
        a.finishes_exchange != split.contains(a.segment + (forward ? -1 : 1)))
      fail_order(a, "leaves or finishes an exchange that its segments do not split");
  }
}

void verify_verbs(const ActionOrder& order, const ChunkSegments& segments, const ReturnPoints& returns) {
  std::map<std::pair<int, int>, Action> latest_weight;  // key: chunk, segment
  for (const Action& a : order.actions()) {
    if (!is_of_microbatch(a.kind) || is_message(a.kind)) continue;
    const int begin = first_segment(segments, a.chunk), end = first_segment(segments, a.chunk + 1), s = a.segment;
    if (a.kind == ActionKind::kLoad) {
      for (int each = begin; each < end; ++each) order.require(other(a, ActionKind::kBackwardWeight, each));
      continue;
    }
    if (is_exchange(a.kind)) {
      verify_exchange(order, a, segments, returns);
      continue;
    }
    if (s < begin || s >= end) fail_order(a, "names a segment of another chunk");
    if (a.kind == ActionKind::kForward) {
      order.require_before(s == begin ? other(a, ActionKind::kLoad) : other(a, ActionKind::kForward, s - 1), a);
      if (returns.split.forward.contains(s)) order.require(exchange_of(a, ActionKind::kWaitExchange));
    } else if (a.kind == ActionKind::kBackwardData) {
      order.require_before(s == end - 1 ? other(a, ActionKind::kForward, s) : other(a, a.kind, s + 1), a);
      if (returns.segments.contains(s) || returns.split.backward.contains(s))
        order.require(exchange_of(a, ActionKind::kWaitExchange));
    } else {
      order.require_before(other(a, ActionKind::kBackwardData, s), a);
      Action& latest = latest_weight.try_emplace({a.chunk, s}, a).first->second;
      if (latest.microbatch > a.microbatch) fail_order(a, "comes after that of a later microbatch");
      latest = a;
    }
  }
}

// Checks that a tensor arrives before its reader, and leaves after its producer. A chunk without segments forwards its
// input.
void verify_messages(const ActionOrder& order, const ChunkSegments& segments) {
  for (const Action& a : order.actions()) {
    if (!is_message(a.kind)) continue;
    order.require_before(a, {.kind = ActionKind::kFinishReduce});
    const int begin = first_segment(segments, a.chunk), last = first_segment(segments, a.chunk + 1) - 1;
    Action verb = other(a, a.gradient ? ActionKind::kBackwardData : ActionKind::kForward);
    verb.gradient = false;
    const bool is_empty = begin > last, crosses = a.peer != kThisStage;
    if (a.kind == ActionKind::kPostReceive) {
      order.require(other(a, ActionKind::kWaitReceive));
    } else if (a.kind == ActionKind::kWaitReceive) {
      Action given = other(a, ActionKind::kSend);
      given.chunk += a.gradient ? 1 : -1;
      order.require_before(crosses ? other(a, ActionKind::kPostReceive) : given, a);
      order.require_before({.kind = ActionKind::kLoad, .chunk = a.chunk, .microbatch = a.microbatch}, a);
      if (!is_empty) order.require_before(a, other(verb, verb.kind, a.gradient ? last : begin));
    } else if (a.kind == ActionKind::kSend) {
      order.require_before(
          is_empty ? other(a, ActionKind::kWaitReceive) : other(verb, verb.kind, a.gradient ? begin : last), a);
      if (crosses) order.require(other(a, ActionKind::kWaitSend));
    } else {
      order.require_before(other(a, ActionKind::kSend), a);
    }
  }
}

// Checks the actions that occur once per step, in order and around the verbs.
void verify_step(const ActionOrder& order, const ReducePoints& points) {
  const std::pair<ActionKind, bool> needed[] = {{ActionKind::kBeginStep, true},
                                                {ActionKind::kZeroGradients, true},
                                                {ActionKind::kTieGradients, points.tied_segment >= 0},
                                                {ActionKind::kFinishReduce, true},
                                                {ActionKind::kSumSharedGradients, points.sums_shared},
                                                {ActionKind::kCopyTiedGradients, points.copies_tied},
                                                {ActionKind::kReduceSums, true},
                                                {ActionKind::kReduceNorm, true},
                                                {ActionKind::kOptimizerStep, true}};
  for (const auto& [kind, is_needed] : needed) {
    if (is_needed) order.require({.kind = kind});
  }
  const Action norm{.kind = ActionKind::kReduceNorm}, sums{.kind = ActionKind::kReduceSums},
      reduced{.kind = ActionKind::kFinishReduce};
  order.require_before(reduced, norm);
  for (const Action& a : order.actions()) {
    if (a.kind == ActionKind::kSumSharedGradients || a.kind == ActionKind::kCopyTiedGradients) {
      order.require_before(reduced, a);
      order.require_before(a, norm);
    } else if (a.kind == ActionKind::kOptimizerStep) {
      order.require_before(norm, a);
      order.require_before(sums, a);
    } else if (is_of_microbatch(a.kind)) {
      order.require_before({.kind = ActionKind::kBeginStep}, a);
      order.require_before({.kind = ActionKind::kZeroGradients}, a);
      order.require_before(a, {.kind = ActionKind::kOptimizerStep});
      if (a.kind == ActionKind::kForward) order.require_before(a, sums);
    }
  }
}

void verify_reductions(const ActionOrder& order, const ReducePoints& points) {
  std::multimap<int, Action> reductions_of;  // key: segment, which may be in several buckets
  for (std::size_t bucket = 0; bucket < points.segments_of_bucket.size(); ++bucket) {
    const Action reduce = of_bucket(ActionKind::kReduce, bucket);
    order.require_before(reduce, {.kind = ActionKind::kFinishReduce});
    for (const int segment : points.segments_of_bucket[bucket]) {
      if (segment == points.tied_segment) order.require_before({.kind = ActionKind::kTieGradients}, reduce);
      reductions_of.emplace(segment, reduce);
    }
  }
  for (const Action& a : order.actions()) {
    if (a.kind == ActionKind::kReduce && static_cast<std::size_t>(a.item) >= points.segments_of_bucket.size())
      fail_order(a, "names no bucket");
    if (a.kind != ActionKind::kBackwardWeight) continue;
    for (auto [each, end] = reductions_of.equal_range(a.segment); each != end; ++each)
      order.require_before(a, each->second);
    if (points.tied_segment >= 0) order.require_before(a, {.kind = ActionKind::kTieGradients});
  }
}

void verify_gathers(const ActionOrder& order, const GatherPoints& gathers) {
  const std::size_t buckets = gathers.segments_of_bucket.size();
  std::optional<Action> last_gather;
  for (const Action& a : order.actions()) {
    if (!is_of_bucket(a.kind) || a.kind == ActionKind::kReduce) continue;
    if (static_cast<std::size_t>(a.item) >= buckets) fail_order(a, "names no bucket");
    if (a.kind == ActionKind::kGatherParameters) {
      order.require_before({.kind = ActionKind::kOptimizerStep}, a);
      last_gather = a;
    } else if (a.kind == ActionKind::kCopyTiedWeights || !gathers.overlap) {
      order.require_before(of_bucket(ActionKind::kGatherParameters, static_cast<std::size_t>(a.item)), a);
    }
  }
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    order.require(of_bucket(ActionKind::kGatherParameters, bucket));
    if (!gathers.overlap) continue;
    const Action wait = of_bucket(ActionKind::kWaitParameters, bucket);
    order.require(wait);
    const std::vector<int>& readers = gathers.segments_of_bucket[bucket];
    for (const Action& a : order.actions()) {
      if (a.kind != ActionKind::kForward) continue;
      if (std::find(readers.begin(), readers.end(), a.segment) != readers.end()) order.require_before(wait, a);
    }
  }
  if (gathers.tied_bucket >= 0)
    order.require(of_bucket(ActionKind::kCopyTiedWeights, static_cast<std::size_t>(gathers.tied_bucket)));
  if (!gathers.overlap && last_gather)
    order.require(of_bucket(ActionKind::kWaitParameters, static_cast<std::size_t>(last_gather->item)));
}

}  // namespace

void verify(const std::vector<Action>& actions, const ChunkSegments& segments, const ReducePoints& points,
            const GatherPoints& gathers, const ReturnPoints& returns) {
  const ActionOrder order(actions);
  verify_step(order, points);
  verify_verbs(order, segments, returns);
  verify_flights(order, returns);
  verify_messages(order, segments);
  verify_columns(order);
  verify_reductions(order, points);
  verify_gathers(order, gathers);
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
    lower_training_step(actions, segments, {});  // each verb occurs once, where the stage's other verbs allow
  }
  const Simulation played = simulate(schedule, {.blocking_sends = true});
  if (!played.deadlock.empty())
    fail({.subject = fmt::format("schedule {}: {}", name_of(schedule.kind), played.deadlock)});
}

}  // namespace megalith
