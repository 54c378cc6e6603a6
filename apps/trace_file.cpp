#include "apps/trace_file.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "apps/flags_binding.h"

namespace megalith {

namespace {

// Lanes are threads from 1 on: Perfetto takes thread 0 for the one that has the number of its process.
int thread_of(int lane) { return lane + 1; }

std::string metadata(std::string_view what, int rank, int lane, std::string_view name) {
  return fmt::format(R"({{"ph": "M", "name": "{}", "pid": {}, "tid": {}, "args": {{"name": {}}}}})", what, rank,
                     thread_of(lane), escaped(name));
}

// Whole nanoseconds, so that a span within another ends no later than it: viewers drop spans that overlap.
std::string microseconds(std::int64_t nanoseconds) {
  return fmt::format("{:.3f}", static_cast<double>(nanoseconds) / 1000);
}

}  // namespace

std::string trace_events(const Trace& trace, int rank, double origin_us) {
  std::string json = metadata("process_name", rank, 0, fmt::format("rank {}", rank));
  int number = 0;
  for (const std::string& lane : trace.lane_names()) json += ",\n" + metadata("thread_name", rank, number++, lane);
  for (const Trace::Span& span : trace.spans()) {
    std::string args;
    if (span.bytes > 0) args = fmt::format(R"("bytes": {})", span.bytes);
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

}  // namespace megalith
