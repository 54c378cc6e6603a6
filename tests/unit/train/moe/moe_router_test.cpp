// Balancing, dropping and biases of routers in complete runs on thread ranks. Every layout trains the model of one rank
// that has the same sequences in the same microbatches.
#include <gtest/gtest.h>

#include <cmath>

#include "core/ops/elementwise/elementwise.h"
#include "tests/support/download.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

Words model() {
  return sizes_for({}) + llama_flags() +
         Words{"--ffn-hidden-size", "32", "--num-experts", "4", "--micro-batch-size", "2", "--train-iters", "1"};
}

RunResult train_checked(const Words& flags, const Layout& layout = {}) {
  RunResult result = train(flags, layout);
  EXPECT_TRUE(result.copies_agree) << layout.name();
  EXPECT_TRUE(result.memory_as_planned) << layout.name();
  EXPECT_EQ(result.hazards, 0) << layout.name();
  return result;
}

double router_norm(const std::vector<float>& x) {
  double squares = 0;
  for (const float value : x) squares += std::pow(static_cast<double>(value), 2);
  return std::sqrt(squares);
}

void expect_near(const RunResult& got, const RunResult& want) {
  expect_losses_near(got, want);
  for (std::size_t i = 0; i < want.loss_values.size(); ++i)
    EXPECT_NEAR(got.balancing_losses[i], want.balancing_losses[i], 1e-5);
  for (const auto& [name, gradient] : want.gradients) {
    std::vector<float> difference = got.gradients.at(name);
    for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= gradient[i];
    EXPECT_LE(router_norm(difference), 5e-6 * router_norm(gradient)) << name;
  }
}

const Words kAll = words(
    "--moe-router-load-balancing-type aux_loss seq_aux_loss global_aux_loss --moe-aux-loss-coeff 0.3 0.1 "
    "0.6");
// These losses do not depend on the replica that has a sequence.
const Words kWhole{
    "--moe-router-load-balancing-type", "seq_aux_loss", "global_aux_loss", "--moe-aux-loss-coeff", "0.1", "0.6"};
Words one_loss(const char* type) { return {"--moe-router-load-balancing-type", type, "--moe-aux-loss-coeff", "0.6"}; }

// In every schedule a microbatch's backward comes after those of the microbatches that it counts.
TEST(MoeRouter, SeveralLossesAreThoseOfOneRank) {
  const RunResult want = train_checked(model() + kAll);
  EXPECT_NEAR(want.balancing_losses.at(0), 1, 0.1);  // the mean by coefficients, each of which is 1 if balanced
  for (const Layout& layout : {Layout{.tensor = 2, .sequence = true},
                               {.pipeline = 2},
                               {.context = 2},
                               {.tensor = 2, .sequence = true, .expert = 2},
                               {.context = 2, .expert = 2},
                               {.tensor = 2, .sequence = true, .expert_tensor = 2},
                               {.tensor = 2, .sequence = true, .pipeline = 2, .schedule = "zb-v"},
                               {.pipeline = 2, .schedule = "gpipe"},
                               {.pipeline = 2, .schedule = "interleaved"},
                               {.pipeline = 2, .schedule = "zb-h1"},
                               {.pipeline = 2, .schedule = "dualpipe-v"}}) {
    SCOPED_TRACE(layout.name());
    expect_near(train_checked(model() + kAll, layout), want);
  }
}

TEST(MoeRouter, LossOverTheGlobalBatchIsThatOfOneRank) {
  const RunResult want = train_checked(model() + kWhole + Words{"--micro-batch-size", "4"});
  for (const Layout& layout :
       {Layout{.data = 2, .sharing = Sharing::kOptimizer},
        {.pipeline = 2, .data = 2},
        {.data = 2, .expert = 2},
        {.data = 2, .expert_tensor = 2},
        {.tensor = 2, .sequence = true, .data = 2, .expert = 2, .expert_tensor = 2},
        {.tensor = 2, .sequence = true, .data = 2, .sharing = Sharing::kOverlapped, .context = 2}}) {
    SCOPED_TRACE(layout.name());
    expect_near(train_checked(model() + kWhole, layout), want);
  }
}

