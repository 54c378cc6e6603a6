// Flags of Megatron-LM that change a step's rates, batch, order or reports: each changes a value or a file, or keeps
// the bits where it must.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

using testing::HasSubstr;

struct Reports {
  double norm = 0, zeros = 0;
  RunResult run;
};

Reports reports_of(const Words& flags, int ranks) {
  Reports reports;
  reports.run = train({.flags = flags, .ranks = ranks, .finish = [&](Trainer& trainer, int rank) {
                         if (rank != 0) return;
                         reports.norm = trainer.rank().step.parameters->params_norm;
                         reports.zeros = trainer.rank().step.parameters->grad_zeros;
                       }});
  return reports;
}

double norm_of(const Tensors& tensors) {
  double sum = 0;
  for (const auto& [name, values] : tensors) {
    for (const float value : values) sum += double{value} * double{value};
  }
  return std::sqrt(sum);
}

double zeros_of(const Tensors& tensors) {
  std::ptrdiff_t zeros = 0;
  for (const auto& [name, values] : tensors) zeros += std::ranges::count(values, 0.0f);
  return static_cast<double>(zeros);
}

TEST(StepFlags, NormOfParametersAndZerosOfGradientsAreThoseOfTheWholeModel) {
  const Words flags = words("--log-params-norm --log-num-zeros-in-grad --train-iters 2");
  for (const Layout& layout : {Layout{},
                               {.tensor = 2},
                               {.tensor = 2, .sequence = true},
                               {.pipeline = 2},
                               {.data = 2, .sharing = Sharing::kOptimizer},
                               {.data = 2, .sharing = Sharing::kUnits},
                               {.data = 4, .sharing = Sharing::kUnitsOfTwoInstances},
                               {.context = 2}}) {
    SCOPED_TRACE(layout.name());
    const Words all = sizes_for(layout) + layout.flags() + words("--train-iters 2");
    const Reports reports = reports_of(all + flags, layout.ranks());
    const RunResult without = train({.flags = all, .ranks = layout.ranks()});
    expect_same_run(reports.run, without);
    EXPECT_TRUE(reports.run.memory_as_planned);
    EXPECT_EQ(reports.run.hazards, 0);
    const double norm = norm_of(reports.run.weights);
    EXPECT_NEAR(reports.norm, norm, 1e-12 * norm);
    EXPECT_EQ(reports.zeros, zeros_of(reports.run.gradients));
    EXPECT_GT(reports.zeros, 0);
  }
}

TEST(StepFlags, NormOfParametersCountsExpertsOnce) {
  const Words experts = words(
      "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 16 --disable-bias-linear --swiglu --train-iters 2 "
      "--log-params-norm --log-num-zeros-in-grad --seq-length 16 --micro-batch-size 1 --global-batch-size 8");
  for (const Layout& layout : {Layout{},
                               {.data = 2, .expert = 2},
                               {.data = 2, .sharing = Sharing::kUnits, .expert = 2},
                               {.tensor = 2, .sequence = true, .expert_tensor = 2}}) {
    SCOPED_TRACE(layout.name());
    const Reports reports = reports_of(experts + layout.flags(), layout.ranks());
    const double norm = norm_of(reports.run.weights);
    EXPECT_NEAR(reports.norm, norm, 1e-12 * norm);
    EXPECT_EQ(reports.zeros, zeros_of(reports.run.gradients));
  }
}

TEST(StepFlags, DecoupledRateMovesEmbeddingAndHeadAlone) {
  const Words flags = words("--untie-embeddings-and-output-weights --train-iters 1 --lr 0.01");
  const RunResult plain = train({.flags = flags});
  expect_same_run(train({.flags = flags + words("--decoupled-lr 0.01")}), plain);
  for (const Layout& layout : {Layout{}, {.pipeline = 2}, {.data = 2, .sharing = Sharing::kUnits}}) {
    SCOPED_TRACE(layout.name());
    const Words sizes = sizes_for(layout) + flags + layout.flags();
    const RunResult want = train({.flags = sizes, .ranks = layout.ranks()});
    const RunResult got = train({.flags = sizes + words("--decoupled-lr 0.1"), .ranks = layout.ranks()});
    EXPECT_EQ(got.losses, want.losses);
    for (const auto& [name, values] : want.weights) {
      const bool is_end = name == "embedding.word_embeddings.weight" || name == "output_layer.weight";
      EXPECT_EQ(got.weights.at(name) == values, !is_end) << name;
    }
  }
}

