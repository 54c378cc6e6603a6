#include "core/device/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/device/capture_guard.h"
#include "core/device/hazard_checker.h"
#include "core/device/stream.h"

namespace megalith {

namespace {

void merge(std::vector<std::int64_t>& clock, const std::vector<std::int64_t>& other) {
  clock.resize(std::max(clock.size(), other.size()), 0);
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

}  // namespace

void CaptureGuard::refuse(std::string_view act, std::string_view remedy) const {
  if (!graphs_.empty()) graphs_.back()->refuse(act, remedy);
}

Graph::Graph(std::string name) : name_(std::move(name)) {}

Graph::~Graph() { release_streams(); }

void Graph::begin_capture(Stream& origin) {
  if (!lanes_.empty()) {
    fail({.subject = "graph " + name_,
          .expected = "an empty graph",
          .got = token_ != nullptr ? "one that is being captured" : "a captured one"});
  }
  if (origin.capture_ != nullptr) {
    fail({.subject = fmt::format("graph {}: stream {} already captures graph {}", name_, origin.name(),
                                 origin.capture_->name())});
  }
  if (origin.device() != DeviceType::kCpu) {
    fail({.subject = "graph " + name_, .expected = "a stream that runs", .got = "a plan stream"});
  }
  token_ = std::make_shared<Graph*>(this);
  guard_ = origin.instruments_.captures;
  if (guard_ != nullptr) guard_->graphs_.push_back(this);
  join(origin);
}

int Graph::join(Stream& stream) {
  const int lane = static_cast<int>(lanes_.size());
  lanes_.push_back({.stream = &stream, .name = stream.name(), .clock = {}});
  stream.capture_ = this;
  stream.capture_lane_ = lane;
  std::get<CpuStream>(stream.backend_).capture_ = [this, lane](CpuStream::Task task) { take(lane, std::move(task)); };
  return lane;
}

void Graph::announce(Stream& stream, const Access& access) {
  const int lane = stream.capture_lane_;
  add({.kind = Kind::kOp, .lane = lane, .access = access});
  lanes_[static_cast<std::size_t>(lane)].open_op = nodes_.size() - 1;
}

void Graph::take(int lane, std::function<void()> task) {
  const std::size_t op = std::exchange(lanes_[static_cast<std::size_t>(lane)].open_op, kNone);
  if (op == kNone) {
    fail({.subject = fmt::format("graph {}: a task on stream {}", name_, lanes_[static_cast<std::size_t>(lane)].name),
          .expected = "an op announced right before, one for each task",
          .got = last_op().empty() ? "no op" : fmt::format("a second task after op {}", last_op())});
  }
  nodes_[op].task = std::move(task);
}

// An op with nothing to write (zero rows) may have enqueued nothing.
void Graph::close_op(Lane& lane) {
  const std::size_t op = std::exchange(lane.open_op, kNone);
  if (op == kNone) return;
  const std::vector<AccessRange>& ranges = nodes_[op].access.ranges();
  if (std::none_of(ranges.begin(), ranges.end(), [](const AccessRange& r) { return r.write; })) return;
  fail({.subject = fmt::format("graph {}: op {} on stream {}", name_, nodes_[op].access.name(), lane.name),
        .expected = "a task after its announcement",
        .got = "none"});
}

void Graph::add(Node node) {
  Lane& lane = lanes_[static_cast<std::size_t>(node.lane)];
  close_op(lane);
  ++lane.nodes;
  lane.clock.resize(std::max(lane.clock.size(), lanes_.size()), 0);
  lane.clock[static_cast<std::size_t>(node.lane)] = lane.nodes;
  nodes_.push_back(std::move(node));
}

void Graph::record(Stream& stream, Event& event) {
  const std::uint64_t id = Event::next_id();
  add({.kind = Kind::kRecord, .lane = stream.capture_lane_, .event_id = id});
  event.in_graph_ = true;
  event.capture_token_ = token_;
  recorded_[event.id_] = {.node_id = id, .clock = lanes_[static_cast<std::size_t>(stream.capture_lane_)].clock};
}

void Graph::wait(Stream& stream, Event& event) {
  if (event.capturing() != this) {
    fail({.subject = fmt::format("graph {}: stream {} waits for event {}, which was recorded outside the capture",
                                 name_, stream.name(), event.name()),
          .remedy = "record it inside, or wait for it with wait_external"});
  }
  require(stream.device() == DeviceType::kCpu, "a plan stream cannot take part in a capture");
  if (stream.capture_ == nullptr) join(stream);
  const Recorded& recorded = recorded_.at(event.id_);
  add({.kind = Kind::kWait, .lane = stream.capture_lane_, .event_id = recorded.node_id});
  merge(lanes_[static_cast<std::size_t>(stream.capture_lane_)].clock, recorded.clock);
}

void Graph::record_external(Stream& stream, Event& event) {
  add({.kind = Kind::kRecordExternal, .lane = stream.capture_lane_, .event = &event, .event_id = event.id_});
}

void Graph::wait_external(Stream& stream, Event& event) {
  add({.kind = Kind::kWaitExternal, .lane = stream.capture_lane_, .event = &event, .event_id = event.id_});
}

void Graph::end_capture() {
  require(token_ != nullptr, "end_capture without begin_capture");
  try {
    for (Lane& lane : lanes_) close_op(lane);
    std::vector<std::int64_t> origin = lanes_[0].clock;
    origin.resize(lanes_.size(), 0);
    for (std::size_t lane = 1; lane < lanes_.size(); ++lane) {
      if (origin[lane] >= lanes_[lane].nodes) continue;
      fail({.subject = fmt::format("graph {}: stream {} was forked from {} and not joined", name_, lanes_[lane].name,
                                   lanes_[0].name),
            .remedy = "record an event on it last and wait for that event before the capture ends"});
    }
  } catch (...) {
    abort_capture();
    throw;
  }
  release_streams();
}

void Graph::release_streams() {
  for (Lane& lane : lanes_) {
    if (lane.stream == nullptr) continue;
    std::get<CpuStream>(lane.stream->backend_).capture_ = nullptr;
    lane.stream->capture_ = nullptr;
    lane.stream->capture_lane_ = -1;
    lane.stream = nullptr;
  }
  if (guard_ != nullptr) std::erase(guard_->graphs_, this);
  guard_ = nullptr;
  token_ = nullptr;
  recorded_.clear();
}

void Graph::abort_capture() {
  if (token_ == nullptr) return;
  release_streams();
  nodes_.clear();
  lanes_.clear();
}

int Graph::num_ops() const {
  return static_cast<int>(
      std::count_if(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.kind == Kind::kOp; }));
}

double Graph::flops() const {
  double flops = 0;
  for (const Node& node : nodes_) flops += node.access.flops();
  return flops;
}

std::string_view Graph::last_op() const {
  const auto last = std::find_if(nodes_.rbegin(), nodes_.rend(), [](const Node& n) { return n.kind == Kind::kOp; });
  return last == nodes_.rend() ? std::string_view() : last->access.name();
}

void Graph::refuse(std::string_view act, std::string_view remedy) const {
  const std::string after = last_op().empty() ? "" : fmt::format(" after op {}", last_op());
  fail({.subject = fmt::format("{} during capture of graph {}{}", act, name_, after), .remedy = std::string(remedy)});
}

// The captured order is a topological order of the graph, so that one worker can run it; the hazard checker sees the
// branches as lanes of their own and finds what only a concurrent replay would show.
void Graph::replay(Stream& stream) {
  if (token_ != nullptr || lanes_.empty()) {
    fail({.subject = fmt::format("graph {}: replay on stream {}", name_, stream.name()),
          .expected = "a captured graph",
          .got = token_ != nullptr ? "one that is being captured" : "an empty one"});
  }
  if (stream.capture_ != nullptr) {
    fail({.subject = fmt::format("graph {}: replay on stream {} during capture of graph {}", name_, stream.name(),
                                 stream.capture_->name()),
          .remedy = "replay before or after the capture"});
  }
  require(stream.device() == DeviceType::kCpu, "replay on a plan stream");
  ++replays_;
  HazardChecker* hazards = stream.instruments_.hazards;
  std::vector<int> instrument_lanes(lanes_.size(), stream.lane_);
  for (std::size_t lane = 1; hazards != nullptr && lane < lanes_.size(); ++lane) {
    instrument_lanes[lane] = hazards->branch(stream.lane_, static_cast<int>(lane), lanes_[lane].name);
    hazards->join(instrument_lanes[lane], stream.lane_);
  }
  for (Node& node : nodes_) replay_node(node, stream, instrument_lanes[static_cast<std::size_t>(node.lane)]);
}

void Graph::replay_node(Node& node, Stream& stream, int instrument_lane) {
  HazardChecker* hazards = stream.instruments_.hazards;
  CpuStream& cpu = std::get<CpuStream>(stream.backend_);
  switch (node.kind) {
    case Kind::kOp:
      if (hazards != nullptr) hazards->op(instrument_lane, node.access);
      if (node.task) cpu.push(node.task, false);
      break;
    case Kind::kRecord:
      if (hazards != nullptr) hazards->record(instrument_lane, node.event_id);
      break;
    case Kind::kWait:
      if (hazards != nullptr) hazards->wait(instrument_lane, node.event_id);
      break;
    case Kind::kRecordExternal:
      if (hazards != nullptr) hazards->record(instrument_lane, node.event_id);
      stream.enqueue_record(*node.event);
      break;
    case Kind::kWaitExternal:
      if (hazards != nullptr) hazards->wait(instrument_lane, node.event_id);
      stream.enqueue_wait(*node.event);
      break;
  }
}

}  // namespace megalith
