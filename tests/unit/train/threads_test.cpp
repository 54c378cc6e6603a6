// Runs for ThreadSanitizer: between them each pair of streams, communicators and helper threads of a rank that meet.
#include <gtest/gtest.h>

#include "tests/unit/train/moe/moe_families.h"

namespace megalith::test {
namespace {

// Also with layers as graphs.
constexpr const char* kGraphs = "--cuda-graph-impl";

class Threads : public testing::TestWithParam<Layout> {};

INSTANTIATE_TEST_SUITE_P(
    Layouts, Threads,
    testing::Values(
        // Tensor-parallel pieces overlap GEMMs, gradient reduction backward, and parameter gathers forward.
        Layout{.tensor = 2, .sequence = true, .overlap = true, .data = 2, .sharing = Sharing::kOptimizer},
        // Messages between stages overlap replicas' gradients.
        Layout{.pipeline = 2, .data = 2, .schedule = "interleaved", .sharing = Sharing::kOverlapped},
        // A stage that forwards to itself, concurrently with tensor-parallel sums.
        Layout{.tensor = 2, .pipeline = 2, .schedule = "zb-v"},
        // Keys and values around the ring overlap tensor-parallel pieces; then heads for tokens overlap messages.
        Layout{.tensor = 2, .sequence = true, .overlap = true, .context = 2},
        Layout{.pipeline = 2, .sharing = Sharing::kOptimizer, .context = 2, .communication = "a2a"}),
    [](const auto& layout) {
      std::string name = layout.param.name();
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      return name;
    });

// Checkpoints are written by threads concurrently with the steps.
TEST_P(Threads, ShareNothingWithoutOrder) {
  const Layout& layout = GetParam();
  const TestFolder scratch;
  const std::int64_t steps = 3;
  const Words flags = sizes_for(layout) + families()[1].flags + layout.flags() +
                      Words{"--train-iters",
                            std::to_string(steps),
                            "--eval-interval",
                            "0",
                            "--save",
                            scratch.path("kept"),
                            "--save-interval",
                            "1",
                            "--async-save",
                            kGraphs,
                            layout.sharing != Sharing::kNone ? "local" : "none"};
  const RunResult run = train({.flags = flags, .ranks = layout.ranks()});
  EXPECT_EQ(run.code, ExitCode::kOk);
  EXPECT_TRUE(run.copies_agree);
  ASSERT_EQ(run.losses.size(), static_cast<std::size_t>(steps));
  expect_acted(run, layout, sizes_of(layout), {.steps = steps}, 4);
}

// Gathers and sums of two groups of ranks on the same streams, concurrent with tensor-parallel pieces.
TEST(ThreadsOfExperts, ShareNothingWithoutOrder) {
  const Layout layout{.tensor = 2, .sequence = true, .overlap = true, .data = 2, .sharing = Sharing::kUnits};
  const RunResult run = train(sizes_for(layout) + moe_families()[0].flags + Words{"--train-iters", "2"}, layout);
  EXPECT_EQ(run.code, ExitCode::kOk);
  EXPECT_TRUE(run.copies_agree);
  EXPECT_EQ(run.losses.size(), 2u);
  for (const RankActivity& rank : run.ranks) EXPECT_GT(rank.units_reduced, 0);
}

// Rows to the ranks of their experts and back, concurrent with the shared expert, in graphs. Gathers of dense units and
// copies of rows in use overlap too. Then the exchanges also run next to another microbatch.
TEST(ThreadsOfExpertRanks, ShareNothingWithoutOrder) {
  const Layout layout{.data = 2, .sharing = Sharing::kUnits, .expert = 2};
  const Words more = words(
                         "--train-iters 3 --moe-shared-expert-overlap --fine-grained-activation-offloading "
                         "--min-offload-bytes 0 --offload-modules fused_group_mlp") +
                     Words{kGraphs, "local"};
  for (const Words& overlap : {Words{}, Words{"--overlap-moe-expert-parallel-comm"}}) {
    const RunResult run = train(sizes_for(layout) + moe_families()[0].flags + more + overlap, layout);
    EXPECT_EQ(run.code, ExitCode::kOk);
    EXPECT_TRUE(run.copies_agree);
    EXPECT_EQ(run.losses.size(), 3u);
    for (const RankActivity& rank : run.ranks) {
      EXPECT_GT(rank.units_reduced, 0);
      EXPECT_GT(rank.offload.reloads, 0);
    }
  }
}

// Copies to the host and back, concurrent with gathers and messages, after eager layers and at events inside graphs.
TEST(ThreadsOfOffload, ShareNothingWithoutOrder) {
  const Layout layout{.pipeline = 2, .data = 2, .schedule = "zb-v", .sharing = Sharing::kUnits};
  const Words kinds = words(
      "--fine-grained-activation-offloading --min-offload-bytes 0 --offload-modules attn_norm core_attn act "
      "fc2");
  const RunResult run = train(sizes_for(layout) + kinds + Words{"--train-iters", "3", kGraphs, "local"}, layout);
  EXPECT_EQ(run.code, ExitCode::kOk);
  EXPECT_TRUE(run.copies_agree);
  EXPECT_EQ(run.losses.size(), 3u);
  std::int64_t reloads = 0;
  for (const RankActivity& rank : run.ranks) reloads += rank.offload.reloads;
  EXPECT_GT(reloads, 0);
}

}  // namespace
}  // namespace megalith::test
