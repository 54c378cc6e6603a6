#include "offload/forecast.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "offload/lowering.h"

namespace megalith {

namespace {

// A list with the actions of slots, played on three clocks: of computing, and of each direction's copies.
class CopyPlayer {
 public:
  CopyPlayer(const std::vector<double>& seconds, const std::vector<double>& bytes, const CopyRates& rates)
      : seconds_(seconds), bytes_(bytes), rates_(rates) {}

  CopyForecast play(const std::vector<Action>& list, const std::vector<bool>& moves) {
    std::size_t next = 0;
    for (const Action& action : list) {
      if (!is_of_slot(action.kind)) {
        clock_ += seconds_[next++];
      } else if (moves[static_cast<std::size_t>(action.item)]) {
        pass(action);
      }
    }
    return forecast_;
  }

 private:
  void pass(const Action& action) {
    const double bytes = bytes_[static_cast<std::size_t>(action.item)];
    double& copied = copied_[{action.item, action.column}];
    const auto wait = [&](double& stalls) {
      stalls += std::max(0.0, copied - clock_);
      clock_ = std::max(clock_, copied);
    };
    switch (action.kind) {
      case ActionKind::kOffload:
        out_ = std::max(out_, clock_) + bytes / rates_.out;
        forecast_.out_seconds += bytes / rates_.out;
        copied = out_;
        return;
      case ActionKind::kWaitOffload: return wait(forecast_.out_stalls);
      case ActionKind::kReload:
        back_ = std::max(back_, clock_) + bytes / rates_.back;
        forecast_.back_seconds += bytes / rates_.back;
        copied = back_;
        return;
      default: return wait(forecast_.back_stalls);
    }
  }

  const std::vector<double>& seconds_;
  const std::vector<double>& bytes_;
  const CopyRates rates_;
  double clock_ = 0, out_ = 0, back_ = 0;
  std::map<std::pair<int, int>, double> copied_;  // when the copy under way is over, by slot and column
  CopyForecast forecast_;
};

// Bytes times the computing between a slot's wait_offload and its reload, over all microbatches.
std::vector<double> byte_seconds(const std::vector<Action>& list, const std::vector<double>& seconds,
                                 const std::vector<double>& bytes) {
  std::vector<double> sums(bytes.size());
  std::size_t next = 0;
  double clock = 0;
  for (const Action& action : list) {
    const auto item = static_cast<std::size_t>(std::max(action.item, 0));
    if (!is_of_slot(action.kind)) clock += seconds[next++];
    if (action.kind == ActionKind::kWaitOffload) sums[item] -= bytes[item] * clock;
    if (action.kind == ActionKind::kReload) sums[item] += bytes[item] * clock;
  }
  return sums;
}

}  // namespace

CopyForecast forecast_copies(const StepSeconds& step, const MovedSlots& slots, const CopyRates& rates) {
  const std::vector<Action> list = insert_offloads(step.actions, slots.points);
  return CopyPlayer(step.seconds, slots.bytes, rates).play(list, slots.moves);
}

void choose_distances(const StepSeconds& step, const DistanceRequest& request, OffloadPoints& points) {
  const std::vector<bool> all(points.slots.size(), true);
  const auto stalls = [&](const OffloadPoints& of) {
    return forecast_copies(step, {.points = of, .bytes = request.bytes, .moves = all}, request.rates).stalls();
  };
  const double few = request.most_stalls * std::accumulate(step.seconds.begin(), step.seconds.end(), 0.0);
  double least = stalls(points);
  for (int layers = points.lag + 1; layers <= request.most && least > few; ++layers) {
    OffloadPoints further = points;
    further.lag = further.ahead = layers;
    const double now = stalls(further);
    if (now >= least - few) break;
    least = now;
    points = further;
  }
  for (int kind = 0; kind < kNumSlotKinds; ++kind) {
    OffloadPoints nearer = points;
    for (OffloadSlot& slot : nearer.slots) {
      if (slot.kind == static_cast<SlotKind>(kind)) tighten(slot, nearer);
    }
    if (stalls(nearer) <= least + few) points = nearer;
  }
}

void keep_what_stalls(const StepSeconds& step, const HiddenRequest& request, std::vector<OffloadChoice>& choices) {
  OffloadPoints points{.slots = moving(request.candidates, choices),
                       .layer_of_segment = request.layer_of_segment,
                       .between_layers = request.between_layers};
  std::vector<std::size_t> candidate_of;
  std::vector<double> bytes;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (!choices[i].moves) continue;
    candidate_of.push_back(i);
    bytes.push_back(request.bytes[i]);
  }
  const std::vector<Action> list = insert_offloads(step.actions, points);
  const std::vector<double> worth = byte_seconds(list, step.seconds, bytes);
  std::vector<std::size_t> order(points.slots.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t item) { return worth[item]; });
  const double most = request.most_stalls * std::accumulate(step.seconds.begin(), step.seconds.end(), 0.0);
  std::vector<bool> moves(order.size(), false);
  for (const std::size_t item : order) {
    moves[item] = true;
    if (worth[item] > 0 && CopyPlayer(step.seconds, bytes, request.rates).play(list, moves).stalls() <= most) continue;
    moves[item] = false;
    choices[candidate_of[item]] = {.moves = false, .reason = "its copies would not hide behind computing"};
  }
}

}  // namespace megalith