// All tokens at once have the same loss either way; later microbatches know those ahead of them.
TEST(MoeRouter, LossOverTheGlobalBatchCountsEarlierMicrobatches) {
  for (const char* size : {"8", "2"}) {
    const Words flags = model() + Words{"--micro-batch-size", size};
    const RunResult micro = train_checked(flags + one_loss("aux_loss")),
                    global = train_checked(flags + one_loss("global_aux_loss"));
    EXPECT_EQ(micro.balancing_losses == global.balancing_losses, size == std::string("8"));
    EXPECT_EQ(micro.gradients == global.gradients, size == std::string("8"));
  }
}

// Gradients of several microbatches are sums in another order on other layouts.
TEST(MoeRouter, InFp64IsThatOfOneRank) {
  const Words flags = model() + one_loss("aux_loss") + Words{"--moe-router-dtype", "fp64"};
  const RunResult want = train_checked(flags);
  const RunResult single = train_checked(model() + one_loss("aux_loss"));
  EXPECT_NE(want.gradients, single.gradients);
  expect_near(single, want);
  for (const Layout& layout : {Layout{.tensor = 2, .sequence = true}, {.pipeline = 2}, {.data = 2, .expert = 2}}) {
    SCOPED_TRACE(layout.name());
    expect_near(train_checked(flags, layout), want);
  }
}

TEST(MoeRouter, ChangesNoBitWithGraphsRecomputeAndSharding) {
  const Words flags =
      model() + kAll +
      Words{
          "--train-iters", "4", "--bf16", "--hidden-dropout", "0.1", "--check-hazards", "--moe-expert-capacity-factor",
          "0.75"};
  const Words graphs{"--cuda-graph-impl", "local", "--cuda-graph-warmup-steps", "1", "--cuda-graph-modules"};
  const Words selective{"--recompute-granularity", "selective", "--recompute-modules"};
  const std::vector<Words> ways{graphs + Words{"layer"},
                                graphs + Words{"attn", "moe_router", "moe_preprocess"},
                                selective + Words{"moe"},
                                {"--recompute-granularity", "full"},
                                {"--moe-grouped-gemm", "--use-transformer-engine-op-fuser"},
                                {"--moe-pad-expert-input-to-capacity"}};
  for (const Layout& layout : {Layout{}, Layout{.data = 2}}) {
    const Words sharded = strategy("optim_grads_params");
    const Words base = layout.data > 1 ? flags + sharded : flags;
    const RunResult plain = train_checked(base, layout);
    for (const Words& way : ways) {
      SCOPED_TRACE(layout.name() + testing::PrintToString(way));
      expect_same_run(train_checked(base + way, layout), plain);
    }
  }
}

// The capacity is per rank and microbatch: ranks that share no sequence drop the rows that one rank drops.
TEST(MoeRouter, DropsWhatOneRankDrops) {
  const Words limited = model() + Words{"--moe-expert-capacity-factor", "0.75"};
  const RunResult want = train_checked(limited);
  for (const Layout& layout : {Layout{.data = 2},
                               {.pipeline = 2},
                               {.pipeline = 2, .data = 2, .schedule = "zb-h1"},
                               {.data = 2, .expert = 2},
                               {.data = 2, .expert_tensor = 2},
                               {.data = 4, .expert = 2, .expert_tensor = 2}}) {
    SCOPED_TRACE(layout.name());
    const RunResult run = train_checked(limited, layout);
    expect_near(run, want);
    if (layout.expert * layout.expert_tensor == 1) continue;
    expect_same_run(train_checked(limited + Words{"--moe-token-dispatcher-type", "allgather"}, layout), run);
  }
  const RunResult dropless = train_checked(model());
  EXPECT_NE(want.losses, dropless.losses);
  EXPECT_NE(train_checked(limited + Words{"--moe-token-drop-policy", "position"}).losses, want.losses);
  // Four experts with two choices a token: no expert has more than twice the mean.
  const RunResult enough = train_checked(model() + Words{"--moe-expert-capacity-factor", "2"});
  expect_same_run(enough, dropless);
}

