// What NCCL is told and asked before the first communicator.
#include <fmt/format.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "core/device/cuda_device.h"
#include "parallel/comm/gpu_share.h"
#include "parallel/comm/nccl_communicator.h"

namespace megalith {

namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

std::string nccl_version_fault(int library, int built_for) {
  if (library / 10000 == built_for / 10000 && library / 100 >= built_for / 100) return "";
  return fmt::format(
      "NCCL: expected version {}.{} or a newer {}.x, for which this program was built, got the library of version {}; "
      "put the right libnccl.so.2 first on LD_LIBRARY_PATH",
      built_for / 10000, built_for / 100 % 100, built_for / 10000, version_text(library));
}

std::string gpu_fault(Communicator& world, int ranks_per_gpu) {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  return gpu_share_fault(world.host_all_gather(fmt::format("{} on {}", cuda_bus_id(), host)), world.rank(),
                         ranks_per_gpu);
}

bool nccl_mixing_is_off() {
  const char* const value = std::getenv("NCCL_GRAPH_MIXING_SUPPORT");
  return value != nullptr && std::string_view(value) == "0";
}

}  // namespace megalith
