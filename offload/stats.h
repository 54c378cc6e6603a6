// Cost and savings of moving kept activations to the host, as forecast or as measured.
#pragma once

#include <cstdint>
#include <optional>

#include "core/device/memory_node.h"

namespace megalith {

// Statistics of one rank's step, unless stated otherwise by the owner.
struct OffloadStats {
  std::int64_t slots = 0;
  std::int64_t bytes_out = 0, bytes_back = 0;  // copied to the host and back
  std::int64_t host_bytes = 0;                 // pinned memory
  bool timed = false;                          // the five times below are known
  double copy_out = 0, copy_back = 0;          // seconds of copies; copies of one direction never overlap
  double wait_out = 0, wait_back = 0;          // seconds that the compute stream waits
  double step = 0;                             // seconds of the step; in a forecast, of its computation
  // Device bytes saved against a run that keeps all activations: in peak live memory, and in planned blocks.
  std::int64_t saving_bytes = 0, saved_bytes = 0;
  std::optional<std::int64_t> saved_driver_bytes{};  // as the driver reports; absent if not observable, as on the CPU
  MemoryNodes nodes{};                               // NUMA nodes of the host memory
  int near_node = -1;                                // node of the GPU; -1: no GPU or unknown

  double waits() const { return wait_out + wait_back; }
  double ratio() const { return ratio(saved_bytes); }  // R
  double ratio(std::int64_t saved) const {
    return saving_bytes > 0 ? static_cast<double>(saved) / static_cast<double>(saving_bytes) : 1;
  }
};

}  // namespace megalith
