#include "core/device/timeline.h"

namespace megalith {

int Timeline::add_lane(std::string_view name) {
  lanes_.emplace_back(name);
  return static_cast<int>(lanes_.size()) - 1;
}

double Timeline::flops() const {
  double flops = 0;
  for (const Entry& entry : entries_) flops += entry.access.flops();
  return flops;
}

}  // namespace megalith
