// The part of Graph that runs the ops of one captured stream concurrently on a GPU.
#include <algorithm>
#include <numeric>
#include <vector>

#include "core/device/cuda_stream_state.h"
#include "core/device/graph.h"
#include "core/device/short_ops.h"
#include "core/device/stream.h"
#include "core/instruments/access_order.h"
#include "core/instruments/hazard_checker.h"

namespace megalith {

namespace {

constexpr int kLanes = 2;  // more lanes were not faster
constexpr double kBetweenLanes = 1e-6;

}  // namespace

// Turns a captured chain of ops into lanes that run concurrently where the announcements allow. The bits stay equal:
// each op computes alone, and sums into one location keep their order.
void Graph::spread() {
  if (lanes_.size() != 1 || cuda_of(lanes_[0]).state().capture.meets_ranks) return;
  if (cuda_of(lanes_[0]).starts_early()) return;
  if (std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.kind != Kind::kOp; })) return;
  AccessOrder order;
  Dependencies follows;
  std::vector<double> seconds;
  for (std::size_t op = 0; op < nodes_.size(); ++op) {
    if (nodes_[op].cuda_nodes == 0) continue;
    spread_ops_.push_back(op);
    nodes_[op].event_id = Event::next_id();
    follows.push_back(order.add(nodes_[op].access.ranges()));
    seconds.push_back(seconds_in_chain(nodes_[op].access, nodes_[op].cuda_nodes));
  }
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  if (sum > kShortOp * static_cast<double>(seconds.size())) return;
  spread_ = plan_lanes(follows, seconds, kLanes, kBetweenLanes);
}

// For the hazard checker, each lane of ops is a branch, and each op an event for which its dependents wait.
void Graph::note_spread_replay(HazardChecker& hazards, const Stream& stream) {
  const std::vector<int>& lane_of = spread_.lane;
  std::vector<int> branches;
  for (int lane = 0; lane <= *std::max_element(lane_of.begin(), lane_of.end()); ++lane) {
    branches.push_back(hazards.branch(stream.lane_, lane + 1, lanes_[0].name));
    hazards.join(branches.back(), stream.lane_);
  }
  for (const std::size_t op : spread_.order) {
    const int branch = branches[static_cast<std::size_t>(lane_of[op])];
    for (const std::size_t other : spread_.follows[op]) hazards.wait(branch, nodes_[spread_ops_[other]].event_id);
    hazards.op(branch, nodes_[spread_ops_[op]].access);
    hazards.record(branch, nodes_[spread_ops_[op]].event_id);
  }
  for (const int branch : branches) hazards.join(stream.lane_, branch);
}

}  // namespace megalith
