// A user's hooks, as CONTRIBUTING.md shows them: how long the device takes for the forward of a layer.
#include <gtest/gtest.h>

#include "tests/unit/train/training_support.h"

namespace megalith {
namespace {

using test::operator+;

class OwnHooks : public testing::TestWithParam<std::vector<std::string>> {};

INSTANTIATE_TEST_SUITE_P(Graphs, OwnHooks,
                         testing::Values(std::vector<std::string>{},
                                         std::vector<std::string>{"--cuda-graph-impl", "local"}),
                         [](const auto& flags) { return flags.param.empty() ? "none" : "local"; });

TEST_P(OwnHooks, TimeALayer) {
  Event begun("layer begun", true), done("layer done", true);
  int calls = 0;
  constexpr int kFirst = 1, kLast = 2;  // attention and MLP of layer 0, behind the embedding
  const auto add_hooks = [&](Rank& rank) {
    rank.runner.hooks(kFirst).add(HookPoint::kPreForward,
                                  [&](const HookContext&) { rank.streams.compute.record(begun); });
    rank.runner.hooks(kLast).add(HookPoint::kPostForward, [&](const HookContext&) {
      rank.streams.compute.record(done);
      ++calls;
    });
  };
  double seconds = 0;
  const test::RunResult timed =
      test::train({.flags = GetParam(), .customize = add_hooks, .finish = [&](Trainer& trainer, int) {
                     trainer.rank().streams.compute.synchronize();
                     seconds = seconds_between(begun, done);
                   }});
  EXPECT_EQ(calls, 6 * 4);  // steps, microbatches
  EXPECT_GT(seconds, 0);
  test::expect_same_run(timed, test::train({}));
}

}  // namespace
}  // namespace megalith
