#include "apps/summary/format_actions.h"

#include <fmt/format.h>

#include <vector>

#include "apps/config/layer_offload.h"
#include "apps/planning/offload_choice.h"
#include "apps/planning/plan_steps.h"
#include "apps/run/step_actions.h"
#include "apps/summary/offload_report.h"
#include "apps/summary/planned_graphs.h"

namespace megalith {

namespace {

// Text about the slots of slot actions.
std::string format_slots(const std::vector<OffloadSlot>& slots) {
  std::string text;
  for (std::size_t item = 0; item < slots.size(); ++item)
    text +=
        fmt::format("slot {}: chunk {}, {}, {} bytes\n", item, slots[item].chunk, slots[item].name, slots[item].bytes);
  return text;
}

}  // namespace

std::vector<std::string> action_lines(const std::vector<Action>& actions, const std::vector<std::string>& segments,
                                      const GraphRunPlan& runs) {
  const std::vector<int> graphs = graph_of_each(actions, runs);
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    std::string& line = lines.emplace_back(fmt::format("{:>5}  {}", i, to_string(actions[i])));
    if (actions[i].segment >= 0) line += fmt::format(" ({})", segments[static_cast<std::size_t>(actions[i].segment)]);
    if (graphs[i] >= 0) line += fmt::format(" graph {}", graphs[i]);
  }
  return lines;
}

std::string format_actions(const Options& options, const RunConfig& config) {
  const auto world = static_cast<int>(config.mesh.world()), stages = static_cast<int>(config.mesh.pp);
  const RunConfig few = with_few_microbatches(options, config);
  std::string text;
  for (int stage = 0; stage < stages; ++stage) {
    const int first_rank = stage * (world / stages);
    PlanCommunicator ranks("world", {.rank = first_rank, .size = world});
    const Mesh mesh = Mesh::create(ranks, config.mesh);
    Timeline timeline;
    StepPlans plans;
    if (offloads(options)) plans = record_step(options, few, first_rank, {.max_microbatches = few.microbatches}).plans;
    const Rank rank(options, config, DeviceType::kPlan, mesh, {.timeline = &timeline}, 0, plans.offload.points);
    const std::string whose = stages > 1 ? fmt::format(" of stage {}", stage) : "";
    if (stages > 1) text += fmt::format("stage {}\n", stage);
    const std::vector<Action> actions = step_actions(rank).train;
    const GraphRunPlan runs = graph_runs(rank, actions);
    text += to_text(offload_tables(plans, whose));
    if (rank.offload) text += format_slots(rank.offload->points.slots);
    std::vector<std::string> segments;
    for (const auto& segment : rank.model.gpt.segments) segments.push_back(segment.name);
    for (const std::string& line : action_lines(actions, segments, runs)) text += line + '\n';
    if (runs.graphs == 0) continue;
    text += to_text(graphs_table(record_step(options, config, first_rank, {}).plans.graphs, options, whose));
  }
  return text;
}

}  // namespace megalith
