// Runs whose ranks shard experts and have too little capacity for arriving rows. An overflowing step is done again;
// bits equal a run with enough capacity.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>

#include "core/base/files/fault.h"
#include "core/device/copy.h"
#include "core/ops/elementwise/elementwise.h"
#include "tests/support/download.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/unit/train/moe/moe_runs.h"

namespace megalith::test {
namespace {

const Layout kTwoRanks{.data = 2, .expert = 2};

// Four experts on two ranks, two choices. With even choices, a rank's experts have a row for each of its tokens'
// choices, 512; the maximum for all of them is 1,024.
Words model(const char* factor) {
  return words(
             "--num-layers 2 --hidden-size 16 --seq-length 64 --micro-batch-size 4 --global-batch-size 16 "
             "--train-iters 5") +
         llama_flags() +
         words(
             "--ffn-hidden-size 32 --num-experts 4 --moe-router-score-function sigmoid --moe-router-enable-expert-bias "
             "--moe-router-bias-update-rate 8 --hidden-dropout 0.1 --check-hazards") +
         Words{"--moe-expert-rank-capacity-factor", factor};
}

// With these biases, which exceed all scores, step 1 chooses experts 0 and 2. Step 2 chooses those of the first rank, 0
// and 1, and step 3 those of the second.
void set_biases(Trainer& trainer, int) {
  Rank& rank = trainer.rank();
  const Tensor& biases = rank.model.gpt.parameters->buffer_values();
  std::vector<float> values;
  while (std::ssize(values) < biases.numel()) values.insert(values.end(), {20, 0, 14, -3});
  copy_from_host(rank.streams.compute, biases.data, values.data(), biases.bytes());
  rank.streams.compute.synchronize();
}

struct Outcome {
  RunResult run;
  std::vector<std::vector<float>> biases;  // at the end, by rank
  std::vector<double> factors;             // at the end, by rank
  std::int64_t replays = 0;                // on rank 0
};

Outcome run_in_room(const Words& flags, const Layout& layout = kTwoRanks,
                    const std::function<void(Rank&)>& hook = nullptr) {
  Outcome outcome;
  outcome.biases.resize(static_cast<std::size_t>(layout.ranks()));
  outcome.factors.resize(outcome.biases.size());
  std::mutex mutex;
  const auto prepare = [&](Trainer& trainer, int index) {
    set_biases(trainer, index);
    if (hook) hook(trainer.rank());
  };
  const auto finish = [&](Trainer& trainer, int index) {
    Rank& rank = trainer.rank();
    std::vector<float> biases = download(rank.streams.compute, rank.model.gpt.parameters->buffer_values());
    const std::lock_guard lock(mutex);
    outcome.biases[static_cast<std::size_t>(index)] = std::move(biases);
    outcome.factors[static_cast<std::size_t>(index)] = trainer.plans().capacity_factor;
    if (rank.offload) {
      EXPECT_EQ(rank.offload->pool.reserved_bytes(), trainer.plans().host.peak_bytes);
    }
    if (index == 0 && rank.graphs) outcome.replays = rank.graphs->stats().replays;
  };
  outcome.run = train({.flags = flags + layout.flags(), .ranks = layout.ranks(), .prepare = prepare, .finish = finish});
  EXPECT_EQ(outcome.run.code, ExitCode::kOk);
  EXPECT_EQ(outcome.run.skipped_steps, 0);
  EXPECT_EQ(outcome.run.hazards, 0);
  EXPECT_TRUE(outcome.run.memory_as_planned);
  return outcome;
}

void expect_same(const Outcome& got, const Outcome& want) {
  expect_same_run(got.run, want.run);
  EXPECT_TRUE(got.run.whole_state == want.run.whole_state);
  EXPECT_EQ(got.biases, want.biases);
  EXPECT_THAT(want.run.regrows, Each(0));
}

// The second step overflows while the third is under way; with the smaller factor the first one does too.
TEST(MoeRoom, AStepWithoutRoomIsDoneAgainWithTheSameBits) {
  const std::vector<int> second{0, 1, 1, 1, 1}, both{1, 2, 2, 2, 2};
  struct Way {
    Layout layout;
    Words flags;
    std::vector<int> regrows;
    bool graphs = false;
  };
  const Words graphs{"--cuda-graph-impl", "local", "--cuda-graph-modules", "attn", "moe"};
  const Words moves = offload({"attn_norm", "fused_group_mlp"});
  for (const Way& way : {Way{{.data = 2, .expert = 2}, {}, second},
                         Way{{.data = 2, .sharing = Sharing::kOptimizer, .expert = 2}, {}, second},
                         Way{{.data = 2, .sharing = Sharing::kUnits, .expert = 2}, moves, second},
                         Way{{.tensor = 2, .sequence = true, .expert = 2}, {}, second},
                         Way{{.pipeline = 2, .data = 2, .expert = 2}, {}, second},
                         Way{{.data = 4, .expert = 2, .expert_tensor = 2}, {}, both},
                         Way{{.data = 2, .expert = 2}, graphs + moves, second, true},
                         Way{{.data = 2, .expert = 2}, {"--moe-token-dispatcher-type", "allgather"}, second}}) {
    SCOPED_TRACE(way.layout.name() + testing::PrintToString(way.flags));
    const Outcome want = run_in_room(model("4") + way.flags, way.layout),
                  got = run_in_room(model("1") + way.flags, way.layout);
    expect_same(got, want);
    EXPECT_EQ(got.run.regrows, way.regrows);
    EXPECT_THAT(got.factors, Each(testing::DoubleNear(2.2, 1e-9)));
    EXPECT_EQ(got.replays > 0, way.graphs);
    const RankActivity &did = got.run.ranks[0], &had_room = want.run.ranks[0];
    EXPECT_EQ(did.offload.bytes_out, did.offload.bytes_back);
    EXPECT_EQ(did.offload.offloads > had_room.offload.offloads, did.offload.bytes_out > 0);  // done again
  }
  const Outcome twice = run_in_room(model("0.5"));
  expect_same(twice, run_in_room(model("4")));
  EXPECT_EQ(twice.run.regrows, both);
}

// If all tokens arrive at every rank, only rows overflow: the new factor is theirs, not the number of ranks.
TEST(MoeRoom, GrowsByItsRowsWhereAllTokensArrive) {
  const Layout layout{.data = 4, .expert = 4};
  const Words flags = words(
                          "--num-layers 1 --hidden-size 16 --seq-length 64 --micro-batch-size 4 --global-batch-size 16 "
                          "--train-iters 1") +
                      llama_flags() +
                      words(
                          "--ffn-hidden-size 32 --num-experts 4 --moe-router-topk 1 --moe-router-score-function "
                          "sigmoid --moe-token-dispatcher-type allgather --moe-expert-rank-capacity-factor");
  const auto with_factor = [&](const char* factor) { return train_experts(flags + Words{factor}, layout); };
  const MoeResult got = with_factor("1"), want = with_factor("4");
  expect_same_run(got.run, want.run);
  EXPECT_EQ(got.counts, want.counts);
  EXPECT_THAT(got.run.regrows, ElementsAre(1));
  EXPECT_THAT(want.run.regrows, ElementsAre(0));
  EXPECT_TRUE(got.run.memory_as_planned);
  // Mean for one layer, with one expert per rank.
  constexpr double kMean = 256;
  const double most = *std::ranges::max_element(got.counts[0]) / kMean;
  EXPECT_LT(most, 2);
  EXPECT_THAT(got.capacity_factors, Each(testing::DoubleNear(1.1 * most, 1e-9)));
}

// An evaluation makes the choices of the next step.
TEST(MoeRoom, AnEvaluationWithoutRoomIsDoneAgain) {
  const Words evaluates{"--eval-iters", "2", "--eval-interval", "1"};
  const Outcome got = run_in_room(model("1") + evaluates), want = run_in_room(model("4") + evaluates);
  expect_same(got, want);
  EXPECT_EQ(got.run.validation_losses.size(), 5u);
  EXPECT_THAT(got.run.regrows, ElementsAre(1, 1, 1, 1, 1));
}

// An overflowing step is not checked: its NaN does not count for the run.
TEST(MoeRoom, WhatAStepWithoutRoomComputesCountsForNothing) {
  const auto spoil = [](Rank& rank) {
    const auto add_nan = [&rank, steps = std::make_shared<int>(0)](const HookContext& at) {
      if (at.microbatch == 0 && ++*steps == 2)
        launch(rank.streams.compute, Fill{.x = rank.step.sums.slice(0, 0, 1), .value = std::nan("")});
    };
    rank.runner.hooks(rank.runner.num_segments() - 1).add(HookPoint::kPostForward, add_nan);
  };
  const Outcome got = run_in_room(model("1") + Words{"--max-skipped-steps", "0"}, kTwoRanks, spoil);
  expect_same(got, run_in_room(model("4")));
  EXPECT_THAT(got.run.regrows, ElementsAre(0, 1, 1, 1, 1));
}

// NaN tokens are lost: all of them go to the same experts, and a skipped step requests no larger capacity.
TEST(MoeRoom, ASkippedStepNeedsNone) {
  const auto spoil = [](Trainer& trainer, int) {
    Rank& rank = trainer.rank();
    launch(rank.streams.compute, Fill{.x = rank.model.gpt.parameters->units().front().weights, .value = std::nan("")});
  };
  const RunResult got =
      train({.flags = model("1") + kTwoRanks.flags() + Words{"--train-iters", "2", "--max-skipped-steps", "2"},
             .ranks = 2,
             .prepare = spoil});
  EXPECT_EQ(got.code, ExitCode::kOk);
  EXPECT_EQ(got.skipped_steps, 2);
  EXPECT_THAT(got.regrows, ElementsAre(0, 0));
}

// The flag is the initial value for a run, also for a resumed one.
TEST(MoeRoom, AResumedRunStartsWithTheFlagsRoom) {
  const TestFolder folder;
  const Outcome whole = run_in_room(model("4"));
  const Words flags = model("1") + kTwoRanks.flags();
  const RunResult begun = train({.flags = flags + Words{"--save", folder.path("kept"), "--exit-interval", "2"},
                                 .ranks = 2,
                                 .prepare = set_biases});
  EXPECT_EQ(begun.code, ExitCode::kStoppedOnRequest);
  EXPECT_THAT(begun.regrows, ElementsAre(0, 1));
  const RunResult rest = train({.flags = flags + Words{"--load", folder.path("kept")}, .ranks = 2});
  EXPECT_THAT(rest.regrows, ElementsAre(1, 1, 1));
  EXPECT_TRUE(rest.whole_state == whole.run.whole_state);
  EXPECT_EQ(rest.losses.back(), whole.run.losses.back());
}

// The host has memory for the slots at the initial capacity, but not at a larger one.
TEST(MoeRoom, MoreRoomIsCheckedAgainstTheHost) {
  const Words flags = model("1") + offload({"fused_group_mlp"}) + kTwoRanks.flags();
  std::atomic<bool> begun = false;
  const auto run_with = [&](std::size_t bytes_then) {
    begun = false;
    return train({.flags = flags,
                  .ranks = 2,
                  .prepare =
                      [&](Trainer& trainer, int index) {
                        set_biases(trainer, index);
                        trainer.rank().mesh.world().host_barrier();
                        begun = true;
                      },
                  .host_bytes = [&, bytes_then] { return begun ? bytes_then : std::size_t{0}; }});
  };
  const RunResult free = run_with(0);
  EXPECT_THAT(free.regrows, ElementsAre(0, 1, 1, 1, 1));
  const std::size_t needed = free.ranks[0].host_planned + free.ranks[1].host_planned;
  EXPECT_THAT(run_with(needed).regrows, ElementsAre(0, 1, 1, 1, 1));
  EXPECT_THAT(error_of(ExitCode::kOutOfMemory, [&] { run_with(needed - 1); }),
              testing::AllOf(HasSubstr("step 2 needed capacity on a rank for at least"),
                             HasSubstr("--offload-modules: memory of host ")));
}

TEST(MoeRoom, NoMemoryForMoreRoomEndsTheRunAndNamesTheFlag) {
  const auto fill = [](Trainer& trainer, int index) {
    set_biases(trainer, index);
    if (index == 0) arm_faults({parse_fault("memory.pool:1+")});
    trainer.rank().mesh.world().host_barrier();
  };
  std::string message;
  try {
    train({.flags = model("1") + kTwoRanks.flags(), .ranks = 2, .prepare = fill});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kOutOfMemory);
    message = error.what();
  }
  EXPECT_GT(faults_fired(), 0);
  disarm_faults();
  EXPECT_THAT(message, testing::AllOf(HasSubstr("step 2 needed capacity on a rank for at least"),
                                      HasSubstr("1024 rows"), HasSubstr("--moe-expert-rank-capacity-factor 2.200")));
}

}  // namespace
}  // namespace megalith::test
