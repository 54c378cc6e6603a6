#include "apps/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace megalith {

namespace {

std::optional<std::size_t> number_in(const char* path) {
  std::ifstream file(path);
  std::size_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;  // cgroups say "max" where there is no limit
}

}  // namespace

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t available_bytes() {
  std::size_t available = 0;
  std::ifstream file("/proc/meminfo");
  for (std::string key, unit; file >> key;) {
    std::size_t kib = 0;
    file >> kib;
    std::getline(file, unit);
    if (key == "MemAvailable:") available = kib * 1024;
  }
  const std::optional<std::size_t> limit = number_in("/sys/fs/cgroup/memory.max");
  const std::optional<std::size_t> used = number_in("/sys/fs/cgroup/memory.current");
  if (limit && used && *limit > *used) available = std::min(available, *limit - *used);
  return available;
}

}  // namespace megalith
