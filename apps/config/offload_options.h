// Options of activation offload.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

// Activations that stay in host memory between forward and backward.
struct OffloadOptions {
  bool fine_grained_activation_offloading = false;
  std::vector<std::string> offload_modules;    // KIND, KIND:LAYER, KIND:FIRST-LAST or fused_group_mlp; or auto
  double activation_offload_fraction = 1;      // of a chunk's groups (a kind in a layer); the last groups stay
  std::int64_t offload_mb_per_layer = 0;       // maximum MiB per layer and microbatch; 0: no limit
  std::int64_t min_offload_bytes = 1 << 20;    // smaller storages stay on the device
  std::int64_t min_offloaded_tensor_size = 0;  // in elements of the parameters' dtype; 0: not given
  std::int64_t offload_distance =
      -1;  // layers between a slot's readers and the ends of its copies; -1: by the forecast, or 1
  double offload_slowdown = 0.005;  // maximum fraction of compute time that waits for copies, by the forecast
};

}  // namespace megalith
