// Tests that compare a layer of experts sharded over ranks with the same layer on one rank. They compare rows and all
// gradients for every dispatcher.
#include "tests/unit/moe/rank_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace megalith::test {
namespace {

using Way = MoeTokenDispatcher;

// Only per-token losses: losses over many tokens require groups of ranks that this test does not have.
MoeConfig shared_and_sigmoid() {
  return {.num_experts = 8,
          .ffn_hidden_size = 16,
          .router_topk = 3,
          .router_score_function = MoeScoreFunction::kSigmoid,
          .router_topk_scaling_factor = 2.5,
          .z_loss_coeff = 0.1,
          .shared_expert_intermediate_size = 12,
          .shared_expert_gate = true};
}

MoeConfig softmax() { return {.num_experts = 8, .ffn_hidden_size = 16, .router_topk = 2}; }

// Result of one rank with an equal number of combine groups.
RankLayerResult alone(RankLayerCase test) {
  if (test.moe.combine_groups == 0) test.moe.combine_groups = test.ranks / test.copies;
  test.ranks = test.copies = 1;
  test.overlap = test.replay = test.waits_after_weights = false;
  return run_rank_layer(test);
}

std::int64_t total(const std::vector<std::int32_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

// Tolerance for dense gradients, which ranks sum in another order, over at most 16 rows.
constexpr double kSums = 1e-5;

TEST(RankLayer, HasTheBitsOfOneRank) {
  for (const int ranks : {2, 4}) {
    for (const DType dtype : {DType::kFp32, DType::kBf16}) {
      for (const MoeConfig& moe : {shared_and_sigmoid(), softmax()}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << name_of(dtype) << ", " << moe.router_topk);
        const RankLayerCase test{.moe = moe, .dtype = dtype, .ranks = ranks};
        const RankLayerResult want = alone(test), got = run_rank_layer(test);
        expect_same_experts(got, want);
        expect_near(got.dense, want.dense, dtype == DType::kFp32 ? kSums : 2e-2);
        EXPECT_LT(total(got.rows_sent), test.tokens * std::min<std::int64_t>(moe.router_topk, ranks) + 1);
        EXPECT_GT(total(got.rows_sent), test.tokens);
        RankLayerCase gathered = test;
        gathered.way = Way::kAllGather;
        const RankLayerResult all = run_rank_layer(gathered);
        expect_same(all, got);
        EXPECT_EQ(total(all.rows_sent), test.tokens * ranks);
      }
    }
  }
}

// Experts of the other kinds: the same class of bits, and biases are added once.
TEST(RankLayer, OfOtherKindsHasTheBitsOfOneRank) {
  const MlpKind kinds[] = {{"swiglu", true}, {"gelu_tanh", false}, {"gelu", true}, {"squared_relu", true}};
  for (const MlpKind& kind : kinds) {
    for (const int ranks : {2, 4}) {
      for (const DType dtype : {DType::kFp32, DType::kBf16}) {
        SCOPED_TRACE(testing::Message() << kind.name() << ", " << ranks << " ranks, " << name_of(dtype));
        const RankLayerCase test{
            .moe = kind.bias ? softmax() : shared_and_sigmoid(), .dtype = dtype, .ranks = ranks, .kind = kind};
        const RankLayerResult want = alone(test), got = run_rank_layer(test);
        EXPECT_EQ(want.experts.contains("experts.linear_fc2.bias"), kind.bias);
        expect_same_experts(got, want);
        expect_near(got.dense, want.dense, dtype == DType::kFp32 ? kSums : 2e-2);
      }
      const RankLayerCase columns{.moe = softmax(), .ranks = ranks, .copies = 2, .check_hazards = true, .kind = kind};
      const RankLayerResult want = alone(columns), got = run_rank_layer(columns);
      expect_near_rows(got, want, kSums);
      expect_near(got.experts, want.experts, kSums);
      expect_near(got.dense, want.dense, kSums);
      EXPECT_EQ(got.hazards, 0);
    }
  }
}

TEST(RankLayer, SharesOutColumns) {
  for (const int ranks : {2, 4}) {
    for (const Way way : {Way::kAllToAll, Way::kAllGather}) {
      SCOPED_TRACE(ranks);
      const RankLayerCase test{.moe = shared_and_sigmoid(), .ranks = ranks, .copies = 2, .way = way};
      const RankLayerResult want = alone(test), got = run_rank_layer(test);
      expect_near_rows(got, want, kSums);
      expect_near(got.experts, want.experts, kSums);
      expect_near(got.dense, want.dense, kSums);
    }
  }
}

TEST(RankLayer, SendsAllTokensToOneRankAndNoneToOthers) {
  for (const Routing routing : {Routing::kFirstRank, Routing::kLastRank}) {
    for (const Way way : {Way::kAllToAll, Way::kAllGather}) {
      const RankLayerCase test{.moe = softmax(), .ranks = 4, .way = way, .routing = routing};
      const RankLayerResult want = alone(test), got = run_rank_layer(test);
      expect_same_experts(got, want);
      expect_near(got.dense, want.dense, kSums);
      const std::size_t only = routing == Routing::kFirstRank ? 0 : 3;
      for (std::size_t rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(got.needed[2 * rank + 1], rank == only ? 32 : 0);  // two choices of 16 tokens
        if (way == Way::kAllGather) continue;
        EXPECT_EQ(got.needed[2 * rank], rank == only ? 16 : 0);
        for (std::size_t to = 0; to < 4; ++to) EXPECT_EQ(got.rows_sent[4 * rank + to], to == only ? 4 : 0);
      }
    }
  }
}

// With a fixed number of groups, bits are equal for any distribution of the groups over ranks.
TEST(RankLayer, HasTheSameBitsOnAnyNumberOfRanks) {
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    RankLayerCase test{.moe = shared_and_sigmoid(), .dtype = dtype, .tokens = 64};
    test.moe.combine_groups = 4;
    const RankLayerResult one = run_rank_layer(test);
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(ranks);
      test.ranks = ranks;
      expect_same_experts(run_rank_layer(test), one);
    }
    test.ranks = 1;
    test.moe.combine_groups = 1;
    EXPECT_NE(run_rank_layer(test).outputs[0], one.outputs[0]);  // groups change the rounding
  }
}

