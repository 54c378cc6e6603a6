// All combinations of schedule, stages, chunks and microbatches, and the legal ones among them.
#pragma once

#include <gtest/gtest.h>

#include "parallel/pipeline_parallel/schedule.h"

namespace megalith::test {

inline constexpr int kMostStages = 8, kMaxChunks = 4, kMaxMicrobatches = 32;

inline bool is_legal(ScheduleKind kind, int stages, int chunks, int microbatches) {
  switch (kind) {
    case ScheduleKind::kInterleaved: return chunks >= 2 && microbatches % stages == 0;
    case ScheduleKind::kZbV: return chunks == 2;
    case ScheduleKind::kDualPipeV: return chunks == 2 && microbatches >= 2 * stages;
    default: return chunks == 1;
  }
}

// Calls visit(kind, stages, chunks, microbatches) for legal and illegal ones.
template <class Visit>
void for_each_combination(Visit&& visit) {
  for (int kind = 0; kind < kNumScheduleKinds; ++kind) {
    for (int stages = 1; stages <= kMostStages; ++stages) {
      for (int chunks = 1; chunks <= kMaxChunks; ++chunks) {
        for (int microbatches = 1; microbatches <= kMaxMicrobatches; ++microbatches) {
          visit(static_cast<ScheduleKind>(kind), stages, chunks, microbatches);
        }
      }
    }
  }
}

// Calls visit(schedule) for the legal ones; stops at the first that fails an assertion. Returns how many there were.
template <class Visit>
int for_each_schedule(Visit&& visit) {
  int visited = 0;
  for_each_combination([&](ScheduleKind kind, int stages, int chunks, int microbatches) {
    if (!is_legal(kind, stages, chunks, microbatches) || testing::Test::HasFatalFailure()) return;
    SCOPED_TRACE(testing::Message() << name_of(kind) << ", " << stages << " stages, " << chunks << " chunks, "
                                    << microbatches << " microbatches");
    visit(make_schedule(kind, stages, chunks, microbatches));
    ++visited;
  });
  return visited;
}
// 256 of gpipe, 1f1b, zb-h1 and zb-v each; 85 numbers of microbatches that stages divide, for 2 to 4 chunks; 192 of
// dualpipe-v.
inline constexpr int kNumLegal = 4 * 256 + 3 * 85 + 192;

}  // namespace megalith::test