TEST(StepFlags, WeightDecayRisesOverTheRun) {
  const RunResult constant = train({.flags = words("--weight-decay 0.1")});
  const Words linear = words("--weight-decay-incr-style linear --end-weight-decay 0.1");
  expect_same_run(train({.flags = linear + words("--start-weight-decay 0.1")}), constant);
  const RunResult rising = train({.flags = linear + words("--start-weight-decay 0.01")});
  EXPECT_FALSE(same_bits(rising.weights, constant.weights));
  const RunResult cosine =
      train({.flags = words("--weight-decay-incr-style cosine --end-weight-decay 0.1 --start-weight-decay 0.01")});
  EXPECT_FALSE(same_bits(rising.weights, cosine.weights));
}

TEST(StepFlags, SkippedIterationsReadTheirSamplesAndTrainNothing) {
  const Words flags = words("--train-iters 5 --lr-decay-style linear --hidden-dropout 0.1");
  const RunResult all = train({.flags = flags});
  const Words skip = flags + words("--iterations-to-skip 2 3");
  const RunResult skipping = train({.flags = skip});
  ASSERT_EQ(skipping.losses.size(), 3u);
  EXPECT_EQ(skipping.losses[0], all.losses[0]);
  EXPECT_NE(skipping.losses[1], all.losses[1]);
  EXPECT_NE(skipping.losses[1], all.losses[3]);
  const TestFolder folder;
  const Words kept = {"--save", folder.path("kept"), "--load", folder.path("kept")};
  const RunResult first = train({.flags = skip + kept + words("--exit-interval 1")});
  EXPECT_EQ(first.code, ExitCode::kStoppedOnRequest);
  const RunResult second = train({.flags = skip + kept + words("--exit-interval 4")});
  const RunResult third = train({.flags = skip + kept});
  EXPECT_EQ((Words{first.losses[0], second.losses.at(0), third.losses.at(0)}), skipping.losses);
  EXPECT_TRUE(same_bits(third.whole_state, skipping.whole_state));
  const RunResult last = train({.flags = flags + words("--iterations-to-skip 5")});
  EXPECT_EQ(last.losses, Words(all.losses.begin(), all.losses.end() - 1));
}

TEST(StepFlags, StagesOfTheBatchAreThoseOfARamp) {
  const Layout layout;
  const Words flags = sizes_for(layout) + words("--train-iters 0 --train-samples 60 --global-batch-size 12");
  const RunResult ramp = train({.flags = flags + words("--rampup-batch-size 4 4 16")});  // 4, 4, 8, then 12
  const std::int64_t length = sizes_of(layout).seq_length;
  const std::string schedule = fmt::format("0:4, {}:8 {}:12", 8 * length, 16 * length);
  const RunResult stages = train({.flags = flags + Words{"--step-batch-size-schedule", schedule}});
  EXPECT_EQ(stages.losses, ramp.losses);
  EXPECT_TRUE(stages.memory_as_planned);
  const Words by_steps = sizes_for(layout) + words("--train-iters 6 --global-batch-size 12");
  const RunResult steps = train({.flags = by_steps + Words{"--step-batch-size-schedule", schedule}});
  ASSERT_EQ(steps.losses.size(), 6u);
  EXPECT_EQ(steps.losses[0], ramp.losses[0]);
}

TEST(StepFlags, CheckpointsWithoutOptimizerHoldWeights) {
  const TestFolder folder;
  const Words flags = words("--train-iters 2"), load = {"--load", folder.path("kept")};
  const RunResult saved = train({.flags = flags + Words{"--save", folder.path("kept"), "--no-save-optim"}});
  EXPECT_THAT(error_of(ExitCode::kUsage, [&] { train({.flags = words("--train-iters 3") + load}); }),
              HasSubstr("--no-load-optim"));
  const RunResult more = train({.flags = words("--train-iters 3 --no-load-optim") + load});
  EXPECT_EQ(more.losses.size(), 1u);
  const RunResult tuned = train({.flags = flags + Words{"--finetune"} + load});
  EXPECT_EQ(tuned.losses.size(), 2u);
  const TestFolder full;
  const RunResult both = train({.flags = flags + Words{"--save", full.path("kept")}});
  const RunResult same = train({.flags = words("--train-iters 3 --no-load-optim --load") + Words{full.path("kept")}});
  EXPECT_EQ(more.losses, same.losses);
  EXPECT_TRUE(same_bits(more.whole_state, same.whole_state));
}

