#include "core/base/text/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace megalith {

std::string with_unit(double value) {
  if (value >= 1e12) return fmt::format("{:.2f} T", value * 1e-12);
  if (value >= 1e9) return fmt::format("{:.2f} B", value * 1e-9);
  if (value >= 1e6) return fmt::format("{:.2f} M", value * 1e-6);
  if (value >= 1e3) return fmt::format("{:.1f} k", value * 1e-3);
  return fmt::format("{:.0f}", value);
}

std::string duration(double seconds) {
  const auto total = static_cast<std::int64_t>(std::clamp(std::round(seconds), 0.0, 1e11));
  const std::int64_t minutes = total / 60, hours = minutes / 60, days = hours / 24;
  if (days > 0) return fmt::format("{}d {:02}h", days, hours % 24);
  if (hours > 0) return fmt::format("{}h {:02}m", hours, minutes % 60);
  if (minutes > 0) return fmt::format("{}m {:02}s", minutes, total % 60);
  return fmt::format("{}s", total);
}

std::string bytes_text(std::int64_t bytes) {
  double value = static_cast<double>(bytes);
  for (const char* unit : {"B", "KiB", "MiB", "GiB"}) {
    if (std::abs(value) < 1024)
      return unit[0] == 'B' ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, unit);
    value /= 1024;
  }
  return fmt::format("{:.1f} TiB", value);
}

}  // namespace megalith
