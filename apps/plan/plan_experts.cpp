#include "apps/plan/plan_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "apps/cost/expert_rows.h"
#include "apps/report/report_chart.h"
#include "apps/report/report_page.h"
#include "core/base/counted.h"

namespace megalith {

namespace {

constexpr double kMib = 1 << 20, kGib = 1 << 30;

std::string said_way(const Options& options, const Forecast& forecast) {
  switch (forecast.dispatcher) {
    case MoeTokenDispatcher::kAllGather: return "allgather: each token to all ranks";
    case MoeTokenDispatcher::kFlex: return "flex: ranks read the tokens that chose them out of each other's memory";
    default: break;
  }
  const bool padded = options.device == DeviceType::kCuda;
  return fmt::format("alltoall: each token to the ranks that it chose{}", padded ? ", in equal parts" : "");
}

// Layers of experts of a stage.
std::int64_t layers_of(const Options& options, const Forecast& forecast, int stage) {
  const ModelConfig& model = options.model;
  std::int64_t layers = 0;
  for (const GptPart& part : forecast.config.pipeline.parts_of(stage))
    layers += moe_layers_before(model, part.first_layer + part.num_layers) - moe_layers_before(model, part.first_layer);
  return layers;
}

struct Way {
  const char* name;
  AxisVolume volume;
};
std::vector<Way> ways_of(const StepWork& work) {
  return {{"forward, dispatch", work.forward.out},
          {"forward, return", work.forward.home},
          {"backward, dispatch", work.backward.out},
          {"backward, return", work.backward.home}};
}

std::string said_rows(double mean, std::int64_t room) { return fmt::format("{:>15.0f}, room for {}", mean, room); }

}  // namespace

std::string printed_experts(const Options& options, const Forecast& forecast) {
  const std::optional<ExpertRows> rows = expert_rows(options, forecast.config);
  if (!rows) return "";
  const MeshSizes& mesh = forecast.config.mesh;
  std::string text = fmt::format("experts: {} of {} on a rank (etp {} x ep {}, {})\n", rows->sizes.local_experts(),
                                 rows->sizes.experts, mesh.etp, mesh.ep, counted(mesh.edp, "copy", "copies"));
  text += "  of a layer and microbatch, with all experts chosen alike\n";
  text += fmt::format("    tokens of the rank        {:>15}\n", rows->sizes.tokens);
  text += fmt::format("    tokens that arrive        {}\n", said_rows(rows->mean.arrived, rows->room.arrived));
  text += fmt::format("    rows of its experts       {}\n", said_rows(rows->mean.rows, rows->room.rows));
  text += fmt::format("  {}\n", said_way(options, forecast));
  for (const StageForecast& stage : forecast.stages) {
    const auto each =
        static_cast<double>(layers_of(options, forecast, stage.stage) * forecast.config.microbatches) * kMib;
    if (each == 0) continue;
    if (forecast.stages.size() > 1) text += fmt::format("  stage {}\n", stage.stage);
    for (const auto& [name, volume] : ways_of(stage.work)) {
      text += fmt::format("    {:<25} {:>12.2f} MiB a layer and microbatch, {:.2f} GiB a step", name,
                          volume.sent / each, volume.sent / kGib);
      text += volume.seconds > 0 ? fmt::format(", {:.2f} ms\n", 1e3 * volume.seconds) : "\n";
    }
    if (forecast.step)
      text += fmt::format("    exposed                   {:>15.2f} ms a step\n", 1e3 * stage.times.exposed_rows);
  }
  return text;
}

std::string experts_on_page(const Options& options, const Forecast& forecast) {
  const std::optional<ExpertRows> rows = expert_rows(options, forecast.config);
  if (!rows) return "";
  std::vector<std::vector<std::string>> table;
  const auto bytes = [](double number) { return bytes_text(static_cast<std::int64_t>(number)); };
  for (const StageForecast& stage : forecast.stages) {
    const auto each = static_cast<double>(layers_of(options, forecast, stage.stage) * forecast.config.microbatches);
    if (each == 0) continue;
    for (const auto& [name, volume] : ways_of(stage.work)) {
      table.push_back({fmt::format("{}", stage.stage), name, bytes(volume.sent / each), bytes(volume.sent),
                       fmt::format("{:.4g}", 1e3 * volume.seconds), ""});
    }
    table.back().back() = fmt::format("{:.4g}", 1e3 * stage.times.exposed_rows);
  }
  return fmt::format(
             "<h2>Rows of experts</h2>\n<p>{} of {} experts on a rank. Of {} tokens of each rank {:.0f} arrive in a "
             "layer and microbatch if all experts are chosen alike, with room for {}; its experts have {:.0f} rows, "
             "with room for {}. {}.</p>\n",
             rows->sizes.local_experts(), rows->sizes.experts, rows->sizes.tokens, rows->mean.arrived,
             rows->room.arrived, rows->mean.rows, rows->room.rows, said_way(options, forecast)) +
         html_table({"stage", "way", "sent a layer and microbatch", "sent a step", "ms a step", "ms exposed, all four"},
                    table, /*texts=*/2);
}

}  // namespace megalith
