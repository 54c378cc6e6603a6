// Hooks on the segments of layers whose experts are sharded over ranks. At any point they change no bit, eagerly and
// between graphs, and are called once per verb.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "tests/unit/train/moe/moe_runs.h"

namespace megalith::test {
namespace {

constexpr std::array kSegments = {"router", "dispatch", "experts", "return", "merge"};

struct Hooked {
  RunResult run;
  // On rank 0: segments with hooks; their calls after warm-up around eager verbs and around graphed verbs.
  int segments = 0, eager = 0, graphed = 0;
};

// Hooks at every point of the segments whose name has this suffix; empty: no hooks.
Hooked train_hooked(const Words& flags, const Layout& layout, const std::vector<std::string>& names) {
  Hooked hooked;
  const auto add_hooks = [&](Rank& rank) {
    const bool counts = rank.mesh.world().rank() == 0;
    for (int segment = 0; segment < rank.runner.num_segments(); ++segment) {
      const std::string& name = rank.runner.entry(segment).name;
      if (std::ranges::none_of(names, [&](const std::string& end) { return name.ends_with(" " + end); })) continue;
      if (counts) ++hooked.segments;
      for (int point = 0; point < kNumHookPoints; ++point) {
        rank.runner.hooks(segment).add(static_cast<HookPoint>(point), [&hooked, counts](const HookContext& at) {
          if (!counts || at.phase == Phase::kWarmUp) return;
          ++(at.phase == Phase::kEager ? hooked.eager : hooked.graphed);
        });
      }
    }
  };
  hooked.run = train({.flags = flags + layout.flags(), .ranks = layout.ranks(), .customize = add_hooks});
  EXPECT_TRUE(hooked.run.memory_as_planned);
  EXPECT_EQ(hooked.run.hazards, 0);
  return hooked;
}

TEST(MoeHooks, AnywhereInALayerOfExpertsChangeNoBit) {
  constexpr int kSteps = 3, kLayers = 4, kMicrobatches = 4;
  const Words flags =
      sizes_for({}) + moe_families()[0].flags +
      Words{"--bf16",        "--hidden-dropout",    "0.1", "--check-hazards", "--moe-shared-expert-overlap",
            "--train-iters", std::to_string(kSteps)};
  const Words graphs{"--cuda-graph-impl", "local", "--cuda-graph-modules", "attn", "moe_router", "moe_preprocess"};
  const Layout layout{.data = 2, .expert = 2};
  const RunResult plain = train_hooked(flags, layout, {}).run;
  std::vector<std::vector<std::string>> places{{kSegments.begin(), kSegments.end()}};
  for (const char* segment : kSegments) places.push_back({segment});
  for (const std::vector<std::string>& place : places) {
    for (const Words& way : {Words{}, graphs}) {
      SCOPED_TRACE(testing::PrintToString(place) + testing::PrintToString(way));
      const Hooked hooked = train_hooked(flags + way, layout, place);
      expect_same_run(hooked.run, plain);
      const auto in_graphs = std::ranges::count_if(
          place, [&](const std::string& name) { return !way.empty() && (name == "router" || name == "dispatch"); });
      EXPECT_EQ(hooked.segments, kLayers * std::ssize(place));
      const int steps = way.empty() ? kSteps : kSteps - 1;  // without the step that precedes the graphs
      const int calls = kLayers * kNumHookPoints * steps * kMicrobatches;
      EXPECT_EQ(hooked.eager, calls * (std::ssize(place) - in_graphs));
      EXPECT_EQ(hooked.graphed, calls * in_graphs);
    }
  }
}

}  // namespace
}  // namespace megalith::test
