#include "tests/unit/plan/plan_support.h"

#include <chrono>

#include "apps/planning/plan_steps.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace megalith::test {

void on_planned_ranks(const Options& options, int ranks,
                      const std::function<void(Rank& rank, const std::function<void()>& step)>& act) {
  ThreadWorld(ranks, std::chrono::seconds(60)).run([&](Communicator& world) {
    const RunConfig config = run_config(options, ranks);
    const Mesh mesh = Mesh::create(world, config.mesh);
    const StepPlans plans = plan_steps(options, config, world.rank());
    Rank rank(options, config, DeviceType::kCpu, mesh, {}, 0);
    Step step(rank);
    const AbortOnUnwind abort(world);
    step.use(plans);
    initialize(rank);
    if (rank.units.sharded) rank.units.sharded->begin(step.actions().units_ahead);
    act(rank, [&] {
      const BlankSamples samples(config, 1e-3f);
      step.train(samples.input);
      rank.wait_for_parameters();
      step.read_result();
    });
  });
}

}  // namespace megalith::test
