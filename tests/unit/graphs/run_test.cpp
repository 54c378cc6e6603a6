// Tests of runs as data, in hand-written lists and in those of every schedule.
#include "graphs/run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>

#include "core/base/error.h"
#include "core/memory/memory_pool.h"
#include "parallel/pipeline_parallel/action_hooks.h"
#include "parallel/pipeline_parallel/lowering.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/unit/parallel/schedule_support.h"

namespace megalith {
namespace {

constexpr GraphModules kAttention{.attention = true}, kMlp{.mlp = true}, kBoth{.attention = true, .mlp = true},
    kLayer{.layer = true};

// Embedding, two layers of attention and MLP per chunk, head.
class RunTest : public testing::Test {
 protected:
  static std::vector<SegmentRunner::Entry> entries(int chunks) {
    std::vector<SegmentRunner::Entry> all;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (chunk == 0) all.push_back({.name = "embedding"});
      for (int layer = 2 * chunk; layer < 2 * chunk + 2; ++layer) {
        const std::string name = "layer " + std::to_string(layer);
        all.push_back({.name = name + " attention", .module = SegmentModule::kAttention, .unit = layer + 1});
        all.push_back({.name = name + " mlp", .module = SegmentModule::kMlp, .unit = layer + 1});
      }
      if (chunk == chunks - 1) all.push_back({.name = "head", .unit = 99});
    }
    return all;
  }
  static std::vector<Action> one_chunk(int microbatches, const std::vector<std::vector<int>>& buckets) {
    const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 1, 1, microbatches);
    return lower_training_step(insert_messages(schedule, 0), {6}, {.segments_of_bucket = buckets});
  }
  std::vector<std::string> names(const std::vector<Action>& actions, const GraphModules& modules) const {
    std::vector<std::string> names;
    for (const megalith::GraphRun& run : group_runs(actions, runner_, modules).runs)
      names.push_back(name_of(actions, run, runner_));
    return names;
  }

  MemoryPool pool_{DeviceType::kCpu};
  Stream stream_{DeviceType::kCpu, "test"};
  Arena arena_{pool_, Arena::Mode::kUnplanned};
  const Context ctx_{.compute = stream_, .arena = arena_};
  SegmentRunner runner_{ctx_, entries(1)};
};

// A layer of your own is a module with its own graphs, and is part of `layer` graphs.
TEST_F(RunTest, LayersOfOnesOwnAreAModule) {
  std::vector<SegmentRunner::Entry> all = entries(1);
  all[4] = {.name = "layer 1 own", .module = SegmentModule::kOwn, .unit = 2};
  const SegmentRunner runner(ctx_, std::move(all));
  const std::vector<Action> actions = one_chunk(1, {{0, 1, 2, 3, 4, 5}});
  const auto runs_of = [&](const GraphModules& modules) {
    std::vector<std::string> names;
    for (const megalith::GraphRun& run : group_runs(actions, runner, modules).runs)
      names.push_back(name_of(actions, run, runner));
    return names;
  };
  EXPECT_THAT(runs_of({.own = true}),
              ElementsAre("layer 1 own forward, column 0",
                          "layer 1 own backward_data to layer 1 own backward_weight, column 0"));
  EXPECT_THAT(runs_of(kMlp), testing::Each(testing::Not(HasSubstr("own"))));
  EXPECT_EQ(runs_of(kLayer)[0], "layer 0 attention forward to layer 1 own forward, column 0");
}

TEST_F(RunTest, LayersStandTogetherModulesAlone) {
  const std::vector<Action> actions = one_chunk(1, {{0, 1, 2, 3, 4, 5}});
  EXPECT_THAT(names(actions, kLayer),
              ElementsAre("layer 0 attention forward to layer 1 mlp forward, column 0",
                          "layer 1 mlp backward_data to layer 0 attention backward_weight, column 0"));
  EXPECT_THAT(names(actions, kAttention),
              ElementsAre("layer 0 attention forward, column 0", "layer 1 attention forward, column 0",
                          "layer 1 attention backward_data to layer 1 attention backward_weight, column 0",
                          "layer 0 attention backward_data to layer 0 attention backward_weight, column 0"));
  EXPECT_EQ(names(actions, kBoth).size(), 8u);
  EXPECT_TRUE(names(actions, {}).empty());
}

