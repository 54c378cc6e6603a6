#include <functional>
#include <numeric>

#include "core/ops/elementwise/elementwise.h"
#include "moe/ops/rank_rows.h"
#include "moe/ops/route_rows.h"
#include "tests/support/replays.h"
#include "tests/unit/ops/moe/rank_rows.h"

namespace megalith::test {
namespace {

// A layer's rows over ranks, which this test runs in turn: results have the bits of one rank at the same groups.
class RowsOverRanksTest : public RankTest {
 protected:
  static constexpr std::int64_t kTokens = 37, kChoices = 3, kExperts = 8, kGroups = 4, kColumns = 40, kPartials = 3;

  struct Result {
    Values y, d_weight, wanted;
  };
  struct Rows {  // rows of all experts, in their order
    Tensor choice, x, partial;
    Values offsets;
  };
  Rows rows_of(const Values& chosen) {
    const auto routes = reference::route_part(chosen, kChoices, 0, kExperts, 1 << 20);
    const auto rows = static_cast<std::int64_t>(routes.wanted);
    return {.choice = integers({kTokens, kChoices}, chosen),
            .x = input({rows, kColumns}),
            .partial = input({rows, kPartials}, DType::kFp32),
            .offsets = routes.offsets};
  }

  Result on_one(const Rows& rows) {
    const Tensor position = integers(rows.choice.shape), y = output({kTokens, kColumns});
    const Tensor d_weight = output({kTokens, kChoices}, DType::kFp32);
    launch(stream(), ready(ExpertOffsets{.choice = rows.choice,
                                         .offsets = integers({kExperts + 1}),
                                         .token = integers({rows.choice.numel()}),
                                         .position = position}));
    launch(stream(), UnpermuteGroups{.x = rows.x,
                                     .position = position,
                                     .choice = rows.choice,
                                     .y = y,
                                     .experts_per_group = kExperts / kGroups,
                                     .groups = kGroups});
    launch(stream(), UnpermuteWeightGradients{.partial = rows.partial, .position = position, .d_weight = d_weight});
    return {.y = values(y), .d_weight = values(d_weight), .wanted = {}};
  }

  // Computes on rank p the received tokens, into their rows of y and d_weight.
  void on_rank(const Rows& rows, const Values& arrived, std::int64_t first_expert, std::int64_t experts,
               const Tensor& y, const Tensor& d_weight, const Tensor& wanted) {
    const auto count = static_cast<std::int64_t>(arrived.size());
    Values chosen;
    const Values all = values(rows.choice);
    for (const double token : arrived) {
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(token) * kChoices;
      chosen.insert(chosen.end(), from, from + kChoices);
    }
    const auto begin = static_cast<std::int64_t>(rows.offsets[unsigned_of(first_expert)]);
    const auto own = static_cast<std::int64_t>(rows.offsets[unsigned_of(first_expert + experts)]) - begin;
    const Tensor choice = integers({count, kChoices}, chosen), position = integers({count, kChoices});
    launch(stream(), ready(ExpertOffsets{.choice = choice,
                                         .offsets = integers({experts + 1}),
                                         .token = integers({own}),
                                         .position = position,
                                         .wanted = wanted,
                                         .first_expert = first_expert,
                                         .all_experts = kExperts}));
    launch(stream(), UnpermuteGroups{.x = rows.x.slice(0, begin, own),
                                     .position = position,
                                     .choice = choice,
                                     .y = y,
                                     .experts_per_group = kExperts / kGroups,
                                     .first_expert = first_expert,
                                     .groups = experts * kGroups / kExperts});
    launch(stream(), UnpermuteWeightGradients{
                         .partial = rows.partial.slice(0, begin, own), .position = position, .d_weight = d_weight});
  }

