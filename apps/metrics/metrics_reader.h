// Reads what apps/metrics/metrics.h writes, out of a file that may come from anywhere: at most 2 GiB, 2^22 steps, lines
// of 1 MiB, counts of 2^48, and the limits of strict_json.h.
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
  std::string version;  // empty where the file does not say
  std::string commit;
  std::vector<std::pair<std::string, std::string>> config;  // flag and value of the newest "run", by name
  NamedBytes memory_bytes;                                  // of the last step that has them; no record has them
  std::vector<StepMetrics> records;                         // by ascending iteration; numbers that are absent are NaN
};

// Fails with kFileIo, or with kFormat naming FILE:LINE. A last line without an end that is no JSON, as a killed run
// leaves it, is left out with a warning.
MetricsRun read_metrics(const std::string& path);

// The step of a metrics line of at most kMaxMetricsLineBytes; none where it is not one.
std::optional<std::int64_t> iteration_of(std::string_view line);

}  // namespace megalith
