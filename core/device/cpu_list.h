// Sets of CPUs as Linux writes them.
#pragma once

#include <sched.h>

#include <charconv>
#include <string_view>

#include "core/base/take_part.h"

namespace megalith {

// "0-23,48-71" as sysfs writes them; what is none is left out.
inline cpu_set_t parse_cpu_list(std::string_view text) {
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

}  // namespace megalith
