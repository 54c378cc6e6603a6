#include "parallel/mesh/hosts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "core/device/cuda_device.h"
#include "parallel/comm/on_all_ranks.h"

namespace megalith {

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::vector<std::string> hosts_of(Communicator& world) { return world.host_all_gather(host_name()); }

std::size_t ranks_of_host(Communicator& world) {
  const std::vector<std::string> hosts = hosts_of(world);
  return static_cast<std::size_t>(std::ranges::count(hosts, hosts[static_cast<std::size_t>(world.rank())]));
}

std::size_t least_share_of_host(Communicator& world, std::size_t available) {
  std::size_t least = 0;
  for (const std::size_t share : world.host_gather(share_of_rank(available, ranks_of_host(world)))) {
    if (share > 0) least = least == 0 ? share : std::min(least, share);
  }
  return least;
}

RankGpu gpu_of_rank(Communicator& world) {
  RankGpu gpu;
  on_all_ranks(world,
               [&] { gpu = {.name = fmt::format("{} of {}", cuda_bus_id(), host_name()), .memory = cuda_memory()}; });
  return gpu;
}

GpuUse use_of_gpu(std::size_t planned, const std::string& gpu, Communicator& world) {
  const std::vector<std::string> gpus = world.host_all_gather(gpu);
  const std::vector<std::size_t> bytes = world.host_gather(planned);
  GpuUse use;
  for (std::size_t r = 0; r < gpus.size(); ++r) {
    if (gpus[r] != gpu) continue;
    ++use.ranks;
    use.bytes += bytes[r];
  }
  return use;
}

}  // namespace megalith
