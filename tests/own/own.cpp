// The example of CONTRIBUTING.md: an apps/own.cpp that adds a ResidualAdapter after the MLP or the experts of each
// layer, with flags and a hook. The programs own_train, own_plan, own_generate and own_convert are built with it.
#include "apps/config/own.h"

#include <fmt/format.h>

#include <memory>

#include "apps/config/parallel_options.h"
#include "apps/run/rank.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/model/config.h"
#include "tests/own/residual_adapter.h"

namespace megalith {

std::vector<OwnFlag> own_flags() {
  return {
      {.name = "adapter-rank",
       .unit = "N",
       .help = "width of the adapter behind each MLP; 0: none",
       .value = std::int64_t{0},
       .high = 65'536},
      {.name = "adapter-pins-input",
       .unit = "",
       .help = "the adapters' kept inputs stay on the device",
       .value = false,
       .on_load = OnLoad::kFree},
      {.name = "adapter-init-std",
       .unit = "X",
       .help = "standard deviation of the adapters' initial weights",
       .value = 0.02,
       .high = 10,
       .on_load = OnLoad::kFree},
      {.name = "adapter-says",
       .unit = "TEXT",
       .help = "a line of the log when the first adapter's first forward is enqueued",
       .value = std::string(),
       .on_load = OnLoad::kFree},
  };
}

void check_own(const Options& options) {
  const auto rank = options.own_value<std::int64_t>("adapter-rank");
  const std::int64_t ranks = options.parallel.tensor_model_parallel_size;
  if (rank % ranks == 0) return;
  refuse_usage("--adapter-rank and --tensor-model-parallel-size",
               {.expected = fmt::format("an --adapter-rank that {} divides", ranks),
                .got = fmt::format("{}", rank),
                .remedy = "choose a multiple"});
}

OwnSegmentFactory own_segments(const Options& options) {
  const auto rank = options.own_value<std::int64_t>("adapter-rank");
  if (rank == 0) return nullptr;
  const bool pins_input = options.own_value<bool>("adapter-pins-input");
  const auto init_std = static_cast<float>(options.own_value<double>("adapter-init-std"));
  return [rank, pins_input, init_std](const OwnSite& site) -> std::unique_ptr<Segment> {
    const ResidualAdapter::Spec spec{.name = site.prefix + "adapter",
                                     .hidden = site.config.hidden_size,
                                     .rank = rank,
                                     .init_std = init_std,
                                     .pins_input = pins_input};
    return std::make_unique<ResidualAdapter>(site.store, spec, site.rows);
  };
}

void add_own_hooks(Rank& rank) {
  const auto& text = rank.options.own_value<std::string>("adapter-says");
  if (text.empty()) return;
  for (int s = 0; s < rank.runner.num_segments(); ++s) {
    if (rank.runner.entry(s).module != SegmentModule::kOwn) continue;
    const bool is_plan = rank.is_plan();
    rank.runner.hooks(s).add(HookPoint::kPreForward, [text, is_plan, logged = false](const HookContext&) mutable {
      if (!logged && !is_plan) log_info(text);
      logged = true;
    });
    return;
  }
}

}  // namespace megalith
