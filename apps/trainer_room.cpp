// Of a run whose ranks share out experts: steps and evaluations whose rows had no room are done again with more. What
// is in the step's memory between two steps has no value, and weights stay where they are.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "apps/expert_rows.h"
#include "apps/memory_checks.h"
#include "apps/trainer.h"
#include "core/base/log.h"
#include "core/base/seconds_since.h"

namespace megalith {

namespace {

double mib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

bool Trainer::lacks_room(const ExpertRoom& needed) const {
  const ExpertRoom& room = setup_.plans.room;
  return needed.arrived > room.arrived || needed.rows > room.rows;
}

// Tokens that did not arrive have no rows, and layers behind saw other tokens than they will: what was needed may be
// more, loss and gradients mean nothing, and it may take more than once.
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

// `needed` is the same on all ranks.
void Trainer::make_room(const ExpertRoom& needed, const std::string& what) {
  const ExpertRoom had = setup_.plans.room;
  const double factor = setup_.plans.capacity_factor;
  const std::size_t bytes = setup_.plans.block_bytes();
  Options larger = options();
  double& wanted = larger.parallel.moe_expert_rank_capacity_factor;
  wanted = larger_factor(expert_rows(larger, setup_.config)->sizes, needed, factor);
  StepPlans plans;
  on_all_ranks(world_, [&] { plans = plan_steps(larger, setup_.config, world_.rank(), setup_.plans.offload); });
  step_->give_back();
  world_.host_barrier();  // what the other ranks of this host had is free too when it is asked what there is
  setup_.plans = std::move(plans);
  const std::string reason = fmt::format(
      "{} needed room on a rank for at least {} tokens and {} rows of its experts, and had it for {} and {}", what,
      needed.arrived, needed.rows, had.arrived, had.rows);
  on_all_ranks(world_, [&] {
    try {
      check_host_memory(setup_.plans, 0, world_, setup_.host_bytes());
      rank_->memory.arena.use(setup_.plans.largest());
      if (rank_->offload) rank_->offload->host.use(setup_.plans.host);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kOutOfMemory) throw;
      fail(
          {.code = ExitCode::kOutOfMemory,
           .subject = fmt::format("{}; there is no memory for {:.2f} MiB in place of {:.2f}", reason,
                                  mib(setup_.plans.block_bytes()), mib(bytes)),
           .expected = fmt::format("room for --moe-expert-rank-capacity-factor {:.3f}, up from {:.3f}", wanted, factor),
           .got = error.what(),
           .show_place = false});
    }
  });
  rank_->layers.dispatcher->set_capacity_factor(wanted);
  step_->use(setup_.plans);
  ++progress_.regrows;
  if (!is_main()) return;
  log_info(
      fmt::format("{}; it is done again with {} and {}: --moe-expert-rank-capacity-factor {:.3f} in place of "
                  "{:.3f}, {:.2f} MiB of a step in place of {:.2f}",
                  reason, setup_.plans.room.arrived, setup_.plans.room.rows, wanted, factor,
                  mib(setup_.plans.block_bytes()), mib(bytes)));
}

}  // namespace megalith
