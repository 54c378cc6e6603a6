// Non-finite numbers. The first NaN or Inf is reported and the run's state does not change. An exhausted budget of
// skipped steps ends the run, and so do replicas that differ.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <set>

#include "core/ops/elementwise/elementwise.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

// Poisons calls of a hook of layer 0 on rank 1. With two microbatches a step, step 2 makes the calls 3 and 4. If it is
// skipped, step 3, which is dropped, makes 5 and 6, the rerun of step 2 makes 7 and 8, and step 3 again 9 and 10. After
// the last step there is none to drop.
std::function<void(Trainer&, int)> poison_calls(const std::set<int>& calls, double value = std::nan("")) {
  return poison({.calls = calls, .rank = 1, .segment = 1, .value = value});
}

struct CapturedRun {
  RunResult result;
  std::string text;  // standard error
};

CapturedRun train_captured(const RunRequest& request) {
  testing::internal::CaptureStderr();
  CapturedRun run;
  try {
    run.result = train(request);
  } catch (...) {
    testing::internal::GetCapturedStderr();
    throw;
  }
  run.text = testing::internal::GetCapturedStderr();
  return run;
}

const Words kConstant = {"--lr-decay-style", "constant", "--hidden-dropout", "0.1"};

TEST(Numbers, TheFirstNanIsNamed) {
  const CapturedRun run = train_captured({.flags = kConstant, .ranks = 2, .prepare = poison_calls({7, 11})});
  EXPECT_EQ(run.result.skipped_steps, 1);
  EXPECT_THAT(run.text, HasSubstr("[megalith] warning: step 4 was skipped (loss "));
  EXPECT_THAT(run.text, HasSubstr(", grad norm nan); the first value that is not finite: rank 1, layer 0 attention, "
                                  "backward_weight, microbatch 0: fill wrote nan to \"gradient"));
}

TEST(Numbers, AnInfIsNamedInItsMicrobatch) {
  const CapturedRun run = train_captured(
      {.flags = kConstant, .ranks = 2, .prepare = poison_calls({4, 8}, -std::numeric_limits<double>::infinity())});
  EXPECT_EQ(run.result.skipped_steps, 1);
  EXPECT_THAT(run.text, HasSubstr("rank 1, layer 0 attention, backward_weight, microbatch 1: fill wrote -inf to"));
}

// A weight with unrelated damage: it shows in the op that reads it.
TEST(Numbers, ADamagedWeightIsNamedAsAnInput) {
  const auto damage = [](Trainer& trainer, int rank) {
    if (rank != 1) return;
    ParameterUnit& unit = trainer.rank().model.gpt.parameters->units()[2];
    unit.weights.as<float>()[unit.parameters[0]->offset] = std::numeric_limits<float>::quiet_NaN();
  };
  const CapturedRun run = train_captured({.flags = {"--train-iters", "1"}, .ranks = 2, .prepare = damage});
  EXPECT_THAT(run.text, HasSubstr("step 1 was skipped (loss nan, grad norm nan); the first value that is not finite: "
                                  "rank 1, layer 1 attention, forward, microbatch 0: "));
  EXPECT_THAT(run.text, HasSubstr(" read nan from \"decoder.layers.1."));
}

// Layers of 8 experts after a dense one.
Words experts() {
  return {"--num-layers",          "3",  "--swiglu",         "--disable-bias-linear",
          "--num-experts",         "8",  "--moe-layer-freq", "[0]+[1]*2",
          "--moe-ffn-hidden-size", "16", "--train-iters",    "1"};
}

