// FLOPs and communication volumes, compared with closed formulas and with counts of thread ranks; times, compared with
// hand computation.
#include "apps/forecast/forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "apps/config/parallel_options.h"
#include "apps/run/step.h"
#include "apps/summary/format_actions.h"
#include "core/base/error.h"
#include "core/model/config.h"
#include "parallel/pipeline_parallel/placement.h"
#include "tests/unit/plan/plan_support.h"

namespace megalith::test {
namespace {

AxisVolume volume(const Forecast& forecast, const std::string& axis, std::size_t stage = 0) {
  const auto& volumes = forecast.stages.at(stage).work.volumes;
  const auto found = volumes.find(axis);
  return found == volumes.end() ? AxisVolume{} : found->second;
}

double launched_flops(const Forecast& forecast, const Options& options) {
  double flops = 0;
  for (const StageForecast& stage : forecast.stages)
    flops += stage.work.flops * static_cast<double>(options.parallel.world_size) /
             static_cast<double>(options.parallel.pipeline_model_parallel_size);
  return flops;
}

// 6 FLOPs for each weight of a product and token, and for causal attention 6 x layers x length x width: a forward has 2
// products over half of the pairs. The backward of attention has 5 products and not 4, as in flash attention. It
// recomputes the scores, which the closed formula leaves out.
TEST(ForecastFlops, AreThoseOfTheFormula) {
  const double layers = 4, hidden = 64, ffn = 256, length = 32, vocabulary = 256, sequences = 16;
  const double tokens = sequences * length;
  const double weights = layers * (4 * hidden * hidden + 2 * hidden * ffn) + vocabulary * hidden;
  const double closed = tokens * (6 * weights + 6 * layers * length * hidden);
  const double scores_again = tokens * layers * length * hidden;
  for (const Words& layout : {Words{}, Words{"--tensor-model-parallel-size", "2", "--sequence-parallel"},
                              Words{"--pipeline-model-parallel-size", "2"}}) {
    const Options options = complete(plan_flags() + layout, 4);
    EXPECT_DOUBLE_EQ(flops_per_token(options.model) * tokens, closed);
    const Forecast forecast = make_forecast(options, 4, {});
    EXPECT_DOUBLE_EQ(launched_flops(forecast, options), closed + scores_again) << layout.size();
  }
}

// A window of 6 keys instead of half of 32 tokens, in two of four layers; backward recomputes the scores.
TEST(ForecastFlops, CountTheKeysOfWindows) {
  const Options full = complete(plan_flags(), 4);
  const Options windows = complete(plan_flags() + Words{"--window-size", "5", "0", "--window-attn-skip-freq", "2"}, 4);
  const double tokens = 16 * 32, less = 2 * 64 * (16 - 6) * tokens;
  EXPECT_DOUBLE_EQ((flops_per_token(full.model) - flops_per_token(windows.model)) * tokens, 12 * less);
  EXPECT_DOUBLE_EQ(
      launched_flops(make_forecast(full, 4, {}), full) - launched_flops(make_forecast(windows, 4, {}), windows),
      14 * less);
}

TEST(ForecastFlops, CountTheForwardAgainWhereAllIsRecomputed) {
  const Options plain = complete(plan_flags(), 1);
  const Options again = complete(plan_flags() + Words{"--recompute-granularity", "full"}, 1);
  const double layers_forward = 512.0 * 4 * (2 * (4 * 64 * 64 + 2 * 64 * 256) + 2 * 32 * 64);
  EXPECT_DOUBLE_EQ(launched_flops(make_forecast(again, 1, {}), again),
                   launched_flops(make_forecast(plain, 1, {}), plain) + layers_forward);
}

// In the first layers of each of four chunks of two.
TEST(ForecastFlops, CountSelectedModulesInTheFirstLayersOfEachChunk) {
  Words flags =
      plan_flags() + Words{"--pipeline-model-parallel-size", "2", "--num-virtual-stages-per-pipeline-rank", "2"};
  flags[1] = "8";
  const Words mlp{"--recompute-granularity", "selective", "--recompute-modules", "mlp"};
  std::vector<double> flops;
  std::vector<std::size_t> memory;
  for (const Words& more :
       {Words{}, mlp + Words{"--recompute-num-layers", "1"}, mlp + Words{"--recompute-num-layers", "2"}, mlp}) {
    const Options options = complete(flags + more, 2);
    const Forecast forecast = make_forecast(options, 2, {});
    flops.push_back(launched_flops(forecast, options));
    memory.push_back(forecast.stages[0].memory.arena);
  }
  EXPECT_GT(flops[1], flops[0]);
  EXPECT_DOUBLE_EQ(flops[2] - flops[0], 2 * (flops[1] - flops[0]));
  EXPECT_DOUBLE_EQ(flops[3], flops[2]);
  EXPECT_GT(memory[0], memory[1]);
  EXPECT_GT(memory[1], memory[2]);
  EXPECT_EQ(memory[3], memory[2]);
}

// Each of n ranks sends (n - 1) / n of the buffer twice.
TEST(ForecastVolume, OfReplicasIsTheGradients) {
  const Options options = complete(plan_flags(), 4);
  const AxisVolume dp = volume(make_forecast(options, 4, {}), "dp");
  const double gradients = 4.0 * static_cast<double>(count_parameters(options.model).total);
  EXPECT_GE(dp.bytes, gradients);
  EXPECT_LE(dp.bytes, gradients * 1.02 + 4096);  // padding of units, and the loss
  EXPECT_DOUBLE_EQ(dp.sent, 2 * 0.75 * dp.bytes);
}

// Reduce-scatter and all-gather: (n - 1) / n of the fp32 gradients and of the weights.
TEST(ForecastVolume, OfShardsIsOneWayEach) {
  const Options options = complete(plan_flags() + Words{"--use-distributed-optimizer"}, 4);
  const AxisVolume dp = volume(make_forecast(options, 4, {}), "dp");
  const double parameters = static_cast<double>(count_parameters(options.model).total);
  EXPECT_GE(dp.sent, 0.75 * (4 + 4) * parameters);
  // A unit is padded by less than a block for each rank, of at most a 64th of it.
  EXPECT_LE(dp.sent, 0.75 * (4 + 4) * parameters * (1 + 4 / 64.0) + 4096);
  const Options overlapped = complete(
      plan_flags() + Words{"--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"}, 4);
  EXPECT_DOUBLE_EQ(volume(make_forecast(overlapped, 4, {}), "dp").sent, dp.sent);
}

// Per layer and microbatch with sequence parallelism: attention and MLP have an all-gather and a reduce-scatter each,
// forward and backward. The weight gradients' inputs add one all-gather each. A ring's all-reduce sends as much as
// both.
TEST(ForecastVolume, OfTensorParallelLayersIsTheirActivations) {
  const auto of_layers = [](std::int64_t layers, const Words& more) {
    Words flags = plan_flags() + Words{"--tensor-model-parallel-size", "2"} + more;
    flags[1] = std::to_string(layers);
    return volume(make_forecast(complete(flags, 2), 2, {}), "tp").sent;
  };
  const double activation = 32 * 64 * 4.0, microbatches = 16, half = 0.5;
  const double layer = of_layers(3, {}) - of_layers(2, {});
  // All-reduces: 2 forward, 2 backward. The norm's sum of squares has a few values a tensor more.
  EXPECT_NEAR(layer, microbatches * 4 * 2 * half * activation, 0.001 * layer);
  const double split = of_layers(3, {"--sequence-parallel"}) - of_layers(2, {"--sequence-parallel"});
  EXPECT_NEAR(split, microbatches * (4 + 4 + 2) * half * activation, 0.01 * split);
}

TEST(ForecastVolume, OfStagesIsAnActivationEachWay) {
  const Options options = complete(plan_flags() + Words{"--pipeline-model-parallel-size", "2"}, 2);
  const Forecast forecast = make_forecast(options, 2, {});
  for (const std::size_t stage : {0, 1}) {
    const AxisVolume pp = volume(forecast, "pp", stage);
    EXPECT_GE(pp.bytes, 16 * 32 * 64 * 4.0);
    EXPECT_LE(pp.bytes, 16 * 32 * 64 * 4.0 + 4096);  // sums of the loss and of squares
  }
}

// Counts of a real run's groups in one step, by axis: calls and payload.
using Counted = std::map<std::string, std::pair<std::int64_t, std::int64_t>>;

Counted counted(Rank& rank) {
  Counted counts;
  std::vector<Communicator*> groups = groups_of_steps(rank);
  for (Communicator* group : rank.transfer.groups()) groups.push_back(group);
  for (Communicator* group : groups) {
    auto& [calls, bytes] = counts[group->name().substr(0, group->name().find(' '))];
    calls += group->stats().collectives;
    bytes += group->stats().bytes;
  }
  std::erase_if(counts, [](const auto& entry) { return entry.second.first == 0; });
  return counts;
}

TEST(ForecastVolume, IsWhatThreadRanksCount) {
  for (const Words& layout :
       {Words{"--overlap-grad-reduce", "--ddp-bucket-size", "20000"}, Words{"--use-distributed-optimizer"},
        Words{"--use-distributed-optimizer", "--num-distributed-optimizer-instances", "2"},
        Words{"--data-parallel-sharding-strategy", "optim_grads_params"},
        Words{"--data-parallel-sharding-strategy", "optim_grads_params", "--num-distributed-optimizer-instances", "2",
              "--outer-dp-sharding-strategy", "optim"},
        Words{"--tensor-model-parallel-size", "2"}, Words{"--tensor-model-parallel-size", "2", "--sequence-parallel"},
        Words{"--tensor-model-parallel-size", "4", "--sequence-parallel", "--tp-comm-overlap"},
        Words{"--pipeline-model-parallel-size", "2"},
        Words{"--pipeline-model-parallel-size", "2", "--num-virtual-stages-per-pipeline-rank", "2",
              "--use-distributed-optimizer"},
        Words{"--tensor-model-parallel-size", "2", "--sequence-parallel", "--pipeline-model-parallel-size", "2",
              "--pipeline-schedule", "zb-v"}}) {
    SCOPED_TRACE(testing::PrintToString(layout));
    const Options options = complete(plan_flags() + layout, 4);
    std::map<int, Counted> of_stage;
    std::mutex mutex;
    on_planned_ranks(options, 4, [&](Rank& rank, const std::function<void()>& step) {
      const Counted before = counted(rank);
      step();
      Counted after = counted(rank);
      for (const auto& [axis, count] : before) {
        after[axis].first -= count.first;
        after[axis].second -= count.second;
      }
      const MeshCoordinates& at = rank.mesh.coordinates();
      const std::lock_guard lock(mutex);
      if (at.tp == 0 && at.dp == 0) of_stage[at.pp] = after;
    });
    const Forecast forecast = make_forecast(options, 4, {});
    ASSERT_EQ(of_stage.size(), forecast.stages.size());
    for (const StageForecast& stage : forecast.stages) {
      Counted planned;
      for (const auto& [axis, v] : stage.work.volumes)
        planned[axis] = {static_cast<std::int64_t>(v.calls), static_cast<std::int64_t>(v.bytes)};
      EXPECT_EQ(planned, of_stage[stage.stage]) << "stage " << stage.stage;
    }
  }
}

// The longest microbatch count of a schedule is recorded in part; the rest must be the same once more.
TEST(Forecast, OfFewRecordedMicrobatchesIsThatOfAll) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  for (const Words& layout :
       {Words{"--pipeline-model-parallel-size", "2"},
        Words{"--pipeline-model-parallel-size", "4", "--pipeline-schedule", "zb-h1"},
        Words{"--pipeline-model-parallel-size", "2", "--num-virtual-stages-per-pipeline-rank", "2"},
        Words{"--pipeline-model-parallel-size", "2", "--pipeline-schedule", "dualpipe-v"}}) {
    SCOPED_TRACE(testing::PrintToString(layout));
    const Options options = complete(plan_flags() + layout + Words{"--cuda-graph-impl", "local"}, 4);
    const Forecast all = make_forecast(options, 4, {.rates = &rates, .max_recorded = 1000});
    const Forecast some = make_forecast(options, 4, {.rates = &rates, .max_recorded = 1});
    for (std::size_t s = 0; s < all.stages.size(); ++s) {
      // Live bytes are equal; the arena's layout may have other gaps.
      EXPECT_EQ(some.stages[s].plans.train.live_bytes, all.stages[s].plans.train.live_bytes);
      EXPECT_EQ(some.stages[s].memory.persistent, all.stages[s].memory.persistent);
      EXPECT_DOUBLE_EQ(some.stages[s].work.flops, all.stages[s].work.flops);
      EXPECT_DOUBLE_EQ(some.stages[s].work.ops, all.stages[s].work.ops);
      EXPECT_GT(all.stages[s].plans.graphs.graphs, 0);
      EXPECT_TRUE(some.stages[s].plans.graphs == all.stages[s].plans.graphs);
      for (const auto& [axis, v] : all.stages[s].work.volumes)
        EXPECT_DOUBLE_EQ(some.stages[s].work.volumes.at(axis).bytes, v.bytes);
    }
    EXPECT_NEAR(some.step->seconds, all.step->seconds, 1e-9 * all.step->seconds);
  }
}

TEST(Forecast, LooksAtOneOfStagesThatAreEqual) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  const Options options = complete(plan_flags() + Words{"--pipeline-model-parallel-size", "4"}, 8);
  const Forecast all = make_forecast(options, 8, {.rates = &rates});
  const Forecast some = make_forecast(options, 8, {.rates = &rates, .one_of_equal = true});
  EXPECT_EQ(all.stages.size(), 4u);
  EXPECT_EQ(some.stages.size(), 3u);
  EXPECT_EQ(some.step->max_memory, all.step->max_memory);
  EXPECT_NEAR(some.step->seconds, all.step->seconds, 1e-9 * all.step->seconds);
}

