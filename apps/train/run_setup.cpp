#include "apps/train/run_setup.h"

#include <algorithm>
#include <utility>

#include "apps/config/checkpoint_options.h"
#include "apps/config/dispatcher_choice.h"
#include "apps/config/machine_facts.h"
#include "apps/config/training_options.h"
#include "apps/flags/complete_options.h"
#include "apps/planning/memory_checks.h"
#include "apps/planning/plan_steps.h"
#include "core/base/log.h"
#include "core/model/config.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "parallel/comm/on_all_ranks.h"
#include "parallel/mesh/mesh_sizes.h"

namespace megalith {

namespace {

// Warns of routers without a gradient: a softmax over one choice is always 1.
void warn_of_routers(const Options& options) {
  const MoeConfig& moe = options.model.moe;
  const bool is_constant = moe.num_experts > 0 && moe.router_topk == 1 && !moe.router_pre_softmax &&
                           moe.router_score_function == MoeScoreFunction::kSoftmax;
  if (!is_constant || options.train.skip_train) return;
  log_warning(
      "--moe-router-topk 1 without --moe-router-pre-softmax: each token's weight is 1, so the loss of the tokens does "
      "not train the routers; only load-balancing losses and --moe-z-loss-coeff do");
}

// Start of the data; nullopt if the checkpoint of --load was not searched yet.
std::optional<DataStart> known_start(const RunSetup& setup) {
  const CheckpointOptions& checkpoint = setup.options.checkpoint;
  if (checkpoint.load.empty() || checkpoint.finetune) return DataStart();
  if (!setup.found.searched) return std::nullopt;
  if (!setup.found.checkpoint) return DataStart();
  DataStart start = data_start(setup.found.checkpoint->state());
  start.order_samples = data_order_of(setup.found.checkpoint->state());
  return start;
}

bool lacks_room(const RunSetup& setup, Communicator& world, std::size_t host_bytes) {
  const std::size_t bytes = memory_use(setup.plans).total();
  if (setup.options.device == DeviceType::kCuda) {
    const RankGpu gpu = gpu_of_rank(world);
    return use_of_gpu(bytes, gpu.name, world).bytes > gpu.memory.free;
  }
  const std::size_t share = share_of_rank(host_bytes, ranks_of_host(world));
  const std::size_t copies = setup.plans.host.peak_bytes + setup.plans.checkpoint_staging;
  return share > 0 && bytes + copies > share;
}

}  // namespace

RunSetup load_run(const Options& options, int rank, int world, FoundCheckpoint found) {
  RunTokenizer tokenizer = run_tokenizer(options, found.checkpoint ? &*found.checkpoint : nullptr);
  if (rank == 0 && !tokenizer.note.empty()) log_warning(tokenizer.note);
  RunSetup setup{
      .options = options, .config = {}, .tokenizer = std::move(tokenizer.tokenizer), .found = std::move(found)};
  if (rank == 0) setup.files = std::move(tokenizer.files);
  setup.config = complete_options(setup.options, setup.tokenizer, world);
  if (rank == 0) warn_of_routers(setup.options);
  if (const std::optional<DataStart> start = known_start(setup))
    build_data(setup.data, {.options = setup.options, .tokenizer = setup.tokenizer, .start = *start});
  measure_documents(setup.options, setup.data, setup.config.marks);
  return setup;
}

void plan_run(RunSetup& setup, int rank) { setup.plans = plan_stages(setup.options, setup.config, rank); }

RunSetup prepare_run(const Options& options, int rank, int world, FoundCheckpoint found) {
  RunSetup setup = load_run(options, rank, world, std::move(found));
  plan_run(setup, rank);
  return setup;
}

void decide_on_ends(RunSetup& setup, Communicator& world, std::size_t host_bytes) {
  if (!may_shard_ends(setup.options) || !world.host_any(lacks_room(setup, world, host_bytes))) return;
  const auto most = [&world](const StepPlans& plans) {
    return std::ranges::max(world.host_gather(memory_use(plans).total()));
  };
  Options options = setup.options;
  options.machine.ends_exceed_memory = true;
  StepPlans sharded;
  on_all_ranks(world, [&] { sharded = plan_stages(options, setup.config, world.rank()); });
  if (most(sharded) >= most(setup.plans)) return;
  setup.options = std::move(options);
  setup.plans = std::move(sharded);
}

void find_machine(RunSetup& setup, Communicator& world) {
  take_host_share(setup.options, world);
  const MeshSizes& mesh = setup.config.mesh;
  if (mesh.ep * mesh.etp == 1 || dispatcher_of(setup.options) != MoeTokenDispatcher::kFlex) return;
  const std::vector<int> ranks = group_of(mesh, world.rank(), {Axis::kEtp, Axis::kEp});
  setup.options.machine.lacks_peer_access = world.host_any(!can_share_memory(world, ranks));
}

}  // namespace megalith
