// What records a window of steps: the profiler (--profile) and the trace (--trace).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/trace_file.h"
#include "apps/trainer.h"
#include "core/base/log.h"
#include "core/base/output_file.h"
#include "core/device/cuda_device.h"

namespace megalith {

namespace {

bool names_rank(const std::vector<std::string>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), std::to_string(rank)) != ranks.end();
}

}  // namespace

void Trainer::profile() {
  const LoggingOptions& logging = options_.logging;
  if (!logging.profile) return;
  const bool starts = state_.step + 1 == logging.profile_step_start;
  const bool stops = state_.step + 1 == logging.profile_step_end;
  if (!starts && !stops) return;
  while (model_->pending_steps() > 0) finish_step(false);
  const std::vector<std::string>& ranks = logging.profile_ranks;
  const bool mine = ranks.empty() ? is_main() : names_rank(ranks, world_.rank());
  if (mine) record_cuda_profile(starts);
}

void Trainer::trace() {
  const LoggingOptions& logging = options_.logging;
  if (logging.trace.empty()) return;
  const std::int64_t next = state_.step + 1;
  const bool inside = next >= logging.profile_step_start && next < logging.profile_step_end;
  if (inside == (trace_state_ == TraceState::kUnderWay) || trace_state_ == TraceState::kWritten) return;
  if (!inside) return write_trace();
  while (model_->pending_steps() > 0) finish_step(false);
  trace_state_ = TraceState::kUnderWay;
  if (logging.profile_ranks.empty() || names_rank(logging.profile_ranks, world_.rank()))
    trace_.start(model_->compute());
}

void Trainer::write_trace() {
  const LoggingOptions& logging = options_.logging;
  if (logging.trace.empty() || trace_state_ == TraceState::kWritten) return;
  if (trace_state_ == TraceState::kNotBegun) {
    if (is_main())
      log_warning(fmt::format("--trace {}: not written, no step of [{}, {}) was run", logging.trace,
                              logging.profile_step_start, logging.profile_step_end));
    return;
  }
  while (model_->pending_steps() > 0) finish_step(false);
  trace_state_ = TraceState::kWritten;
  const bool traced = trace_.active();
  if (traced) trace_.stop();
  // Microseconds since 1970 have too many digits for fractions: the earliest rank begins at 0.
  double origin = HUGE_VAL;
  for (const std::string& start : world_.host_all_gather(traced ? fmt::format("{}", trace_.start_us()) : "inf"))
    origin = std::min(origin, std::stod(start));
  const std::string mine = traced ? trace_events(trace_, world_.rank(), origin) : "";
  constexpr std::size_t kPiece = std::size_t{1} << 20;  // a gather is limited, a trace is not
  std::vector<std::string> all(static_cast<std::size_t>(world_.size()));
  for (std::size_t at = 0; world_.host_any(at < mine.size()); at += kPiece) {
    const std::vector<std::string> pieces =
        world_.host_all_gather(at < mine.size() ? mine.substr(at, kPiece) : std::string());
    for (std::size_t r = 0; is_main() && r < pieces.size(); ++r) all[r] += pieces[r];
  }
  if (!is_main()) return;
  try {
    OutputFile file(logging.trace, "trace");
    file.write(trace_file(all));
    file.commit();
    log_info("wrote the trace " + logging.trace);
  } catch (const Error& error) {
    log_warning(fmt::format("--trace: {}", error.what()));  // the run is worth more
  }
}

}  // namespace megalith