// Damages a weight of `expert` in layer 2 on rank 1; if ranks hold shards of the experts, in that shard if it has it.
auto damage_expert(const std::string& weight, std::int64_t expert, float value) {
  return [=](Trainer& trainer, int rank) {
    if (rank != 1) return;
    for (ParameterUnit& unit : trainer.rank().model.gpt.parameters->units()) {
      for (const Parameter* parameter : unit.parameters) {
        if (parameter->name() != "decoder.layers.2.mlp.experts." + weight) continue;
        const LogicalTensor& part = parameter->parts.front();
        const std::int64_t own = part.global_shape.numel() / 8,
                           first_expert = 8 * part.global_row / part.global_shape[0];
        const std::int64_t begin = parameter->offset + (expert - first_expert) * own;
        const std::int64_t first = unit.resident_weights ? 0 : unit.shard.range(unit.numel).begin;
        const Tensor& held = unit.resident_weights ? unit.weights : unit.weight_shard;
        for (std::int64_t i = begin; i < begin + own; ++i) {
          if (i >= first && i < first + held.numel()) held.as<float>()[i - first] = value;
        }
      }
    }
  };
}

TEST(Numbers, ADamagedExpertIsNamed) {
  const Words fused{"--moe-grouped-gemm", "--use-transformer-engine-op-fuser"};
  for (const Words& way : {Words{}, fused, Words{"--recompute-granularity", "full"}}) {
    SCOPED_TRACE(testing::PrintToString(way));
    const CapturedRun run = train_captured(
        {.flags = experts() + way, .ranks = 2, .prepare = damage_expert("linear_up.weight", 5, std::nanf(""))});
    EXPECT_THAT(run.text, HasSubstr("microbatch 0 (layer 2, expert 5): grouped_gemm"));
    EXPECT_THAT(run.text, HasSubstr(" read nan from \"decoder.layers.2.mlp.experts.linear_up.weight\" (fp32, element " +
                                    std::to_string(5 * 16 * 32) + " of "));
  }
  // The ranks' shards are gathered ahead of any reader; with one slot in the step, not ahead of it.
  const CapturedRun sharded =
      train_captured({.flags = experts() + Words{"--data-parallel-sharding-strategy", "optim_grads_params",
                                                 "--fsdp-unit-slots", "1", "--fsdp-prefetch", "0"},
                      .ranks = 2,
                      .prepare = damage_expert("linear_fc2.weight", 5, std::nanf(""))});
  EXPECT_THAT(sharded.text, HasSubstr("unshard of unit 5 (layer 2, expert 5): all_gather "));
}

// All weights are finite; products of some expert's rows are not.
TEST(Numbers, AnExpertsRowsAreNamed) {
  for (const Words& way : {Words{}, Words{"--moe-grouped-gemm", "--use-transformer-engine-op-fuser"}}) {
    const CapturedRun run =
        train_captured({.flags = experts() + way, .ranks = 2, .prepare = damage_expert("linear_up.weight", 3, 3e38f)});
    EXPECT_THAT(run.text,
                HasSubstr("rank 1, layer 2 experts, forward, microbatch 0 (layer 2, expert 3): grouped_gemm"));
    EXPECT_THAT(run.text, HasSubstr("inf to "));
  }
  // The rank has fewer rows than its capacity.
  const CapturedRun run = train_captured({.flags = experts() + Words{"--expert-model-parallel-size", "2"},
                                          .ranks = 2,
                                          .prepare = damage_expert("linear_up.weight", 6, 3e38f)});
  EXPECT_THAT(run.text, HasSubstr("rank 1, layer 2 experts, forward, microbatch 0 (layer 2, expert 6): grouped_gemm"));
}

// A value that does not recur, in models of every kind. The second run of the step finds nothing, so no op leaves a
// non-finite value in its declared outputs.
TEST(Numbers, WhatDoesNotRepeatIsReported) {
  std::vector<Words> models = recompute_modes();
  models.insert(models.end(), {{}, llama_flags(), {"--bf16"}, {"--loss-chunk-size", "5"}});
  models.push_back(experts() + Words{"--moe-expert-capacity-factor", "0.5"});
  for (const char* way : {"alltoall", "allgather"})
    models.push_back(experts() + Words{"--expert-model-parallel-size", "2", "--moe-token-dispatcher-type", way});
  for (const Words& model : models) {
    const CapturedRun run = train_captured(
        {.flags = model + kConstant + Words{"--train-iters", "5"}, .ranks = 2, .prepare = poison_calls({7})});
    EXPECT_THAT(run.text, HasSubstr("step 4 was skipped")) << testing::PrintToString(model);
    EXPECT_THAT(run.text, HasSubstr("in the rerun all tensors were finite")) << testing::PrintToString(model);
  }
}

