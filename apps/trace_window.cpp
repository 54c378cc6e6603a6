#include "apps/trace_window.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "apps/trace_file.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/output_file.h"
#include "core/device/cuda_device.h"

namespace megalith {

namespace {

bool names_rank(const std::vector<std::string>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), std::to_string(rank)) != ranks.end();
}

bool profile_changes(const LoggingOptions& logging, std::int64_t next_step) {
  return logging.profile && (next_step == logging.profile_step_start || next_step == logging.profile_step_end);
}

}  // namespace

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
  log_warning(fmt::format("--trace {}: not written, no step of [{}, {}) was run", logging_.trace,
                          logging_.profile_step_start, logging_.profile_step_end));
}

void TraceWindow::write() {
  state_ = State::kWritten;
  const bool traced = trace_.active();
  if (traced) trace_.stop();
  // Microseconds since 1970 have too many digits for fractions: the earliest rank begins at 0.
  const std::vector<double> starts = world_.host_gather(traced ? trace_.start_us() : HUGE_VAL);
  const double origin = *std::min_element(starts.begin(), starts.end());
  const std::string mine = traced ? trace_events(trace_, world_.rank(), origin) : "";
  constexpr std::size_t kPiece = std::size_t{1} << 20;  // a gather is limited, a trace is not
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
    log_warning(fmt::format("--trace: {}", error.what()));  // the run is worth more
  }
}

}  // namespace megalith
