// CPUs near a device, and threads that run on them.
#pragma once

#include <sched.h>

#include <string>
#include <string_view>

namespace megalith {

// Parses a CPU list of sysfs, such as "0-23,48-71"; skips malformed parts.
cpu_set_t parse_cpu_list(std::string_view text);

// Returns the CPUs of the NUMA node of a PCI device, such as "0000:1B:00.0", from the files under `system`; empty if
// unknown.
cpu_set_t cpus_near_pci(const std::string& bus_id, const std::string& system = "/sys");

// Returns the device's NUMA node; -1 if unknown.
int node_of_pci(const std::string& bus_id, const std::string& system = "/sys");

// Binds this thread to its allowed CPUs within `near`, so that new pages are of their node. Undone by the destructor.
// Without such CPUs, or if the system rejects the binding, nothing changes.
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
