// Activations in host memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

// Activations that are in host memory between forward and backward.
struct OffloadOptions {
  bool fine_grained_activation_offloading = false;
  std::vector<std::string> offload_modules;  // KIND, KIND:LAYER or KIND:FIRST-LAST, fused_group_mlp for three; or auto
  double activation_offload_fraction = 1;    // of a chunk's groups, which are a kind in a layer; the last ones stay
  std::int64_t offload_mb_per_layer = 0;     // MiB of a layer and microbatch at most; 0: no limit
  std::int64_t min_offload_bytes = 1 << 20;  // smaller storages stay
  std::int64_t min_offloaded_tensor_size = 0;  // likewise, as elements of the parameters' dtype; 0: not given
  std::int64_t offload_distance =
      -1;                           // layers between a slot's readers and its copies' ends; -1: by the forecast, or 1
  double offload_slowdown = 0.005;  // most of the step's computing that it waits for copies, by the forecast
};

}  // namespace megalith