// 1F1B of S stages and M microbatches: (M + S - 1) (F + B + W), by hand for one stage of any number.
TEST(ForecastTime, IsTheSchedules) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  const Forecast one = make_forecast(complete(plan_flags(), 1), 1, {.rates = &rates});
  const StepTimes& times = one.stages[0].times;
  ASSERT_EQ(times.chunks.size(), 1u);
  const double each = times.chunks[0].forward + times.chunks[0].backward_data + times.chunks[0].backward_weight;
  EXPECT_GT(each, 0);
  EXPECT_NEAR(one.step->pipeline_seconds, 16 * each, 1e-12);
  EXPECT_NEAR(one.step->seconds, 16 * each + times.before_norm + times.after_norm, 1e-12);
  EXPECT_DOUBLE_EQ(one.step->bubble_share, 0);
  EXPECT_DOUBLE_EQ(one.step->tokens_per_second, 16 * 32 / one.step->seconds);
}

TEST(ForecastTime, TakesTransfersAndUnevenStagesIntoTheSimulation) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  const CostModel costs(rates, {.width = 64, .length = 1024});
  PipelineLayout pipeline;
  pipeline.placement = {.num_stages = 2};
  const StepTimes first{.chunks = {{.forward = 1, .backward_data = 1, .backward_weight = 1}},
                        .message_bytes = 50'000'000'000};
  const StepTimes second{.chunks = {{.forward = 2, .backward_data = 2, .backward_weight = 2}}, .message_bytes = 0};
  const SimulationSpec spec = durations_of(pipeline, {&first, &second}, costs, 1);
  ASSERT_EQ(spec.parts.size(), 2u);
  EXPECT_DOUBLE_EQ(spec.parts[0].transfer, 0.5);
  EXPECT_DOUBLE_EQ(spec.parts[1].transfer, 0);
  // One microbatch: forwards 1 and 2, backward 2 (the weights' 2 after the gradient has left with the block) and 1 + 1.
  const Simulation run = simulate(make_schedule(ScheduleKind::k1F1B, 2, 1, 1), spec);
  EXPECT_DOUBLE_EQ(run.makespan, 1 + 0.5 + 2 + 4 + 0.5 + 2);
  // Stages on separate hosts: a tenth of the bandwidth.
  EXPECT_DOUBLE_EQ(durations_of(pipeline, {&first, &second}, costs, 4).parts[0].transfer, 5);
}

