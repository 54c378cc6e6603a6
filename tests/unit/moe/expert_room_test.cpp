// Tests of the planned capacity for other ranks' tokens, and of its growth after an overflow.
#include "moe/expert_room.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

// Eight experts on four ranks.
constexpr RoutedSizes kSizes{.tokens = 128, .choices = 2, .experts = 8, .ranks = 4};

TEST(ExpertRoom, IsAFactorAboveTheMean) {
  const double arrived = 512 * (1 - (6.0 / 8) * (5.0 / 7));  // neither choice elsewhere
  EXPECT_DOUBLE_EQ(mean_rows(kSizes).arrived, arrived);
  EXPECT_DOUBLE_EQ(mean_rows(kSizes).rows, 256);
  EXPECT_EQ(expert_room(kSizes, 1), (ExpertRoom{.arrived = 256, .rows = 256}));
  EXPECT_EQ(expert_room(kSizes, 1.01), (ExpertRoom{.arrived = 256, .rows = 384}));
  EXPECT_EQ(expert_room(kSizes, 1e6), (ExpertRoom{.arrived = 512, .rows = 1024}));
  EXPECT_EQ(max_room(kSizes), (ExpertRoom{.arrived = 512, .rows = 1024}));
  RoutedSizes three = kSizes;  // at most two choices are on one rank
  three.choices = 3;
  EXPECT_EQ(max_room(three), (ExpertRoom{.arrived = 512, .rows = 1024}));
}

TEST(ExpertRoom, OfRanksThatSplitExpertsIsForTheRowsOfAll) {
  constexpr RoutedSizes kSplit{.tokens = 128, .choices = 2, .experts = 8, .ranks = 4, .copies = 2};
  EXPECT_DOUBLE_EQ(mean_rows(kSplit).rows, 512);
  EXPECT_EQ(kSplit.local_experts(), 4);
  EXPECT_EQ(max_room(kSplit), (ExpertRoom{.arrived = 512, .rows = 1024}));
}

// The larger need counts, and the new capacity covers it after rounding.
TEST(ExpertRoom, GrowsByATenthAtLeastAndHoldsWhatWasNeeded) {
  EXPECT_DOUBLE_EQ(larger_factor(kSizes, {.arrived = 100, .rows = 512}, 1.5), 2.2);
  EXPECT_DOUBLE_EQ(larger_factor(kSizes, {.arrived = 257, .rows = 10}, 1.5), 1.1 * 1.5);
  for (std::int64_t needed = 257; needed <= 512; ++needed) {
    const double by_arrived = larger_factor(kSizes, {.arrived = needed, .rows = 0}, 1);
    EXPECT_GE(expert_room(kSizes, by_arrived).arrived, needed);
    const double by_rows = larger_factor(kSizes, {.arrived = 0, .rows = 2 * needed}, 1);
    EXPECT_GE(expert_room(kSizes, by_rows).rows, 2 * needed);
  }
}

// If all tokens arrive at every rank, their capacity is complete from the start; only rows can overflow.
TEST(ExpertRoom, WhereAllArriveGrowsByTheRowsAlone) {
  RoutedSizes all = kSizes;
  all.all_arrive = true;
  EXPECT_DOUBLE_EQ(mean_rows(all).arrived, 512);
  EXPECT_DOUBLE_EQ(mean_rows(all).rows, 256);
  for (const double factor : {0.1, 1.0, 1.01})
    EXPECT_EQ(expert_room(all, factor), (ExpertRoom{.arrived = 512, .rows = expert_room(kSizes, factor).rows}));
  EXPECT_EQ(max_room(all), max_room(kSizes));
  EXPECT_DOUBLE_EQ(larger_factor(all, {.arrived = 512, .rows = 320}, 1), 1.1 * 1.25);
  EXPECT_DOUBLE_EQ(larger_factor(all, {.arrived = 512, .rows = 10}, 1.5), 1.1 * 1.5);
  // With one choice, the mean number of rows is a quarter of the arriving tokens.
  all.choices = 1;
  EXPECT_DOUBLE_EQ(mean_rows(all).arrived, 512);
  EXPECT_DOUBLE_EQ(larger_factor(all, {.arrived = 512, .rows = 192}, 1), 1.1 * 1.5);
}

}  // namespace
}  // namespace megalith
