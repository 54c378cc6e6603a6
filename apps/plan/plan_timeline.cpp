#include "apps/plan/plan_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "apps/cost/step_times.h"
#include "apps/forecast/forecast.h"
#include "apps/planning/plan_steps.h"
#include "apps/report/step_picture.h"
#include "apps/summary/format_actions.h"
#include "core/base/counted.h"

namespace megalith {

namespace {

BoxKind kind_of(const Action& action, const ActionSpan& span) {
  const bool is_verb = action.segment >= 0 || action.kind == ActionKind::kStartExchange;
  if (!is_verb && 2 * span.waited > span.end - span.start) return BoxKind::kWait;
  if (span.lane == 0 || !is_verb || span.call == nullptr) return box_kind_of(action.kind);
  if (span.call->group == "dispatch") return span.call->back ? BoxKind::kReturn : BoxKind::kDispatch;
  return span.call->kind == "all_gather" ? BoxKind::kGather : BoxKind::kReduce;
}

std::vector<int> run_of_each(const StepRecording& recording) {
  std::vector<int> runs(recording.actions.size(), -1);
  for (std::size_t run = 0; run < recording.runs.runs.size(); ++run)
    std::fill_n(runs.begin() + static_cast<std::ptrdiff_t>(recording.runs.runs[run].first),
                recording.runs.runs[run].count, static_cast<int>(run));
  return runs;
}

void add_stage(TimelinePicture& picture, const std::string& name, const StepRecording& recording,
               const std::vector<ActionSpan>& spans) {
  const std::size_t first = picture.lanes.size();
  for (const std::string& lane : recording.timeline.lanes())
    picture.lanes.push_back({.group = name, .name = lane, .is_tall = picture.lanes.size() == first});
  const std::vector<std::string> lines = action_lines(recording.actions, recording.segments, recording.runs);
  const std::vector<int> runs = run_of_each(recording);
  for (const ActionSpan& span : spans) {
    const Action& action = recording.actions[span.action];
    const BoxKind kind = kind_of(action, span);
    const bool has_label = is_of_microbatch(action.kind) && kind != BoxKind::kWait;
    picture.boxes.push_back({.lane = first + span.lane,
                             .start = span.start,
                             .end = span.end,
                             .kind = kind,
                             .label = has_label ? fmt::to_string(action.microbatch) : "",
                             .title = lines[span.action].substr(lines[span.action].find_first_not_of(' ')),
                             .frame = span.lane == 0 ? runs[span.action] : -1,
                             .is_shaded = has_label && action.chunk % 2 == 1});
  }
}

}  // namespace

TimelinePicture plan_timeline(const Options& given, int world, const Rates& rates) {
  const RunConfig whole = run_config(given, world), config = with_few_microbatches(given, whole);
  const Options options = on_hosts(given, config.mesh, rates);
  const CostModel costs = cost_model(options, rates, world);
  const int stages = config.pipeline.placement.num_stages, ranks = world / stages;
  std::vector<StepRecording> recordings;
  recordings.reserve(static_cast<std::size_t>(stages));
  for (int stage = 0; stage < stages; ++stage)
    recordings.push_back(record_step(options, config, stage * ranks, {.max_microbatches = config.microbatches}));
  const std::vector<std::vector<ActionSpan>> spans = spans_of_stages(recordings, costs, ranks);
  TimelinePicture picture;
  for (int stage = 0; stage < stages; ++stage) {
    const auto at = static_cast<std::size_t>(stage);
    const std::string whose = ranks > 1    ? fmt::format("stage {}, rank {}", stage, stage * ranks)
                              : stages > 1 ? fmt::format("stage {}", stage)
                                           : "rank 0";
    add_stage(picture, whose, recordings[at], spans[at]);
  }
  const std::string of_all =
      config.microbatches < whole.microbatches ? fmt::format(" of {}", whole.microbatches) : std::string();
  picture.title =
      fmt::format("A training step as forecast: {}, {}{} {}, {}", counted(world, "rank"), config.microbatches, of_all,
                  config.microbatches == 1 ? "microbatch" : "microbatches", rates.device);
  return picture;
}

}  // namespace megalith
