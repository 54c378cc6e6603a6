#include "tests/support/host_waits/count_waits.h"

#include <algorithm>
#include <iterator>

namespace megalith::test {

CountedStep count_waits(Trainer& trainer, bool& counting) {
  Rank& rank = trainer.rank();
  Step& step = trainer.step();
  BlankSamples samples(rank.config, 1e-4f);
  samples.input.iteration = 100;
  step.train(samples.input);
  const auto replays = [&] { return rank.graphs ? rank.graphs->stats().replays : 0; };
  const auto offloads = [&] { return rank.offload ? rank.offload->transfer.stats().offloads : 0; };
  HostWaits before = {};
  CountedStep counted = {.replays = -replays(), .offloads = -offloads(), .microbatches = rank.config.microbatches};
  counting = true;
  host_waits_begin();
  step.train(samples.input, [&] {
    before = host_waits_end();
    step.read_result();
    host_waits_begin();
    return true;
  });
  counted.waits = host_waits_end();
  counting = false;
  step.read_result();
  counted.replays += replays();
  counted.offloads += offloads();
  counted.waits.of_runtime += before.of_runtime;
  counted.waits.of_driver += before.of_driver;
  counted.waits.questions += before.questions;
  if (counted.waits.first[0] == '\0') std::copy(std::begin(before.first), std::end(before.first), counted.waits.first);
  return counted;
}

}  // namespace megalith::test
