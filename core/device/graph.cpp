#include "core/device/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/digest.h"
#include "core/base/error.h"
#include "core/device/capture_guard.h"
#include "core/device/cuda_graph.h"
#include "core/device/cuda_stream.h"
#include "core/device/cuda_stream_state.h"
#include "core/device/stream.h"
#include "core/device/trace.h"
#include "core/instruments/hazard_checker.h"

namespace megalith {

void CaptureGuard::refuse(std::string_view act, std::string_view remedy) const {
  if (!graphs_.empty()) graphs_.back()->refuse(act, remedy);
}

Graph::Graph(std::string name) : name_(std::move(name)) {}

Graph::~Graph() { abort_capture(); }

void Graph::begin_capture(Stream& origin) {
  if (!lanes_.empty()) {
    fail({.subject = "graph " + name_,
          .expected = "an empty graph",
          .got = token_ != nullptr ? "one that is being captured" : "a captured one"});
  }
  if (origin.capture_ != nullptr) {
    fail({.subject = fmt::format("graph {}: stream {} already captures graph {}", name_, origin.name(),
                                 origin.capture_->name()),
          .remedy = "end that capture first"});
  }
  if (origin.device() == DeviceType::kPlan) {
    fail({.subject = "graph " + name_, .expected = "a stream that runs", .got = "a plan stream"});
  }
  if (CudaStream* stream = origin.cuda()) {
    cuda_ = std::make_unique<CudaGraph>();
    cuda_->begin(*stream);
  }
  token_ = std::make_shared<Graph*>(this);
  guard_ = origin.instruments_.captures;
  if (guard_ != nullptr) guard_->graphs_.push_back(this);
  join(origin);
}

void Graph::begin_dropped(Stream& origin, std::span<Stream* const> sides) {
  begin_capture(origin);
  drops_ = true;
  Event start("start of what is dropped");
  record(origin, start);
  for (Stream* const side : sides) wait(*side, start);
}

int Graph::join(Stream& stream) {
  const int lane = static_cast<int>(lanes_.size());
  lanes_.push_back({.stream = &stream, .name = stream.name(), .clock = {}});
  stream.capture_ = this;
  stream.capture_lane_ = lane;
  if (CpuStream* cpu = stream.cpu()) {
    cpu->capture_ = [this, lane](CpuStream::Task task) { take(lane, std::move(task)); };
  }
  if (CudaStream* cuda = stream.cuda()) cuda->state().capture = {.wanted = true};
  return lane;
}

void Graph::announce(Stream& stream, const Access& access) {
  add({.kind = Kind::kOp, .lane = stream.capture_lane_, .access = access});
  lane_of(stream).open_op = nodes_.size() - 1;
}

void Graph::take(int lane, std::function<void()> task) {
  const std::size_t op = std::exchange(lanes_[static_cast<std::size_t>(lane)].open_op, kNone);
  if (op == kNone) fail_unannounced(lanes_[static_cast<std::size_t>(lane)]);
  nodes_[op].task = std::move(task);
}

// An op without output (zero rows) may have enqueued nothing.
void Graph::close_op(Lane& lane) {
  const std::size_t op = std::exchange(lane.open_op, kNone);
  bool enqueued = false;  // take() has closed the CPU's ops that enqueued
  // An op may launch several kernels. The stream's tail shows that it launched any, and that nothing else did.
  if (cuda_ != nullptr) {
    const std::uint64_t tail = CudaGraph::tail(cuda_of(lane));
    enqueued = std::exchange(lane.cuda_tail, tail) != tail;
  }
  if (op == kNone && enqueued) fail_unannounced(lane);
  if (op != kNone && enqueued) {
    nodes_[op].cuda_nodes = cuda_->end_op(cuda_of(lane));
    for (const auto& [workspace, bytes] : std::exchange(cuda_of(lane).state().capture.touched, {}))
      nodes_[op].access.shorten(workspace, bytes);
  }
  if (op == kNone || enqueued) return;
  const Access& access = nodes_[op].access;
  if (std::none_of(access.ranges().begin(), access.ranges().end(), [](const AccessRange& r) { return r.write; }))
    return;
  fail({.subject = fmt::format("graph {}: op {} on stream {}", name_, access.name(), lane.name),
        .expected = "a task after its announcement",
        .got = "none"});
}

void Graph::fail_unannounced(const Lane& lane) const {
  fail({.subject = fmt::format("graph {}: a task on stream {}", name_, lane.name),
        .expected = "an op announced right before, one for each task",
        .got = last_op().empty() ? "no op" : fmt::format("a second task after op {}", last_op())});
}

CudaStream& Graph::cuda_of(const Lane& lane) { return *lane.stream->cuda(); }

Graph::Lane& Graph::lane_of(const Stream& stream) { return lanes_[static_cast<std::size_t>(stream.capture_lane_)]; }

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
  event.clock_.forget();
  recorded_[event.id_] = {.node_id = id, .clock = lane_of(stream).clock};
  if (cuda_ != nullptr) cuda_->record(*stream.cuda(), id);
}