TEST(Numbers, ASkippedStepChangesNothing) {
  const RunResult one = train({.flags = kConstant + Words{"--train-iters", "1"}, .ranks = 2});
  const CapturedRun run =
      train_captured({.flags = kConstant + Words{"--train-iters", "2"}, .ranks = 2, .prepare = poison_calls({3, 5})});
  EXPECT_EQ(run.result.skipped_steps, 1);
  EXPECT_TRUE(run.result.state == one.state);
  // Whether the value recurs or not, the run continues with equal bits, dropout included.
  const CapturedRun again = train_captured({.flags = kConstant, .ranks = 2, .prepare = poison_calls({7, 11})});
  const CapturedRun gone = train_captured({.flags = kConstant, .ranks = 2, .prepare = poison_calls({7})});
  expect_same_run(again.result, gone.result);
  EXPECT_EQ(again.result.skipped_steps, 1);
}

// The budget covers the full training run: steps skipped ahead of a resume count.
TEST(Numbers, TheBudgetOfSkippedStepsGoesOnAfterAResume) {
  const TestFolder scratch;
  const Words folder = {"--max-skipped-steps", "1", "--save", scratch.path("kept"), "--load", scratch.path("kept")};
  const CapturedRun first = train_captured(
      {.flags = kConstant + folder + Words{"--train-iters", "3"}, .ranks = 2, .prepare = poison_calls({3, 7})});
  EXPECT_EQ(first.result.code, ExitCode::kOk);
  EXPECT_EQ(first.result.skipped_steps, 1);
  EXPECT_THAT(error_of(ExitCode::kNumeric,
                       [&] {
                         train_captured({.flags = kConstant + folder, .ranks = 2, .prepare = poison_calls({3, 7})});
                       }),
              HasSubstr("expected at most 1 (--max-skipped-steps) in the run, got 2"));
}

TEST(Numbers, MoreSkippedStepsThanTheBudgetEndTheRun) {
  const auto always = [](Trainer& trainer, int rank) {
    std::set<int> calls;
    for (int i = 1; i < 1000; ++i) calls.insert(i);
    poison_calls(calls)(trainer, rank);
  };
  const CapturedRun run = train_captured({.flags = {"--max-skipped-steps", "6"}, .ranks = 2, .prepare = always});
  EXPECT_EQ(run.result.code, ExitCode::kOk);
  EXPECT_EQ(run.result.skipped_steps, 6);
  for (const std::string budget : {"0", "3", "5"}) {
    EXPECT_THAT(
        error_of(ExitCode::kNumeric,
                 [&] {
                   train_captured({.flags = {"--max-skipped-steps", budget}, .ranks = 2, .prepare = always});
                 }),
        HasSubstr("steps with NaN or Inf: expected at most " + budget + " (--max-skipped-steps) in the run, got "));
  }
}

TEST(Numbers, ReplicasThatDifferEndTheRun) {
  const auto damage = [](Trainer& trainer, int rank) {
    if (rank != 2) return;
    Rank& own = trainer.rank();
    own.runner.hooks(0).add(HookPoint::kPreForward, [&own, call = 0](const HookContext&) mutable {
      if (++call != 4) return;
      const Tensor moment = own.optimizer.adamw.units()[1].exp_avg_sq;
      launch(own.streams.compute, Fill{.x = moment.slice(0, 0, 1), .value = 3});
    });
  };
  const Words flags = {"--global-batch-size", "8", "--check-weight-hash-interval", "2", "--micro-batch-size", "2"};
  EXPECT_EQ(train({.flags = flags, .ranks = 4}).code, ExitCode::kOk);
  for (const Words& dtype : {Words{}, Words{"--bf16"}}) {
    EXPECT_THAT(error_of(ExitCode::kNumeric, [&] { train({.flags = flags + dtype, .ranks = 4, .prepare = damage}); }),
                AllOf(HasSubstr("--check-weight-hash-interval, after step 4: "), HasSubstr(" on rank 2")));
  }
}

