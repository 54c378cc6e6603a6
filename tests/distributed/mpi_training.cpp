// Training runs of small models on the ranks of a world, compared bitwise: graphs and eager, dispatchers, offload.
//   mpirun -np 4 mpi_training [--device=cuda] [--part=1/2] [GoogleTest's flags]
// All runs share one start; tests/layout_runs.sh starts each separately. --part=1/2 runs every second one from the
// first. The exit code is 77, for a skipped test, if ranks outnumber GPUs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config/memory_options.h"
#include "apps/config/offload_options.h"
#include "apps/config/parallel_options.h"
#include "apps/train/run_setup.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "tests/distributed/training_ranks.h"
#include "tests/distributed/way_of_rows.h"
#include "tests/support/pairwise.h"
#include "tests/unit/moe/model_of_ranks.h"
#include "tests/unit/train/own_sharding.h"
#include "tests/unit/train/stage_sums.h"

namespace megalith::test {
namespace {

// Set by main.
Communicator* world = nullptr;    // hosts
Communicator* devices = nullptr;  // devices
DeviceType device = DeviceType::kCpu;
int part = 0, parts = 1;

bool on_gpus() { return device == DeviceType::kCuda; }

void print_progress(const std::string& what) {
  if (world->rank() != 0) return;
  fmt::print("{}\n", what);
  std::fflush(stdout);
}

Words device_flags() {
  return on_gpus() ? words("--device cuda --bf16 --deterministic-mode --hidden-size 128 --seq-length 64")
                   : words("--check-hazards");
}

// Runs training; the result has rank 0's metrics, and is empty on the others.
RunResult train(const Words& flags, const std::function<void(Trainer&)>& look,
                const std::function<void(Rank&)>& customize = nullptr) {
  const TestFolder scratch;
  const std::string metrics = scratch.path("metrics.jsonl");
  const Options options =
      parse_flags(App::kTrain, tiny_flags() + flags + device_flags() + Words{"--metrics-jsonl", metrics}).options;
  const StopRequest stop;
  RunSetup setup = prepare_run(options, world->rank(), world->size());
  setup.customize = customize;
  Trainer trainer(std::move(setup), *devices, stop, world);
  EXPECT_EQ(trainer.run(), ExitCode::kOk);
  EXPECT_TRUE(trainer.hazards() == nullptr || trainer.hazards()->count() == 0);
  if (look) look(trainer);
  RunResult result;
  if (world->rank() == 0) read_metrics(metrics, result);
  return result;
}

void expect_same(const RunResult& run, const RunResult& want) {
  EXPECT_EQ(run.losses, want.losses);
  EXPECT_EQ(run.grad_norms, want.grad_norms);
  EXPECT_EQ(run.validation_losses, want.validation_losses);
  EXPECT_EQ(run.losses.empty(), world->rank() != 0);
}

std::vector<Layout> layouts() {
  switch (world->size()) {
    case 1: return {{}};
    case 2: return {{.tensor = 2, .sequence = true, .overlap = true}, {.context = 2}, {.pipeline = 2}, {.data = 2}};
    case 4:
      return {{.tensor = 4, .sequence = true, .overlap = true},
              {.tensor = 2, .sequence = true, .overlap = true, .data = 2},
              {.tensor = 2, .sequence = true, .pipeline = 2},
              {.tensor = 2, .sequence = true, .context = 2, .communication = "a2a"},
              {.data = 2, .context = 2, .communication = "all_gather"},
              {.pipeline = 2, .data = 2},
              {.pipeline = 4},
              {.data = 4}};
    default: return {};
  }
}

// Each two values of two columns once.
std::vector<Cell> cells() {
  const Column sharings =
      sharing_column({Sharing::kNone, Sharing::kOverlapped, Sharing::kOptimizer, Sharing::kUnits, Sharing::kGradients});
  const auto has_replicas = [](const Cell& cell) {
    return cell.layout.sharing == Sharing::kNone || cell.layout.data * cell.layout.context > 1;
  };
  const auto table = matrix_of_graphs({}, layouts(), sharings, has_replicas);
  std::vector<Cell> chosen;
  for (const GraphCase& c : pairwise<kNumGraphFactors>(table.legal_cases())) chosen.push_back(table.cell(c));
  return chosen;
}

TEST(MpiTraining, GraphsChangeNoBit) {
  int number = 0, ran = 0;
  for (const Cell& cell : cells()) {
    if (number++ % parts != part) continue;
    ++ran;
    SCOPED_TRACE(cell.name());
    print_progress(cell.name());
    Books books;
    const RunResult run = train(cell.graphs(), [&](Trainer& trainer) { note(books, trainer, world->rank()); });
    expect_replayed(cell, books);
    expect_same(run, train(cell.eager(), nullptr));
  }
  EXPECT_GT(ran, 0) << "no layout of so many ranks, or too many parts";
}

// A user's own FSDP against the built-in one.
TEST(MpiTraining, OwnHooksChangeNoBit) {
  if (world->size() != 4) GTEST_SKIP() << "needs 4 ranks";
  int number = 0;
  for (const Cell& cell : own_cells(6, true)) {
    if (number++ % parts != part) continue;
    SCOPED_TRACE(cell.name());
    print_progress("own hooks: " + cell.name());
    std::shared_ptr<ShardedUnits> units;
    std::map<Phase, int> calls;
    const auto shard = [&](Rank& rank) {
      units = shard_by_hooks(rank, cell);
      rank.runner.hooks(0).add(HookPoint::kPreForward, [&calls](const HookContext& hook) { ++calls[hook.phase]; });
    };
    Books books;
    const auto look = [&](Trainer& trainer) {
      note(books, trainer, world->rank());
      EXPECT_EQ(trainer.rank().graphs->stats().graphs, trainer.rank().graphs->plan().graphs);
      EXPECT_GT(units->gathers(), 0);
    };
    const RunResult own = train(cell.graphs(), look, shard);
    EXPECT_EQ(calls[Phase::kCaptureAhead] > 0, books.plans.at(world->rank()).graphs > 0);
    expect_same(own, train(cell.graphs(), nullptr));
    expect_same(own, train(cell.eager(), nullptr));
  }
}

// Each hook sums over all ranks of its stage, on a dedicated stream: every schedule ends.
TEST(MpiTraining, HooksMayCommunicateWithinAStage) {
  if (world->size() < 2) GTEST_SKIP() << "needs 2 ranks";
  int number = 0;
  for (const std::string& schedule : schedules()) {
    if (number++ % parts != part) continue;
    const Cell cell{.modules = {"attn", "mlp"},
                    .layout = {.pipeline = 2, .data = world->size() / 2, .schedule = schedule},
                    .steps = 6};
    SCOPED_TRACE(cell.name());
    print_progress("hooks that communicate: " + cell.name());
    std::unique_ptr<StageSums> sums;
    const auto look = [&](Trainer& trainer) {
      EXPECT_GT(sums->calls(Phase::kCaptureAhead), 0);
      EXPECT_GT(trainer.rank().graphs->stats().replays, 0);
      trainer.rank().drain();
      sums.reset();
    };
    const auto customize = [&](Rank& rank) { sums = std::make_unique<StageSums>(rank); };
    expect_same(train(cell.graphs(), look, customize), train(cell.eager(), nullptr));
  }
}

// Copy engines carry messages between stages, if the GPUs map each other's memory, or the groups do.
TEST(MpiTraining, CopiedMessagesChangeNoBit) {
  if (world->size() < 2) GTEST_SKIP() << "needs 2 ranks";
  std::vector<int> all(static_cast<std::size_t>(world->size()));
  std::iota(all.begin(), all.end(), 0);
  const bool may_copy = on_gpus() && can_share_memory(*world, all);
  const auto run = [&](const Words& flags, bool copies) {
    setenv("MEGALITH_COPY_MESSAGES", copies ? "1" : "0", 1);
    const RunResult result = train(flags, [&](Trainer& trainer) {
      const PipelineTransfer::Stats& stats = trainer.rank().transfer.stats();
      EXPECT_GT(stats.sent, 0);
      EXPECT_EQ(stats.placed, copies && may_copy ? stats.sent : 0);
    });
    unsetenv("MEGALITH_COPY_MESSAGES");
    return result;
  };
  int number = 0;
  for (const std::string& schedule : schedules()) {
    if (number++ % parts != part) continue;
    const Cell cell{.modules = {"attn", "mlp"},
                    .layout = {.pipeline = 2, .data = world->size() / 2, .schedule = schedule},
                    .steps = 6};
    SCOPED_TRACE(cell.name());
    print_progress("copied messages: " + cell.name());
    const RunResult sent = run(cell.eager(), false);
    expect_same(run(cell.eager(), true), sent);
    expect_same(run(cell.graphs(), true), sent);
  }
  if (on_gpus() && !may_copy) GTEST_SKIP() << "these GPUs cannot map each other's memory";
}

struct Way {
  std::string dispatcher;
  Words more = {};
};

std::vector<Way> ways_of_rows() {
  const auto graphs = [](const std::string& modules) {
    return words("--cuda-graph-impl local --cuda-graph-modules " + modules);
  };
  const Words two = offload({"expert_fc1", "moe_act"}), overlap{"--overlap-moe-expert-parallel-comm"};
  const Words all = offload({"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"});
  std::vector<Way> ways = {{"allgather"},
                           {"alltoall"},
                           {"alltoall", graphs("layer")},
                           {"alltoall", two},
                           {"alltoall", graphs("attn moe_router moe_preprocess") + all},
                           {"alltoall", overlap},
                           {"allgather", overlap + graphs("layer") + two}};
  if (!on_gpus()) return ways;
  for (const Words& more :
       {Words{}, graphs("layer"), graphs("attn moe"), graphs("attn moe_router moe_preprocess"),
        Words{"--moe-shared-expert-overlap"}, graphs("layer") + Words{"--moe-shared-expert-overlap"},
        Words{"--moe-expert-rank-capacity-factor", "0.2"}, two, all, graphs("layer") + all,
        graphs("attn moe_router moe_preprocess") + all, overlap, overlap + Words{"--moe-shared-expert-overlap"},
        overlap + graphs("layer"), overlap + graphs("attn moe"), overlap + graphs("attn moe_router moe_preprocess"),
        overlap + all, overlap + graphs("layer") + all,
        overlap + graphs("layer") + words("--moe-expert-rank-capacity-factor 0.2")})
    ways.push_back({"flex", more});
  return ways;
}

// Compares all dispatchers with the first one.
void expect_one_result(const Words& layout) {
  const Words model = words(
      "--num-layers 4 --swiglu --disable-bias-linear --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 64 "
      "--moe-grouped-gemm --moe-aux-loss-coeff 0.01 --moe-shared-expert-intermediate-size 64 "
      "--moe-expert-rank-capacity-factor 8 --micro-batch-size 1 --global-batch-size 16 --train-iters 10");
  const std::vector<Way> ways = ways_of_rows();
  RunResult first;
  int number = 0, compared = 0;
  for (const Way& way : ways) {
    if (number++ % parts != part && &way != &ways.front()) continue;
    const Words flags = layout + Words{"--moe-token-dispatcher-type", way.dispatcher} + way.more;
    const std::string name = fmt::format("{}", fmt::join(flags, " "));
    SCOPED_TRACE(name);
    print_progress(name);
    const RunResult run = train(model + flags, [&](Trainer& trainer) {
      const Rank& rank = trainer.rank();
      const Options& options = rank.options;
      EXPECT_TRUE(
          went_by(options.parallel.moe_token_dispatcher_type, device, rank.layers.dispatcher->communicator().stats()));
      EXPECT_EQ(rank.graphs != nullptr && rank.graphs->stats().replays > 0,
                options.memory.cuda_graph_impl != CudaGraphImpl::kNone);
      EXPECT_EQ(rank.offload != nullptr && rank.offload->transfer.stats().offloads > 0,
                !options.offload.offload_modules.empty());
      EXPECT_EQ(trainer.plans().capacity_factor > options.parallel.moe_expert_rank_capacity_factor,
                options.parallel.moe_expert_rank_capacity_factor < 1);
    });
    if (&way == &ways.front()) {
      first = run;
    } else {
      expect_same(run, first);
      ++compared;
    }
  }
  EXPECT_GT(compared, 0) << "too many parts";
}

TEST(MpiTraining, ExpertsChangeNoBit) {
  if (world->size() == 1) GTEST_SKIP() << "needs ranks that share out experts";
  expect_one_result({"--expert-model-parallel-size", std::to_string(world->size())});
}

TEST(MpiTraining, ExpertsInAPipelineChangeNoBit) {
  if (world->size() != 4) GTEST_SKIP() << "needs 4 ranks";
  expect_one_result(words(
      "--num-layers 8 --moe-layer-freq [0,1,0,1,0,1,0,1] --expert-model-parallel-size 2 --use-distributed-optimizer "
      "--pipeline-model-parallel-size 2 --pipeline-schedule interleaved --num-layers-per-virtual-pipeline-stage 2"));
}

// Only the devices know the row counts, and a graph holds a microbatch from its tokens to its gradients.
TEST(MpiTraining, OneGraphReplaysAMicrobatchOfExpertsWithOtherTokens) {
  if (world->size() == 1 || world->size() == 3) GTEST_SKIP() << "needs 2 or 4 ranks";
  if (part > 0) GTEST_SKIP() << "in the first part";
  const std::unique_ptr<Communicator> group = devices->duplicate("rows");
  expect_ranks_replay_with_other_tokens(*group, device,
                                        on_gpus() ? MoeTokenDispatcher::kFlex : MoeTokenDispatcher::kAllToAll);
}

}  // namespace
}  // namespace megalith::test

int main(int argc, char** argv) {
  using namespace megalith;
  using namespace megalith::test;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--device=cuda") {
      device = DeviceType::kCuda;
    } else if (!argument.starts_with("--gtest")) {
      int number = 0, count = 0;
      if (std::sscanf(argv[i], "--part=%d/%d", &number, &count) != 2 || number < 1 || number > count) {
        fmt::print(stderr, "mpi_training: expected --device=cuda, --part=N/M or --gtest_..., got {}\n", argument);
        return 2;
      }
      part = number - 1;
      parts = count;
    }
  }
  return run_training_tests(argc, argv, device, world, devices);
}