void Graph::wait(Stream& stream, Event& event) {
  if (event.capturing() != this) {
    if (drops_) return;
    fail({.subject = fmt::format("graph {}: stream {} waits for event {}, which was recorded outside the capture",
                                 name_, stream.name(), event.name()),
          .remedy = "record it inside, or wait for it with wait_external"});
  }
  require(stream.device() == lanes_[0].stream->device(), "a stream of another device cannot take part in a capture");
  if (stream.capture_ == nullptr) join(stream);
  const Recorded& recorded = recorded_.at(event.id_);
  add({.kind = Kind::kWait, .lane = stream.capture_lane_, .event_id = recorded.node_id});
  Lane& lane = lane_of(stream);
  merge(lane.clock, recorded.clock);
  if (cuda_ == nullptr) return;
  cuda_->wait(cuda_of(lane), recorded.node_id);
  lane.cuda_tail = CudaGraph::tail(cuda_of(lane));
}

void Graph::add_external(Kind kind, Stream& stream, Event& event, bool reported) {
  if (cuda_ != nullptr && event.cuda_ == nullptr) event.cuda_ = std::make_shared<CudaEvent>(event.timed_);
  add({.kind = kind,
       .lane = stream.capture_lane_,
       .event = &event,
       .cuda_event = event.cuda_,
       .event_id = reported ? event.id_ : Event::next_id()});
  has_external_events_ = true;
  if (cuda_ == nullptr) return;
  Lane& lane = lane_of(stream);
  if (kind == Kind::kRecordExternal) {
    event.cuda_->record(cuda_of(lane), /*external=*/true);
  } else {
    event.cuda_->wait(cuda_of(lane), /*external=*/true);
  }
  lane.cuda_tail = CudaGraph::tail(cuda_of(lane));
}

