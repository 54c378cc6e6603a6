// Ranks that share a host or a GPU, and the memory that each may use.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/base/machine/host_memory.h"
#include "core/device/cuda_memory.h"
#include "parallel/comm/communicator.h"

namespace megalith {

std::string host_name();  // of this process
// Host name of each rank. Collective.
std::vector<std::string> hosts_of(Communicator& world);
// Number of ranks on this rank's host, by its name. Collective.
std::size_t ranks_of_host(Communicator& world);

// Host memory that each rank may use: the minimum over all ranks, so that ranks choose equally; 0 if no host reports.
// Collective. `available`: bytes on this rank's host; 0 if unknown.
std::size_t least_share_of_host(Communicator& world, std::size_t available = available_bytes());

// A rank's GPU, by a name that is unique over all hosts, and its memory.
struct RankGpu {
  std::string name;
  CudaMemory memory;
};
RankGpu gpu_of_rank(Communicator& world);  // collective
// Memory that the ranks of this rank's GPU plan to use. Collective.
struct GpuUse {
  std::size_t ranks = 0, bytes = 0;
};
GpuUse use_of_gpu(std::size_t planned, const std::string& gpu, Communicator& world);

}  // namespace megalith