// One bit of a replicated tensor, picked by `random`; all ranks draw the same numbers.
struct Flip {
  int rank = 0;
  std::vector<std::string> names;  // the tensor has one of them
  std::byte* byte = nullptr;       // in this rank's copy
  std::byte mask{};
};

Flip pick_flip(Rank& rank, int ranks, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  Flip flip{.rank = static_cast<int>(below(static_cast<std::size_t>(ranks)))};
  const std::size_t u = below(rank.model.gpt.parameters->units().size());
  const ParameterUnit& unit = rank.model.gpt.parameters->units()[u];
  const AdamWOptimizer::UnitState& state = rank.optimizer.adamw.units()[u];
  const Parameter& parameter = *unit.parameters[below(unit.parameters.size())];
  std::vector<std::pair<std::string, Tensor>> kinds = {
      {"weight", unit.weights}, {"exp_avg", state.exp_avg}, {"exp_avg_sq", state.exp_avg_sq}};
  if (rank.optimizer.adamw.has_own_main_params()) kinds.emplace_back("main parameter", state.main_params);
  const auto& [kind, flat] = kinds[below(kinds.size())];
  for (const auto& part : parameter.parts) flip.names.push_back(kind + " of " + part.name);
  const Tensor whole = flat.slice(0, parameter.offset, parameter.shape.numel());
  const std::size_t bit = below(8 * whole.bytes());
  flip.byte = whole.as<std::byte>() + bit / 8;
  flip.mask = static_cast<std::byte>(1u << (bit % 8));
  return flip;
}

// Flips bits of a trained model between its steps, a bit at a time; MEGALITH_BIT_FLIPS of them (tests/soak.sh: 1000).
TEST(Numbers, EveryFlippedBitIsFoundOnItsRank) {
  const char* count = std::getenv("MEGALITH_BIT_FLIPS");
  const int flips = count == nullptr ? 20 : std::atoi(count);
  const char* seed = std::getenv("SEED");
  constexpr int kRanks = 3;
  std::atomic<int> found{0};
  std::atomic<int> clean{0};
  const auto check = [&](Trainer& trainer, int rank) {
    EXPECT_EQ(trainer.run(), ExitCode::kOk);  // moments that are not zero
    std::mt19937_64 random(seed == nullptr ? 1u : std::stoull(seed));
    for (int i = 0; i < flips; ++i) {
      const Flip flip = pick_flip(trainer.rank(), kRanks, random);
      if (rank == flip.rank) *flip.byte ^= flip.mask;
      const std::optional<ReplicaDifference> difference = replica_difference(trainer.rank());
      if (rank == flip.rank) *flip.byte ^= flip.mask;
      clean += replica_difference(trainer.rank()) ? 0 : 1;
      if (!difference) continue;
      EXPECT_THAT(flip.names, ::testing::Contains(difference->tensor));
      EXPECT_EQ(difference->ranks, std::vector<int>{flip.rank});
      EXPECT_EQ(difference->more_tensors, 0);
      found += difference->majority ? 1 : 0;
    }
  };
  for (const Words& dtype : {Words{}, Words{"--bf16", "--exp-avg-dtype", "bf16"}}) {
    found = clean = 0;
    train(
        {.flags = dtype + Words{"--global-batch-size", "6", "--train-iters", "2"}, .ranks = kRanks, .prepare = check});
    EXPECT_EQ(found, flips * kRanks);  // every rank reports it
    EXPECT_EQ(clean, flips * kRanks);
    if (count != nullptr)
      fmt::print("{} of {} flipped bits found{}\n", found / kRanks, flips, dtype.empty() ? "" : ", bf16");
  }
}

}  // namespace
}  // namespace megalith::test
