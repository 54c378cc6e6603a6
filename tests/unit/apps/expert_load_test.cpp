// How rows were spread over experts: from the counts of a step to what a user sees of them.
#include "moe/expert_load.h"

#include <gtest/gtest.h>

#include <cmath>

#include "apps/metrics/metrics.h"
#include "apps/metrics/metrics_reader.h"
#include "apps/report/report_page.h"
#include "core/model/config.h"
#include "tests/support/matchers.h"
#include "tests/support/rendered_page.h"
#include "tests/unit/apps/flags_support.h"

namespace megalith {
namespace {

constexpr std::int64_t kTokens = 100;  // of 2 choices each

// The first layer dense, two of four experts.
ModelConfig model() {
  ModelConfig config{.num_layers = 3};
  config.moe = {.num_experts = 4, .layer_freq = "[0]+[1]*2", .router_topk = 2};
  config.moe.router_load_balancing_type = {"aux_loss"};
  config.moe.aux_loss_coeff = {0.5};
  return config;
}

std::vector<ExpertLoad> two_layers() {
  // The loss, then of each layer the loss of balance, times its coefficient and the tokens, and the z loss, of which
  // there is none.
  const std::vector<float> sums{7, 100, 0, 50, 0};
  return expert_loads(model(), kTokens, sums, std::vector<std::int32_t>{50, 50, 50, 50, 0, 20, 80, 90});
}

TEST(ExpertLoads, AreOfEachLayerOfExperts) {
  const std::vector<ExpertLoad> loads = two_layers();
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_EQ(loads[0].layer, 1);
  EXPECT_EQ(loads[0].min, 50);
  EXPECT_EQ(loads[0].max, 50);
  EXPECT_EQ(loads[0].dropped, 0);
  EXPECT_DOUBLE_EQ(loads[0].entropy, 1);
  EXPECT_FLOAT_EQ(*loads[0].load_balancing_loss, 2);
  EXPECT_EQ(loads[0].z_loss, std::nullopt);
  EXPECT_EQ(loads[1].layer, 2);
  EXPECT_EQ(loads[1].min, 0);
  EXPECT_EQ(loads[1].max, 90);
  EXPECT_DOUBLE_EQ(loads[1].mean, 47.5);
  EXPECT_EQ(loads[1].dropped, 10);
  const double a = 2.0 / 19, b = 8.0 / 19, c = 9.0 / 19;
  EXPECT_NEAR(loads[1].entropy, -(a * std::log(a) + b * std::log(b) + c * std::log(c)) / std::log(4.0), 1e-12);
  EXPECT_EQ(worst_load(loads), &loads[1]);
  EXPECT_EQ(worst_load({}), nullptr);
  EXPECT_TRUE(expert_loads(ModelConfig{.num_layers = 3}, kTokens, {}, {}).empty());
}

TEST(ExpertLoads, OfOneExpertOrOneThatHasAllAreReported) {
  ModelConfig config = model();
  config.num_layers = 1;
  config.moe.layer_freq = "1";
  config.moe.num_experts = 1;
  EXPECT_EQ(expert_loads(config, kTokens, std::vector<float>(3), std::vector<std::int32_t>{200})[0].entropy, 1);
  config.moe.num_experts = 2;
  EXPECT_EQ(expert_loads(config, kTokens, std::vector<float>(3), std::vector<std::int32_t>{0, 200})[0].entropy, 0);
}

// Of the experts' counts, then of the ranks that share them out.
TEST(ExpertLoads, ReportTheRowsSentToOtherRanks) {
  EXPECT_EQ(two_layers()[1].rows_sent, std::nullopt);
  const std::vector<ExpertLoad> loads =
      expert_loads(model(), kTokens, std::vector<float>(5),
                   std::vector<std::int32_t>{50, 50, 50, 50, 0, 20, 80, 90, 30, 12, 2000000000, 2000000000}, 2);
  EXPECT_EQ(two_layers()[1].rank_max_over_mean, std::nullopt);
  EXPECT_DOUBLE_EQ(*loads[0].rank_max_over_mean, 1);
  EXPECT_DOUBLE_EQ(*loads[1].rank_max_over_mean, 2 * 170 / 190.0);  // of its ranks 20 and 170
  EXPECT_EQ(loads[1].max, 90);
  EXPECT_EQ(loads[0].rows_sent, 42);
  EXPECT_EQ(loads[1].rows_sent, 4000000000);
  StepMetrics metrics{.iteration = 1, .experts = loads, .expert_room_used = 0.75, .expert_room_regrows = 2};
  EXPECT_THAT(to_json_line(metrics),
              HasSubstr(R"("dropped": [0, 10], "rank_max_over_mean": [1, 1.78947], "rows_sent": [42, 4000000000])"));
  EXPECT_THAT(to_json_line(metrics), HasSubstr(R"(, "expert_room_used": 0.75, "expert_room_regrows": 2)"));
  EXPECT_THAT(to_json_line({.iteration = 1, .experts = two_layers()}), Not(HasSubstr("expert_room")));
}

TEST(ExpertLoads, AreOneFieldOfTheMetrics) {
  StepMetrics metrics{.iteration = 1};
  EXPECT_THAT(to_json_line(metrics), Not(HasSubstr("experts")));
  metrics.experts = two_layers();
  EXPECT_THAT(to_json_line(metrics),
              HasSubstr(R"(, "experts": {"layer": [1, 2], "min": [50, 0], "max": [50, 90], "mean": [50, 47.5], )"
                        R"("entropy": [1, 0.688982], "dropped": [0, 10], "load_balancing_loss": [2, 1]})"));
}

TEST(ExpertLoads, OfTheWorstLayerAreInTheLogLine) {
  StepMetrics metrics{.iteration = 1, .experts = two_layers()};
  metrics.experts[1].dropped = 0;
  EXPECT_THAT(format_log_line(log_line_of(metrics), "t"),
              HasSubstr(" nan iterations: 0 | expert load max/mean: 1.89, min/mean: 0.00, entropy: 0.689 "
                        "(layer 2) | dropped rows: 0 | tok"));
  metrics.experts[1].dropped = 10;
  metrics.experts[1].rank_max_over_mean = 1.25;
  EXPECT_THAT(format_log_line(log_line_of(metrics), "t"),
              HasSubstr(", entropy: 0.689, by rank max/mean: 1.25 (layer 2) | dropped rows: 10 | tok"));
  testing::internal::CaptureStdout();
  {
    StepLog log({.log_interval = 1, .log_format = LogFormat::kMegatron}, {});
    log.step({.iteration = 1, .train_iters = 2, .step_ms = 1, .experts = two_layers()});
  }
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              AllOf(HasSubstr("entropy: 0.689 (layer 2) | dropped rows: 10 |"), Not(HasSubstr("throughput"))));
}

class ExpertLoadFile : public test::InFolder {
 protected:
  static MetricsRun read(const std::string& line) {
    std::ofstream("m.jsonl") << line << "\n";
    return read_metrics("m.jsonl");
  }
  static std::string refusal(const std::string& line) {
    try {
      read(line);
    } catch (const Error& error) {
      return error.what();
    }
    return "read";
  }
};

TEST_F(ExpertLoadFile, IsReadBack) {
  StepMetrics metrics{.iteration = 1, .load_balancing_loss = 1.5f};
  metrics.experts = two_layers();
  const MetricsRun run = read(to_json_line(metrics));
  const StepMetrics& record = run.records.at(0);
  EXPECT_EQ(record.load_balancing_loss, 1.5f);
  ASSERT_EQ(record.experts.size(), 2u);
  EXPECT_EQ(record.experts[1].layer, 2);
  EXPECT_EQ(record.experts[1].dropped, 10);
  EXPECT_DOUBLE_EQ(record.experts[1].max_over_mean(), 90 / 47.5);
  EXPECT_DOUBLE_EQ(record.experts[1].min_over_mean(), 0);
  EXPECT_DOUBLE_EQ(record.experts[1].entropy, 0.688982);
  EXPECT_EQ(record.experts[0].rows_sent, std::nullopt);
  EXPECT_EQ(record.expert_room_used, std::nullopt);
  EXPECT_TRUE(read(R"({"iteration": 1})").records.at(0).experts.empty());  // as earlier versions wrote it
  metrics.experts[0].z_loss = 1e30f;                                       // of a run that diverges
  EXPECT_EQ(read(to_json_line(metrics)).records.at(0).experts[0].z_loss, 1e30f);
}

TEST_F(ExpertLoadFile, IsRefusedWhereItIsNotWhole) {
  const auto line = [](const std::string& arrays) {
    return R"({"iteration": 1, "experts": {"layer": [1, 2], )" + arrays + "}}";
  };
  EXPECT_THAT(refusal(line(R"("min": [1])")),
              HasSubstr("m.jsonl:1: experts: min: expected 2 numbers, as many as layers, got 1"));
  EXPECT_THAT(refusal(line(R"("min": 1)")), HasSubstr("m.jsonl:1: experts: min: expected an array, got number"));
  EXPECT_THAT(refusal(line(R"("max": [1, 2])")), HasSubstr("m.jsonl:1: experts: min: expected an array, got nothing"));
  EXPECT_THAT(refusal(line(R"("min": [1, -2])")),
              HasSubstr("experts: min: expected numbers from 0 to 281474976710656"));
  EXPECT_THAT(refusal(R"({"iteration": 1, "experts": []})"), HasSubstr("experts: expected an object, got array"));
}

TEST(ExpertLoads, AreAPictureOfTheReport) {
  if (!test::has_node()) GTEST_SKIP() << "no node";
  MetricsRun run{.path = "a.jsonl"};
  for (int i = 1; i <= 500; ++i) {
    StepMetrics step{.iteration = i, .lm_loss = 1, .load_balancing_loss = 1.5f};
    // Of one shade all along, but an expert goes without rows in the second half.
    const ExpertLoad dying{
        .layer = 1, .min = i > 250 ? 0 : 50, .max = i > 250 ? 204 : 202, .mean = 100, .entropy = i > 250 ? 0.5 : 0.9};
    step.experts = {dying, {.layer = 2, .min = 25, .max = i > 250 ? 390 : 100, .mean = 100, .entropy = 0.5}};
    run.records.push_back(step);
  }
  const std::string page = test::rendered(report_page({run}));
  EXPECT_THAT(page, HasSubstr("<figcaption>Expert load <small>"));
  EXPECT_THAT(page, HasSubstr("layer 1, step 1 – 500: largest load 2.03 x the mean, smallest 0.00 x, entropy 0.7"));
  EXPECT_THAT(page, HasSubstr("layer 2, step 1 – 250: largest load 1.00 x the mean, smallest 0.25 x, entropy 0.5"));
  EXPECT_THAT(page, HasSubstr("layer 2, step 251 – 500: largest load 3.90 x the mean"));
  EXPECT_THAT(page, HasSubstr("Load-balancing loss"));
  EXPECT_THAT(page, Not(HasSubstr("Router z-loss")));
  EXPECT_THAT(page, Not(HasSubstr("Dropped rows")));
  EXPECT_THAT(page, Not(HasSubstr("other ranks")));
  for (StepMetrics& step : run.records)
    for (ExpertLoad& load : step.experts) load.rows_sent = 12;
  run.records[3].expert_room_used = 0.5;
  run.records[3].expert_room_regrows = 1;
  EXPECT_THAT(test::rendered(report_page({run})),
              AllOf(HasSubstr("Rows sent to other ranks"), HasSubstr("Capacity used by rows"),
                    HasSubstr("Reruns with more capacity")));
  MetricsRun dense = run;
  dense.path = "b.jsonl";
  for (StepMetrics& step : dense.records) step.experts.clear();
  EXPECT_THAT(report_page({dense}), Not(HasSubstr("Expert load\"")));
  EXPECT_THAT(report_page({run, dense}), HasSubstr("Expert load: a.jsonl"));
}

}  // namespace
}  // namespace megalith
