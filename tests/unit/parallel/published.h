// Formulas of the sources in schedules.h for a schedule, given one part's durations (without transfers).
#pragma once

#include <algorithm>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/simulator.h"

namespace megalith::test {

// Time of a step beyond a stage's work, from microbatches_of_formula on. Exact for any durations with gpipe, 1f1b and
// interleaved, for W <= F <= B with zb-h1, for W <= F = B with zb-v and dualpipe-v. Otherwise simulate.
inline double published_bubble(const Schedule& schedule, const PartDurations& part) {
  const double f = part.forward, b = part.backward_data, w = part.backward_weight;
  const double others = schedule.placement.num_stages - 1;
  switch (schedule.kind) {
    case ScheduleKind::kGpipe:
    case ScheduleKind::k1F1B:
    case ScheduleKind::kInterleaved: return others * (f + b + w);
    case ScheduleKind::kZbH1: return others * (f + b - w);
    case ScheduleKind::kZbV: return others * f;
    case ScheduleKind::kDualPipeV: return others * (f + b - w);  // its source's less b: see schedules.h
  }
  fail({.subject = "unknown schedule"});
}

inline int microbatches_of_formula(const Schedule& schedule) {
  const int stages = schedule.placement.num_stages;
  switch (schedule.kind) {
    case ScheduleKind::kGpipe:
    case ScheduleKind::k1F1B: return 1;
    case ScheduleKind::kInterleaved:
    case ScheduleKind::kZbH1: return stages;
    case ScheduleKind::kZbV: return std::max(1, 2 * stages - 1);
    case ScheduleKind::kDualPipeV: return 2 * stages;
  }
  fail({.subject = "unknown schedule"});
}

// Most stashes that a stage keeps.
inline int published_stashes(const Schedule& schedule, int stage) {
  const int p = schedule.placement.num_stages, v = schedule.placement.num_chunks, m = schedule.num_microbatches;
  switch (schedule.kind) {
    case ScheduleKind::kGpipe: return m;
    case ScheduleKind::k1F1B: return std::min(p - stage, m);
    case ScheduleKind::kInterleaved: return std::min(2 * (p - stage - 1) + (v - 1) * p + 1, m * v);
    case ScheduleKind::kZbH1: return std::min(p, m);
    case ScheduleKind::kZbV: return std::min(2 * p, 2 * m);
    case ScheduleKind::kDualPipeV: return 2 * p + 1;
  }
  fail({.subject = "unknown schedule"});
}

}  // namespace megalith::test
