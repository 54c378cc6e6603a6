// What a rank may not do while one of its streams captures, because on a GPU it would break the capture or see data
// that the captured ops have not written: take memory from the system, block the host, touch device data on the host.
// One per rank, given to its streams (Instruments) and its memory pools.
#pragma once

#include <string_view>
#include <vector>

namespace megalith {

class Graph;

class CaptureGuard {
 public:
  bool active() const { return !graphs_.empty(); }
  // Fails while a capture runs; the message names `act` (who does what), the graph, and the op captured last.
  void refuse(std::string_view act, std::string_view remedy) const;

 private:
  friend class Graph;
  std::vector<const Graph*> graphs_;  // capturing now
};

}  // namespace megalith