TEST(RankLayer, RunsTheSharedExpertDuringRowsWithTheSameBits) {
  for (const bool gate : {true, false}) {
    for (const bool recompute : {true, false}) {
      SCOPED_TRACE(testing::Message() << gate << recompute);
      RankLayerCase test{.moe = shared_and_sigmoid(), .ranks = 2, .recompute_shared = recompute};
      test.moe.shared_expert_gate = gate;
      const RankLayerResult after = run_rank_layer(test);
      test.overlap = true;
      expect_same(run_rank_layer(test), after);
    }
  }
}

TEST(RankLayer, HasWeightGradientsDuringRowsWithTheSameBits) {
  for (const Way way : {Way::kAllToAll, Way::kAllGather}) {
    RankLayerCase test{.moe = shared_and_sigmoid(), .ranks = 2, .way = way};
    const RankLayerResult ahead = run_rank_layer(test);
    test.waits_after_weights = test.overlap = true;
    for (const bool replay : {false, true}) {
      test.replay = replay;
      expect_same(run_rank_layer(test), ahead);
    }
  }
}

// The wait for returning rows follows the experts' weight gradients. If these are delayed, it precedes the router's
// reads.
TEST(RankLayer, WaitsForRowsAfterWeightGradientsWhereItMay) {
  RankLayerCase test{.moe = shared_and_sigmoid(), .ranks = 2, .check_hazards = true};
  const RankLayerResult ahead = run_rank_layer(test);
  test.waits_after_weights = true;
  for (const bool delay : {false, true}) {
    SCOPED_TRACE(delay);
    test.delay_weights = delay;
    const RankLayerResult later = run_rank_layer(test);
    expect_same(later, ahead);
    EXPECT_EQ(later.hazards, 0);
    EXPECT_EQ(later.waits, ahead.waits);
    EXPECT_EQ(later.waits_of_dispatch, 1);  // one for the sent rows, none for the returning rows
  }
}

