// Which ranks share a host or a GPU, and what each may take of it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/base/machine/host_memory.h"
#include "core/device/cuda_memory.h"
#include "parallel/comm/communicator.h"

namespace megalith {

std::string host_name();  // of this process
// Of each rank. Collective.
std::vector<std::string> hosts_of(Communicator& world);
// Ranks that share this rank's host, by its name. Collective.
std::size_t ranks_of_host(Communicator& world);

// What a rank may take of its host: the least of all ranks, so that they choose alike; 0 where no host tells.
// Collective. `available`: on this rank's host; 0 where that is not known.
std::size_t least_share_of_host(Communicator& world, std::size_t available = available_bytes());

// A rank's GPU, by a name that is its own among all hosts', and its memory.
struct RankGpu {
  std::string name;
  CudaMemory memory;
};
RankGpu gpu_of_rank(Communicator& world);  // collective
// What ranks that share this rank's GPU plan to take of it. Collective.
struct GpuUse {
  std::size_t ranks = 0, bytes = 0;
};
GpuUse use_of_gpu(std::size_t planned, const std::string& gpu, Communicator& world);

}  // namespace megalith
