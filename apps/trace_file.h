// Traces of all ranks as one file that Perfetto and chrome://tracing open (--trace).
//
// Format: Chrome's trace events ("Trace Event Format", Google): complete events ("ph": "X") in microseconds; pid is the
// rank, tid the stream.
#pragma once

#include <string>
#include <vector>

#include "core/device/trace.h"

namespace megalith {

// One rank's members of the array "traceEvents", separated by commas. Times count from `origin_us` (since 1970), the
// same on all ranks.
std::string trace_events(const Trace& trace, int rank, double origin_us);
// The file, from each rank's trace_events(); "" where a rank traced nothing.
std::string trace_file(const std::vector<std::string>& events);

}  // namespace megalith
