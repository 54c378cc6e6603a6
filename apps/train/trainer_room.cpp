// Changes of the memory plan between two steps: more capacity for rows of experts, with a rerun of their step or
// evaluation, and the next stage of --rampup-batch-size. Between two steps this memory has no valid content, and
// weights stay in place.
#include <fmt/format.h>

#include <utility>

#include "apps/config/parallel_options.h"
#include "apps/config/training_options.h"
#include "apps/cost/expert_rows.h"
#include "apps/planning/memory_checks.h"
#include "apps/planning/plan_steps.h"
#include "apps/train/trainer.h"
#include "core/base/counted.h"
#include "core/base/log.h"
#include "core/base/seconds_since.h"
#include "core/base/text/units.h"

namespace megalith {

bool Trainer::lacks_room(const ExpertRoom& needed) const {
  const ExpertRoom& room = setup_.plans.room;
  return needed.arrived > room.arrived || needed.rows > room.rows;
}

// Reruns a step that lacked capacity, possibly several times. Tokens that did not arrive have no rows, and later layers
// saw other tokens. The required capacity may thus be larger, and loss and gradients are invalid.
StepResult Trainer::with_room(const StepResult& lacked) {
  const auto start = std::chrono::steady_clock::now();
  StepResult result = lacked;
  while (result.lacks_room) {
    make_room(result.room_needed, fmt::format("step {}", result.iteration));
    step_->train_again();
    result = step_->read_result();
  }
  result.seconds = lacked.seconds + seconds_since(start);
  return result;
}

// Plan of the next steps, equal on all ranks.
struct Trainer::NewPlan {
  std::int64_t microbatches;
  double capacity_factor;
  std::string reason;    // reason for the log
  std::string expected;  // purpose of the memory
};

// Plans, releases and allocates the memory of a step and drops graphs, between two steps on all ranks.
void Trainer::plan_again(const NewPlan& next) {
  const std::size_t bytes = setup_.plans.block_bytes();
  Options options = setup_.options;
  options.parallel.moe_expert_rank_capacity_factor = next.capacity_factor;
  RunConfig config = setup_.config;
  config.microbatches = next.microbatches;
  StepPlans plans;
  on_all_ranks(world_, [&] { plans = plan_steps(options, config, world_.rank(), setup_.plans.offload); });
  step_->give_back();
  world_.host_barrier();  // so that memory of the host's other ranks is also free
  setup_.plans = std::move(plans);
  setup_.config = config;
  step_->set_microbatches(config.microbatches);
  on_all_ranks(world_, [&] {
    try {
      check_host_memory(setup_.plans, 0, world_, setup_.host_bytes());
      rank_->memory.arena.use(setup_.plans.largest());
      if (rank_->offload) rank_->offload->host.use(setup_.plans.host);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kOutOfMemory) throw;
      fail({.code = ExitCode::kOutOfMemory,
            .subject = fmt::format("{}; memory does not suffice for {:.2f} MiB instead of {:.2f}", next.reason,
                                   mib(setup_.plans.block_bytes()), mib(bytes)),
            .expected = next.expected,
            .got = error.what(),
            .show_place = false});
    }
  });
  if (rank_->layers.dispatcher) rank_->layers.dispatcher->set_capacity_factor(next.capacity_factor);
  step_->use(setup_.plans);
}

// Adds capacity; `needed` is equal on all ranks.
void Trainer::make_room(const ExpertRoom& needed, const std::string& what) {
  const ExpertRoom had = setup_.plans.room;
  const double factor = setup_.plans.capacity_factor;
  const std::size_t bytes = setup_.plans.block_bytes();
  const double wanted = larger_factor(expert_rows(options(), setup_.config)->sizes, needed, factor);
  const std::string reason = fmt::format(
      "{} needed capacity on a rank for at least {} tokens and {} rows of its experts, but had capacity for {} and {}",
      what, needed.arrived, needed.rows, had.arrived, had.rows);
  plan_again(
      {.microbatches = setup_.config.microbatches,
       .capacity_factor = wanted,
       .reason = reason,
       .expected = fmt::format("memory for --moe-expert-rank-capacity-factor {:.3f}, up from {:.3f}", wanted, factor)});
  ++progress_.regrows;
  if (!is_main()) return;
  log_info(
      fmt::format("{}; it is rerun with {} and {}: --moe-expert-rank-capacity-factor {:.3f} instead of {:.3f}, {:.2f} "
                  "MiB per step instead of {:.2f}",
                  reason, setup_.plans.room.arrived, setup_.plans.room.rows, wanted, factor,
                  mib(setup_.plans.block_bytes()), mib(bytes)));
}

// A skipped step is explained with its own number of microbatches.
void Trainer::enter_stage() {
  const std::int64_t microbatches = samples_->microbatches_after(state_.consumed_samples);
  const std::int64_t had = setup_.config.microbatches;
  if (microbatches == had) return;
  while (step_->pending() > 0) finish_step(false);
  explain_skip();
  const std::int64_t batch = batch_after(options().train, state_.consumed_samples);
  const std::string reason =
      fmt::format("step {}: batch size {} from here on ({})", state_.step + 1, batch, options().train.growth_flag());
  plan_again({.microbatches = microbatches,
              .capacity_factor = setup_.plans.capacity_factor,
              .reason = reason,
              .expected = fmt::format("memory for {} per step, up from {}",
                                      counted(microbatches, "microbatch", "microbatches"), had)});
  if (!is_main()) return;
  log_info(fmt::format("{}: {} per step on each rank, {:.2f} MiB of step memory", reason,
                       counted(microbatches, "microbatch", "microbatches"), mib(setup_.plans.block_bytes())));
}

}  // namespace megalith