Tensors biases_of(Rank& rank) {
  Tensors biases;
  for (const ParameterBuffer& buffer : rank.model.gpt.parameters->buffers())
    biases[buffer.part.name] = download(rank.streams.compute, buffer.values);
  return biases;
}

// After a step of rate 10, tokens choose experts that had too few rows, whatever the scores are. The others get none
// and are back at 0 a step later.
TEST(MoeRouter, PrefersExpertsOfAHigherBias) {
  const Words flags = model() + Words{"--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias",
                                      "--moe-router-bias-update-rate", "10"};
  const auto biases_after = [&](const char* steps) {
    Tensors biases;
    train({.flags = flags + Words{"--train-iters", steps},
           .finish = [&](Trainer& trainer, int) { biases = biases_of(trainer.rank()); }});
    return biases;
  };
  const Tensors one = biases_after("1"), two = biases_after("2");
  ASSERT_EQ(one.size(), 4u);
  int compared = 0;
  for (const auto& [name, bias] : one) {
    if (std::count(bias.begin(), bias.end(), 10.0f) < 2) continue;  // the other choice would be any
    for (std::size_t e = 0; e < bias.size(); ++e) {
      if (bias[e] != -10) continue;
      EXPECT_EQ(two.at(name)[e], 0) << name << ' ' << e;
      ++compared;
    }
  }
  EXPECT_GE(compared, 2);
}

// Weights and biases are unaffected by a step that a NaN skipped, and so are later steps.
TEST(MoeRouter, ASkippedStepLeavesTheExpertsBias) {
  const Words flags = model() + Words{"--moe-router-score-function",
                                      "sigmoid",
                                      "--moe-router-enable-expert-bias",
                                      "--moe-router-bias-update-rate",
                                      "0.01",
                                      "--lr-decay-style",
                                      "constant"};
  for (const Layout& layout : {Layout{.data = 2}, {.data = 2, .expert = 2}}) {
    const Words words = flags + layout.flags();
    const auto run = [&](const char* steps, int skipped) {
      const auto spoil = [skipped](Trainer& trainer, int) {
        Rank& rank = trainer.rank();
        rank.runner.hooks(rank.runner.num_segments() - 1)
            .add(HookPoint::kPostForward, [&rank, skipped, step = 0](const HookContext& at) mutable {
              if (at.microbatch == 0 && ++step == skipped)
                launch(rank.streams.compute, Fill{.x = rank.step.sums.slice(0, 0, 1), .value = std::nan("")});
            });
      };
      std::pair<RunResult, Tensors> result;
      result.first = train({.flags = words + Words{"--train-iters", steps},
                            .ranks = 2,
                            .prepare = spoil,
                            .finish = [&](Trainer& trainer, int rank) {
                              if (rank == 0) result.second = biases_of(trainer.rank());
                            }});
      EXPECT_EQ(result.first.skipped_steps, skipped == 0 ? 0 : 1);
      return result;
    };
    SCOPED_TRACE(layout.name());
    const auto [one, bias] = run("1", 0);
    const auto [two, bias_of_two] = run("2", 0);
    const auto [kept, bias_kept] = run("2", 2);
    ASSERT_EQ(bias.size(), 4u);
    EXPECT_NE(bias_of_two, bias);
    EXPECT_EQ(bias_kept, bias);
    EXPECT_TRUE(kept.whole_state == one.whole_state);
  }
}

TEST(MoeRouter, KeepsLessWhatIsRecomputed) {
  const Words flags = model() + Words{"--moe-shared-expert-intermediate-size", "64", "--recompute-granularity"};
  const auto bytes = [&](const Words& modules) {
    return train_checked(flags +
                         (modules.empty() ? Words{"none"} : Words{"selective", "--recompute-modules"} + modules))
        .arena_planned;
  };
  const std::size_t kept = bytes({});
  EXPECT_EQ(bytes({"moe_act"}), kept);  // recomputed without it
  EXPECT_LT(bytes({"shared_experts"}), kept);
  EXPECT_LT(bytes({"moe"}), bytes({"shared_experts"}));
}

}  // namespace
}  // namespace megalith::test
