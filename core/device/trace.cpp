#include "core/device/trace.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/device/stream.h"

namespace megalith {

namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

}  // namespace

void Trace::start(Stream& stream) {
  require(!active(), "a trace is under way");
  auto clock = std::make_unique<Event>("trace clock", true);
  stream.record(*clock);
  clock->wait_on_host();
  host_start_ = Clock::now();
  if (!first_start_) {
    first_start_ = host_start_;
    start_us_ = std::chrono::duration<double, std::micro>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
  clock_ = std::move(clock);
}

void Trace::stop() {
  require(active(), "no trace is under way");
  const double offset = microseconds(host_start_ - *first_start_);
  for (const Entry& entry : entries_) {
    if (!entry.ended) continue;  // an op that failed to start
    entry.done.wait_on_host();
    const double begin = seconds_between(*clock_, entry.begun) * 1e6;
    const double end = seconds_between(*clock_, entry.done) * 1e6;
    Span& span = spans_.emplace_back(entry.span);
    span.begin_us = offset + begin;
    span.duration_us = end - begin;
    if (!entry.is_range) continue;
    spans_.push_back({.name = entry.span.name,
                      .begin_us = offset + microseconds(entry.enqueue_begun - host_start_),
                      .duration_us = microseconds(entry.enqueue_done - entry.enqueue_begun)});
  }
  for (Lane& lane : lanes_) lane.open.clear();
  entries_.clear();
  clock_.reset();
}

Trace::Entry* Trace::add(Stream& stream, std::string name) {
  const std::size_t lane = lane_of(stream);
  // Under capture the op's events would fire at each replay. The range around the replay shows the op.
  Entry* const entry = stream.capturing()
                           ? nullptr
                           : &entries_.emplace_back(Span{.name = std::move(name), .lane = static_cast<int>(lane)});
  lanes_[lane].open.push_back(entry);
  return entry;
}

std::size_t Trace::lane_of(const Stream& stream) {
  std::size_t lane = 1;
  while (lane < lanes_.size() && lanes_[lane].name != stream.name()) ++lane;
  if (lane == lanes_.size()) lanes_.push_back({.name = stream.name()});
  return lane;
}

void Trace::begin_op(Stream& stream, const Access& access) {
  Entry* const entry = add(stream, std::string(access.name()));
  if (entry == nullptr) return;
  entry->span.flops = access.flops();
  entry->span.bytes = static_cast<std::int64_t>(access.moved_bytes());
  stream.record(entry->begun);
}

void Trace::begin_range(Stream& stream, std::string name) {
  Entry* const entry = add(stream, std::move(name));
  if (entry == nullptr) return;
  entry->is_range = true;
  entry->enqueue_begun = Clock::now();
  stream.record(entry->begun);
}

void Trace::describe(Stream& stream, Replay replay) {
  Span& span = lanes_[lane_of(stream)].open.back()->span;
  span.ops = std::move(replay.ops);
  span.flops = replay.flops;
  span.bytes = replay.bytes;
}

void Trace::end(Stream& stream) {
  std::vector<Entry*>& open = lanes_[lane_of(stream)].open;
  if (open.empty()) return;
  Entry* const entry = open.back();
  open.pop_back();
  if (entry == nullptr || stream.capturing()) return;
  stream.record(entry->done);
  entry->enqueue_done = Clock::now();
  entry->ended = true;
}

std::vector<std::string> Trace::lane_names() const {
  std::vector<std::string> names;
  for (const Lane& lane : lanes_) names.push_back(lane.name);
  return names;
}

TraceRange::~TraceRange() {
  if (trace_ == nullptr) return;
  try {
    trace_->end(stream_);
  } catch (const std::exception& error) {
    log_warning(fmt::format("--trace: {}", error.what()));  // the next synchronize() reports the error
  }
}

}  // namespace megalith
