#pragma once

#include <cstddef>

namespace megalith {

// Facts that a run finds on its machine and plan finds in --rates; no flag sets them.
struct MachineFacts {
  bool lacks_peer_access = false;   // GPUs that share experts cannot all read each other's memory
  std::size_t host_share = 0;       // bytes of host memory per rank; 0: unknown
  bool host_is_device = false;      // host_share also holds the memory of the computation
  bool ends_exceed_memory = false;  // first plan without memory for unsharded embedding and head, if auto
};

}  // namespace megalith
