// What the host waits for in one step of a run.
#pragma once

#include <cstdint>

#include "apps/train/trainer.h"
#include "tests/support/host_waits/host_waits.h"

namespace megalith::test {

struct CountedStep {
  HostWaits waits = {};
  std::int64_t replays = 0;   // of graphs
  std::int64_t offloads = 0;  // of kept activations
  std::int64_t microbatches = 0;
};

// Takes one step more of a run that has ended, as the trainer enqueues it: while the step before is pending, whose
// result is read before the update. That wait is the trainer's, the only one, and not counted. `counting` is true
// meanwhile. On all ranks together.
CountedStep count_waits(Trainer& trainer, bool& counting);

}  // namespace megalith::test
