#include "parallel/watch/flight_recorder.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <ctime>

#include "core/tensor/dtype.h"

namespace megalith {

namespace {

std::string dtype_of(const CollectiveCall& call) {
  return call.dtype < 0 ? "bytes" : std::string(name_of(static_cast<DType>(call.dtype)));
}

// Properties that all ranks agree on; counts of an all-to-all differ by rank.
std::string signature_of(const CollectiveCall& call) {
  const std::int64_t count = call.kind == "all_to_all" ? 0 : call.count;
  return fmt::format(
      "{} {} x {}{}{}", call.kind, dtype_of(call), count,
      call.argument < 0 ? "" : fmt::format(" {} {}", call.kind == "shift" ? "by" : "root", call.argument),
      call.label.empty() ? "" : fmt::format(" ({})", call.label));
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

std::string to_string(const CollectiveCall& call) {
  const char* const peer = call.kind == "send"      ? " to rank "
                           : call.kind == "receive" ? " from rank "
                           : call.kind == "shift"   ? " by "
                                                    : " from root ";
  return fmt::format("{} #{} ({}{}{})", call.kind, call.sequence, call.label.empty() ? "" : call.label + ": ",
                     call.dtype < 0 ? "host" : fmt::format("{}, {} elements", dtype_of(call), call.count),
                     call.argument < 0 ? "" : fmt::format("{}{}", peer, call.argument));
}

void FlightRecorder::announce(const CollectiveCall& call) {
  if (call.point_to_point) return;
  const std::lock_guard lock(mutex_);
  ++collectives_;
  std::string signature = signature_of(call);
  hash_ = XXH3_64bits_withSeed(signature.data(), signature.size(), hash_);
  constexpr std::size_t kMaxKept = 4096;
  if (keeps_ && signatures_.size() < kMaxKept) signatures_.push_back(std::move(signature));
}

void FlightRecorder::begin(CollectiveCall call) {
  const std::lock_guard lock(mutex_);
  call.sequence = call.point_to_point ? ++points_ : ++begun_;
  call.began = CollectiveCall::Clock::now();
  call.ended = {};
  calls_.push_back(std::move(call));
  ++written_;
  while (calls_.size() > kLast && (!device_ || written_ - calls_.size() + 1 + kLast / 2 < device_->number))
    calls_.pop_front();
}

void FlightRecorder::end() {
  const std::lock_guard lock(mutex_);
  calls_.back().ended = CollectiveCall::Clock::now();
}

void FlightRecorder::restart() {
  const std::lock_guard lock(mutex_);
  calls_.clear();
  written_ = begun_ = points_ = 0;
}

std::uint64_t FlightRecorder::calls() const {
  const std::lock_guard lock(mutex_);
  return written_;
}

void FlightRecorder::set_device_progress(std::uint64_t number, bool runs, CollectiveCall::Clock::time_point since) {
  const std::lock_guard lock(mutex_);
  device_ = {.number = number, .runs = runs, .since = since};
}

// Call `number`, from 1; null if it is no longer kept.
const CollectiveCall* FlightRecorder::find(std::uint64_t number) const {
  if (number > written_ || written_ - number >= calls_.size()) return nullptr;
  return &calls_[calls_.size() - 1 - static_cast<std::size_t>(written_ - number)];
}

std::vector<CollectiveCall> FlightRecorder::last() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t end = written_;
  if (device_) end = std::min<std::uint64_t>(written_, device_->number + kLast / 2);
  std::vector<CollectiveCall> calls;
  for (std::uint64_t number = end - std::min<std::uint64_t>(end, kLast) + 1; number <= end; ++number) {
    const CollectiveCall* const found = find(number);
    if (found == nullptr) continue;
    CollectiveCall& call = calls.emplace_back(*found);
    if (!device_) continue;
    call.waits = number > device_->number;
    if (number == device_->number && device_->runs) {
      call.began = device_->since;
      call.ended = {};
    }
  }
  return calls;
}

std::optional<CollectiveCall> FlightRecorder::current() const {
  const std::lock_guard lock(mutex_);
  if (device_ && device_->runs) {
    if (const CollectiveCall* const found = find(device_->number)) {
      CollectiveCall call = *found;
      call.began = device_->since;
      call.ended = {};
      return call;
    }
  }
  const CollectiveCall* const newest = find(written_);
  if (newest == nullptr || !newest->runs()) return std::nullopt;
  return *newest;
}

std::uint64_t FlightRecorder::sequence() const {
  const std::lock_guard lock(mutex_);
  if (!device_) return begun_;
  for (std::uint64_t number = device_->number; number > 0; --number) {
    const CollectiveCall* const found = find(number);
    if (found == nullptr) return 0;
    if (!found->point_to_point) return found->sequence;
  }
  return 0;
}

FlightRecorder::Sequence FlightRecorder::sequence_so_far() const {
  const std::lock_guard lock(mutex_);
  return {.length = collectives_, .hash = hash_, .calls = signatures_};
}

void FlightRecorder::forget() {
  const std::lock_guard lock(mutex_);
  keeps_ = false;
  signatures_ = {};
}

std::string dump_json(int rank, int world_size, std::string_view reason,
                      const std::vector<const FlightRecorder*>& recorders) {
  const auto now = CollectiveCall::Clock::now();
  const auto since = [now](CollectiveCall::Clock::time_point time) {
    return fmt::format("{:.3f}", std::chrono::duration<double, std::milli>(time - now).count());
  };
  std::string out =
      fmt::format("{{\"rank\": {}, \"world_size\": {}, \"time\": \"{:%FT%TZ}\", \"reason\": {}, \"groups\": [", rank,
                  world_size, fmt::gmtime(std::time(nullptr)), json_string(reason));
  for (std::size_t g = 0; g < recorders.size(); ++g) {
    out += fmt::format("{}\n  {{\"group\": {}, \"ranks\": [{}], \"calls\": [", g == 0 ? "" : ",",
                       json_string(recorders[g]->group()), fmt::join(recorders[g]->world_ranks(), ", "));
    bool first = true;
    for (const CollectiveCall& call : recorders[g]->last()) {
      out += fmt::format(
          "{}\n    {{\"sequence\": {}, \"kind\": {}, \"tensor\": {}, \"dtype\": {}, \"count\": {}, "
          "\"root_or_peer\": {}, \"state\": \"{}\", \"began_ms\": {}, \"ended_ms\": {}}}",
          first ? "" : ",", call.sequence, json_string(call.kind), json_string(call.label), json_string(dtype_of(call)),
          call.count, call.argument < 0 ? "null" : std::to_string(call.argument),
          call.waits    ? "enqueued"
          : call.runs() ? "running"
                        : "ended",
          since(call.began), call.runs() ? "null" : since(call.ended));
      first = false;
    }
    out += "]}";
  }
  return out + "]}\n";
}

}  // namespace megalith
