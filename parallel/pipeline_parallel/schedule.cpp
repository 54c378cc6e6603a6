#include "parallel/pipeline_parallel/schedule.h"

#include <fmt/format.h>

#include <array>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/schedules.h"

namespace megalith {

std::string to_string(const Action& a) {
  std::string text(name_of(a.kind));
  if (is_of_bucket(a.kind)) return fmt::format("{} bucket {}", text, a.item);
  if (is_of_unit(a.kind)) return fmt::format("{} unit {}", text, a.item);
  if (!is_of_microbatch(a.kind)) return text;
  text += fmt::format(" chunk {} microbatch {}", a.chunk, a.microbatch);
  if (is_message(a.kind)) {
    return text + fmt::format(" {} {} {}", a.gradient ? "gradient" : "output",
                              a.kind == ActionKind::kPostReceive || a.kind == ActionKind::kWaitReceive ? "from" : "to",
                              a.peer == kThisStage ? "this stage" : fmt::format("stage {}", a.peer));
  }
  if (is_of_slot(a.kind)) return text + fmt::format(" slot {} column {}", a.item, a.column);
  if (is_exchange(a.kind))
    return text + fmt::format(" {} segment {} column {}", a.gradient ? "gradient" : "output", a.item, a.column);
  if (a.segment >= 0) text += fmt::format(" segment {} column {}", a.segment, a.column);
  return text;
}

std::string_view name_of(ScheduleKind kind) {
  static constexpr std::array<std::string_view, kNumScheduleKinds> kNames = {"gpipe", "1f1b", "interleaved",
                                                                             "zb-h1", "zb-v", "dualpipe-v"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::size_t end_of_block(const std::vector<Action>& actions, std::size_t first) {
  while (first + 1 < actions.size() && actions[first].with_next) ++first;
  return first + 1;
}

namespace {

[[noreturn]] void refuse(ScheduleKind kind, const std::string& expected, int got, const std::string& remedy) {
  refuse_usage(fmt::format("--pipeline-schedule {}", name_of(kind)),
               {.expected = expected, .got = fmt::format("{}", got), .remedy = remedy});
}

void check_chunks(ScheduleKind kind, int num_chunks) {
  switch (kind) {
    case ScheduleKind::kInterleaved:
      if (num_chunks >= 2) return;
      refuse(kind, "at least 2 chunks per stage", num_chunks,
             "set --num-layers-per-virtual-pipeline-stage, or use --pipeline-schedule 1f1b");
    case ScheduleKind::kZbV:
    case ScheduleKind::kDualPipeV:
      if (num_chunks == 2) return;
      refuse(kind, "2 chunks per stage", num_chunks,
             "--num-layers-per-virtual-pipeline-stage is half of a stage's layers");
    default:
      if (num_chunks == 1) return;
      refuse(kind, "1 chunk per stage", num_chunks,
             "leave --num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank out, or use "
             "--pipeline-schedule interleaved");
  }
}

// Groups of interleaved schedules other than one microbatch per stage.
void check_group(int num_stages, int num_microbatches, int group) {
  const int left = num_microbatches % group;
  if (group >= num_stages && group <= num_microbatches && (left == 0 || left >= num_stages)) return;
  refuse_usage("--microbatch-group-size-per-virtual-pipeline-stage",
               {.expected = fmt::format("{} to {}, from the number of stages to that of microbatches per step, which "
                                        "leaves a last group of no fewer than {}",
                                        num_stages, num_microbatches, num_stages),
                .got = fmt::format("{}", group),
                .remedy = fmt::format("use {}", num_microbatches)});
}

void check_microbatches(ScheduleKind kind, int num_stages, int num_microbatches, int group) {
  if (num_microbatches < 1) refuse(kind, "at least 1 microbatch per step", num_microbatches, {});
  if (kind == ScheduleKind::kInterleaved && group != 0) return check_group(num_stages, num_microbatches, group);
  if (kind == ScheduleKind::kInterleaved && num_microbatches % num_stages != 0) {
    const int below = num_microbatches / num_stages * num_stages;
    refuse(kind,
           fmt::format("a multiple of --pipeline-model-parallel-size {} as the number of microbatches per step",
                       num_stages),
           num_microbatches,
           fmt::format("choose --global-batch-size and --micro-batch-size for {}{}",
                       below > 0 ? fmt::format("{} or ", below) : "", below + num_stages));
  }
  if (kind == ScheduleKind::kDualPipeV && num_microbatches < 2 * num_stages) {
    refuse(kind,
           fmt::format("at least {} microbatches per step, twice --pipeline-model-parallel-size {}", 2 * num_stages,
                       num_stages),
           num_microbatches, "raise --global-batch-size, or use --pipeline-schedule zb-v");
  }
}

std::vector<Action> actions_of(ScheduleKind kind, const StageShape& shape) {
  switch (kind) {
    case ScheduleKind::kGpipe: return gpipe(shape);
    case ScheduleKind::k1F1B: return one_forward_one_backward(shape);
    case ScheduleKind::kInterleaved: return interleaved(shape);
    case ScheduleKind::kZbH1: return zb_h1(shape);
    case ScheduleKind::kZbV: return zb_v(shape);
    case ScheduleKind::kDualPipeV: return dualpipe_v(shape);
  }
  fail({.subject = "unknown schedule"});
}

}  // namespace

bool is_v_shaped(ScheduleKind kind) { return kind == ScheduleKind::kZbV || kind == ScheduleKind::kDualPipeV; }

Schedule make_schedule(ScheduleKind kind, int num_stages, int num_chunks, int num_microbatches, int forwards_ahead,
                       int group) {
  if (num_stages < 1) refuse(kind, "--pipeline-model-parallel-size of at least 1", num_stages, {});
  check_chunks(kind, num_chunks);
  check_microbatches(kind, num_stages, num_microbatches, group);
  Schedule schedule{.kind = kind,
                    .placement = {.num_stages = num_stages, .num_chunks = num_chunks, .is_v = is_v_shaped(kind)},
                    .num_microbatches = num_microbatches,
                    .stages = {},
                    .kept_ahead = kind == ScheduleKind::kInterleaved && group != 0 ? group - num_stages : 0};
  for (int stage = 0; stage < num_stages; ++stage) {
    schedule.stages.push_back(actions_of(kind, {.num_stages = num_stages,
                                                .stage = stage,
                                                .num_chunks = num_chunks,
                                                .num_microbatches = num_microbatches,
                                                .group = group == 0 ? num_stages : group,
                                                .forwards_ahead = forwards_ahead}));
  }
  return schedule;
}

Schedule delay_weights(Schedule schedule) {
  for (std::vector<Action>& actions : schedule.stages) {
    for (Action& action : actions) action.with_next = false;
  }
  return schedule;
}

}  // namespace megalith
