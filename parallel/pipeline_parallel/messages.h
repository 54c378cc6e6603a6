// Messages between the stages of a schedule, and the latest positions of their receives.
#pragma once

#include <cstddef>
#include <vector>

#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

// Output of a forward for the next part of the model, or gradient of that output for the previous part.
struct Message {
  int from = 0;            // stage
  int to = 0;              // stage
  int part = 0;            // part of the forward that made the output
  std::size_t sent = 0;    // action of `from` that produces it, or ScheduleIndex::kNowhere; leaves at its block's end
  std::size_t used = 0;    // action of `to` that reads it
  std::size_t posted = 0;  // action of `to`, first of a block, before which its receive is posted
};

// Messages of a schedule. The messages from one stage to another form a channel, in the order of sends. They need no
// tags, since receives are posted in the same order. The order of uses differs if both verbs use the same channel (V
// shape, or two stages). A receive is then posted before an earlier use. `receive_ahead`: minimum number of blocks
// between a receive's post and its use.
std::vector<Message> messages_of(const Schedule& schedule, int receive_ahead);

// Sufficient to avoid deadlocks even if senders block until the receive is posted. Interleaved and dualpipe-v require
// 1; zb-v, and dualpipe-v with all weight gradients delayed, require 2; the others require 0.
inline constexpr int kReceiveAhead = 2;

}  // namespace megalith
