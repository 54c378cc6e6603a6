#include "apps/trace_file.h"

#include <fmt/format.h>

#include "apps/flags_binding.h"

namespace megalith {

namespace {

std::string metadata(std::string_view what, int rank, int lane, std::string_view name) {
  return fmt::format(R"({{"ph": "M", "name": "{}", "pid": {}, "tid": {}, "args": {{"name": {}}}}})", what, rank, lane,
                     escaped(name));
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
    json += fmt::format(
        R"(,
{{"ph": "X", "name": {}, "pid": {}, "tid": {}, "ts": {:.3f}, "dur": {:.3f}, "args": {{{}}}}})",
        escaped(span.name), rank, span.lane, trace.start_us() - origin_us + span.begin_us, span.duration_us, args);
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