// A reduction after layer 1 splits backward in the last microbatch, so it splits backward in each microbatch.
TEST_F(RunTest, IsCutAtTheSamePlacesInEveryMicrobatch) {
  const std::vector<Action> actions = one_chunk(3, {{3, 4, 5}, {0, 1, 2}});
  const GraphRunPlan plan = group_runs(actions, runner_, kLayer);
  EXPECT_EQ(plan.runs.size(), 9u);
  EXPECT_EQ(plan.graphs, 3);
  EXPECT_THAT(names(actions, kLayer),
              testing::Contains("layer 1 mlp backward_data to layer 1 attention backward_weight, column 0").Times(3));
}

// Delayed weight gradients follow each other without actions in between.
TEST_F(RunTest, EndsWithItsMicrobatch) {
  std::vector<Action> actions;
  for (const int microbatch : {0, 1}) {
    for (const int segment : {4, 3, 2, 1}) {
      actions.push_back(
          {.kind = ActionKind::kBackwardWeight, .microbatch = microbatch, .segment = segment, .column = microbatch});
    }
  }
  for (const int column : {1, 0}) {  // column of the second microbatch
    SCOPED_TRACE(column);
    for (Action& action : actions) action.column = action.microbatch * column;
    const GraphRunPlan plan = group_runs(actions, runner_, kLayer);
    ASSERT_EQ(plan.runs.size(), 2u);
    EXPECT_EQ(plan.runs[0].count, 4u);
    EXPECT_EQ(plan.runs[1].first, 4u);
    EXPECT_EQ(plan.graphs, column == 0 ? 1 : 2);
  }
}

TEST_F(RunTest, EndsAtHooks) {
  const std::vector<Action> actions = one_chunk(1, {{0, 1, 2, 3, 4, 5}});
  runner_.hooks(3).add(HookPoint::kPreForward, [](const HookContext&) {});
  EXPECT_THAT(names(actions, kLayer),
              ElementsAre("layer 0 attention forward to layer 0 mlp forward, column 0",
                          "layer 1 attention forward to layer 1 mlp forward, column 0", HasSubstr("backward_weight")));
  runner_.hooks(1).add(HookPoint::kPreWeight, [](const HookContext&) {});
  EXPECT_EQ(names(actions, kBoth).size(), 9u);
}

TEST_F(RunTest, EndsAtActionsThatAreHooks) {
  const std::vector<Action> plain = one_chunk(2, {{0, 1, 2, 3, 4, 5}});
  const std::vector<Action> actions = insert_action_hooks(
      plain, {{.segment = 3, .point = HookPoint::kPreForward, .kind = ActionKind::kWaitParameters, .item = 4},
              {.segment = 3, .point = HookPoint::kPreForward, .kind = ActionKind::kGatherParameters, .item = 5},
              {.segment = 4, .point = HookPoint::kPostWeight, .kind = ActionKind::kReduce, .item = 6}});
  ASSERT_EQ(actions.size(), plain.size() + 6);
  std::vector<std::string> around;
  for (std::size_t i = 1; i + 1 < actions.size(); ++i) {
    if (actions[i].item < 4) continue;
    const Action& verb = actions[i].item == 6 ? actions[i - 1] : actions[actions[i].item == 5 ? i + 1 : i + 2];
    around.push_back(fmt::format("{} {} of microbatch {} at {} of segment {}", name_of(actions[i].kind),
                                 actions[i].item, actions[i].microbatch, name_of(verb.kind), verb.segment));
  }
  EXPECT_THAT(around, ElementsAre("wait_parameters 4 of microbatch 0 at forward of segment 3",
                                  "gather_parameters 5 of microbatch 0 at forward of segment 3",
                                  "reduce 6 of microbatch 0 at backward_weight of segment 4",
                                  "wait_parameters 4 of microbatch 1 at forward of segment 3",
                                  "gather_parameters 5 of microbatch 1 at forward of segment 3",
                                  "reduce 6 of microbatch 1 at backward_weight of segment 4"));
  EXPECT_THAT(names(actions, kLayer),
              testing::IsSupersetOf({"layer 1 attention forward to layer 1 mlp forward, column 0",
                                     "layer 1 mlp backward_data to layer 1 mlp backward_weight, column 0"}));
  EXPECT_EQ(names(actions, kLayer).size(), 8u);
}

// The remedy lists the module that the layer has instead of an MLP.
TEST_F(RunTest, RefusesAHookInsideALayer) {
  const std::vector<Action> actions = one_chunk(1, {{0, 1, 2, 3, 4, 5}});
  for (const auto& [module, remedy] :
       {std::pair{SegmentModule::kMlp, "modules attn mlp,"}, {SegmentModule::kMoe, "modules attn moe,"}}) {
    std::vector<SegmentRunner::Entry> all = entries(1);
    for (SegmentRunner::Entry& entry : all)
      if (entry.module == SegmentModule::kMlp) entry.module = module;
    SegmentRunner runner(ctx_, all);
    runner.hooks(3).add(HookPoint::kPostForward, [](const HookContext&) {});
    EXPECT_GT(group_runs(actions, runner, {.attention = true, .mlp = true, .moe = true}).graphs, 0);
    EXPECT_THAT(error_of(ExitCode::kInternal, [&] { group_runs(actions, runner, kLayer); }),
                AllOf(HasSubstr("hook post_forward of segment layer 1 attention"), HasSubstr(remedy)));
  }
}