TEST(StepFlags, XavierWeightsAreUniformForAnyLayout) {
  const Layout whole, split{.tensor = 2};
  const Words flags = words("--init-method-xavier-uniform --lr 1e-30 --train-iters 1 --disable-bias-linear");
  const RunResult one = train({.flags = sizes_for(split) + flags + whole.flags()});
  const RunResult two = train({.flags = sizes_for(split) + flags + split.flags(), .ranks = 2});
  for (const auto& [name, values] : one.weights) {
    if (name.ends_with(".bias")) continue;  // zeros, which even this rate moves
    EXPECT_TRUE(two.weights.at(name) == values) << name;
  }
  const std::vector<float>& fc2 = one.weights.at("decoder.layers.0.mlp.linear_fc2.weight");
  const Sizes sizes = sizes_of(split);
  const double bound = std::sqrt(6.0 / static_cast<double>(5 * sizes.hidden));  // F = 4 H
  const float largest = std::ranges::max(fc2, {}, [](float x) { return std::abs(x); });
  EXPECT_LE(std::abs(largest), bound);
  EXPECT_GT(std::abs(largest), 0.98 * bound);
}

TEST(StepFlags, PartsOfAStepAddUpToIt) {
  for (const Layout& layout : {Layout{}, {.pipeline = 2}, {.data = 2, .sharing = Sharing::kUnits}}) {
    SCOPED_TRACE(layout.name());
    const Words flags = sizes_for(layout) + layout.flags() + words("--train-iters 4 --log-interval 1");
    const RunResult want = train({.flags = flags, .ranks = layout.ranks()});
    const TestFolder folder;
    const std::string path = folder.path("metrics.jsonl");
    const auto keep = [&](Trainer& trainer, int rank) {
      if (rank == 0) std::filesystem::copy_file(trainer.rank().options.logging.metrics_jsonl, path);
    };
    for (const int level : {1, 2}) {
      std::filesystem::remove(path);
      const RunResult got = train({.flags = flags + Words{"--timing-log-level", std::to_string(level)},
                                   .ranks = layout.ranks(),
                                   .finish = keep});
      expect_same_run(got, want);
      EXPECT_EQ(got.hazards, 0);
      std::ifstream file(path);
      int lines = 0;
      for (std::string line; std::getline(file, line); ++lines) {
        const nlohmann::json step = nlohmann::json::parse(line);
        const double all = step.at("step_ms");
        double sum = 0;
        for (const char* part : {"compute_ms", "communication_ms", "copies_ms", "host_ms"}) {
          EXPECT_GE(step.at(part), 0) << part;
          sum += step.at(part).get<double>();
        }
        EXPECT_NEAR(sum, all, layout.ranks() == 1 ? 1e-3 * all + 1e-6 : 1e3);
        EXPECT_GT(step.at("compute_ms"), 0);
        EXPECT_EQ(step.contains("forward_ms"), level == 2);
        EXPECT_GT(step.value("backward_ms", 1.0), 0);
      }
      EXPECT_EQ(lines, 4);
    }
  }
}

TEST(StepFlags, GroupsOfMicrobatchesKeepTheBits) {
  const Layout layout{.pipeline = 2, .schedule = "interleaved"};
  const Words flags = sizes_for(layout) + layout.flags() + words("--global-batch-size 8");
  const RunResult want = train({.flags = flags, .ranks = 2});
  for (const int group : {3, 4, 8}) {
    const Words grouped = flags + Words{"--microbatch-group-size-per-virtual-pipeline-stage", std::to_string(group)};
    const RunResult got = train({.flags = grouped, .ranks = 2});
    expect_same_run(got, want);
    EXPECT_TRUE(got.memory_as_planned);
    EXPECT_GT(got.arena_planned, want.arena_planned);
  }
}

}  // namespace
}  // namespace megalith::test
