// What moving kept activations to the host takes and saves, by forecast or as measured.
#pragma once

#include <cstdint>
#include <optional>

#include "core/device/memory_node.h"

namespace megalith {

// Of one rank's step unless its owner says otherwise.
struct OffloadStats {
  std::int64_t slots = 0;
  std::int64_t bytes_out = 0, bytes_back = 0;  // copied to the host and back
  std::int64_t host_bytes = 0;                 // of pinned memory
  bool timed = false;                          // the five times are known
  double copy_out = 0, copy_back = 0;          // seconds of copies; those of one direction never overlap
  double wait_out = 0, wait_back = 0;          // seconds that the compute stream waits for them
  double step = 0;                             // seconds of the step; of a forecast, of its computing
  // Device memory against a run that keeps all activations: at the fullest moments, and by the planned blocks.
  std::int64_t saving_bytes = 0, saved_bytes = 0;
  std::optional<std::int64_t> saved_driver_bytes{};  // by the driver; none where something else hid it, as on the CPU
  MemoryNodes nodes{};                               // of the memory on the host
  int near_node = -1;                                // of the GPU; -1: none, or not known

  double waits() const { return wait_out + wait_back; }
  double ratio() const { return ratio(saved_bytes); }  // R
  double ratio(std::int64_t saved) const {
    return saving_bytes > 0 ? static_cast<double>(saved) / static_cast<double>(saving_bytes) : 1;
  }
};

}  // namespace megalith