void Graph::end_capture() {
  require(token_ != nullptr && !drops_, "end_capture without begin_capture, or of what is dropped");
  try {
    for (Lane& lane : lanes_) close_op(lane);
    VectorClock origin = lanes_[0].clock;
    origin.resize(lanes_.size(), 0);
    for (std::size_t lane = 1; lane < lanes_.size(); ++lane) {
      if (origin[lane] >= lanes_[lane].nodes) continue;
      fail({.subject = fmt::format("graph {}: stream {} was forked from {} and not joined", name_, lanes_[lane].name,
                                   lanes_[0].name),
            .remedy = "record an event on it last and wait for that event before the capture ends"});
    }
    if (cuda_ != nullptr) {
      spread();
      cuda_->end(cuda_of(lanes_[0]), spread_.follows);
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
    if (CpuStream* cpu = lane.stream->cpu()) cpu->capture_ = nullptr;
    if (CudaStream* cuda = lane.stream->cuda()) cuda->state().capture = {};
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
  if (cuda_ != nullptr) cuda_->abort(cuda_of(lanes_[0]));
  cuda_.reset();
  release_streams();
  has_external_events_ = drops_ = false;
  nodes_.clear();
  spread_ops_.clear();
  spread_ = {};
  notes_.clear();
  lanes_.clear();
}

int Graph::num_ops() const {
  return static_cast<int>(
      std::count_if(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.kind == Kind::kOp; }));
}

std::uint64_t Graph::digest_of_ops() const {
  std::uint64_t digest = kEmptyDigest;
  for (const Node& node : nodes_) {
    if (node.kind == Kind::kOp) fold(digest, node.access.name());
  }
  return digest;
}

std::size_t Graph::num_nodes() const {
  return cuda_ != nullptr ? cuda_->num_nodes() : static_cast<std::size_t>(num_ops());
}

std::size_t Graph::device_bytes() const { return cuda_ != nullptr ? cuda_->device_bytes() : 0; }

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

void Graph::check_replay(const Stream& stream) const {
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
  require(stream.device() == (cuda_ != nullptr ? DeviceType::kCuda : DeviceType::kCpu),
          "replay on a stream of another device than the captured one");
}

// The captured order is a topological order of the graph, so that one worker can run it. The hazard checker treats
// branches as separate lanes and finds hazards that only a concurrent replay would show.
void Graph::replay(Stream& stream) {
  check_replay(stream);
  ++replays_;
  for (const auto& note : notes_) note(stream);
  const TraceRange range(stream, stream.instruments_.trace, [this] { return "replay " + name_; });
  if (stream.traced()) describe_replay(stream);
  HazardChecker* hazards = stream.instruments_.hazards;
  std::vector<int> instrument_lanes(lanes_.size(), stream.lane_);
  for (std::size_t lane = 1; hazards != nullptr && lane < lanes_.size(); ++lane) {
    instrument_lanes[lane] = hazards->branch(stream.lane_, static_cast<int>(lane), lanes_[lane].name);
    hazards->join(instrument_lanes[lane], stream.lane_);
  }
  if (!spread_.order.empty()) {
    if (hazards != nullptr) note_spread_replay(*hazards, stream);
  } else if (cuda_ == nullptr || hazards != nullptr || has_external_events_) {
    for (Node& node : nodes_) {
      note_replay(node, stream, instrument_lanes[static_cast<std::size_t>(node.lane)]);
      if (cuda_ == nullptr) replay_node(node, stream);
    }
  }
  if (cuda_ != nullptr) cuda_->launch(*stream.cuda());
}

// On the CPU, each op is traced during the replay.
void Graph::describe_replay(Stream& stream) const {
  Trace::Replay replay;
  for (const Node& node : nodes_) {
    if (node.kind != Kind::kOp) continue;
    if (cuda_ != nullptr) {
      replay.flops += node.access.flops();
      replay.bytes += static_cast<std::int64_t>(node.access.moved_bytes());
    }
    replay.ops += replay.ops.empty() ? "" : ", ";
    replay.ops += node.access.name();
  }
  stream.instruments_.trace->describe(stream, std::move(replay));
}

void Graph::note_replay(Node& node, Stream& stream, int instrument_lane) {
  if (node.kind == Kind::kRecordExternal) Stream::mark_recorded(*node.event);
  HazardChecker* hazards = stream.instruments_.hazards;
  if (hazards == nullptr) return;
  switch (node.kind) {
    case Kind::kOp: hazards->op(instrument_lane, node.access); break;
    case Kind::kRecord:
    case Kind::kRecordExternal: hazards->record(instrument_lane, node.event_id); break;
    case Kind::kWait:
    case Kind::kWaitExternal: hazards->wait(instrument_lane, node.event_id); break;
  }
}

void Graph::replay_node(Node& node, Stream& stream) {
  if (node.kind == Kind::kOp && node.task) {
    if (stream.traced()) stream.instruments_.trace->begin_op(stream, node.access);
    stream.cpu()->push(node.task, false);
    stream.end_op();
  }
  if (node.kind == Kind::kRecordExternal) stream.enqueue_record(*node.event);
  if (node.kind == Kind::kWaitExternal) stream.enqueue_wait(*node.event);
}

}  // namespace megalith
