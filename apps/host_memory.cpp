#include "apps/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/file.h"
#include "core/base/take_part.h"

namespace megalith {

namespace {

// "" where the system does not tell: not every kernel has all of these files.
std::string text_in(const char* path) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 16;
  const FaultScope scope("host_memory");
  try {
    return read_whole_file(path, kMaxBytes);
  } catch (const Error&) {
    return {};
  }
}

std::optional<std::size_t> number_at_start(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;  // cgroups say "max" where there is no limit
}

}  // namespace

std::size_t resident_bytes() {
  const std::string text = text_in("/proc/self/statm");  // pages: all, resident, ...
  const std::size_t resident =
      number_at_start(std::string_view(text).substr(std::min(text.find(' '), text.size()))).value_or(0);
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t available_bytes() {
  constexpr std::string_view kKey = "MemAvailable:";
  std::size_t available = 0;
  const std::string info = text_in("/proc/meminfo");
  for (std::string_view rest = info; !rest.empty();) {
    const std::string_view line = take_part(rest, '\n');
    if (line.starts_with(kKey)) available = number_at_start(line.substr(kKey.size())).value_or(0) * 1024;
  }
  const std::optional<std::size_t> limit = number_at_start(text_in("/sys/fs/cgroup/memory.max"));
  const std::optional<std::size_t> used = number_at_start(text_in("/sys/fs/cgroup/memory.current"));
  if (limit && used && *limit > *used) available = std::min(available, *limit - *used);
  return available;
}

}  // namespace megalith
