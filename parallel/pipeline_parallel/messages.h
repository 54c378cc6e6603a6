// What the stages of a schedule send each other, and when the receives must be posted.
#pragma once

#include <cstddef>
#include <vector>

#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

// The output of a forward on its way to the next part of the model, or the gradient of that output on its way back.
struct Message {
  int from = 0;            // stage
  int to = 0;              // stage
  int part = 0;            // of the model: the forward's, whose output or whose output's gradient this is
  std::size_t sent = 0;    // the action of `from` that makes it (it leaves when that action's block ends), or
                           // ScheduleIndex::kNowhere
  std::size_t used = 0;    // the action of `to` that reads it
  std::size_t posted = 0;  // the action of `to`, first of a block, before which its receive is posted
};

// All messages of a schedule. Those from one stage to another stand together in the order in which they are sent: a
// channel, whose messages need no tags, since receives are posted in the same order. That order differs from the order
// of use where both verbs take the same way (V shape, or two stages); a receive is then posted before an earlier use.
// `receive_ahead`: how many blocks before the block of its use a receive is posted at the latest.
std::vector<Message> messages_of(const Schedule& schedule, int receive_ahead);

// Enough that no schedule comes to a stop even where a sender waits until its receiver has posted: interleaved and
// dualpipe-v need 1, zb-v needs 2, dualpipe-v whose weight gradients are all put off too, the others 0.
inline constexpr int kReceiveAhead = 2;

}  // namespace megalith
