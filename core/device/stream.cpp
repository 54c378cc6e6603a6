#include "core/device/stream.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/device/graph.h"
#include "core/device/hazard_checker.h"
#include "core/device/timeline.h"

namespace megalith {

Stream::Stream(DeviceType device, std::string name, Instruments instruments)
    : name_(std::move(name)), instruments_(instruments), lane_(-1) {
  if (device == DeviceType::kPlan) {
    require(instruments_.timeline != nullptr, "a plan stream needs a timeline");
    backend_.emplace<PlanStream>();
    lane_ = instruments_.timeline->add_lane(name_);
  } else if (instruments_.hazards != nullptr) {
    lane_ = instruments_.hazards->add_lane(name_);
  }
}

Stream::~Stream() {
  if (capture_ != nullptr) capture_->abort_capture();
}

DeviceType Stream::device() const {
  return std::holds_alternative<PlanStream>(backend_) ? DeviceType::kPlan : DeviceType::kCpu;
}

bool Stream::wants_access() const {
  return capture_ != nullptr || instruments_.hazards != nullptr || instruments_.timeline != nullptr;
}

void Stream::announce(const Access& access) {
  if (device() == DeviceType::kPlan) {
    instruments_.timeline->op(lane_, access);
  } else if (capture_ != nullptr) {
    capture_->add({.kind = Graph::Kind::kOp, .lane = capture_lane_, .access = access});
  } else if (instruments_.hazards != nullptr) {
    instruments_.hazards->op(lane_, access);
  }
}

void Stream::record(Event& event) {
  if (device() == DeviceType::kPlan) {
    ++event.records_;
    instruments_.timeline->record(lane_, event.id_);
    return;
  }
  if (capture_ != nullptr) {
    capture_->record(*this, event, false);
    return;
  }
  event.captured_in_ = nullptr;
  ++event.records_;
  if (instruments_.hazards != nullptr) instruments_.hazards->record(lane_, event.id_);
  std::get<CpuStream>(backend_).fire(event.cpu_, event.records_);
}

void Stream::wait(Event& event) {
  if (instruments_.waits != nullptr && instruments_.waits->skip_next()) return;
  if (device() == DeviceType::kPlan) {
    instruments_.timeline->wait(lane_, event.id_);
    return;
  }
  if (capture_ != nullptr || event.captured_in_ != nullptr) {
    Graph* graph = capture_ != nullptr ? capture_ : event.captured_in_;
    graph->wait(*this, event, false);
    return;
  }
  if (instruments_.hazards != nullptr) instruments_.hazards->wait(lane_, event.id_);
  std::get<CpuStream>(backend_).await(event.cpu_, event.records_);
}

void Stream::record_external(Event& event) {
  require(capture_ != nullptr, "record_external outside a capture: use record");
  capture_->record(*this, event, true);
}

void Stream::wait_external(Event& event) {
  require(capture_ != nullptr, "wait_external outside a capture: use wait");
  capture_->wait(*this, event, true);
}

void Stream::synchronize() {
  if (device() == DeviceType::kPlan) return;
  if (capture_ != nullptr) {
    fail({.subject = fmt::format("stream {}: synchronize during capture of graph {}", name_, capture_->name()),
          .remedy = "move the host's wait out of the captured range"});
  }
  std::get<CpuStream>(backend_).synchronize();
  if (instruments_.hazards != nullptr) instruments_.hazards->join(HazardChecker::kHost, lane_);
}

void Stream::synchronize_host(Event& event) {
  if (instruments_.waits != nullptr && instruments_.waits->skip_next()) return;
  if (device() == DeviceType::kPlan) return;
  if (capture_ != nullptr) {
    fail({.subject = fmt::format("stream {}: host waits for event {} during capture of graph {}", name_, event.name(),
                                 capture_->name()),
          .remedy = "move the host's wait out of the captured range"});
  }
  event.wait_on_host();
  if (instruments_.hazards != nullptr) instruments_.hazards->wait(HazardChecker::kHost, event.id_);
}

void Stream::announce_host(const Access& access) {
  if (capture_ != nullptr) {
    fail({.subject = fmt::format("stream {}: the host touches device data ({}) during capture of graph {}", name_,
                                 access.name(), capture_->name()),
          .remedy = "read or write it before the capture, or from an op"});
  }
  if (device() == DeviceType::kCpu && instruments_.hazards != nullptr) instruments_.hazards->host(access);
}

}  // namespace megalith
