#include "core/base/text/edit_distance.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace megalith {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsSubstitutionsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("", "lr"), 2U);
  EXPECT_EQ(edit_distance("a", ""), 1U);
  EXPECT_EQ(edit_distance("seed", "seed"), 0U);
  EXPECT_EQ(edit_distance("sed", "seed"), 1U);
  EXPECT_EQ(edit_distance("seeed", "seed"), 1U);
  EXPECT_EQ(edit_distance("seet", "seed"), 1U);
  EXPECT_EQ(edit_distance("sede", "seed"), 1U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
}

TEST(EditDistance, TakesTheFirstOfTheNearestBelowTheLimit) {
  const std::array<std::string, 4> names = {"split", "seed", "save", "seek"};
  EXPECT_EQ(nearest_name("seee", names), &names[1]);
  EXPECT_EQ(nearest_name("saev", names), &names[2]);
  EXPECT_EQ(nearest_name("seee", names, 2), &names[1]);
  EXPECT_EQ(nearest_name("seee", names, 1), nullptr);
  EXPECT_EQ(nearest_name("", names), &names[1]);  // at the same distance from save and seek
  EXPECT_EQ(nearest_name("seed", {}), nullptr);
}

}  // namespace
}  // namespace megalith
