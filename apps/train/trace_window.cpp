#include "apps/train/trace_window.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/files/output_file.h"
#include "core/base/log.h"
#include "core/base/text/text.h"
#include "core/device/cuda_device.h"

namespace megalith {

namespace {

// Thread of a lane, from 1: Perfetto merges thread 0 with the thread that has its process's number.
int thread_of(int lane) { return lane + 1; }

std::string metadata(std::string_view what, int rank, int lane, std::string_view name) {
  return fmt::format(R"({{"ph": "M", "name": "{}", "pid": {}, "tid": {}, "args": {{"name": {}}}}})", what, rank,
                     thread_of(lane), escaped(name));
}

// Text with integer nanoseconds, so that a nested span ends no later than its outer span; viewers drop overlaps.
std::string microseconds(std::int64_t nanoseconds) {
  return fmt::format("{:.3f}", static_cast<double>(nanoseconds) / 1000);
}

// Members of one rank in the array "traceEvents". Times count from `origin_us` (since 1970), equal on all ranks.
std::string trace_events(const Trace& trace, int rank, double origin_us) {
  std::string json = metadata("process_name", rank, 0, fmt::format("rank {}", rank));
  int number = 0;
  for (const std::string& lane : trace.lane_names()) json += ",\n" + metadata("thread_name", rank, number++, lane);
  for (const Trace::Span& span : trace.spans()) {
    std::string args;
    if (span.bytes > 0) args = fmt::format(R"("bytes": {})", span.bytes);
    if (!span.ops.empty()) args += fmt::format(R"({}"ops": {})", args.empty() ? "" : ", ", escaped(span.ops));
    if (span.flops > 0) args += fmt::format(R"({}"flops": {:.0f})", args.empty() ? "" : ", ", span.flops);
    const double begin_us = trace.start_us() - origin_us + span.begin_us;
    const std::int64_t begin = std::llround(begin_us * 1000), end = std::llround((begin_us + span.duration_us) * 1000);
    json += fmt::format(
        R"(,
{{"ph": "X", "name": {}, "pid": {}, "tid": {}, "ts": {}, "dur": {}, "args": {{{}}}}})",
        escaped(span.name), rank, thread_of(span.lane), microseconds(begin), microseconds(end - begin), args);
  }
  return json;
}

// Content of the file, from each rank's trace_events(); "" for a rank without a trace.
std::string trace_file(const std::vector<std::string>& events) {
  std::string json = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  bool first = true;
  for (const std::string& of_rank : events) {
    if (of_rank.empty()) continue;
    json.append(first ? "\n" : ",\n").append(of_rank);
    first = false;
  }
  return json + "\n]}\n";
}

bool names_rank(const std::vector<std::string>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), std::to_string(rank)) != ranks.end();
}

bool profile_changes(const LoggingOptions& logging, std::int64_t next_step) {
  return logging.profile && (next_step == logging.profile_step_start || next_step == logging.profile_step_end);
}

}  // namespace

TraceWindow::TraceWindow(const LoggingOptions& logging, Communicator& world) : logging_(logging), world_(world) {
  for (const std::string& rank : logging.profile_ranks) {
    if (std::stol(rank) < world.size()) continue;
    refuse_usage("--profile-ranks", {.expected = fmt::format("ranks from 0 to {}", world.size() - 1), .got = rank});
  }
}

bool TraceWindow::trace_changes(std::int64_t next_step) const {
  if (logging_.trace.empty() || state_ == State::kWritten) return false;
  return is_inside(next_step) != (state_ == State::kUnderWay);
}

bool TraceWindow::changes(std::int64_t next_step) const {
  return trace_changes(next_step) || profile_changes(logging_, next_step);
}

void TraceWindow::advance(std::int64_t next_step, Stream& compute) {
  const std::vector<std::string>& ranks = logging_.profile_ranks;
  if (profile_changes(logging_, next_step)) {
    const bool mine = ranks.empty() ? world_.rank() == 0 : names_rank(ranks, world_.rank());
    if (mine) record_cuda_profile(next_step == logging_.profile_step_start);
  }
  if (!trace_changes(next_step)) return;
  if (!is_inside(next_step)) return write();
  state_ = State::kUnderWay;
  if (ranks.empty() || names_rank(ranks, world_.rank())) trace_.start(compute);
}

void TraceWindow::finish() {
  if (logging_.trace.empty() || state_ == State::kWritten) return;
  if (state_ == State::kUnderWay) return write();
  if (world_.rank() != 0) return;
  log_warning(fmt::format("--trace {}: not written, as no step of [{}, {}) ran", logging_.trace,
                          logging_.profile_step_start, logging_.profile_step_end));
}

void TraceWindow::write() {
  state_ = State::kWritten;
  const bool traced = trace_.active();
  if (traced) trace_.stop();
  // Microseconds since 1970 leave no digits for fractions, so the earliest rank begins at 0.
  const std::vector<double> starts = world_.host_gather(traced ? trace_.start_us() : HUGE_VAL);
  const double origin = *std::min_element(starts.begin(), starts.end());
  const std::string mine = traced ? trace_events(trace_, world_.rank(), origin) : "";
  constexpr std::size_t kPiece = std::size_t{1} << 20;  // the size of a gather is limited
  std::vector<std::string> all(static_cast<std::size_t>(world_.size()));
  for (std::size_t at = 0; world_.host_any(at < mine.size()); at += kPiece) {
    const std::vector<std::string> pieces =
        world_.host_all_gather(at < mine.size() ? mine.substr(at, kPiece) : std::string());
    for (std::size_t r = 0; world_.rank() == 0 && r < pieces.size(); ++r) all[r] += pieces[r];
  }
  if (world_.rank() != 0) return;
  try {
    OutputFile file(logging_.trace, "trace");
    file.write(trace_file(all));
    file.commit();
    log_info("wrote the trace " + logging_.trace);
  } catch (const Error& error) {
    log_warning(fmt::format("--trace: {}", error.what()));  // the run continues
  }
}

}  // namespace megalith
