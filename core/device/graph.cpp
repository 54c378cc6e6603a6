#include "core/device/graph.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/device/hazard_checker.h"
#include "core/device/stream.h"

namespace megalith {

namespace {

void merge(std::vector<std::int64_t>& clock, const std::vector<std::int64_t>& other) {
  clock.resize(std::max(clock.size(), other.size()), 0);
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

}  // namespace

Graph::Graph(std::string name) : name_(std::move(name)) {}

Graph::~Graph() { release_streams(); }

void Graph::begin_capture(Stream& origin) {
  if (capturing_ || !nodes_.empty()) fail({.subject = "graph " + name_, .expected = "an empty graph", .got = "a captured one"});
  if (origin.capture_ != nullptr) {
    fail({.subject = fmt::format("graph {}: stream {} already captures graph {}", name_, origin.name(), origin.capture_->name())});
  }
  if (origin.device() != DeviceType::kCpu) fail({.subject = "graph " + name_, .expected = "a stream that runs", .got = "a plan stream"});
  capturing_ = true;
  join(origin);
}

int Graph::join(Stream& stream) {
  const int lane = static_cast<int>(lanes_.size());
  Lane added{.stream = &stream, .clock = {}};
  if (stream.instruments_.hazards != nullptr && lane > 0) {
    added.instrument_lane = stream.instruments_.hazards->add_lane(name_ + "/" + stream.name());
  }
  lanes_.push_back(std::move(added));
  stream.capture_ = this;
  stream.capture_lane_ = lane;
  // The op was announced as a node right before its task arrives.
  std::get<CpuStream>(stream.backend_).capture_ = [this, lane](CpuStream::Task task) {
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
      if (node->lane != lane) continue;
      require(node->kind == Kind::kOp && !node->task, "a captured task without an announced op");
      node->task = std::move(task);
      return;
    }
    require(false, "a captured task without an announced op");
  };
  return lane;
}

void Graph::add(Node node) {
  Lane& lane = lanes_[static_cast<std::size_t>(node.lane)];
  ++lane.nodes;
  lane.clock.resize(std::max(lane.clock.size(), lanes_.size()), 0);
  lane.clock[static_cast<std::size_t>(node.lane)] = lane.nodes;
  nodes_.push_back(std::move(node));
}

void Graph::record(Stream& stream, Event& event, bool external) {
  const int lane = stream.capture_lane_;
  add({.kind = external ? Kind::kRecordExternal : Kind::kRecord,
       .lane = lane,
       .event = external ? &event : nullptr,
       .event_id = event.id_,
       .cpu_event = event.cpu_});
  if (external) return;
  event.captured_in_ = this;
  marked_.push_back(&event);
  std::erase_if(recorded_, [&](const Recorded& r) { return r.event_id == event.id_; });
  recorded_.push_back({event.id_, lanes_[static_cast<std::size_t>(lane)].clock});
}

void Graph::wait(Stream& stream, Event& event, bool external) {
  if (!external && event.captured_in_ != this) {
    fail({.subject = fmt::format("graph {}: stream {} waits for event {}, which was recorded outside the capture", name_,
                                 stream.name(), event.name()),
          .remedy = "record it inside, or wait for it with wait_external"});
  }
  if (stream.capture_ == nullptr) join(stream);
  require(stream.capture_ == this, "a stream cannot take part in two captures");
  add({.kind = external ? Kind::kWaitExternal : Kind::kWait,
       .lane = stream.capture_lane_,
       .event = external ? &event : nullptr,
       .event_id = event.id_,
       .cpu_event = event.cpu_});
  if (external) return;
  const auto found = std::find_if(recorded_.begin(), recorded_.end(), [&](const Recorded& r) { return r.event_id == event.id_; });
  merge(lanes_[static_cast<std::size_t>(stream.capture_lane_)].clock, found->clock);
}

void Graph::end_capture() {
  require(capturing_, "end_capture without begin_capture");
  std::vector<std::int64_t> origin = lanes_[0].clock;
  origin.resize(lanes_.size(), 0);
  for (std::size_t lane = 1; lane < lanes_.size(); ++lane) {
    if (origin[lane] >= lanes_[lane].nodes) continue;
    const std::string message = fmt::format("graph {}: stream {} was forked from {} and not joined", name_,
                                            lanes_[lane].stream->name(), lanes_[0].stream->name());
    abort_capture();
    fail({.subject = message, .remedy = "record an event on it last and wait for that event before the capture ends"});
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
  for (Event* event : marked_) event->captured_in_ = nullptr;
  marked_.clear();
  capturing_ = false;
}

void Graph::abort_capture() {
  release_streams();
  nodes_.clear();
  lanes_.clear();
  recorded_.clear();
}

int Graph::num_ops() const {
  return static_cast<int>(std::count_if(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.kind == Kind::kOp; }));
}

double Graph::flops() const {
  double flops = 0;
  for (const Node& node : nodes_) flops += node.access.flops();
  return flops;
}

// The captured order is a topological order of the graph, so that one worker can run it; the hazard checker sees the
// branches as lanes of their own and finds what only a concurrent replay would show.
void Graph::replay(Stream& stream) {
  require(!capturing_ && !lanes_.empty(), "replay of a graph that was not captured");
  require(stream.capture_ == nullptr, "replay inside a capture");
  ++replays_;
  HazardChecker* hazards = stream.instruments_.hazards;
  const auto lane_of = [&](int lane) { return lane == 0 ? stream.lane_ : lanes_[static_cast<std::size_t>(lane)].instrument_lane; };
  if (hazards != nullptr) {
    for (std::size_t lane = 1; lane < lanes_.size(); ++lane) hazards->join(lanes_[lane].instrument_lane, stream.lane_);
  }
  CpuStream& cpu = std::get<CpuStream>(stream.backend_);
  for (Node& node : nodes_) {
    switch (node.kind) {
      case Kind::kOp:
        if (hazards != nullptr) hazards->op(lane_of(node.lane), node.access);
        cpu.push(node.task, false);
        break;
      case Kind::kRecord:
        if (hazards != nullptr) hazards->record(lane_of(node.lane), node.event_id);
        break;
      case Kind::kWait:
        if (hazards != nullptr) hazards->wait(lane_of(node.lane), node.event_id);
        break;
      case Kind::kRecordExternal:
        if (hazards != nullptr) hazards->record(lane_of(node.lane), node.event_id);
        cpu.fire(node.cpu_event, ++node.event->records_);
        break;
      case Kind::kWaitExternal:
        if (hazards != nullptr) hazards->wait(lane_of(node.lane), node.event_id);
        cpu.await(node.cpu_event, node.event->records_);
        break;
    }
  }
}

}  // namespace megalith