TEST(CostModel, TakesRingsAndHostsIntoAccount) {
  EXPECT_DOUBLE_EQ(ring_bytes("all_reduce", 100, 4), 150);
  EXPECT_DOUBLE_EQ(ring_bytes("reduce_scatter", 100, 4), 75);
  EXPECT_DOUBLE_EQ(ring_bytes("all_gather", 25, 4), 75);
  EXPECT_DOUBLE_EQ(ring_bytes("send", 100, 2), 100);
  EXPECT_DOUBLE_EQ(ring_bytes("all_reduce", 100, 1), 0);
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  const CostModel costs(rates, {.width = 64, .length = 1024});
  const auto seconds = [&](std::vector<int> ranks) {
    return costs.seconds(PlannedCall{.entry = 0,
                                     .kind = "all_reduce",
                                     .bytes = 1'000'000'000,
                                     .group = "dp",
                                     .ranks = std::make_shared<const std::vector<int>>(std::move(ranks))});
  };
  EXPECT_DOUBLE_EQ(seconds({0, 1, 2, 3}), 0.015);                  // within a host
  EXPECT_DOUBLE_EQ(seconds({0, 4}), 0.1);                          // a link each
  EXPECT_DOUBLE_EQ(seconds({0, 1, 2, 3, 4, 5, 6, 7}), 1.75 / 40);  // four links side by side
}

