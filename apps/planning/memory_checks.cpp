#include "apps/planning/memory_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "apps/config/layer_offload.h"
#include "apps/config/machine_facts.h"
#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/text/units.h"
#include "parallel/comm/on_all_ranks.h"

namespace megalith {

void take_host_share(Options& options, Communicator& world, std::size_t available) {
  if (offloads_by_forecast(options)) options.machine.host_share = least_share_of_host(world, available);
  options.machine.host_is_device = options.device == DeviceType::kCpu;
}

void check_host_memory(const StepPlans& plans, std::size_t staging, Communicator& world, std::size_t available) {
  const std::vector<std::string> hosts = hosts_of(world);
  const std::vector<std::size_t> wanted = world.host_gather(plans.host.peak_bytes + staging);
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
    const bool moves = plans.host.peak_bytes > 0;
    const char* const what = !moves         ? "copies of checkpoints"
                             : staging == 0 ? "kept activations"
                                            : "kept activations and copies of checkpoints";
    fail({.code = ExitCode::kOutOfMemory,
          .subject = fmt::format("{}: memory of host {}", moves ? "--offload-modules" : "--async-save", own),
          .expected = fmt::format("at most {:.2f} GiB, its available memory", gib(available)),
          .got = fmt::format("a forecast of {:.2f} GiB for {} of {}, {:.2f} of rank {}", gib(bytes), what,
                             counted(ranks, "rank"), gib(wanted[largest]), largest),
          .remedy =
              moves ? "offload fewer kinds or layers, or lower --activation-offload-fraction or --offload-mb-per-layer"
                    : "remove --async-save",
          .show_place = false});
  });
}

void check_gpu_memory(const MemoryUse& planned, const RankGpu& gpu, Communicator& world) {
  const GpuUse use = use_of_gpu(planned.total(), gpu.name, world);
  on_all_ranks(world, [&] {
    if (use.bytes <= gpu.memory.free) return;
    constexpr std::size_t kShown = 4;
    const auto owners = planned.owners();
    std::string list;
    for (const auto& [bytes, owner] : std::span(owners).first(kShown))
      if (bytes > 0) list += fmt::format("{}{} {:.2f}", list.empty() ? "" : ", ", owner, gib(bytes));
    const bool shared = use.ranks > 1;
    fail({.code = ExitCode::kOutOfMemory,
          .subject = shared ? fmt::format("memory of GPU {}", gpu.name) : "memory of the GPU",
          .expected =
              fmt::format("at most {:.2f} GiB, the free memory of {:.2f}", gib(gpu.memory.free), gib(gpu.memory.total)),
          .got = fmt::format("a forecast of {:.2f} GiB{} ({})", gib(use.bytes),
                             shared ? fmt::format(" for the {} ranks that share it, {:.2f} of this one", use.ranks,
                                                  gib(planned.total()))
                                    : "",
                             list),
          .remedy = "lower --micro-batch-size, add --recompute-granularity full, --loss-chunk-size or bf16 optimizer "
                    "state (--exp-avg-dtype), or use more ranks with --data-parallel-sharding-strategy "
                    "optim_grads_params (and --fsdp-embedding-and-head sharded) or --tensor-model-parallel-size",
          .show_place = false});
  });
}

}  // namespace megalith
