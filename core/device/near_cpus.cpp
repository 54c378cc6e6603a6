#include "core/device/near_cpus.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/file.h"
#include "core/base/take_part.h"

namespace megalith {

namespace {

// Returns the text of a PCI device's file in sysfs; "" if there is none.
std::string text_of(const std::string& bus_id, const char* file, const std::string& system) {
  std::string name = bus_id;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const FaultScope scope("host_memory");
  try {
    constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 12;
    return read_whole_file(system + "/bus/pci/devices/" + name + "/" + file, kMaxBytes);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

cpu_set_t parse_cpu_list(std::string_view text) {
  cpu_set_t cpus{};
  while (!text.empty()) {
    const std::string_view part = take_part(text, ',');
    unsigned first = 0;
    const auto [dash, error] = std::from_chars(part.data(), part.data() + part.size(), first);
    if (error != std::errc()) continue;
    unsigned last = first;
    if (dash != part.data() + part.size() && *dash == '-')
      static_cast<void>(std::from_chars(dash + 1, part.data() + part.size(), last));
    for (unsigned cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &cpus);
  }
  return cpus;
}

cpu_set_t cpus_near_pci(const std::string& bus_id, const std::string& system) {
  return parse_cpu_list(text_of(bus_id, "local_cpulist", system));
}

int node_of_pci(const std::string& bus_id, const std::string& system) {
  const std::string text = text_of(bus_id, "numa_node", system);
  int node = -1;
  static_cast<void>(std::from_chars(text.data(), text.data() + text.size(), node));
  return node;
}

RunNear::RunNear(const cpu_set_t& near) {
  if (sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
  cpu_set_t both{};
  CPU_AND(&both, &near, &before_);  // keeps the process's binding
  moved_ = CPU_COUNT(&both) > 0 && sched_setaffinity(0, sizeof(both), &both) == 0;
}

RunNear::~RunNear() {
  if (moved_) static_cast<void>(sched_setaffinity(0, sizeof(before_), &before_));
}

}  // namespace megalith
