#include "core/device/stream.h"

#include <fmt/format.h>

#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/device/capture_guard.h"
#include "core/device/cuda_stream.h"
#include "core/device/graph.h"
#include "core/device/trace.h"
#include "core/instruments/hazard_checker.h"
#include "core/instruments/timeline.h"

namespace megalith {

Stream::Stream(DeviceType device, std::string name, Instruments instruments)
    : name_(std::move(name)), instruments_(instruments), lane_(-1), clock_(Event::next_id()) {
  if (device == DeviceType::kPlan) {
    require(instruments_.timeline != nullptr, "a plan stream needs a timeline");
    lane_ = instruments_.timeline->add_lane(name_);
    return;
  }
  require_built(device);
  if (device == DeviceType::kCuda) {
    backend_.emplace<CudaStream>();
  } else {
    backend_.emplace<CpuStream>();
  }
  if (instruments_.hazards != nullptr) lane_ = instruments_.hazards->add_lane(name_);
}

Stream::~Stream() {
  if (capture_ != nullptr) capture_->abort_capture();
}

DeviceType Stream::device() const {
  if (std::holds_alternative<PlanStream>(backend_)) return DeviceType::kPlan;
  return std::holds_alternative<CpuStream>(backend_) ? DeviceType::kCpu : DeviceType::kCuda;
}

bool Stream::traced() const { return instruments_.trace != nullptr && instruments_.trace->active(); }

bool Stream::needs_access() const {
  const bool observed = instruments_.observer != nullptr && instruments_.observer->active;
  return device() == DeviceType::kPlan || capture_ != nullptr || instruments_.hazards != nullptr || observed ||
         traced();
}

void Stream::announce(const Access& access) {
  OpObserver* const observer = instruments_.observer;
  if (observer != nullptr && observer->active && capture_ == nullptr) observer->before(*this, access);
  if (device() == DeviceType::kPlan) {
    instruments_.timeline->op(lane_, access);
  } else if (capture_ != nullptr) {
    capture_->announce(*this, access);
  } else if (instruments_.hazards != nullptr) {
    instruments_.hazards->op(lane_, access);
  }
  if (traced() && device() != DeviceType::kPlan) instruments_.trace->begin_op(*this, access);
}

void Stream::end_op() {
  if (traced() && device() != DeviceType::kPlan) instruments_.trace->end(*this);
}

void Stream::add_note(std::function<void(Stream&)> note) { capture_->notes_.push_back(std::move(note)); }

void Stream::record(Event& event) {
  if (capture_ != nullptr) {
    capture_->record(*this, event);
    return;
  }
  if (device() == DeviceType::kPlan) {
    event.recorded_ = true;
    instruments_.timeline->record(lane_, event.id_);
  } else {
    if (instruments_.hazards != nullptr) instruments_.hazards->record(lane_, event.id_);
    enqueue_record(event);
  }
  clock_.advance();
  event.clock_ = clock_;
}

void Stream::wait(Event& event) {
  if (Graph* graph = capture_ != nullptr ? capture_ : event.capturing()) {
    if (reports_next_wait()) graph->wait(*this, event);
    return;
  }
  if (event.in_graph_) event.require_record_outside_graphs("stream " + name_);
  if (is_after(event)) return;
  clock_.merge(event.clock_);
  const bool reported = reports_next_wait();
  if (device() == DeviceType::kPlan) {
    instruments_.timeline->wait(lane_, event.id_);
    return;
  }
  if (instruments_.hazards != nullptr && reported) instruments_.hazards->wait(lane_, event.id_);
  enqueue_wait(event);
}

void Stream::mark_recorded(Event& event) {
  event.recorded_ = true;
  event.in_graph_ = false;
  event.capture_token_.reset();
  event.clock_.forget();
}

void Stream::enqueue_record(Event& event) {
  mark_recorded(event);
  if (CudaStream* stream = cuda()) {
    if (event.cuda_ == nullptr) event.cuda_ = std::make_shared<CudaEvent>(event.timed_);
    event.cuda_->record(*stream);
    return;
  }
  event.cpu_ = std::make_shared<CpuEventPoint>();
  cpu()->fire(event.cpu_);
}

void Stream::enqueue_wait(Event& event) {
  if (CudaStream* stream = cuda()) {
    require(event.cpu_ == nullptr, "a CUDA stream waits for an event that a CPU stream recorded");
    if (event.cuda_ != nullptr) event.cuda_->wait(*stream);
    return;
  }
  require(event.cuda_ == nullptr, "a CPU stream waits for an event that a CUDA stream recorded");
  if (event.cpu_ != nullptr) cpu()->await(event.cpu_);
}

void Stream::record_external(Event& event) {
  require(capture_ != nullptr, "record_external outside a capture: use record");
  capture_->add_external(Graph::Kind::kRecordExternal, *this, event);
}

void Stream::wait_external(Event& event) {
  require(capture_ != nullptr, "wait_external outside a capture: use wait");
  capture_->add_external(Graph::Kind::kWaitExternal, *this, event, reports_next_wait());
}

void Stream::synchronize() {
  if (device() == DeviceType::kPlan) return;
  refuse_during_capture("synchronize", "move the host's wait out of the captured range");
  if (instruments_.hazards != nullptr) instruments_.hazards->join(HazardChecker::kHost, lane_);  // also if a task threw
  if (CudaStream* stream = cuda()) return stream->synchronize();
  cpu()->synchronize();
}

void Stream::synchronize_host(Event& event) {
  const bool reported = reports_next_wait();
  if (device() == DeviceType::kPlan) return;
  refuse_during_capture(fmt::format("the host waits for event {}", event.name()),
                        "move the host's wait out of the captured range");
  if (instruments_.hazards != nullptr && reported) instruments_.hazards->wait(HazardChecker::kHost, event.id_);
  event.wait_on_host();
}

void Stream::announce_host(const Access& access) {
  refuse_during_capture(fmt::format("the host touches device data ({})", access.name()),
                        "read or write it before the capture, or from an op");
  if (device() != DeviceType::kPlan && instruments_.hazards != nullptr) instruments_.hazards->host(access);
}

void Stream::refuse_during_capture(std::string_view act, std::string_view remedy) const {
  const std::string subject = fmt::format("stream {}: {}", name_, act);
  if (instruments_.captures != nullptr) instruments_.captures->refuse(subject, remedy);
  if (capture_ != nullptr) capture_->refuse(subject, remedy);
}

CpuStream::CpuStream() : worker_([this] { work(); }) {}

CpuStream::~CpuStream() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  worker_.join();
  if (!error_) return;
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& error) {
    log_warning(std::string("a stream ended with an unreported error: ") + error.what());
  } catch (...) {
    log_warning("a stream ended with an unknown, unreported error");
  }
}

void CpuStream::enqueue(Task task) {
  if (capture_) {
    capture_(std::move(task));
  } else {
    push(std::move(task), false);
  }
}

void CpuStream::push(Task task, bool always) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back({std::move(task), always});
  }
  changed_.notify_all();
}

void CpuStream::fire(std::shared_ptr<CpuEventPoint> point) {
  push(
      [this, point = std::move(point)] {
        std::exception_ptr error;
        {
          std::lock_guard lock(mutex_);
          error = error_;
        }
        point->fire(std::move(error));
      },
      true);
}

void CpuStream::await(std::shared_ptr<CpuEventPoint> point) {
  push([point = std::move(point)] { point->wait(); }, true);
}

void CpuStream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void CpuStream::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    const bool skipped = error_ && !item.always;
    busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      if (!skipped) item.task();
    } catch (...) {
      error = std::current_exception();
    }
    item.task = nullptr;  // destroys the task's captures ahead of the idle state
    lock.lock();
    busy_ = false;
    if (error && !error_) error_ = std::move(error);
    if (queue_.empty()) changed_.notify_all();
  }
}

}  // namespace megalith
