#pragma once

#include <cstddef>

namespace megalith {

// What a run finds on its machine, and plan in --rates; no flag sets it.
struct MachineFacts {
  bool gpus_apart = false;          // GPUs that share out experts do not all read each other's memory
  std::size_t host_share = 0;       // bytes of its host's memory that a rank may take; 0: not known
  bool host_is_device = false;      // what a step computes with is in that share too
  bool ends_exceed_memory = false;  // a first plan found no room for whole embedding and head where that is open
};

}  // namespace megalith