TEST(RankLayer, CountsInThePlaceOfItsLayer) {
  RankLayerCase test{.moe = softmax(), .ranks = 2};
  const RankLayerResult first = run_rank_layer(test);
  test.layers = 2;
  const RankLayerResult second = run_rank_layer(test);
  const auto expect_zeros_after = [&](const std::vector<std::int32_t>& got, const std::vector<std::int32_t>& alone) {
    const std::size_t count = alone.size() / static_cast<std::size_t>(test.ranks);  // per rank and layer
    std::vector<std::int32_t> want;
    for (auto own = alone.begin(); own != alone.end(); own += static_cast<std::ptrdiff_t>(count)) {
      want.resize(want.size() + count, 0);
      want.insert(want.end(), own, own + static_cast<std::ptrdiff_t>(count));
    }
    EXPECT_EQ(got, want);
  };
  EXPECT_GT(total(first.rows_sent), 0);
  expect_zeros_after(second.rows_sent, first.rows_sent);
  expect_zeros_after(second.expert_counts, first.expert_counts);
}

// An expert's bias depends on its rows, a loss on all choices.
TEST(RankLayer, CountsTheRowsThatExpertsGet) {
  RankLayerCase test{.moe = softmax()};
  test.moe.router_load_balancing_type = {"aux_loss"};
  test.moe.aux_loss_coeff = {0.5};
  const std::vector<std::int32_t> chosen = run_rank_layer(test).expert_counts;
  EXPECT_EQ(total(chosen), 2 * test.tokens);
  test.moe.expert_capacity_factor = 0.5;
  const std::vector<std::int32_t> kept = run_rank_layer(test).expert_counts;
  constexpr std::int32_t kCapacity = 2;  // half the mean: 16 tokens' two choices over eight experts
  EXPECT_GT(std::ranges::max(chosen), kCapacity);
  for (std::size_t e = 0; e < chosen.size(); ++e) EXPECT_EQ(kept[e], std::min(chosen[e], kCapacity)) << "expert " << e;
}

TEST(RankLayer, ReplaysWithOtherTokens) {
  for (const Way way : {Way::kAllToAll, Way::kAllGather}) {
    for (const bool overlap : {false, true}) {
      RankLayerCase test{.moe = shared_and_sigmoid(), .ranks = 2, .way = way, .overlap = overlap};
      const RankLayerResult eager = run_rank_layer(test);
      test.replay = true;
      const RankLayerResult replayed = run_rank_layer(test);
      expect_same(replayed, eager);
      EXPECT_EQ(replayed.rows_sent, eager.rows_sent);
      EXPECT_EQ(replayed.needed, eager.needed);
    }
  }
}

TEST(RankLayer, EveryWaitIsNeeded) {
  for (const bool overlap : {false, true}) {
    for (const Way way : {Way::kAllToAll, Way::kAllGather}) {
      RankLayerCase test{.moe = shared_and_sigmoid(),
                         .ranks = 2,
                         .way = way,
                         .overlap = overlap,
                         .waits_after_weights = overlap,
                         .check_hazards = true};
      const RankLayerResult whole = run_rank_layer(test);
      EXPECT_EQ(whole.hazards, 0);
      EXPECT_EQ(whole.waits, 8);  // two for each of four exchanges
      for (test.suppressed_wait = 0; test.suppressed_wait < whole.waits; ++test.suppressed_wait) {
        EXPECT_GT(run_rank_layer(test).hazards, 0) << "without wait " << test.suppressed_wait;
      }
    }
  }
}

}  // namespace
}  // namespace megalith::test