// Embedding, attention, a layer of experts and head.
std::vector<SegmentRunner::Entry> entries_with_experts() {
  return {{.name = "embedding"},
          {.name = "layer 0 attention", .module = SegmentModule::kAttention, .unit = 1},
          {.name = "layer 0 router", .module = SegmentModule::kMoeRouter, .unit = 1},
          {.name = "layer 0 dispatch", .module = SegmentModule::kMoeDispatch, .unit = 1},
          {.name = "layer 0 experts", .module = SegmentModule::kMoe, .unit = 1},
          {.name = "head", .unit = 99}};
}

// Also without attention between two layers of experts.
TEST_F(RunTest, HoldsTheSegmentsOfOneLayerOfExperts) {
  std::vector<SegmentRunner::Entry> entries;
  for (const int layer : {0, 1}) {
    for (SegmentRunner::Entry entry : entries_with_experts()) {
      if (entry.unit != 1 || entry.module == SegmentModule::kAttention) continue;
      entry.name.replace(entry.name.find('0'), 1, std::to_string(layer));
      entry.unit = layer + 1;
      entries.push_back(entry);
    }
  }
  const SegmentRunner runner(ctx_, entries);
  const std::vector<Action> actions = one_chunk(1, {{0, 1, 2, 3, 4, 5}});
  std::vector<std::string> names;
  for (const megalith::GraphRun& run : group_runs(actions, runner, {.moe = true}).runs)
    names.push_back(name_of(actions, run, runner));
  EXPECT_THAT(names, ElementsAre("layer 0 router forward to layer 0 experts forward, column 0",
                                 "layer 1 router forward to layer 1 experts forward, column 0",
                                 "layer 1 experts backward_data to layer 1 router backward_weight, column 0",
                                 "layer 0 experts backward_data to layer 0 router backward_weight, column 0"));
}

// A graph holds both the verb that leaves gradients in flight and their wait, or neither.
TEST_F(RunTest, HoldsTheWaitForReturns) {
  const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 1, 1, 1);
  const SegmentRunner runner(ctx_, entries_with_experts());
  constexpr GraphModules kExperts{.moe = true}, kRouter{.moe_router = true}, kDispatch{.moe_dispatch = true};
  // A reduction starts after the experts' weight gradients, which ends a graph.
  const std::vector<ActionHook> reduces{
      {.segment = 4, .point = HookPoint::kPostWeight, .kind = ActionKind::kReduce, .item = 6}};
  const auto holds_wait = [&](const GraphModules& modules, bool after_weights) {
    const std::vector<Action> actions = insert_action_hooks(
        lower_training_step(insert_messages(schedule, 0), {6}, {.segments_of_bucket = {{4}, {0, 1, 2, 3, 5}}}, {},
                            {.segments = {3}, .after_weights = after_weights}),
        reduces);
    const GraphRunPlan plan = group_runs(actions, runner, modules);
    const std::vector<int> graphs = graph_of_each(actions, plan);
    for (const megalith::GraphRun& run : plan.runs) EXPECT_GE(last_verb(actions, run).segment, 0);
    const auto wait = std::ranges::find(actions, ActionKind::kWaitExchange, &Action::kind);
    return graphs[static_cast<std::size_t>(wait - actions.begin())] >= 0;
  };
  for (const bool after_weights : {false, true}) {
    EXPECT_TRUE(holds_wait(kExperts, after_weights));
    EXPECT_TRUE(holds_wait(kLayer, after_weights));
    EXPECT_FALSE(holds_wait(kRouter, after_weights));
  }
  EXPECT_TRUE(holds_wait(kDispatch, false));
  EXPECT_THROW(holds_wait(kDispatch, true), Error);  // eager weight gradients of experts are in between
}

