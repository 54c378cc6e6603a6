// Window of steps that --trace and --profile record. --trace writes all ranks' spans into one file for Perfetto and
// chrome://tracing, in the "Trace Event Format" (Google): complete events ("ph": "X") in microseconds; pid is the rank,
// tid the stream.
#pragma once

#include <cstdint>

#include "apps/config/logging_options.h"
#include "core/device/stream.h"
#include "core/device/trace.h"
#include "parallel/comm/communicator.h"

namespace megalith {

class TraceWindow {
 public:
  // Rejects --profile-ranks outside of the world.
  TraceWindow(const LoggingOptions& logging, Communicator& world);

  Trace* trace() { return &trace_; }  // for Instruments of the run's streams

  // True if recording starts or ends ahead of this step; then advance() requires that no step is pending.
  bool changes(std::int64_t next_step) const;
  void advance(std::int64_t next_step, Stream& compute);
  bool under_way() const { return state_ == State::kUnderWay; }
  // Writes a running trace; nothing may be pending. Collective.
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
