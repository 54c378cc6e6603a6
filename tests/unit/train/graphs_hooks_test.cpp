// Complete runs with captured graphs: hooks in every phase, and around all warm-up.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/unit/train/training_support.h"

namespace megalith::test {
namespace {

struct Call {
  std::string what;  // point, segment, chunk, microbatch, verb
  Phase phase;
};

// All six points of every segment.
std::function<void(Trainer&, int)> record(std::vector<Call>& calls) {
  return [&calls](Trainer& trainer, int) {
    Rank& rank = trainer.rank();
    std::vector<HookTable> tables(static_cast<std::size_t>(rank.runner.num_segments()));
    for (HookTable& table : tables) {
      for (int p = 0; p < kNumHookPoints; ++p) {
        const auto point = static_cast<HookPoint>(p);
        table.add(point, [&calls, &rank, point](const HookContext& c) {
          EXPECT_FALSE(rank.streams.compute.capturing());
          calls.push_back({fmt::format("{} {} {} {} {} {}", name_of(point), c.segment, c.segment_index, c.chunk,
                                       c.microbatch, name_of(c.verb)),
                           c.phase});
        });
      }
    }
    rank.runner.set_hooks(std::move(tables));
  };
}

constexpr std::size_t kSteps = 3;  // warm-up, capture, replay

// Expects the hook calls of eager steps, in order and by phase; with `ahead` once more ahead of the second step.
void expect_calls_of_eager_steps(const std::vector<Call>& graphs, const std::vector<Call>& eager, bool ahead = false) {
  const std::size_t of_step = eager.size() / kSteps;
  std::vector<Call> want = eager;
  if (ahead) {
    const auto second = eager.begin() + static_cast<std::ptrdiff_t>(of_step);
    want.insert(want.begin() + static_cast<std::ptrdiff_t>(of_step), second,
                second + static_cast<std::ptrdiff_t>(of_step));
  }
  ASSERT_EQ(graphs.size(), want.size());
  std::map<Phase, int> of_phase;
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(graphs[i].what, want[i].what);
    EXPECT_EQ(want[i].phase, Phase::kEager);
    ++of_phase[graphs[i].phase];
    const bool captured = graphs[i].what.find("layer") != std::string::npos;
    const std::size_t pass = i / of_step;
    if (pass == 0) {
      EXPECT_EQ(graphs[i].phase, Phase::kWarmUp) << graphs[i].what;
    } else if (ahead && pass == 1) {
      EXPECT_EQ(graphs[i].phase, Phase::kCaptureAhead) << graphs[i].what;
    } else if (!captured) {
      EXPECT_EQ(graphs[i].phase, Phase::kEager) << graphs[i].what;
    } else if (ahead || pass > 1) {
      EXPECT_EQ(graphs[i].phase, Phase::kReplay) << graphs[i].what;
    } else {
      EXPECT_TRUE(graphs[i].phase == Phase::kCapture || graphs[i].phase == Phase::kReplay) << graphs[i].what;
    }
  }
  EXPECT_EQ(of_phase[Phase::kCapture] > 0, !ahead);
  EXPECT_GT(of_phase[Phase::kReplay], 0);
}

TEST(GraphedRun, HooksAreCalledAsInEagerStepsInEveryPhase) {
  const Words flags{"--train-iters", "3", "--micro-batch-size", "4", "--pipeline-schedule", "zb-h1"};
  std::vector<Call> eager, graphs;
  const RunResult without = train({.flags = flags, .prepare = record(eager)});
  const RunResult with = train({.flags = flags + kGraphsOfAttentionAndMlp, .prepare = record(graphs)});
  expect_same_run(with, without);
  // Embedding, 2 layers of 2, head: 6 points, 2 microbatches, 3 steps.
  ASSERT_EQ(eager.size(), 6u * 6 * 2 * kSteps);
  expect_calls_of_eager_steps(graphs, eager);
}

// Graphs are captured ahead of the step's messages, in a pass that calls hooks once more.
TEST(GraphedRun, HooksOfAPipelineAreCalledAsInEagerSteps) {
  for (const char* schedule : {"1f1b", "interleaved", "zb-v", "dualpipe-v"}) {
    SCOPED_TRACE(schedule);
    Words flags = words("--train-iters 3 --micro-batch-size 2 --num-layers 4 --pipeline-model-parallel-size 2") +
                  Words{"--pipeline-schedule", schedule};
    if (schedule == std::string("interleaved")) flags = flags + Words{"--num-virtual-stages-per-pipeline-rank", "2"};
    std::array<std::vector<Call>, 2> eager, graphs;
    const auto of_rank = [](std::array<std::vector<Call>, 2>& calls) {
      return [&calls](Trainer& trainer, int rank) { record(calls.at(static_cast<std::size_t>(rank)))(trainer, rank); };
    };
    const RunResult without = train({.flags = flags, .ranks = 2, .prepare = of_rank(eager)});
    const RunResult with = train({.flags = flags + kGraphsOfAttentionAndMlp, .ranks = 2, .prepare = of_rank(graphs)});
    expect_same_run(with, without);
    // Two layers of 2 a rank, and the embedding and the head.
    EXPECT_EQ(eager[0].size() + eager[1].size(), 10u * 6 * 4 * kSteps);
    for (const std::size_t rank : {0, 1}) expect_calls_of_eager_steps(graphs.at(rank), eager.at(rank), /*ahead=*/true);
  }
}

// A stage whose layers all run eagerly captures nothing, so that no pass calls its hooks.
TEST(GraphedRun, HooksOfAStageWithoutGraphsAreCalledInItsStepsAlone) {
  const Words flags =
      llama_flags() +
      words(
          "--train-iters 3 --num-layers 4 --pipeline-model-parallel-size 2 --num-experts 4 --moe-layer-freq "
          "[0]*2+[1]*2 --moe-ffn-hidden-size 16 --ffn-hidden-size 32 --moe-router-topk 2");
  const Words graphs = kGraphs + Words{"--cuda-graph-modules", "mlp"};
  std::array<std::vector<Call>, 2> calls;
  train({.flags = flags + graphs, .ranks = 2, .prepare = [&](Trainer& trainer, int rank) {
           record(calls.at(static_cast<std::size_t>(rank)))(trainer, rank);
         }});
  const auto ahead = [](const Call& call) { return call.phase == Phase::kCaptureAhead; };
  EXPECT_GT(std::ranges::count_if(calls[0], ahead), 0);
  EXPECT_EQ(std::ranges::count_if(calls[1], ahead), 0);
  EXPECT_GT(calls[1].size(), 0u);
}

// Throws in the pass that captures ahead, at a graph and at a verb outside graphs: the next step captures again.
TEST(GraphedRun, AHookThatThrowsWhileCapturingAheadChangesNoBits) {
  for (const int segment : {0, 1, 2}) {
    SCOPED_TRACE(segment);
    const auto run = [&](const Words& graphs) {
      const auto steps = [&](Trainer& trainer, int) {
        const auto throws = std::make_shared<bool>(!graphs.empty());  // the hook lives as long as the rank
        Rank& rank = trainer.rank();
        rank.runner.hooks(segment).add(HookPoint::kPostForward, [throws](const HookContext& c) {
          if (c.phase == Phase::kCaptureAhead && c.microbatch == 1 && std::exchange(*throws, false))
            throw std::runtime_error("out of luck");
        });
        BlankSamples samples(rank.config, 1e-2f);
        for (; samples.input.iteration < 4; ++samples.input.iteration) {
          if (*throws && samples.input.iteration == 2) {
            EXPECT_THAT(error_of(ExitCode::kInternal, [&] { trainer.step().train(samples.input); }),
                        HasSubstr(fmt::format("hook post_forward of segment {} (microbatch 1): out of luck",
                                              rank.runner.entry(segment).name)));
            EXPECT_EQ(rank.graphs->stats().graphs, 0);
            EXPECT_FALSE(rank.streams.compute.capturing());
          }
          trainer.step().train(samples.input);
          trainer.step().read_result();
        }
        rank.runner.hooks(segment) = {};
        if (rank.graphs) rank.graphs->drop();
      };
      const Words flags =
          words("--train-iters 4 --num-layers 4 --pipeline-model-parallel-size 2 --global-batch-size 4");
      return train({.flags = flags + graphs, .ranks = 2, .prepare = steps});
    };
    expect_same_run(run(kGraphs + Words{"--cuda-graph-modules", "attn"}), run({}));
  }
}

TEST(GraphedRun, WarmUpHooksRunOnceAroundAllWarmUp) {
  std::vector<std::string> calls;
  const auto watch = [&](Rank& rank) {
    rank.warm_up_hooks.before.emplace_back([&] { calls.push_back("pre_warmup"); });
    rank.warm_up_hooks.after.emplace_back([&] { calls.push_back("post_warmup"); });
    rank.runner.hooks(1).add(HookPoint::kPreForward,
                             [&](const HookContext& c) { calls.emplace_back(name_of(c.phase)); });
  };
  const Words flags{"--train-iters", "4", "--micro-batch-size",        "8", "--eval-interval", "1",
                    "--eval-iters",  "1", "--cuda-graph-warmup-steps", "2"};
  train({.flags = flags + kGraphs, .customize = watch});
  EXPECT_THAT(calls, testing::ElementsAre("pre_warmup", "warm_up", "eager", "warm_up", "eager", "post_warmup",
                                          "capture", "eager", "replay", "eager"));
}

// The pass in which libraries initialize, which a run makes only on GPUs. It runs a microbatch forward and backward,
// and forward for the evaluation.
TEST(GraphedRun, TheLibrariesPassIsWarmUp) {
  const Words flags{"--train-iters", "3", "--micro-batch-size", "4", "--eval-interval", "2", "--eval-iters", "1"};
  const RunResult without = train({.flags = flags});
  for (const Words& graphs : {Words{}, kGraphsOfAttentionAndMlp}) {
    SCOPED_TRACE(testing::PrintToString(graphs));
    std::vector<Call> calls;
    std::vector<std::pair<std::string, std::size_t>> warm_up;  // with the preceding calls
    const auto watch = [&](Trainer& trainer, int rank) {
      record(calls)(trainer, rank);
      trainer.rank().warm_up_hooks.before.emplace_back([&] { warm_up.emplace_back("pre_warmup", calls.size()); });
      trainer.rank().warm_up_hooks.after.emplace_back([&] { warm_up.emplace_back("post_warmup", calls.size()); });
      trainer.step().warm_up();
    };
    expect_same_run(train({.flags = flags + graphs, .prepare = watch}), without);
    // Six segments; two microbatches a step.
    constexpr std::size_t kPass = 6 * (6 + 2), kStep = 6 * 6 * 2, kEvaluation = 6 * 2 * 2;
    ASSERT_EQ(calls.size(), kPass + 3 * kStep + 2 * kEvaluation);
    std::map<std::string, int> points;
    for (std::size_t i = 0; i < kPass; ++i) {
      EXPECT_EQ(calls[i].phase, Phase::kWarmUp) << calls[i].what;
      ++points[calls[i].what.substr(0, calls[i].what.find(' '))];
    }
    EXPECT_THAT(points,
                testing::UnorderedElementsAre(testing::Pair("pre_forward", 12), testing::Pair("post_forward", 12),
                                              testing::Pair("pre_backward", 6), testing::Pair("post_backward", 6),
                                              testing::Pair("pre_weight", 6), testing::Pair("post_weight", 6)));
    EXPECT_EQ(calls[kPass].phase, graphs.empty() ? Phase::kEager : Phase::kWarmUp);
    EXPECT_THAT(warm_up, testing::ElementsAre(testing::Pair("pre_warmup", 0u),
                                              testing::Pair("post_warmup", graphs.empty() ? kPass : kPass + kStep)));
  }
}

// Holds also if the run ends without any capture.
TEST(GraphedRun, WarmUpHooksRunOnceInRunsThatOnlyWarmUp) {
  for (const Words& more : {Words{"--train-iters", "2", "--cuda-graph-warmup-steps", "2"},
                            Words{"--train-iters", "1", "--cuda-graph-warmup-steps", "3"},
                            Words{"--train-iters", "5", "--cuda-graph-warmup-steps", "4", "--exit-interval", "3"}}) {
    SCOPED_TRACE(testing::PrintToString(more));
    std::vector<std::string> calls;
    train({.flags = kGraphs + more, .customize = [&](Rank& rank) {
             rank.warm_up_hooks.before.emplace_back([&] { calls.emplace_back("pre_warmup"); });
             rank.warm_up_hooks.after.emplace_back([&] { calls.emplace_back("post_warmup"); });
             rank.runner.hooks(1).add(HookPoint::kPreForward, [&](const HookContext& c) {
               if (calls.empty() || calls.back() != name_of(c.phase)) calls.emplace_back(name_of(c.phase));
             });
           }});
    EXPECT_THAT(calls, testing::ElementsAre("pre_warmup", "warm_up", "post_warmup"));
  }
}

// The error precedes the warm-up, however long it is.
TEST(GraphedRun, AHookInsideALayerFromTheStartIsRefusedBeforeTheFirstStep) {
  int calls = 0;
  const auto add_hook = [&](Rank& rank) {
    rank.runner.hooks(1).add(HookPoint::kPostForward, [&](const HookContext&) { ++calls; });
  };
  EXPECT_THAT(error_of(ExitCode::kInternal, [&] { train({.flags = kGraphs, .customize = add_hook}); }),
              HasSubstr("hook post_forward of segment layer 0 attention"));
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace megalith::test
