// Tensor, sequence and context parallelism beyond the guarantees of every layout (layout_claims_test.cpp): overlap,
// memory, loss in chunks, padding.
#include <gtest/gtest.h>

#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

// On the CPU a row of a GEMM does not depend on the others, and sums have a communicator's order.
TEST(TensorParallelRuns, OverlapChangesNoBit) {
  for (const int ranks : {2, 4}) {
    for (const Family& family : families()) {
      for (const Words& more :
           {Words{}, Words{"--bf16"}, Words{"--recompute-granularity", "full"}, Words{"--loss-chunk-size", "3"}}) {
        SCOPED_TRACE(family.name + testing::PrintToString(more));
        const Words flags = family.flags + Layout{.tensor = ranks, .sequence = true}.flags() + kDropout + more +
                            kEvaluations + Words{"--train-iters", "2"};
        const RunResult plain = train({.flags = flags, .ranks = ranks});
        const RunResult overlapped =
            train({.flags = flags + Words{"--tp-comm-overlap", "--check-hazards"}, .ranks = ranks});
        expect_same_state(overlapped, plain);
        if (ranks > 2) {
          EXPECT_GT(overlapped.tensor_calls, plain.tensor_calls + 100);
        }
      }
    }
  }
}

TEST(TensorParallelRuns, SequenceParallelismKeepsLess) {
  const Words flags = tensor_ranks(2) + Words{"--train-iters", "1"};
  const RunResult whole = train({.flags = flags, .ranks = 2});
  const RunResult split = train({.flags = flags + Words{"--sequence-parallel"}, .ranks = 2});
  EXPECT_LT(split.arena_planned, whole.arena_planned);
}

TEST(TensorParallelRuns, TheLossInChunksIsThatOfTheWhole) {
  for (const Layout& layout : {Layout{.tensor = 2}, Layout{.tensor = 2, .sequence = true}}) {
    for (const Family& family : {families()[0], families()[1]}) {
      const Words flags = family.flags + layout.flags() + kEvaluations;
      const RunResult plain = train({.flags = flags, .ranks = 2});
      const RunResult chunked =
          train({.flags = flags + Words{"--loss-chunk-size", "5", "--check-hazards"}, .ranks = 2});
      EXPECT_EQ(chunked.losses[0], plain.losses[0]);
      expect_losses_near(chunked, plain);
      EXPECT_GT(chunked.tensor_calls, plain.tensor_calls);
      EXPECT_EQ(chunked.hazards, 0);
    }
  }
}

// 257 words and a multiple of 100: 300 rows on one rank, 400 on two; the last 100 are padding.
TEST(TensorParallelRuns, PaddingOfTheVocabularyDependsOnTheRanksAndChangesNothing) {
  const Words flags = {"--make-vocab-size-divisible-by", "100"};
  const RunResult one = train({.flags = flags});
  const RunResult two = train({.flags = flags + Layout{.tensor = 2, .sequence = true}.flags(), .ranks = 2});
  expect_losses_near(two, one);
  EXPECT_EQ(two.weights.at("embedding.word_embeddings.weight").size(), 300u * 32);
  EXPECT_TRUE(two.copies_agree);
}

TEST(TensorParallelRuns, InBf16) {
  for (const Layout& layout : {Layout{.tensor = 2}, Layout{.tensor = 2, .sequence = true}}) {
    const Words flags = llama_flags() + kDropout + Words{"--bf16"};
    const RunResult one = train({.flags = flags});
    const RunResult two = train({.flags = flags + layout.flags() + Words{"--main-grads-dtype", "bf16"}, .ranks = 2});
    expect_losses_near(two, one, 1e-3);
    EXPECT_TRUE(two.copies_agree);
  }
}

TEST(ContextParallel, EachRankKeepsItsPartOfTheSequence) {
  const Words flags = {"--seq-length", "64", "--train-iters", "1"};
  const RunResult one = train({.flags = flags});
  const RunResult four = train(flags, {.context = 4});
  EXPECT_LT(four.arena_planned, one.arena_planned / 2);
}

// Scaled RoPE rotates by the positions of the sequence, which a rank has a part of.
TEST(ContextParallel, ScaledRopeRotatesByThePositionsOfTheSequence) {
  const Words yarn = {"--rope-type",
                      "yarn",
                      "--rotary-scaling-factor",
                      "4",
                      "--rotary-base",
                      "500",
                      "--beta-fast",
                      "2",
                      "--original-max-position-embeddings",
                      "16"};
  const RunResult unscaled = train({.flags = llama_flags() + Words{"--rotary-base", "500"}});
  for (const Words& scaling : {yarn, Words{"--rotary-seq-len-interpolation-factor", "2.5"}}) {
    SCOPED_TRACE(scaling[0]);
    const RunResult one = train({.flags = llama_flags() + scaling});
    EXPECT_NE(one.losses, unscaled.losses);
    expect_losses_near(train(llama_flags() + scaling, {.context = 2}), one);
    expect_losses_near(train(llama_flags() + scaling, {.tensor = 2, .context = 2}), one);
  }
}

// The share of each replica counts context-parallel ranks too, and its update is that of the unsharded optimizer.
TEST(ContextParallel, WithADistributedOptimizer) {
  const Words flags = llama_flags() + kDropout;
  const Words shards = {"--use-distributed-optimizer",  "--overlap-grad-reduce",
                        "--overlap-param-gather",       "--check-hazards",
                        "--check-weight-hash-interval", "2"};
  const Layout layout{.data = 2, .context = 2};
  const RunResult whole = train(flags, layout), sharded = train(flags + shards, layout);
  EXPECT_EQ(sharded.code, ExitCode::kOk);
  EXPECT_EQ(sharded.hazards, 0);
  EXPECT_EQ(sharded.losses, whole.losses);
  EXPECT_TRUE(sharded.weights == whole.weights);
  EXPECT_GT(sharded.ranges_scattered, 0);
}

// Rank 1 of cp 2 has a different weight: the check reports it.
TEST(ContextParallel, ReplicasThatDifferAreReported) {
  const std::map<int, std::string> reported = warned_replicas({}, way_of({.context = 2}), [](Rank& rank, int index) {
    if (index == 1) *rank.model.gpt.parameters->units().front().weights.as<float>() += 1;
  });
  ASSERT_FALSE(reported.empty());
  EXPECT_NE(reported.begin()->second.find("on rank 1"), std::string::npos) << reported.begin()->second;
}

}  // namespace
}  // namespace megalith::test
