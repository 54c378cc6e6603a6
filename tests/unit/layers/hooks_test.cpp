#include "core/layers/hooks.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"

namespace megalith {
namespace {

TEST(Hooks, RunInTheOrderOfTheirListAtTheirPointAlone) {
  HookTable table;
  EXPECT_TRUE(table.empty());
  std::vector<std::string> calls;
  table.add(HookPoint::kPreForward, [&](const HookContext&) { calls.push_back("first"); });
  table.add(HookPoint::kPreForward, [&](const HookContext&) { calls.push_back("second"); });
  table.add(HookPoint::kPostWeight, [&](const HookContext&) { calls.push_back("weight"); });
  EXPECT_FALSE(table.empty());
  table.run(HookPoint::kPreForward, {});
  EXPECT_THAT(calls, ElementsAre("first", "second"));
  table.run(HookPoint::kPostForward, {});
  table.run(HookPoint::kPostWeight, {});
  EXPECT_THAT(calls, ElementsAre("first", "second", "weight"));
}

TEST(Hooks, SeeTheContext) {
  HookTable table;
  HookContext seen;
  table.add(HookPoint::kPostBackward, [&](const HookContext& context) { seen = context; });
  table.run(HookPoint::kPostBackward, {.segment = "layer 3 mlp",
                                       .segment_index = 8,
                                       .chunk = 1,
                                       .column = 2,
                                       .microbatch = 5,
                                       .verb = Verb::kBackwardData});
  EXPECT_EQ(seen.segment, "layer 3 mlp");
  EXPECT_EQ(seen.segment_index, 8);
  EXPECT_EQ(seen.chunk, 1);
  EXPECT_EQ(seen.column, 2);
  EXPECT_EQ(seen.microbatch, 5);
  EXPECT_EQ(seen.verb, Verb::kBackwardData);
}

TEST(Hooks, OneThatThrowsIsNamedAndEndsTheList) {
  HookTable table;
  bool later = false;
  table.add(HookPoint::kPreWeight, [](const HookContext&) { throw std::runtime_error("no memory left"); });
  table.add(HookPoint::kPreWeight, [&](const HookContext&) { later = true; });
  EXPECT_THAT(
      error_of(ExitCode::kInternal, [&] { table.run(HookPoint::kPreWeight, {.segment = "head", .microbatch = 7}); }),
      AllOf(HasSubstr("pre_weight"), HasSubstr("head"), HasSubstr("microbatch 7"), HasSubstr("no memory left")));
  EXPECT_FALSE(later);
}

TEST(Hooks, AnErrorKeepsItsExitCode) {
  HookTable table;
  table.add(HookPoint::kPostForward,
            [](const HookContext&) { fail({.code = ExitCode::kCommunication, .subject = "unshard"}); });
  error_of(ExitCode::kCommunication, [&] { table.run(HookPoint::kPostForward, {}); });
}

TEST(Hooks, StandBeforeAndAfterEachVerb) {
  EXPECT_EQ(before(Verb::kForward), HookPoint::kPreForward);
  EXPECT_EQ(after(Verb::kForward), HookPoint::kPostForward);
  EXPECT_EQ(before(Verb::kBackwardData), HookPoint::kPreBackward);
  EXPECT_EQ(after(Verb::kBackwardData), HookPoint::kPostBackward);
  EXPECT_EQ(before(Verb::kBackwardWeight), HookPoint::kPreWeight);
  EXPECT_EQ(after(Verb::kBackwardWeight), HookPoint::kPostWeight);
  EXPECT_EQ(name_of(HookPoint::kPostBackward), "post_backward");
  EXPECT_EQ(name_of(Verb::kBackwardWeight), "backward_weight");
  EXPECT_EQ(name_of(Phase::kCaptureAhead), "capture_ahead");
  EXPECT_EQ(name_of(Phase::kReplay), "replay");
}

}  // namespace
}  // namespace megalith
