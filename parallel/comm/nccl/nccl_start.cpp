// Checks and settings of NCCL before the first communicator.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "core/device/cuda_device.h"
#include "parallel/comm/gpu_share.h"
#include "parallel/comm/nccl/nccl_communicator.h"

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
  return gpu_share_fault(world.host_all_gather(fmt::format("{} of {}", cuda_bus_id(), host)), world.rank(),
                         ranks_per_gpu);
}

// Same parsing as in NCCL: 0x0 and text without a number are 0 too.
bool nccl_mixing_is_off() {
  const char* const value = std::getenv("NCCL_GRAPH_MIXING_SUPPORT");
  if (value == nullptr || *value == '\0') return false;
  errno = 0;
  return std::strtoll(value, nullptr, 0) == 0 && errno == 0;
}

std::string nccl_mixing_fault(Communicator& world) {
  const bool some_off = world.host_any(nccl_mixing_is_off()), some_on = world.host_any(!nccl_mixing_is_off());
  if (!some_off || !some_on) return "";
  return "NCCL_GRAPH_MIXING_SUPPORT: expected the same on all ranks, got 0 on some of them; hand it to all with mpirun "
         "-x NCCL_GRAPH_MIXING_SUPPORT";
}

}  // namespace megalith