TEST(CostModel, TakesOpsAtTheirRates) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  const CostModel costs(rates, {.width = 64, .length = 1024});
  std::byte memory{};
  Access product("gemm");
  product.set_cost({.work = Work::kMatrixProduct, .flops = 2e9});
  EXPECT_NEAR(costs.seconds(product), 2e-3, 1e-12);
  Access attention("attention_backward");
  attention.set_cost({.work = Work::kAttentionBackward, .flops = 5e9});
  EXPECT_NEAR(costs.seconds(attention), 5e-3, 1e-12);
  Access other("add");
  other.add(&memory, 3'000'000, false);
  EXPECT_NEAR(costs.seconds(other), 3e-6, 1e-15);
  product.add(&memory, 3'000'000'000, true);
  EXPECT_NEAR(costs.seconds(product), 3e-3, 1e-12) << "bound by memory";
}

TEST(CostModel, TakesWhatOpsTakeToStart) {
  const Rates rates = rates_with(
      {"kernel-us = 10", "graph-kernel-us = 1", "start-us = 2", "start-names = [\"add\"]", "start-names-us = [4]"});
  const CostModel costs(rates, {.width = 64, .length = 1024});
  EXPECT_NEAR(costs.seconds(Access("add")), 14e-6, 1e-15);
  EXPECT_NEAR(costs.seconds(Access("add"), true), 5e-6, 1e-15);
  EXPECT_NEAR(costs.seconds(Access("copy"), true), 3e-6, 1e-15);
  std::byte memory{};
  Access product("gemm");
  product.set_cost({.work = Work::kMatrixProduct, .flops = 2e9, .bytes = 1e6});
  product.add(&memory, 1'000'000, false);
  EXPECT_NEAR(costs.seconds(product), 10e-6 + 2e-6 + 2e-3 + 1e-6, 1e-12);
}

