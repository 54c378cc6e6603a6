// Faults that a test asks for.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/files/fault.h"

namespace megalith {

// Armed as long as it lives.
class Faults {
 public:
  explicit Faults(const std::string& text) : Faults(std::vector{parse_fault(text)}) {}
  explicit Faults(std::vector<FaultRequest> requests, std::set<std::string>* reached = nullptr) {
    arm_faults(std::move(requests), reached);
  }
  ~Faults() { disarm_faults(); }
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;
};

}  // namespace megalith
