// A user's hooks, as in CONTRIBUTING.md: device time of a layer's forward, and the number of NaN in its output. Also
// the tensors that hooks see, and units that hooks shard.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "core/device/copy.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/optim/count_nan.h"
#include "tests/unit/train/own_sharding.h"
#include "tests/unit/train/stage_sums.h"
#include "tests/unit/train/training_support.h"

namespace megalith::test {
namespace {

const Words kStages = stages(2) + Words{"--num-layers", "4"};

struct HookWay {
  std::string name;
  Words flags, graphs;
  int ranks = 1;
};

class OwnHooks : public testing::TestWithParam<HookWay> {};

INSTANTIATE_TEST_SUITE_P(Graphs, OwnHooks,
                         testing::Values(HookWay{"none", {}, {}}, HookWay{"local", {}, kGraphs},
                                         HookWay{"stages", kStages, kGraphs, 2}),
                         [](const auto& way) { return way.param.name; });

// On rank 0.
TEST_P(OwnHooks, TimeALayer) {
  const auto& [name, flags, graphs, ranks] = GetParam();
  Event begun("layer begun", true), done("layer done", true);
  std::map<Phase, int> calls;
  constexpr int kFirst = 1, kLast = 2;  // attention and MLP of layer 0, after the embedding
  const auto add_hooks = [&](Rank& rank) {
    if (rank.mesh.world().rank() > 0) return;
    rank.runner.hooks(kFirst).add(HookPoint::kPreForward,
                                  [&](const HookContext&) { rank.streams.compute.record(begun); });
    rank.runner.hooks(kLast).add(HookPoint::kPostForward, [&](const HookContext& at) {
      rank.streams.compute.record(done);
      ++calls[at.phase];
    });
  };
  double seconds = 0;
  const RunResult timed = train(
      {.flags = flags + graphs, .ranks = ranks, .customize = add_hooks, .finish = [&](Trainer& trainer, int rank) {
         if (rank > 0) return;
         trainer.rank().streams.compute.synchronize();
         seconds = seconds_between(begun, done);
       }});
  constexpr int kSteps = 6, kMicrobatches = 4;
  EXPECT_EQ(calls[Phase::kCaptureAhead], ranks > 1 ? kMicrobatches : 0);
  calls.erase(Phase::kCaptureAhead);
  int others = 0;
  for (const auto& [phase, count] : calls) others += count;
  EXPECT_EQ(others, kSteps * kMicrobatches);
  EXPECT_GT(seconds, 0);
  expect_same_run(timed, train({.flags = flags, .ranks = ranks}));
}

// The example: counts NaN among a segment's outputs.
Tensor count_nan(Rank& rank, int segment) {
  const Tensor count(rank.memory.pool.allocate(sizeof(std::int64_t), MemoryCategory::kOther, "count of NaN"),
                     DType::kInt64, {1});
  launch(rank.streams.compute, Fill{.x = count, .value = 0});
  rank.runner.hooks(segment).add(HookPoint::kPostForward, [count](const HookContext& at) {
    if (at.phase == Phase::kWarmUp || at.phase == Phase::kCaptureAhead) return;  // their contents are undefined
    launch(at.ctx->compute, CountNan{.x = at.outputs[0], .count = count});
  });
  return count;
}

// NaN in outputs of the libraries' pass, the warm-up step and the pass that captures ahead are not counted. Three in a
// later step are.
TEST_P(OwnHooks, CountNanOfALayer) {
  std::mutex mutex;
  std::map<Phase, int> poisoned;
  std::vector<std::int64_t> counts;  // on rank 0, after each step
  constexpr int kLast = 2;           // the MLP of layer 0
  constexpr std::int64_t kSteps = 4, kBad = 4;
  const auto steps = [&](Trainer& trainer, int index) {
    Rank& rank = trainer.rank();
    std::int64_t iteration = 0;
    Tensor count;
    if (index == 0) {
      rank.runner.hooks(kLast).add(HookPoint::kPostForward, [&](const HookContext& at) {
        const bool undefined = at.phase == Phase::kWarmUp || at.phase == Phase::kCaptureAhead;
        if (!undefined && (iteration != kBad || at.microbatch != 1)) return;
        const Tensor& output = at.outputs[0];
        launch(at.ctx->compute,
               Fill{.x = undefined ? output : output.view({output.numel()}).slice(0, 1, 3), .value = std::nan("")});
        ++poisoned[at.phase];
      });
      count = count_nan(rank, kLast);
    }
    trainer.step().warm_up();
    BlankSamples samples(rank.config, 1e-2f);
    for (iteration = 1; iteration <= kSteps; ++iteration) {
      samples.input.iteration = iteration;
      trainer.step().train(samples.input);
      const StepResult result = trainer.step().read_result();
      const bool warms_up = rank.graphs != nullptr && iteration == 1;
      EXPECT_EQ(result.skipped, warms_up || iteration == kBad);
      if (index > 0) continue;
      rank.streams.compute.synchronize();
      counts.push_back(*count.as<std::int64_t>());
    }
    rank.runner.hooks(kLast) = {};
    if (rank.graphs) rank.graphs->drop();
  };
  train({.flags = GetParam().flags + GetParam().graphs + Words{"--train-iters", "1", "--check-hazards"},
         .ranks = GetParam().ranks,
         .prepare = steps});
  EXPECT_EQ(counts, (std::vector<std::int64_t>{0, 0, 0, 3}));
  EXPECT_GT(poisoned[Phase::kWarmUp], 0);
  EXPECT_EQ(poisoned[Phase::kCaptureAhead] > 0, GetParam().ranks > 1);
  EXPECT_EQ(poisoned[Phase::kReplay] + poisoned[Phase::kEager], 1);
}

// Bytes that hooks at all points of all segments read on a rank, by call, in phases with valid data.
using Reads = std::map<std::string, std::vector<std::vector<std::byte>>>;

std::function<void(Trainer&, int)> read_all(std::map<int, Reads>& of_ranks, std::mutex& mutex) {
  return [&](Trainer& trainer, int index) {
    Reads* reads = nullptr;
    {
      const std::lock_guard lock(mutex);
      reads = &of_ranks[index];
    }
    SegmentRunner& runner = trainer.rank().runner;
    const auto calls = std::make_shared<std::map<std::string, int>>();
    for (int s = 0; s < runner.num_segments(); ++s) {
      for (int p = 0; p < kNumHookPoints; ++p) {
        const auto point = static_cast<HookPoint>(p);
        runner.hooks(s).add(point, [reads, calls, point](const HookContext& at) {
          if (at.phase == Phase::kCaptureAhead) return;
          const std::string name = fmt::format("{} {} {}", name_of(point), at.segment, at.microbatch);
          std::vector<std::vector<std::byte>>& of_call = (*reads)[fmt::format("{} {}", name, (*calls)[name]++)];
          for (const std::span<const Tensor> list : {at.inputs, at.outputs, at.gradients}) {
            for (const Tensor& tensor : list) {
              if (!tensor.present() || tensor.bound != nullptr || !tensor.is_contiguous()) continue;
              std::vector<std::byte>& bytes = of_call.emplace_back(tensor.bytes());
              copy_to_host(at.ctx->compute, bytes.data(), tensor.data, bytes.size());
            }
          }
        });
      }
    }
  };
}

// The same in graphs, which reuse a tensor's memory after its last reader: all tensors that a hook sees are still held.
TEST(OwnHooksRun, ReadTheSameTensorsInGraphsAndEagerly) {
  const Words experts =
      llama_flags() + words("--ffn-hidden-size 32 --num-experts 4 --moe-ffn-hidden-size 16 --moe-router-topk 2");
  const Words router = kGraphs + Words{"--cuda-graph-modules", "attn", "moe_router", "moe_preprocess"};
  for (const auto& [flags, graphs] :
       {std::pair{kStages + Words{"--pipeline-schedule", "1f1b"}, kGraphsOfAttentionAndMlp},
        {kStages + Words{"--pipeline-schedule", "zb-v"}, kGraphsOfAttentionAndMlp},
        {kStages + experts, router}}) {
    SCOPED_TRACE(testing::PrintToString(flags));
    const auto run = [flags = flags + Words{"--train-iters", "3", "--global-batch-size", "4"}](const Words& more) {
      std::map<int, Reads> reads;
      std::mutex mutex;
      const RunResult result =
          train({.flags = flags + more + Words{"--check-hazards"}, .ranks = 2, .prepare = read_all(reads, mutex)});
      EXPECT_EQ(result.hazards, 0);
      return reads;
    };
    const std::map<int, Reads> eager = run({}), replayed = run(graphs);
    for (const int rank : {0, 1}) {
      std::map<std::string, int> views;  // key: point
      const Reads& of_rank = eager.at(rank);
      for (const auto& [call, tensors] : of_rank)
        views[call.substr(0, call.find(' '))] += static_cast<int>(tensors.size());
      for (const char* point : {"pre_forward", "post_forward", "pre_backward", "post_backward"})
        EXPECT_GT(views[point], 0) << point;
      EXPECT_EQ(views["pre_weight"] + views["post_weight"], 0);
      ASSERT_EQ(replayed.at(rank).size(), of_rank.size());
      for (const auto& [call, tensors] : of_rank) EXPECT_TRUE(replayed.at(rank).at(call) == tensors) << call;
    }
  }
}

TEST(OwnHooksRun, ShardUnitsWithTheSameBits) {
  const Words flags = words(
      "--hidden-size 16 --seq-length 8 --micro-batch-size 1 --train-iters 4 --global-batch-size 8 --hidden-dropout 0.1 "
      "--num-layers 4 --untie-embeddings-and-output-weights --data-parallel-sharding-strategy optim_grads_params "
      "--fsdp-embedding-and-head sharded --eval-interval 2 --eval-iters 1 --check-hazards");
  std::int64_t unit_actions = 0;
  const RunResult actions = train({.flags = flags, .ranks = 2});
  for (const auto shard : {shard_by_segment, shard_by_layer}) {
    const RunResult hooks = train({.flags = flags,
                                   .ranks = 2,
                                   .customize = [&](Rank& rank) { shard(rank); },
                                   .finish =
                                       [&](Trainer& trainer, int rank) {
                                         if (rank > 0) return;
                                         for (const Action& action : trainer.step().actions().train)
                                           unit_actions += is_of_unit(action.kind) ? 1 : 0;
                                       }});
    EXPECT_EQ(unit_actions, 0);
    EXPECT_GT(actions.ranks[0].units_gathered, 0);
    expect_same_state(hooks, actions);
  }
}

// Ranks of one stage make the same calls in the pass that captures ahead, so that they may communicate there.
TEST(OwnHooksRun, CommunicateWithinAStageInEverySchedule) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}) {
    SCOPED_TRACE(schedule);
    Words flags = kStages + Words{"--pipeline-schedule", schedule, "--train-iters",  "3",
                                  "--micro-batch-size",  "1",      "--check-hazards"};
    if (schedule == std::string("interleaved")) flags = flags + Words{"--num-virtual-stages-per-pipeline-rank", "2"};
    std::mutex mutex;
    std::map<int, std::unique_ptr<StageSums>> sums;  // key: rank
    const auto customize = [&](Rank& rank) {
      auto of_rank = std::make_unique<StageSums>(rank);
      const std::lock_guard lock(mutex);
      sums[rank.mesh.world().rank()] = std::move(of_rank);
    };
    const auto finish = [&](Trainer& trainer, int rank) {
      trainer.rank().drain();
      const std::unique_lock lock(mutex);
      const StageSums& own = *sums.at(rank);
      EXPECT_GT(own.calls(Phase::kCaptureAhead), 0);
      EXPECT_EQ(own.calls(Phase::kCaptureAhead), own.calls(Phase::kWarmUp));
      EXPECT_EQ(own.collectives(), 4 * own.calls(Phase::kCaptureAhead));  // warm-up, the pass, and two steps
      sums.at(rank).reset();
    };
    const RunResult with =
        train({.flags = flags + kGraphsOfAttentionAndMlp, .ranks = 4, .customize = customize, .finish = finish});
    expect_same_run(with, train({.flags = flags, .ranks = 4}));
    EXPECT_EQ(with.hazards, 0);
  }
}

}  // namespace
}  // namespace megalith::test
