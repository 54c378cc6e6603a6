// Sharded experts: rows by closed formulas and by counts of thread ranks; work, memory and times.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "apps/config/parallel_options.h"
#include "apps/config/training_options.h"
#include "apps/cost/expert_rows.h"
#include "apps/forecast/forecast.h"
#include "apps/forecast/suggest.h"
#include "apps/plan/plan_tables.h"
#include "tests/support/matchers.h"
#include "tests/unit/plan/plan_support.h"

namespace megalith::test {
namespace {

constexpr double kHidden = 64, kChoices = 2, kAllExperts = 8, kLayers = 4, kTokens = 32, kBatch = 16;

Words flags(int ep, const Words& more = {}) {
  return plan_flags() +
         words("--swiglu --disable-bias-linear --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 48") +
         Words{"--expert-model-parallel-size", std::to_string(ep)} + more;
}

Forecast forecast(int ep, int ranks, const Words& more = {}, const Rates* rates = nullptr) {
  return make_forecast(complete(flags(ep, more), ranks), ranks, {.rates = rates});
}

// Tokens that a rank of `ranks` sends to others, with 2 different choices of 8.
double sent_tokens(double ranks) {
  const double others = kAllExperts - kAllExperts / ranks,
               elsewhere = others / kAllExperts * (others - 1) / (kAllExperts - 1);
  return std::round(kTokens * (ranks - 1) * (1 - elsewhere));
}

// Forward sends fp32 rows with choices and weights and returns sums of one group; backward sends gradients and returns
// gradients with those of weights. In addition, all ranks gather the row counts once a layer and microbatch.
TEST(ExpertsForecast, SendsEachTokenOnceToEachRankThatItChose) {
  for (const int ep : {2, 4}) {
    const StepWork work = forecast(ep, 4).stages.at(0).work;
    const double calls = kLayers * kBatch / 4, rows = calls * sent_tokens(ep);
    const double numbers = calls * (ep - 1) * 4 * (ep + 1);
    EXPECT_DOUBLE_EQ(work.forward.out.sent, rows * 4 * (kHidden + 2 * kChoices) + numbers) << ep;
    EXPECT_DOUBLE_EQ(work.forward.home.sent, rows * 4 * kHidden) << ep;
    EXPECT_DOUBLE_EQ(work.backward.out.sent, rows * 4 * kHidden) << ep;
    EXPECT_DOUBLE_EQ(work.backward.home.sent, rows * 4 * (kHidden + kChoices)) << ep;
    EXPECT_DOUBLE_EQ(work.forward.home.calls + work.backward.out.calls + work.backward.home.calls, 3 * calls);
    const double rows_sent =
        work.forward.out.sent + work.forward.home.sent + work.backward.out.sent + work.backward.home.sent;
    const AxisVolume& all = work.volumes.at("dispatch");  // sums of squares too
    EXPECT_NEAR(all.sent, rows_sent, 0.01 * rows_sent);
    EXPECT_DOUBLE_EQ(all.calls, 5 * calls + 1);
  }
  EXPECT_FALSE(forecast(1, 4).stages.at(0).work.volumes.contains("dispatch"));
}

TEST(ExpertsForecast, CountsRowsThatAreExpectedWhateverTheRoom) {
  const auto flops = [](int ep, const Words& more) { return forecast(ep, 4, more).stages.at(0).work.flops; };
  const double whole = flops(1, {});
  for (const Words& more :
       {Words{}, Words{"--moe-expert-rank-capacity-factor", "3"}, Words{"--moe-token-dispatcher-type", "allgather"},
        Words{"--moe-grouped-gemm", "--use-transformer-engine-op-fuser"}})
    EXPECT_NEAR(flops(2, more) / whole, 1, 1e-12) << testing::PrintToString(more);
  EXPECT_NEAR(flops(2, {"--expert-tensor-parallel-size", "2"}) / whole, 1, 1e-12);
  EXPECT_GT(flops(2, {"--recompute-granularity", "selective", "--recompute-modules", "moe"}), 1.1 * whole);
}

TEST(ExpertsForecast, HoldsAShareOfTheExpertsAndTheRoom) {
  const auto memory = [](int ep, const Words& more) { return forecast(ep, 4, more).stages.at(0).memory; };
  const auto parameters = [&](int ep, const Words& more) {
    return static_cast<double>(memory(ep, more).persistent[static_cast<std::size_t>(MemoryCategory::kParameters)]);
  };
  const double experts = kLayers * kAllExperts * 3 * 48 * kHidden * 4, whole = parameters(1, {});
  EXPECT_NEAR(whole - parameters(2, {}), experts / 2, 0.01 * experts);
  EXPECT_NEAR(whole - parameters(4, {}), experts * 3 / 4, 0.01 * experts);
  EXPECT_NEAR(whole - parameters(2, {"--expert-tensor-parallel-size", "2"}), experts * 3 / 4, 0.01 * experts);
  EXPECT_GT(memory(4, {"--moe-expert-rank-capacity-factor", "3"}).arena, memory(4, {}).arena);
}

TEST(ExpertsForecast, TakesRowsStraightToTheirRanks) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  const CostModel costs(rates, {.width = 64, .length = 1024});
  const auto seconds = [&](std::vector<int> ranks, std::size_t padded) {
    return costs.seconds(PlannedCall{.entry = 0,
                                     .kind = "exchange_rows",
                                     .bytes = 1'000'000'000,
                                     .group = "dispatch",
                                     .ranks = std::make_shared<const std::vector<int>>(std::move(ranks)),
                                     .padded = padded});
  };
  EXPECT_DOUBLE_EQ(seconds({0, 1, 2, 3}, 0), 0.005);  // read by peers
  // In equal parts, by the host's links; packed and unpacked by the memory's rate.
  EXPECT_DOUBLE_EQ(seconds({0, 1, 2, 3}, 2'000'000'000), 0.02 + 0.008);
  EXPECT_DOUBLE_EQ(seconds({2, 3, 4, 5}, 0), 0.1 * 2 / 3);  // two of three peers by the network
  EXPECT_DOUBLE_EQ(seconds({0, 4}, 3'000'000'000), 0.3 + 0.012);
  const auto way = [&](const Words& more, int ep) { return forecast(ep, 8, more, &rates).dispatcher; };
  EXPECT_EQ(way({"--device", "cuda"}, 4), MoeTokenDispatcher::kFlex);
  EXPECT_EQ(way({"--device", "cuda"}, 8), MoeTokenDispatcher::kAllToAll);  // over two hosts
  EXPECT_EQ(way({}, 4), MoeTokenDispatcher::kAllToAll);
}

TEST(ExpertsForecast, ReportsHowLongTheStepWaitsForRows) {
  const Rates rates = rates_with({"peer-gbps = 0.1", "host-link-gbps = 0.1"});
  const Forecast alone = forecast(2, 2, {"--moe-shared-expert-intermediate-size", "512"}, &rates),
                 concurrent = forecast(
                     2, 2, {"--moe-shared-expert-intermediate-size", "512", "--moe-shared-expert-overlap"}, &rates);
  const auto seconds = [](const Forecast& forecast) {
    return forecast.stages.at(0).work.volumes.at("dispatch").seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(alone), seconds(concurrent));
  const double waits = alone.stages.at(0).times.exposed_rows, left = concurrent.stages.at(0).times.exposed_rows;
  EXPECT_LT(waits, seconds(alone));  // experts' weight gradients overlap the return
  EXPECT_GT(waits, 0.9 * seconds(alone));
  EXPECT_LT(left, waits);
  EXPECT_GT(left, 0);
  EXPECT_NEAR(alone.step->seconds - concurrent.step->seconds, waits - left, 0.02 * (waits - left));
}

// If one graph, or none, holds the verbs around experts' weight gradients, these hide as much as in eager steps.
TEST(ExpertsForecast, HidesRowsUnderWeightGradientsInGraphsToo) {
  const Rates rates = rates_with({"peer-gbps = 0.1", "host-link-gbps = 0.1"});
  const auto exposed = [&](const Words& more) { return forecast(2, 2, more, &rates).stages.at(0).times.exposed_rows; };
  const auto in_graphs = [&](const Words& modules, const Words& more = {}) {
    return exposed(Words{"--cuda-graph-impl", "local", "--cuda-graph-modules"} + modules + more);
  };
  const double eager = exposed({}), delayed = exposed({"--delay-wgrad-compute"});
  EXPECT_LT(eager, delayed);
  for (const Words& modules : {Words{"layer"}, Words{"attn", "moe"}, Words{"attn", "moe_router"}})
    EXPECT_NEAR(in_graphs(modules), eager, 1e-9) << testing::PrintToString(modules);
  EXPECT_NEAR(in_graphs({"attn", "moe_router", "moe_preprocess"}), delayed, 1e-9);
  EXPECT_NEAR(in_graphs({"layer"}, {"--delay-wgrad-compute"}), delayed, 1e-9);
}

// Sends are random, except those of allgather.
TEST(ExpertsForecast, IsWhatThreadRanksSend) {
  for (const char* type : {"allgather", "alltoall"}) {
    SCOPED_TRACE(type);
    const Options options =
        complete(flags(2, {"--moe-token-dispatcher-type", type, "--moe-router-force-load-balancing"}), 4);
    std::mutex mutex;
    CommunicatorStats sent;
    on_planned_ranks(options, 4, [&](const Rank& rank, const std::function<void()>& step) {
      step();
      const CommunicatorStats own = rank.mesh.dispatch().stats();
      const std::lock_guard lock(mutex);
      sent.collectives = own.collectives;
      sent.bytes += own.bytes;
    });
    const StepWork planned = make_forecast(options, 4, {}).stages.at(0).work;
    double calls = 0, bytes = 0;
    for (const StepWork::Rows& rows : {planned.forward, planned.backward}) {
      calls += rows.out.calls + rows.home.calls;
      bytes += rows.out.bytes + rows.home.bytes;
    }
    EXPECT_EQ(sent.collectives, static_cast<std::int64_t>(calls));
    EXPECT_NEAR(static_cast<double>(sent.bytes) / (4 * bytes), 1, type == std::string("allgather") ? 0 : 0.1);
  }
}

TEST(ExpertsForecast, IsATable) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  const Options options = complete(flags(4, {"--pipeline-model-parallel-size", "2"}), 8);
  const Forecast two = make_forecast(options, 8, {.rates = &rates});
  const std::string text = to_text(experts_table(options, two));
  EXPECT_THAT(text, testing::AllOf(testing::StartsWith("experts: 2 of 8 on a rank (etp 1 x ep 4, 1 copy)\n"),
                                   HasSubstr("tokens that arrive                     59, capacity 128\n"),
                                   HasSubstr("rows of its experts                    64, capacity 128\n"),
                                   HasSubstr("  stage 1\n    forward, dispatch"), HasSubstr("ms per step\n")));
  const Options whole = complete(flags(1), 8);
  EXPECT_TRUE(experts_table(whole, make_forecast(whole, 8, {})).rows.empty());
}

// For slow gradient sums and fast rows; other layouts keep all experts on each rank.
TEST(ExpertsForecast, IsWeighedAmongLayouts) {
  const Rates rates = rates_with({"host-link-gbps = 1", "peer-gbps = 1000", "host-ranks = 8"});
  Words given = flags(1);
  given.resize(given.size() - 2);
  given[1] = "2";  // layers
  const auto suggest = [&](int ranks, std::size_t count) {
    Options options = complete(given, 1);
    options.parallel.world_size = ranks;
    options.train.global_batch_size = 12;
    return suggest_layouts(options, ranks, {.rates = &rates, .max_memory = std::size_t{1} << 40, .count = count});
  };
  const Suggestions found = suggest(2, 1000);
  int whole = 0, shared_out = 0;
  for (const Suggestion& suggestion : found.best) {
    SCOPED_TRACE(testing::PrintToString(suggestion.flags));
    const Options again = complete(given + suggestion.flags + Words{"--global-batch-size", "12"}, 2);
    EXPECT_NEAR(make_forecast(again, 2, {.rates = &rates}).step->seconds / suggestion.step.seconds, 1, 1e-9);
    (again.parallel.expert_model_parallel_size > 1 ? shared_out : whole) += 1;
    EXPECT_EQ(again.parallel.expert_tensor_parallel_size, 1);
  }
  EXPECT_GT(whole, 0);
  EXPECT_GT(shared_out, 0);
  const auto first = std::ranges::find_if(found.best, [](const Suggestion& suggestion) {
    return std::ranges::find(suggestion.flags, "--pipeline-model-parallel-size") == suggestion.flags.end();
  });
  EXPECT_THAT(first->flags, testing::Contains("--expert-model-parallel-size"));
  EXPECT_GT(suggest(3, 1).dropped.at("heads, hidden size, layers, experts or batch size do not divide"), 0);
}

// Memory agrees with the comments of the configurations.
TEST(ExpertsForecast, LargeModelsFitWhereTheirConfigurationsSaySo) {
  const Rates rates = read_rates(MEGALITH_SOURCE_DIR "/configs/rates/h200.toml");
  const auto gib = [&](const std::string& model, int ranks) {
    const Options options =
        complete({"--config", MEGALITH_SOURCE_DIR "/configs/" + model + ".toml", "--device", "cuda", "--tokenizer-type",
                  "null", "--global-batch-size", std::to_string(ranks), "--expert-model-parallel-size", "4",
                  "--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather",
                  "--main-grads-dtype", "bf16", "--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "bf16"},
                 ranks);
    const Forecast forecast = make_forecast(options, ranks, {.rates = &rates});
    EXPECT_GT(forecast.stages.at(0).times.exposed_rows, 0) << model;
    return static_cast<double>(forecast.step->max_memory) / (1 << 30);
  };
  EXPECT_NEAR(gib("qwen3_30b_a3b", 4), 109, 1);
  EXPECT_NEAR(gib("mixtral_8x7b", 8), 123, 1);
}

}  // namespace
}  // namespace megalith::test