TEST_F(RunTest, RefusesAHookInsideALayerOfExperts) {
  constexpr GraphModules kExperts{.attention = true, .moe = true}, kRouter{.attention = true, .moe_router = true};
  const std::vector<Action> actions = one_chunk(1, {{0, 1, 2, 3, 4, 5}});
  struct Hook {
    int segment;
    HookPoint point;
  };
  const auto runner_with = [&](const Hook& hook) {
    auto runner = std::make_unique<SegmentRunner>(ctx_, entries_with_experts());
    runner->hooks(hook.segment).add(hook.point, [](const HookContext&) {});
    return runner;
  };
  for (const auto& [hook, name] :
       {std::pair{Hook{2, HookPoint::kPostForward}, "hook post_forward of segment layer 0 router"},
        {Hook{4, HookPoint::kPreForward}, "hook pre_forward of segment layer 0 experts"},
        {Hook{4, HookPoint::kPreWeight}, "hook pre_weight of segment layer 0 experts"}}) {
    SCOPED_TRACE(name);
    const auto runner = runner_with(hook);
    EXPECT_GT(group_runs(actions, *runner, kRouter).graphs, 0);
    for (const auto& [modules, remedy] :
         {std::pair{kExperts, "use moe_router instead of moe"}, {kLayer, "--cuda-graph-modules attn moe_router"}}) {
      EXPECT_THAT(error_of(ExitCode::kInternal, [&, of = modules] { group_runs(actions, *runner, of); }),
                  AllOf(HasSubstr(name), HasSubstr(remedy)));
    }
  }
  for (const Hook& hook : {Hook{2, HookPoint::kPreForward}, Hook{4, HookPoint::kPostForward},
                           Hook{4, HookPoint::kPreBackward}, Hook{2, HookPoint::kPostWeight}})
    EXPECT_EQ(group_runs(actions, *runner_with(hook), kExperts).runs.size(), 4u);
}

TEST_F(RunTest, RefusesAHookBetweenVerbsThatBelongTogether) {
  const std::vector<Action> actions = one_chunk(1, {{0, 1, 2, 3, 4, 5}});
  runner_.hooks(2).add(HookPoint::kPreWeight, [](const HookContext&) {});
  EXPECT_GT(group_runs(actions, runner_, kBoth).graphs, 0);
  GraphModules joined = kBoth;
  joined.joins_backward = true;
  EXPECT_THAT(error_of(ExitCode::kInternal, [&] { group_runs(actions, runner_, joined); }),
              AllOf(HasSubstr("hook pre_weight of segment layer 0 mlp"), HasSubstr("--tp-comm-overlap")));
}

// In every schedule each verb of a layer is in one run, and the runs of a graph have equal verbs and columns.
TEST_F(RunTest, HoldForEverySchedule) {
  std::size_t shared = 0;
  test::for_each_schedule([&](const Schedule& schedule) {
    if (schedule.num_microbatches > 8) return;
    const int chunks = schedule.placement.num_chunks;
    const SegmentRunner runner(ctx_, entries(chunks));
    ChunkSegments segments(static_cast<std::size_t>(chunks), 4);
    ++segments.front();
    ++segments.back();
    for (int stage = 0; stage < schedule.placement.num_stages; stage += 3) {
      const std::vector<Action> actions = lower_training_step(insert_messages(schedule, stage), segments, {});
      for (const GraphModules& modules : {kAttention, kMlp, kBoth, kLayer}) {
        const GraphRunPlan plan = group_runs(actions, runner, modules);
        std::map<int, std::string> of_graph;
        std::set<std::size_t> held;
        for (const megalith::GraphRun& run : plan.runs) {
          const auto [known, is_new] = of_graph.try_emplace(run.graph, name_of(actions, run, runner));
          ASSERT_EQ(known->second, name_of(actions, run, runner));
          shared += is_new ? 0 : 1;
          for (std::size_t i = run.first; i < run.first + run.count; ++i) {
            ASSERT_TRUE(held.insert(i).second);
            ASSERT_EQ(actions[i].microbatch, actions[run.first].microbatch);
            ASSERT_EQ(actions[i].chunk, actions[run.first].chunk);
          }
        }
        ASSERT_EQ(static_cast<int>(of_graph.size()), plan.graphs);
        for (std::size_t i = 0; i < actions.size(); ++i) {
          const SegmentModule module =
              actions[i].segment < 0 ? SegmentModule::kOther : runner.entry(actions[i].segment).module;
          const bool wanted =
              (module == SegmentModule::kAttention && !modules.mlp) ||
              (module == SegmentModule::kMlp && !modules.attention) ||
              (module != SegmentModule::kOther && (modules.layer || (modules.attention && modules.mlp)));
          ASSERT_EQ(held.contains(i), wanted) << to_string(actions[i]);
        }
      }
    }
  });
  EXPECT_GT(shared, 1000u);
}

}  // namespace
}  // namespace megalith
