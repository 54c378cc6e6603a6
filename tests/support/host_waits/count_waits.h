// Host waits in one step of a run.
#pragma once

#include <cstdint>

#include "apps/train/trainer.h"
#include "tests/support/host_waits/host_waits.h"

namespace megalith::test {

struct CountedStep {
  HostWaits waits = {};
  std::int64_t replays = 0;   // graph replays
  std::int64_t offloads = 0;  // offloads of kept activations
  std::int64_t microbatches = 0;
};

// Runs one step more of a finished run, as the trainer enqueues it: while the preceding step is pending. The trainer
// reads that step's result ahead of the update; this only wait is not counted. `counting` is true meanwhile. All ranks
// call it together.
CountedStep count_waits(Trainer& trainer, bool& counting);

}  // namespace megalith::test