  Result on_ranks(const Rows& rows, std::int64_t ep, std::int64_t copies) {
    const std::int64_t ranks = ep * copies, experts = kExperts / ep, parts = kGroups / ep, room = kTokens * ranks;
    const Tensor chosen = integers({kTokens, ranks}), offsets = integers({ranks + 1}), token = integers({room});
    const Tensor position = integers({kTokens, ranks}), wanted = integers({ranks});
    launch(stream(),
           ChosenRanks{.choice = rows.choice, .ranks = chosen, .experts_per_rank = experts, .copies = copies});
    launch(stream(), ready(ExpertOffsets{.choice = chosen, .offsets = offsets, .token = token, .position = position}));
    const Tensor back = output({room, parts * kColumns}), d_back = output({room, kChoices}, DType::kFp32);
    const Values begins = values(offsets), tokens = values(token);
    for (std::int64_t p = 0; p < ranks; ++p) {
      const auto begin = static_cast<std::int64_t>(begins[unsigned_of(p)]);
      const auto end = static_cast<std::int64_t>(begins[unsigned_of(p + 1)]);
      on_rank(rows, Values(tokens.begin() + begin, tokens.begin() + end), p / copies * experts, experts,
              back.slice(0, begin, end - begin), d_back.slice(0, begin, end - begin), wanted.slice(0, p, 1));
    }
    const Tensor y = output({kTokens, kColumns}), d_weight = output({kTokens, kChoices}, DType::kFp32);
    launch(stream(), UnpermuteRows{.x = back, .position = position, .y = y});
    launch(stream(), SumReturnedWeights{.x = d_back,
                                        .choice = rows.choice,
                                        .position = position,
                                        .d_weight = d_weight,
                                        .experts_per_rank = experts,
                                        .copies = copies});
    return {.y = values(y), .d_weight = values(d_weight), .wanted = values(wanted)};
  }
};
MEGALITH_OP_TESTS(RowsOverRanksTest);

TEST_P(RowsOverRanksTest, HaveTheBitsOfOneRank) {
  const Values spread = choices(kTokens, kChoices, kExperts);
  const Values together = choices(kTokens, kChoices, 2);  // all of the first rank
  for (const Values& chosen : {spread, together}) {
    const Rows rows = rows_of(chosen);
    const Result one = on_one(rows);
    for (const std::int64_t ep : {1, 2, 4}) {
      const Result many = on_ranks(rows, ep, 1);
      EXPECT_EQ(many.y, one.y) << ep;
      EXPECT_EQ(many.d_weight, one.d_weight) << ep;
      EXPECT_EQ(std::accumulate(many.wanted.begin(), many.wanted.end(), 0.0), rows.offsets.back());
    }
    // Each expert is on two ranks with half of a sum each: here both have the same half.
    Values twice_y = one.y, twice_weight = one.d_weight;
    for (double& value : twice_y) value *= 2;
    for (double& value : twice_weight) value *= 2;
    const Result halves = on_ranks(rows, 1, 2);
    EXPECT_EQ(halves.d_weight, twice_weight);
    EXPECT_EQ(on_ranks(rows, 2, 2).d_weight, twice_weight);
  }
}

// A graph that was captured with some choices gives the results of others after these replace the first.
TEST_P(RowsOverRanksTest, ReplayWithAnotherRouting) {
  constexpr std::int64_t kRanks = 4, kEach = kExperts / kRanks, kRoom = 24;
  const Values first = choices(kTokens, kChoices, kExperts), second = choices(kTokens, kChoices, kEach);
  const Tensor choice = integers({kTokens, kChoices}), ranks = integers({kTokens, kRanks});
  const Tensor send = integers({kRanks + 1}), sent = integers({kTokens * kRanks}), returned = integers(ranks.shape);
  const Tensor arrived = integers({2}), wanted = integers({1}), needed = integers({2}), counts = integers({1});
  Tensor known = choice, position = integers(choice.shape), y = output({kTokens, kColumns});
  known.bound = position.bound = y.bound = arrived.as<const std::int32_t>() + 1;
  const Tensor offsets = integers({kEach + 1}), token = integers({kRoom}), rows_wanted = integers({1});
  const Tensor x = input({kRoom, kColumns}), d_weight = output(choice.shape, DType::kFp32);
  const Tensor d_back = input({kTokens * kRanks, kChoices}, DType::kFp32);
  const Tensor one = integers({1, 2}, {0, 30});  // tokens that arrive
  const ExpertOffsets by_rank =
      ready(ExpertOffsets{.choice = ranks, .offsets = send, .token = sent, .position = returned});
  const ExpertOffsets own = ready(
      ExpertOffsets{.choice = known, .offsets = offsets, .token = token, .position = position, .wanted = rows_wanted});
  const auto enqueue = [&] {
    launch(stream(), ChosenRanks{.choice = choice, .ranks = ranks, .experts_per_rank = kEach});
    launch(stream(), by_rank);
    launch(stream(), ArrivedRows{.sends = one, .offsets = arrived, .wanted = wanted, .room = kTokens});
    launch(stream(), own);
    launch(stream(), RecordRoom{.arrived = wanted, .rows = rows_wanted, .needed = needed});
    launch(stream(), CountSentRows{.sends = one, .counts = counts});
    launch(stream(),
           UnpermuteGroups{.x = x, .position = position, .choice = known, .y = y, .experts_per_group = 1, .groups = 2});
    launch(stream(),
           SumReturnedWeights{
               .x = d_back, .choice = choice, .position = returned, .d_weight = d_weight, .experts_per_rank = kEach});
  };
  Tensor all_y = y, all_positions = position;
  all_y.bound = all_positions.bound = nullptr;
  const auto results_of = [&](const Values& chosen, const std::function<void()>& act) {
    launch(stream(), Copy{.src = integers(choice.shape, chosen), .dst = choice});
    for (const Tensor& result : {needed, counts, all_y, all_positions, token})
      launch(stream(), Fill{.x = result, .value = 0});
    act();
    std::vector<Values> all;
    for (const Tensor& result :
         {ranks, send, returned, offsets, token, all_positions, rows_wanted, needed, counts, all_y, d_weight}) {
      all.push_back(values(result));
    }
    return all;
  };
  const std::vector<Values> of_second = expect_replay_follows(stream(), first, second, enqueue, results_of);
  EXPECT_GT(of_second[6][0], static_cast<double>(kRoom));  // some were dropped
  EXPECT_EQ(of_second[3].back(), static_cast<double>(kRoom));
}

}  // namespace
}  // namespace megalith::test
