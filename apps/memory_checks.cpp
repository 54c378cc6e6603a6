#include "apps/memory_checks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/counted.h"
#include "core/base/error.h"
#include "parallel/comm/on_all_ranks.h"

namespace megalith {

namespace {

std::vector<std::string> hosts_of(Communicator& world) {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return world.host_all_gather(name);
}

}  // namespace

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

void check_host_memory(const StepPlans& plans, Communicator& world, std::size_t available) {
  const std::vector<std::string> hosts = hosts_of(world);
  const std::vector<std::size_t> wanted = world.host_gather(plans.host.peak_bytes);
  const std::string& own = hosts[static_cast<std::size_t>(world.rank())];
  std::size_t bytes = 0, ranks = 0, largest = 0;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    if (hosts[r] != own || wanted[r] == 0) continue;
    bytes += wanted[r];
    ++ranks;
    if (hosts[largest] != own || wanted[r] > wanted[largest]) largest = r;
  }
  on_all_ranks(world, [&] {
    if (bytes == 0 || available == 0 || bytes <= available) return;
    const auto gib = [](std::size_t b) { return static_cast<double>(b) / (1 << 30); };
    fail({.code = ExitCode::kOutOfMemory,
          .subject = fmt::format("--offload-modules: memory of host {}", own),
          .expected = fmt::format("at most the {:.2f} GiB that it can give", gib(available)),
          .got = fmt::format("a forecast of {:.2f} GiB for kept activations of {}, {:.2f} of rank {}", gib(bytes),
                             counted(ranks, "rank"), gib(wanted[largest]), largest),
          .remedy = "name fewer kinds or layers, or lower --activation-offload-fraction or --offload-mb-per-layer",
          .show_place = false});
  });
}

}  // namespace megalith
