// Which CPUs are near a device, and threads that run on them.
#pragma once

#include <sched.h>

#include <string>
#include <string_view>

namespace megalith {

// "0-23,48-71" as sysfs writes sets of CPUs; what is none is left out.
cpu_set_t parse_cpu_list(std::string_view text);

// Those of the NUMA node of a PCI device, such as "0000:1B:00.0", as the files below `system` tell; none where it is
// not known.
cpu_set_t cpus_near_pci(const std::string& bus_id, const std::string& system = "/sys");

// The device's NUMA node itself; -1 where it is not known.
int node_of_pci(const std::string& bus_id, const std::string& system = "/sys");

// While it lives, this thread runs on those CPUs of `near` that it was allowed to run on before, so that pages that it
// gets are of their node. Where there are none, or the system does not let it, nothing changes.
class RunNear {
 public:
  explicit RunNear(const cpu_set_t& near);
  ~RunNear();
  RunNear(const RunNear&) = delete;
  RunNear& operator=(const RunNear&) = delete;

 private:
  cpu_set_t before_{};
  bool moved_ = false;
};

}  // namespace megalith
