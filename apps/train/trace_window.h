// The window of steps that --trace and --profile record. --trace writes all ranks' spans as one file that Perfetto and
// chrome://tracing open, in the "Trace Event Format" (Google): complete events ("ph": "X") in microseconds; pid is the
// rank, tid the stream.
#pragma once

#include <cstdint>

#include "apps/config/logging_options.h"
#include "core/device/stream.h"
#include "core/device/trace.h"
#include "parallel/comm/communicator.h"

namespace megalith {

class TraceWindow {
 public:
  // --profile-ranks beyond the world's are refused.
  TraceWindow(const LoggingOptions& logging, Communicator& world);

  Trace* trace() { return &trace_; }  // for Instruments of the run's streams

  // Whether recording starts or ends before this step; then no step may be pending at advance().
  bool changes(std::int64_t next_step) const;
  void advance(std::int64_t next_step, Stream& compute);
  bool under_way() const { return state_ == State::kUnderWay; }
  // Writes a trace that is under way; nothing may be pending. Collective.
  void finish();

 private:
  enum class State : std::uint8_t { kNotBegun, kUnderWay, kWritten };

  bool is_inside(std::int64_t step) const {
    return step >= logging_.profile_step_start && step < logging_.profile_step_end;
  }
  bool trace_changes(std::int64_t next_step) const;
  void write();

  const LoggingOptions& logging_;
  Communicator& world_;
  Trace trace_;
  State state_ = State::kNotBegun;
};

}  // namespace megalith
