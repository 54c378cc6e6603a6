// Reader of --metrics-jsonl files (apps/metrics/metrics.h) of any origin. Limits: 2 GiB, 2^22 steps, lines of 1 MiB,
// counts of 2^48, and those of strict_json.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/metrics/step_metrics.h"

namespace megalith {

inline constexpr std::size_t kMaxMetricsLineBytes = std::size_t{1} << 20;

struct MetricsRun {
  std::string path;
  std::string version;  // empty if the file has none
  std::string commit;
  std::vector<std::pair<std::string, std::string>> config;  // flags and values of the newest "run", by name
  NamedBytes memory_bytes;                                  // of the last step that has them; records have none
  std::vector<StepMetrics> records;                         // by ascending iteration; absent numbers are NaN
};

// Fails with kFileIo, or with kFormat and FILE:LINE. A torn last line, as a killed run leaves it, is skipped with a
// warning.
MetricsRun read_metrics(const std::string& path);

// Step of a metrics line of at most kMaxMetricsLineBytes; none for other lines.
std::optional<std::int64_t> iteration_of(std::string_view line);

}  // namespace megalith
