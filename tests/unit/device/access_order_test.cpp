#include "core/instruments/access_order.h"
#include "tests/support/matchers.h"
#include "tests/support/tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace megalith {
namespace {

std::byte memory[32];
AccessRange read(int begin, int bytes) { return {memory + begin, static_cast<std::size_t>(bytes), false}; }
AccessRange write(int begin, int bytes) { return {memory + begin, static_cast<std::size_t>(bytes), true}; }

TEST(AccessOrderTest, AnOpFollowsThoseItConflictsWithAndNoOthers) {
  AccessOrder order;
  EXPECT_THAT(order.add({write(0, 8)}), IsEmpty());
  EXPECT_THAT(order.add({read(4, 2)}), ElementsAre(0));                // read after write
  EXPECT_THAT(order.add({read(6, 4), write(16, 4)}), ElementsAre(0));  // two reads do not conflict
  EXPECT_THAT(order.add({write(5, 1)}), ElementsAre(1));               // write after read
  EXPECT_THAT(order.add({write(18, 8)}), ElementsAre(2));              // write after write
  EXPECT_THAT(order.add({read(0, 4)}), ElementsAre(0));
  EXPECT_THAT(order.add({read(24, 1), write(8, 1)}), ElementsAre(4));
  EXPECT_THAT(order.add({write(28, 4)}), IsEmpty());
}

TEST(AccessOrderTest, AnOpFollowsTheLatestOfAChainAlone) {
  AccessOrder order;
  order.add({write(0, 8)});
  order.add({read(0, 4), write(8, 4)});
  EXPECT_THAT(order.add({read(8, 4), read(4, 4), write(0, 2)}), ElementsAre(1));
}

TEST(AccessOrderTest, AnOpThatAnnouncesNothingRunsAlone) {
  AccessOrder order;
  order.add({write(0, 4)});
  order.add({write(4, 4)});
  order.add({read(0, 4)});
  EXPECT_THAT(order.add({}), ElementsAre(2, 1));
  EXPECT_THAT(order.add({write(16, 4)}), ElementsAre(3));
  EXPECT_THAT(order.add({read(0, 4)}), ElementsAre(3));
}

bool conflict(const std::vector<AccessRange>& a, const std::vector<AccessRange>& b) {
  if (a.empty() || b.empty()) return true;
  for (const AccessRange& x : a) {
    for (const AccessRange& y : b) {
      const auto* const x_begin = static_cast<const std::byte*>(x.begin);
      const auto* const y_begin = static_cast<const std::byte*>(y.begin);
      if ((x.write || y.write) && x_begin < y_begin + y.bytes && y_begin < x_begin + x.bytes) return true;
    }
  }
  return false;
}

// The list follows from its definition: the conflicts that no path over other conflicts covers.
TEST(AccessOrderTest, RandomListsFollowTheDefinition) {
  if (test::skips_one_thread()) GTEST_SKIP() << test::kRunsElsewhere;
  std::mt19937 engine(7);
  const auto below = [&engine](int n) { return static_cast<int>(engine() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 300; ++round) {
    AccessOrder order;
    std::vector<std::vector<AccessRange>> ops;
    std::vector<std::vector<bool>> after;  // after[i][j]: a path from j to i
    for (int op = 0; op < 80; ++op) {
      std::vector<AccessRange>& ranges = ops.emplace_back();
      const int count = below(30) == 0 ? 0 : 1 + below(4);
      for (int r = 0; r < count; ++r) {
        const int begin = below(32), bytes = 1 + below(std::min(6, 32 - begin));
        ranges.push_back(below(2) == 0 ? read(begin, bytes) : write(begin, bytes));
      }
      std::vector<bool>& reach = after.emplace_back(80, false);
      std::vector<std::size_t> expected;
      for (std::size_t other = static_cast<std::size_t>(op); other-- > 0;) {
        if (!conflict(ops[other], ranges) || reach[other]) continue;
        expected.push_back(other);
        reach[other] = true;
        for (std::size_t i = 0; i < other; ++i) reach[i] = reach[i] || after[other][i];
      }
      ASSERT_EQ(order.add(ranges), expected) << "round " << round << " op " << op;
    }
  }
}

}  // namespace
}  // namespace megalith
