// Forecasts of captured graphs: their content, and the memory of a step in addition to them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/forecast/forecast.h"
#include "apps/planning/plan_steps.h"
#include "apps/summary/planned_graphs.h"
#include "tests/support/error_of.h"
#include "tests/unit/plan/plan_support.h"

namespace megalith::test {
namespace {

// One column: each graph is replayed for each of the 16 microbatches.
TEST(ForecastGraphs, HoldTheOpsOfTheirModules) {
  const auto graphs = [](const Words& flags) {
    const Options options = complete(plan_flags() + flags, 1);
    const Forecast forecast = make_forecast(options, 1, {});
    const StepGraphs& counts = forecast.stages[0].plans.graphs;
    EXPECT_EQ(16 * counts.captured_ops + counts.eager_ops, forecast.stages[0].work.ops);
    EXPECT_EQ(counts.replays, 16 * counts.graphs);
    EXPECT_TRUE(plan_steps(options, forecast.config, 0).graphs == counts);
    return counts;
  };
  const Words local{"--cuda-graph-impl", "local", "--cuda-graph-modules"};
  const StepGraphs none = graphs({}), layer = graphs(local + Words{"layer"}), attention = graphs(local + Words{"attn"}),
                   mlp = graphs(local + Words{"mlp"}), both = graphs(local + Words{"attn", "mlp"});
  EXPECT_EQ(none.graphs, 0);
  EXPECT_EQ(none.bytes(), 0u);
  EXPECT_EQ(layer.graphs, 2);          // all 4 layers forward, and back
  EXPECT_EQ(attention.graphs, 2 * 4);  // in each layer
  EXPECT_EQ(mlp.graphs, 2 * 4);
  EXPECT_EQ(both.captured_ops, attention.captured_ops + mlp.captured_ops);
  EXPECT_EQ(both.captured_ops, layer.captured_ops);
  EXPECT_GT(layer.bytes(), 0u);
  // On a GPU attention's backward has eight in each of 4 layers.
  EXPECT_EQ(layer.nodes, layer.captured_ops);
  const StepGraphs gpu = graphs(local + Words{"layer", "--device", "cuda"});
  EXPECT_EQ(gpu.nodes, gpu.captured_ops + 4 * 7);
  Options options;
  options.device = DeviceType::kCpu;
  EXPECT_THAT(to_text(graphs_table(layer, options, "")),
              testing::HasSubstr(fmt::format("\n  nodes {:>32}\n", layer.nodes)));
  options.device = DeviceType::kCuda;
  EXPECT_THAT(to_text(graphs_table(gpu, options, "")),
              testing::HasSubstr(fmt::format("\n  nodes on a GPU, about {:>16}\n", gpu.nodes)));
}

// Fully recomputed layers have no separate attention or MLP; the rest of a stage has.
TEST(ForecastGraphs, AModuleThatNoRankCapturesIsRefused) {
  const auto check = [](const Words& flags) {
    const Options options =
        complete(plan_flags() + Words{"--pipeline-model-parallel-size", "2", "--cuda-graph-impl", "local"} + flags, 2);
    std::vector<StepGraphs> ranks;
    for (const StageForecast& stage : make_forecast(options, 2, {}).stages) ranks.push_back(stage.plans.graphs);
    check_captured_modules(options, ranks);
  };
  const auto recomputed = [](const char* method, const char* layers) {
    return Words{"--recompute-granularity", "full", "--recompute-method", method, "--recompute-num-layers", layers};
  };
  const Words both{"--cuda-graph-modules", "attn", "mlp"};
  check(both);
  check(both + recomputed("block", "1"));
  check(recomputed("block", "2"));
  check(recomputed("uniform", "1"));
  for (const char* method : {"block", "uniform"}) {
    EXPECT_EQ(error_of(ExitCode::kUsage, [&] { check(both + recomputed(method, "2")); }),
              "--cuda-graph-modules: expected modules that run separately in a layer of some rank, got attn, which no "
              "rank captures; remove attn, or use layer, which also captures fully recomputed layers");
  }
  const Words experts = words("--num-experts 4 --moe-router-topk 2 --swiglu --disable-bias-linear");
  check(experts + Words{"--cuda-graph-modules", "attn", "moe"});
  EXPECT_THROW(check(experts + both), Error);                                              // no layer has an MLP
  check(experts + Words{"--cuda-graph-modules", "attn", "moe_router", "moe_preprocess"});  // without other ranks' rows
}

// Graphs of attention have the same places in all microbatches of a column; eager experts have places of each
// microbatch.
TEST(ForecastGraphs, TakeLittleMemoryFromEagerSegments) {
  const Words flags =
      plan_flags() +
      words(
          "--num-layers 8 --hidden-size 256 --seq-length 512 --swiglu --disable-bias-linear --num-experts 16 "
          "--moe-router-topk 8 --moe-ffn-hidden-size 96 --expert-model-parallel-size 2 --micro-batch-size 1 "
          "--global-batch-size 16 --pipeline-model-parallel-size 2 --pipeline-schedule zb-v");
  const auto peak = [&](const Words& graphs) {
    const Options options = complete(flags + graphs, 4);
    return record_step(options, run_config(options, 4), 2, {.max_microbatches = 64}).plans.train.peak_bytes;
  };
  const auto eager = static_cast<double>(peak({}));
  EXPECT_LE(static_cast<double>(peak({"--cuda-graph-impl", "local", "--cuda-graph-modules", "attn"})), 1.05 * eager);
}

}  // namespace
}  // namespace megalith::test
