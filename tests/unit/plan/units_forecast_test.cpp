// Forecasts of sharded units: collectives of a step however much of it was recorded, exposed time, and rank among the
// suggestions.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "apps/config/parallel_options.h"
#include "apps/forecast/suggest.h"
#include "apps/summary/format_actions.h"
#include "core/model/config.h"
#include "fsdp/sharded_units.h"
#include "tests/unit/plan/plan_support.h"

namespace megalith::test {
namespace {

const Words kUnits{"--data-parallel-sharding-strategy", "optim_grads_params"};

// 4 layers and 2 slots: 8 gathers a microbatch; each turn from forward to backward, and back, saves 2.
TEST(ForecastUnits, CountsOfAStepAreThoseOfItsMicrobatches) {
  for (const std::int64_t microbatches : {1, 3, 16}) {
    const Words batch{"--global-batch-size", std::to_string(4 * microbatches)};
    const Options options = complete(plan_flags() + kUnits + batch, 4);
    const StepWork work = make_forecast(options, 4, {}).stages[0].work;
    EXPECT_EQ(work.gathers.calls, 6 + 4 * static_cast<double>(microbatches - 1));
    EXPECT_EQ(work.reductions.calls, 4 * static_cast<double>(microbatches));
    // A ring sends 3 of 4 parts of a layer in fp32; units are padded.
    const double layer = 0.75 * 4 * (12 * 64 * 64 + 13 * 64);
    EXPECT_NEAR(work.gathers.sent / work.gathers.calls / layer, 1, 0.05);
    EXPECT_NEAR(work.reductions.sent / work.reductions.calls / layer, 1, 0.05);
  }
}

// Shards of both ends and their common slot are sometimes smaller than unsharded ends. This holds on one stage with
// more than two ranks, or with gradients in slots of a smaller dtype.
TEST(ForecastUnits, ShardsOfEmbeddingAndHeadNeedLessOrMoreByLayout) {
  struct Case {
    int ranks;
    const char* flags;
    bool less;
  };
  for (const Case& c : {Case{2, "--loss-chunk-size 0", false},
                        {3, "--loss-chunk-size 0", true},
                        {4, "--loss-chunk-size 8", true},
                        {4, "--pipeline-model-parallel-size 2", false},
                        {2, "--bf16 --megatron-fsdp-grad-comm-dtype bf16", true},
                        {4, "--bf16 --megatron-fsdp-grad-comm-dtype bf16 --loss-chunk-size 8", true}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {}", c.ranks, c.flags));
    const auto bytes = [&](const char* ends) {
      const Words more = words(
          "--untie-embeddings-and-output-weights --vocab-size 4000 --global-batch-size 12 "
          "--fsdp-embedding-and-head");
      const Options options = complete(plan_flags() + kUnits + more + Words{ends} + words(c.flags), c.ranks);
      return make_forecast(options, c.ranks, {}).stages[0].memory.total();
    };
    const std::size_t whole = bytes("whole"), sharded = bytes("sharded");
    EXPECT_EQ(sharded < whole, c.less) << sharded << " and " << whole;
  }
}

// A layer of them has two units, of which experts' are of tensor-parallel ranks too.
TEST(ForecastUnits, ExpertsAreOfAllRanksThatHoldThem) {
  const Options options =
      complete(plan_flags() + kUnits +
                   Words{"--global-batch-size", "2", "--swiglu", "--disable-bias-linear", "--num-experts", "4",
                         "--tensor-model-parallel-size", "2", "--sequence-parallel"},
               4);
  const StepWork work = make_forecast(options, 4, {}).stages[0].work;
  EXPECT_EQ(work.gathers.calls, 2 * 6);
  EXPECT_GT(work.volumes.at("edp").calls, 4 * 3 - 2);
  EXPECT_GT(work.volumes.at("edp").bytes, work.volumes.at("dp").bytes);
}

TEST(ForecastUnits, OfFewRecordedMicrobatchesAreThoseOfAll) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  for (const char* const schedule : {"1f1b", "zb-h1"}) {
    const Options options = complete(
        plan_flags() + kUnits + Words{"--pipeline-model-parallel-size", "2", "--pipeline-schedule", schedule}, 4);
    const Forecast all = make_forecast(options, 4, {.rates = &rates, .max_recorded = 1000});
    const Forecast some = make_forecast(options, 4, {.rates = &rates, .max_recorded = 1});
    for (std::size_t s = 0; s < all.stages.size(); ++s) {
      const StepWork &want = all.stages[s].work, &got = some.stages[s].work;
      EXPECT_EQ(got.gathers.calls, want.gathers.calls);
      EXPECT_EQ(got.reductions.calls, want.reductions.calls);
      EXPECT_EQ(got.ops, want.ops);
      EXPECT_EQ(got.volumes.at("dp").calls, want.volumes.at("dp").calls);
      EXPECT_DOUBLE_EQ(got.volumes.at("dp").bytes, want.volumes.at("dp").bytes);
    }
    EXPECT_NEAR(some.step->seconds, all.step->seconds, 0.05 * all.step->seconds);
  }
}

TEST(ForecastUnits, ReportsWhatTheComputeStreamWaitsFor) {
  const auto forecast = [](const Words& flags, const char* link, const char* all = "host-link-gbps = 1000000000") {
    const Rates rates = rates_with({link, all});
    return make_forecast(complete(plan_flags() + Words{"--global-batch-size", "8"} + flags, 4), 4, {.rates = &rates});
  };
  const char* const kFast = "unit-copies-gbps = 10000000";
  const char* const kSlow = "unit-copies-gbps = 1";
  const Forecast fast = forecast(kUnits, kFast), slow = forecast(kUnits, kSlow);
  const StepTimes& hidden = fast.stages[0].times;
  EXPECT_LT(hidden.exposed_gathers + hidden.exposed_reductions, 0.01 * fast.step->seconds);
  const StepTimes& shown = slow.stages[0].times;
  const StepWork& work = slow.stages[0].work;
  // The links are busy for nearly all of the step.
  EXPECT_GT(shown.exposed_gathers, 0.5 * work.gathers.seconds);
  EXPECT_GT(shown.exposed_reductions, 0);
  EXPECT_LE(shown.exposed_gathers + shown.exposed_reductions, work.gathers.seconds + work.reductions.seconds);
  EXPECT_GT(slow.step->seconds, fast.step->seconds + 0.9 * (shown.exposed_gathers + shown.exposed_reductions));
  // A partly recorded step still describes the full step.
  const Forecast longer = forecast(kUnits + Words{"--global-batch-size", "64"}, kSlow);
  EXPECT_GT(longer.stages[0].times.exposed_gathers, 6 * shown.exposed_gathers);
  // With only one slot nothing is gathered while a layer works.
  const char* const kMiddle = "unit-copies-gbps = 100";
  const Words one_slot{"--fsdp-unit-slots", "1", "--fsdp-prefetch", "0"};
  EXPECT_LT(forecast(kUnits, kMiddle).stages[0].times.exposed_gathers,
            forecast(kUnits + one_slot, kMiddle).stages[0].times.exposed_gathers);
  // Gathers and reductions have half a link each.
  const Forecast shared = forecast(kUnits, kSlow, "host-link-gbps = 1");
  const StepTimes& halved = shared.stages[0].times;
  EXPECT_GT(halved.exposed_gathers + halved.exposed_reductions,
            shown.exposed_gathers + shown.exposed_reductions + 0.2 * work.gathers.seconds);
  EXPECT_EQ(shared.stages[0].work.gathers.seconds, work.gathers.seconds);
  // With one slot of gradients a layer's reduction ends ahead of the next one's backward.
  const Words one_of_gradients{"--fsdp-gradient-slots", "1"};
  EXPECT_GT(forecast(kUnits + one_of_gradients, kMiddle).stages[0].times.exposed_reductions,
            forecast(kUnits, kMiddle).stages[0].times.exposed_reductions);
}

TEST(ForecastUnits, GradientsOfWholeUnitsAreSlowerDuringProducts) {
  const auto seconds = [](const Words& flags, const char* busy) {
    const Rates rates = rates_with({busy, "overlap-share = 0.5"});
    const Words shards = plan_flags() + Words{"--global-batch-size", "8", "--use-distributed-optimizer"};
    return make_forecast(complete(shards + flags, 4), 4, {.rates = &rates}).step->seconds;
  };
  const Words overlaps{"--overlap-grad-reduce", "--overlap-param-gather", "--ddp-bucket-size", "1"};
  EXPECT_GT(seconds(overlaps, "host-link-busy-gbps = 50"), seconds(overlaps, "host-link-busy-gbps = 100"));
  EXPECT_EQ(seconds({}, "host-link-busy-gbps = 50"), seconds({}, "host-link-busy-gbps = 100"));
}

// Counts all time except the part hidden by computing, which is almost nothing. Gradients are in one bucket or many,
// and the next step's weights may follow.
TEST(ForecastUnits, GradientsThatAreWaitedForHaveTheWholeLink) {
  const auto seconds = [](const Words& more, const char* link, const char* busy) {
    const Rates rates = rates_with({link, busy, "overlap-share = 1"});
    const Words flags =
        plan_flags() + more + Words{"--global-batch-size", "8", "--use-distributed-optimizer", "--overlap-grad-reduce"};
    return make_forecast(complete(flags, 4), 4, {.rates = &rates}).step->seconds;
  };
  const char* const kBusy = "host-link-busy-gbps = 0.01";
  for (const Words& more : {Words{}, Words{"--ddp-bucket-size", "1"}, Words{"--overlap-param-gather"},
                            Words{"--overlap-param-gather", "--ddp-bucket-size", "1"}}) {
    SCOPED_TRACE(testing::PrintToString(more));
    const double slow = seconds(more, "host-link-gbps = 0.01", kBusy);
    EXPECT_NEAR(seconds(more, "host-link-gbps = 0.1", kBusy), 0.1 * slow, 0.01 * slow);
  }
}

// A ring of 4 sends 3/4 of a unit; all of its parts are read again, and the shard is read and written.
TEST(ForecastUnits, CopiesAreSummedInOnePass) {
  const Rates rates = rates_with({"unit-copies-gbps = 60", "peer-us = 3"});
  const CostModel costs(rates, {.width = 64, .length = 1024}, 8);
  PlannedCall call{.kind = "reduce_scatter", .bytes = 80'000'000'000, .group = "dp"};
  call.ranks = std::make_shared<const std::vector<int>>(std::vector<int>{0, 1, 2, 3});
  EXPECT_NEAR(costs.unit_seconds(call, kSumRoom).link, 3e-6 + 1, 1e-9);
  EXPECT_NEAR(costs.unit_seconds(call, kSumRoom).sum, 0.08 * 1.5, 1e-12);
  call.kind = "all_gather";
  EXPECT_NEAR(costs.unit_seconds(call, kSumRoom).link, 3e-6 + 4, 1e-9);
  EXPECT_EQ(costs.unit_seconds(call, kSumRoom).sum, 0);
  // Over hosts: a collective.
  call.ranks = std::make_shared<const std::vector<int>>(std::vector<int>{0, 1, 4, 5});
  EXPECT_EQ(costs.unit_seconds(call, kSumRoom).link, costs.seconds(call));
}

// Messages between stages on one host are copies too; NCCL carries the others.
TEST(ForecastUnits, HaveTheRateOfMessages) {
  const Rates rates = rates_with({"unit-copies-gbps = 50", "peer-us = 3"});
  const CostModel costs(rates, {.width = 64, .length = 1024}, 8);
  EXPECT_NEAR(costs.transfer_seconds(100'000'000'000, 3, 2), 2 + 3e-6, 1e-9);
  EXPECT_NEAR(costs.transfer_seconds(100'000'000'000, 3, 4), 10, 1e-9);
  PlannedCall call{.kind = "send", .bytes = 100'000'000'000, .group = "pp 2 to 3"};
  call.ranks = std::make_shared<const std::vector<int>>(std::vector<int>{2, 3});
  EXPECT_NEAR(costs.seconds(call), 2 + 3e-6, 1e-9);
}

// A model whose layers use most of the memory: shards fit, replicas of the weights do not.
TEST(ForecastUnits, AreSuggestedWhereMemoryAsksForThem) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  Words flags = plan_flags() + Words{"--global-batch-size", "4"};
  flags[1] = "8";
  Options options = complete(flags, 1);
  options.parallel.world_size = 4;
  const auto suggest = [&](std::size_t memory) {
    return suggest_layouts(options, 4, {.rates = &rates, .max_memory = memory, .count = 1000});
  };
  const auto is_of = [](const char* strategy) {
    return [=](const Suggestion& one) { return std::ranges::find(one.flags, strategy) != one.flags.end(); };
  };
  const auto shards_weights = is_of("optim_grads_params"), shards_gradients = is_of("optim_grads");
  const Suggestions plenty = suggest(std::size_t{1} << 40);
  EXPECT_TRUE(std::ranges::none_of(plenty.best, shards_weights));
  EXPECT_TRUE(std::ranges::none_of(plenty.best, shards_gradients));
  const auto parameters = static_cast<std::size_t>(count_parameters(options.model).total);
  const Suggestions few = suggest(11 * parameters);  // a replica's weights, gradients and shards have 10 bytes each
  ASSERT_FALSE(few.best.empty());
  for (const char* const strategy : {"optim_grads", "optim_grads_params"}) {
    const auto one = std::ranges::find_if(few.best, is_of(strategy));
    ASSERT_NE(one, few.best.end()) << strategy;
    const Forecast again = make_forecast(complete(flags + one->flags, 4), 4, {.rates = &rates});
    EXPECT_NEAR(again.step->seconds, one->step.seconds, 1e-9 * one->step.seconds);
    expect_memory_of_suggestion(again.step->max_memory, one->step.max_memory);
  }
}

TEST(PrintedActions, HaveThoseOfUnits) {
  const Options options = complete(plan_flags() + kUnits + Words{"--global-batch-size", "2"}, 2);
  const std::string text = format_actions(options, run_config(options, 2));
  EXPECT_THAT(text, testing::HasSubstr("wait_unshard unit 1"));
  EXPECT_THAT(text, testing::HasSubstr("reduce_shard unit 4"));
  EXPECT_THAT(text, testing::ContainsRegex("optimizer_step\n(.*\n)*.*unshard unit 1\n.*unshard unit 2\n$"));
}

}  // namespace
}  // namespace megalith::test
