// Host actions that are illegal while a stream of the rank captures: allocating from the system, blocking, touching
// device data. On a GPU they would break the capture, or see data that the captured ops have not written. Each rank has
// one guard, shared by its streams (Instruments) and its memory pools.
#pragma once

#include <string_view>
#include <vector>

namespace megalith {

class Graph;

class CaptureGuard {
 public:
  bool active() const { return !graphs_.empty(); }
  // Fails while a capture runs. The message has `act` (subject and verb), the graph, and the op captured last.
  void refuse(std::string_view act, std::string_view remedy) const;

 private:
  friend class Graph;
  std::vector<const Graph*> graphs_;  // graphs that capture now
};

}  // namespace megalith
