// Runs of models with sliding windows in some layers: bits of every way to run a step, and layouts against one rank.
#include <gtest/gtest.h>

#include <random>

#include "core/data/pack_writer.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

const Words kWindows = words("--window-size 5 0 --window-attn-skip-freq 2");  // 6 keys in layers 0 and 2

// Packs of conversations, of which some are longer than a window.
void write_packs(const std::string& prefix) {
  std::mt19937_64 random(7);
  PackWriter writer(prefix, {.seq_length = 32, .pad_multiple = 1, .token_type = TokenType::kU16});
  for (int pack = 0; pack < 24; ++pack) {
    for (const std::size_t length : {3 + random() % 4, 8 + random() % 8, std::size_t{9}}) {
      std::vector<std::int32_t> tokens(length);
      for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 256);
      std::vector<std::uint8_t> trained(length, 1);
      trained[0] = 0;
      writer.add_document(tokens, trained);
    }
    writer.end_pack();
  }
  writer.commit();
}

// Full sequences, or packs of documents.
class WindowRuns : public testing::TestWithParam<bool> {
 protected:
  WindowRuns() {
    flags_ = llama_flags() + words("--seq-length 32 --train-iters 4 --num-layers 4");
    if (!GetParam()) return;
    write_packs(folder_ / "packs");
    flags_ = flags_ + Words{"--mock-data=false", "--sft", "--data-path", folder_ / "packs", "--split", "8,2"};
  }
  RunResult run(const Words& more, int ranks = 1) const {
    return train({.flags = flags_ + more + Words{"--check-hazards"}, .ranks = ranks});
  }

 private:
  TestFolder folder_;
  Words flags_;
};
INSTANTIATE_TEST_SUITE_P(Samples, WindowRuns, testing::Bool(),
                         [](const auto& test) { return test.param ? "Packs" : "Sequences"; });

TEST_P(WindowRuns, HaveTheBitsOfEagerStepsInEveryWay) {
  const RunResult want = run(kWindows), full = run({});
  EXPECT_NE(want.losses[0], full.losses[0]);
  std::vector<Words> ways = recompute_modes();
  ways.push_back(kGraphs);
  ways.push_back(kGraphsOfAttentionAndMlp);
  for (const Words& way : ways) {
    SCOPED_TRACE(testing::PrintToString(way));
    const RunResult got = run(kWindows + way);
    expect_same_run(got, want);
    EXPECT_EQ(got.hazards, 0);
    EXPECT_TRUE(got.memory_as_planned);
  }
}

TEST_P(WindowRuns, HaveTheBitsOfAllLayersThatTheyName) {
  expect_same_run(run(words("--window-size 5,0 --window-attn-skip-freq [1,0]*2")), run(kWindows));
  const RunResult full = run({});
  for (const char* none : {"--window-size -1 0", "--window-size 31 0", "--window-size 5 0 --window-attn-skip-freq 1"}) {
    SCOPED_TRACE(none);
    expect_same_run(run(words(none)), full);
  }
}

TEST_P(WindowRuns, HaveTheLossesOfOneRankInEveryLayout) {
  const RunResult want = run(kWindows);
  for (const auto& [flags, ranks] : {std::pair(words("--tensor-model-parallel-size 2 --sequence-parallel"), 2),
                                     {words("--context-parallel-size 2 --cp-comm-type a2a") + kGraphs, 2},
                                     {stages(2) + schedule("zb-v"), 2},
                                     {stages(2) + words("--context-parallel-size 2 --cp-comm-type a2a"), 4}}) {
    SCOPED_TRACE(testing::PrintToString(flags));
    const RunResult got = run(kWindows + flags, ranks);
    EXPECT_EQ(got.hazards, 0);
    expect_losses_near(got, want, 2e-6);
    expect_norms_near(got, want, 2e-5);
  }
}

// A ring masks no part of a block: it takes windows that no query reaches.
TEST_P(WindowRuns, ARingTakesWindowsThatNoQueryReaches) {
  const Words ring = words("--context-parallel-size 2");
  expect_same_run(run(words("--window-size 31 0") + ring, 2), run(ring, 2));
}

}  // namespace
}  // namespace megalith::test
