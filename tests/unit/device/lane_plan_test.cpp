#include "core/device/lane_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/support/matchers.h"

namespace megalith {
namespace {

TEST(LanePlanTest, ChainsRunConcurrentlyAndTheLongestOneFirst) {
  // 0 - 2 - 4 and the shorter 1 - 3, both ahead of 5.
  const LanePlan plan = plan_lanes({{}, {}, {0}, {1}, {2}, {4, 3}}, {1, 1, 1, 1, 1, 1}, 2, 0.5);
  EXPECT_THAT(plan.order, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(plan.lane, ElementsAre(0, 1, 0, 1, 0, 0));
  EXPECT_THAT(plan.follows,
              ElementsAre(IsEmpty(), IsEmpty(), ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(4, 3)));
}

TEST(LanePlanTest, AnEdgeBetweenLanesThatCostsMoreThanItGainsIsNotTaken) {
  const Dependencies follows{{}, {0}, {0}, {2, 1}};
  EXPECT_THAT(plan_lanes(follows, {1, 1, 1, 1}, 2, 0.1).lane, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(plan_lanes(follows, {1, 1, 1, 1}, 2, 1.5).lane, ElementsAre(0, 0, 0, 0));
}

TEST(LanePlanTest, AnEdgeThatALaneImpliesIsLeftOut) {
  // 3 follows 0 through 2 on its lane.
  const LanePlan plan = plan_lanes({{}, {0}, {1}, {0}}, {1, 1, 1, 1}, 1, 0);
  EXPECT_THAT(plan.order, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(plan.follows, ElementsAre(IsEmpty(), ElementsAre(0), ElementsAre(1), ElementsAre(2)));
}

// Any plan keeps the order of dependent ops, and gives each lane one op after the other.
TEST(LanePlanTest, RandomPlansKeepEveryOrder) {
  std::mt19937 engine(11);
  const auto below = [&engine](std::size_t n) { return static_cast<std::size_t>(engine()) % n; };
  for (int round = 0; round < 200; ++round) {
    constexpr std::size_t kOps = 60;
    Dependencies follows(kOps);
    std::vector<double> seconds;
    for (std::size_t op = 0; op < kOps; ++op) {
      seconds.push_back(1 + static_cast<double>(below(5)));
      for (std::size_t n = op == 0 ? 0 : below(4); n > 0; --n)
        follows[op].push_back(op - 1 - below(std::min<std::size_t>(op, 12)));
    }
    const int lanes = 1 + static_cast<int>(below(4));
    const LanePlan plan = plan_lanes(follows, seconds, lanes, 0.5);
    ASSERT_EQ(plan.order.size(), kOps);
    std::vector<std::vector<bool>> after(kOps, std::vector<bool>(kOps, false));
    std::vector<std::size_t> last(static_cast<std::size_t>(lanes), kOps);
    std::vector<bool> done(kOps, false);
    for (const std::size_t op : plan.order) {
      ASSERT_FALSE(done[op]);
      for (const std::size_t other : plan.follows[op]) {
        ASSERT_TRUE(done[other]) << op << " comes before " << other;
        ASSERT_FALSE(after[op][other]) << "an edge too many";
        after[op][other] = true;
        for (std::size_t i = 0; i < kOps; ++i) after[op][i] = after[op][i] || after[other][i];
      }
      for (const std::size_t other : follows[op]) ASSERT_TRUE(after[op][other]) << op << " has to follow " << other;
      std::size_t& before = last[static_cast<std::size_t>(plan.lane[op])];
      ASSERT_TRUE(before == kOps || after[op][before]);
      before = op;
      done[op] = true;
    }
  }
}

}  // namespace
}  // namespace megalith
