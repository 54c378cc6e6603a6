#include "apps/run_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "apps/flags.h"
#include "apps/memory_checks.h"
#include "apps/stage_plans.h"
#include "core/base/log.h"
#include "core/model/config.h"
#include "parallel/comm/on_all_ranks.h"

namespace megalith {

RunConfig complete_options(Options& options, const Tokenizer& tokenizer, int world) {
  ModelConfig& model = options.model;
  if (model.vocab_size != 0 && model.vocab_size < tokenizer.vocab_size() &&
      options.data.tokenizer_type != TokenizerType::kNull) {
    refuse_usage("--vocab-size", {.expected = fmt::format("0 or at least the tokenizer's {}", tokenizer.vocab_size()),
                                  .got = std::to_string(model.vocab_size),
                                  .remedy = "leave it out: the tokenizer says it"});
  }
  model.vocab_size = std::max(model.vocab_size, tokenizer.vocab_size());
  resolve(model);
  validate(model);
  if (options.train.global_batch_size == 0)
    options.train.global_batch_size = options.train.micro_batch_size * mesh_sizes_of(options.parallel, world).dp;
  const RunConfig config = run_config(options, world);
  check_stages(options.train, config);
  // The flag does not count the id that the null tokenizer adds, and is read again from checkpoints.
  const std::int64_t added = options.data.tokenizer_type == TokenizerType::kNull ? 1 : 0;
  model.vocab_size -= added;
  update_effective(options);
  model.vocab_size += added;
  return config;
}

// A softmax over one choice is 1, whatever the router computes.
void warn_of_routers(const Options& options) {
  const MoeConfig& moe = options.model.moe;
  const bool is_constant = moe.num_experts > 0 && moe.router_topk == 1 && !moe.router_pre_softmax &&
                           moe.router_score_function == MoeScoreFunction::kSoftmax;
  if (!is_constant || options.train.skip_train) return;
  log_warning(
      "--moe-router-topk 1 without --moe-router-pre-softmax: each token's weight is 1, so the loss of the tokens "
      "teaches the routers nothing; only the losses of balance and --moe-z-loss-coeff do");
}

namespace {

// Absent where the checkpoint of --load was not looked for yet.
std::optional<DataStart> known_start(const RunSetup& setup) {
  const CheckpointOptions& checkpoint = setup.options.checkpoint;
  if (checkpoint.load.empty() || checkpoint.finetune) return DataStart();
  if (!setup.found.searched) return std::nullopt;
  if (!setup.found.checkpoint) return DataStart();
  DataStart start = data_start(setup.found.checkpoint->state());
  start.order_samples = data_order_of(setup.found.checkpoint->state());
  return start;
}

}  // namespace

RunSetup prepare_run(const Options& options, int rank, int world, FoundCheckpoint found) {
  RunTokenizer tokenizer = run_tokenizer(options, found.checkpoint ? &*found.checkpoint : nullptr);
  if (rank == 0 && !tokenizer.note.empty()) log_warning(tokenizer.note);
  RunSetup setup{
      .options = options, .config = {}, .tokenizer = std::move(tokenizer.tokenizer), .found = std::move(found)};
  if (rank == 0) setup.files = std::move(tokenizer.files);
  setup.config = complete_options(setup.options, setup.tokenizer, world);
  if (rank == 0) warn_of_routers(setup.options);
  if (const std::optional<DataStart> start = known_start(setup))
    build_data(setup.data, {.options = setup.options, .tokenizer = setup.tokenizer, .start = *start});
  setup.plans = plan_stages(setup.options, setup.config, rank);
  return setup;
}

bool may_shard_ends(const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  return parallel.sharding() == ShardingStrategy::kOptimGradsParams &&
         parallel.fsdp_embedding_and_head == EndUnits::kAuto && options.model.untie_embeddings_and_output_weights &&
         !options.train.deterministic_mode;
}

namespace {

bool lacks_room(const RunSetup& setup, Communicator& world, std::size_t host_bytes) {
  const std::size_t bytes = memory_use(setup.plans).total();
  if (setup.options.train.device == DeviceType::kCuda) {
    const RankGpu gpu = gpu_of_rank(world);
    return use_of_gpu(bytes, gpu.name, world).bytes > gpu.memory.free;
  }
  const std::size_t share = share_of_rank(host_bytes, ranks_of_host(world));
  const std::size_t copies = setup.plans.host.peak_bytes + setup.plans.checkpoint_staging;
  return share > 0 && bytes + copies > share;
}

}  // namespace

void decide_on_ends(RunSetup& setup, Communicator& world, std::size_t host_bytes) {
  if (!may_shard_ends(setup.options) || !world.host_any(lacks_room(setup, world, host_bytes))) return;
  const auto most = [&world](const StepPlans& plans) {
    return std::ranges::max(world.host_gather(memory_use(plans).total()));
  };
  Options options = setup.options;
  options.parallel.ends_exceed_memory = true;
  StepPlans sharded;
  on_all_ranks(world, [&] { sharded = plan_stages(options, setup.config, world.rank()); });
  if (most(sharded) >= most(setup.plans)) return;
  setup.options = std::move(options);
  setup.plans = std::move(sharded);
}

void use_gpus_apart(RunSetup& setup, int rank) {
  setup.options.parallel.gpus_apart = true;
  setup.plans = plan_stages(setup.options, setup.config, rank);
}

}  // namespace megalith
