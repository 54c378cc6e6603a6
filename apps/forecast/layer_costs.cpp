#include "apps/forecast/layer_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "apps/config/offload_options.h"
#include "apps/forecast/forecast.h"
#include "core/model/config.h"

namespace megalith {

namespace {

using Counts = std::array<std::int64_t, 2>;  // layers without experts, and with experts

struct Measured {
  double seconds = 0;
  double bytes = 0;
};

Measured measure(Options options, int world, const Rates& rates, const Counts& counts) {
  options.model.num_layers = counts[0] + counts[1];
  std::string& pattern = options.model.moe.layer_freq;
  if (counts[1] > 0) pattern = counts[0] == 0 ? "1" : fmt::format("[0]*{}+[1]*{}", counts[0], counts[1]);
  const Forecast forecast = make_forecast(options, world, {.rates = &rates, .only_live_bytes = true});
  const StageForecast& stage = forecast.stages.front();
  Measured measured{.seconds = 0, .bytes = static_cast<double>(stage.plans.train.live_bytes)};
  for (const StepTimes::Chunk& chunk : stage.times.chunks)
    measured.seconds += chunk.forward + chunk.backward_data + chunk.backward_weight;
  measured.seconds -= (stage.times.exposed_gathers + stage.times.exposed_reductions) /
                      static_cast<double>(forecast.config.microbatches);
  return measured;
}

}  // namespace

LayerCosts costs_of_layers(const Options& given, int world, const Rates& rates) {
  Options options = given;
  options.offload = {};
  const std::int64_t layers = options.model.num_layers, experts = moe_layers_before(options.model, layers);
  const Counts all = {layers - experts, experts};
  const Counts few = {std::min<std::int64_t>(all[0], 1), std::min<std::int64_t>(all[1], 1)};
  const Measured least = measure(options, world, rates, few);
  LayerCosts costs{
      .seconds = least.seconds, .ends = least.seconds, .bytes = least.bytes, .bytes_per_layer = least.bytes};
  for (std::size_t kind = 0; kind < all.size(); ++kind) {
    if (all[kind] == 0) continue;
    Counts more = few;
    ++more[kind];
    const Measured with = measure(options, world, rates, more);
    const auto others = static_cast<double>(all[kind] - few[kind]);
    const double bytes = std::max(0.0, with.bytes - least.bytes);
    costs.seconds += others * (with.seconds - least.seconds);
    costs.ends -= static_cast<double>(few[kind]) * (with.seconds - least.seconds);
    costs.bytes += others * bytes;
    costs.bytes_per_layer = std::min(costs.bytes_per_layer, bytes);
  }
  return costs;
}

}  // namespace megalith