// The GPU's part and the host's.
TEST(ForecastTime, IsThatOfReplaysWithGraphs) {
  const Words local{"--cuda-graph-impl", "local"};
  const auto forecast = [](const Words& flags, const Rates& rates) {
    return make_forecast(complete(plan_flags() + flags, 1), 1, {.rates = &rates});
  };
  const Rates gpu = rates_with({"kernel-us = 10", "graph-kernel-us = 1"});
  const Forecast eager = forecast({}, gpu), graphs = forecast(local, gpu);
  const StepGraphs& counts = graphs.stages[0].plans.graphs;
  EXPECT_NEAR(eager.step->seconds - graphs.step->seconds, 16 * 9e-6 * static_cast<double>(counts.captured_ops), 1e-9);
  const Rates host = rates_with({"launch-us = 10000", "graph-launch-us = 500"});
  EXPECT_NEAR(forecast({}, host).step->seconds, 10e-3 * eager.stages[0].work.ops, 1e-9);
  EXPECT_NEAR(forecast(local, host).step->seconds,
              10e-3 * static_cast<double>(counts.eager_ops) + 0.5e-3 * static_cast<double>(counts.replays), 1e-9);
}

TEST(PrintedActions, AreThoseOfEachStage) {
  const Options options = complete(plan_flags() + Words{"--pipeline-model-parallel-size", "2"}, 2);
  const std::string text = format_actions(options, run_config(options, 2));
  EXPECT_THAT(text, testing::AllOf(testing::StartsWith("stage 0\n    0  begin_step\n    1  zero_gradients\n"),
                                   testing::HasSubstr("  send chunk 0 microbatch 0 output to stage 1\n"),
                                   testing::HasSubstr("  optimizer_step\nstage 1\n    0  begin_step\n"),
                                   testing::HasSubstr("segment 0 column 0 (embedding)\n"),
                                   testing::EndsWith("  optimizer_step\n")));
}

TEST(PrintedActions, NameTheGraphsThatHoldThem) {
  const Options options =
      complete(plan_flags() + Words{"--pipeline-model-parallel-size", "2", "--global-batch-size", "2",
                                    "--cuda-graph-impl", "transformer_engine", "--cuda-graph-modules", "attn"},
               2);
  const std::string text = format_actions(options, run_config(options, 2));
  EXPECT_THAT(text, testing::HasSubstr("segment 0 column 0 (embedding)\n"));
  EXPECT_THAT(
      text, testing::ContainsRegex(R"(forward chunk 0 microbatch 0 segment 1 column 0 \(layer 0 attention\) graph 0)"));
  EXPECT_THAT(text, testing::ContainsRegex("optimizer_step\n"
                                           "graphs per rank of stage 0\n"
                                           "  of +attn, captured after 1 warmup step[^\n"
                                           "]*; transformer_engine means local here\n"
                                           "  captured +8\n"));
  EXPECT_THAT(text, testing::ContainsRegex("graphs per rank of stage 1\n  of [^\n]*\n  captured +8\n"));
}

}  // namespace
}  // namespace megalith::test
