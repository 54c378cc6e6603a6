#include "core/base/machine/host_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/file.h"
#include "core/base/take_part.h"

namespace megalith {

namespace {

// Returns "" if the file cannot be read: not every kernel has all of these files.
std::string text_in(const std::string& path) {
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
  return error == std::errc() ? std::optional(value) : std::nullopt;  // cgroups have "max" for no limit
}

// Returns the number after `key` at the start of a line.
std::optional<std::size_t> number_after(std::string_view key, std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = take_part(text, '\n');
    if (line.starts_with(key)) return number_at_start(line.substr(key.size()));
  }
  return std::nullopt;
}

struct GroupFiles {
  const char *mount, *limit, *used, *cache;
};
constexpr GroupFiles kFirstVersion = {"/sys/fs/cgroup/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                      "total_inactive_file "};
constexpr GroupFiles kSecondVersion = {"/sys/fs/cgroup", "/memory.max", "/memory.current", "inactive_file "};

// Returns the bytes that a group's limit leaves, at least 1. The kernel reclaims inactive pages of files first.
std::optional<std::size_t> room_in_group(const std::string& folder, const GroupFiles& files) {
  const std::optional<std::size_t> limit = number_at_start(text_in(folder + files.limit));
  const std::optional<std::size_t> used = number_at_start(text_in(folder + files.used));
  if (!limit || !used) return std::nullopt;
  const std::size_t cache = number_after(files.cache, text_in(folder + "/memory.stat")).value_or(0);
  const std::size_t needed = *used - std::min(*used, cache);
  return std::max<std::size_t>(*limit - std::min(*limit, needed), 1);
}

}  // namespace

std::size_t resident_bytes() {
  const std::string text = text_in("/proc/self/statm");  // pages: all, resident, ...
  const std::size_t resident =
      number_at_start(std::string_view(text).substr(std::min(text.find(' '), text.size()))).value_or(0);
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t available_bytes(const std::string& root) {
  std::size_t available = number_after("MemAvailable:", text_in(root + "/proc/meminfo")).value_or(0) * 1024;
  const std::string groups = text_in(root + "/proc/self/cgroup");
  for (std::string_view rest = groups; !rest.empty();) {  // number:controllers:folder
    std::string_view line = take_part(rest, '\n');
    take_part(line, ':');
    std::string_view controllers = take_part(line, ':');
    const GroupFiles& files = controllers.empty() ? kSecondVersion : kFirstVersion;
    bool counts = controllers.empty();
    while (!counts && !controllers.empty()) counts = take_part(controllers, ',') == "memory";
    if (!counts) continue;
    // A container may see its group as the root, under the name that the group has outside.
    for (std::string folder(line == "/" ? "" : line);; folder.resize(folder.rfind('/'))) {
      const std::optional<std::size_t> room = room_in_group(fmt::format("{}{}{}", root, files.mount, folder), files);
      if (room) available = available == 0 ? *room : std::min(available, *room);
      if (folder.find('/') == std::string::npos) break;
    }
  }
  return available;
}

std::size_t share_of_rank(std::size_t available, std::size_t ranks) {
  return available == 0 ? 0 : std::max<std::size_t>(available / ranks, 1);
}

}  // namespace megalith
