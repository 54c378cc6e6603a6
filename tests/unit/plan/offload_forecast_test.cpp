// Slots that plans move to the host, and times, by rates of its links.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "apps/config/checkpoint_options.h"
#include "apps/config/machine_facts.h"
#include "apps/config/offload_options.h"
#include "apps/config/program_options.h"
#include "apps/forecast/forecast.h"
#include "apps/planning/plan_steps.h"
#include "apps/summary/offload_report.h"
#include "tests/support/matchers.h"
#include "tests/support/test_folder.h"
#include "tests/unit/plan/offload_support.h"

namespace megalith::test {
namespace {

// The round rates, with links of `gbps` GB/s.
Words rates_of_links(double gbps) {
  static const TestFolder folder;
  const std::string file = folder.path(fmt::format("{}.toml", gbps));
  std::string text = round_rates();
  for (const char* key : {"copy-to-host-gbps", "copy-from-host-gbps"}) {
    const std::size_t at = text.find(std::string("\n") + key) + 1;
    text.replace(at, text.find('\n', at) - at, fmt::format("{} = {}", key, gbps));
  }
  write_bytes(file, text);
  return {"--rates", file};
}

// Shares of a ring's blocks have different times, and ranks read each other's memory: one forecast decides.
TEST(OffloadPlan, RanksOfARingMoveIdentically) {
  const Options options =
      complete(plan_flags() + offload({"auto"}) + rates_of_links(2) + Words{"--context-parallel-size", "4"}, 4);
  const RunConfig config = run_config(options, 4);
  const StepPlans first = plan_steps(options, config, 0);
  ASSERT_TRUE(first.offload.forecast);
  for (int rank = 1; rank < 4; ++rank) {
    const StepPlans plans = plan_steps(options, config, rank);
    EXPECT_EQ(plans.offload.forecast->step, first.offload.forecast->step);
    EXPECT_EQ(digest_of(plans.train), digest_of(first.train));
  }
}

TEST(OffloadPlan, ByForecastMovesWhatHides) {
  const auto plans = [](double gbps) { return plans_of(offload({"auto"}) + rates_of_links(gbps)); };
  const StepPlans all = plans(1e9), some = plans(2), none = plans(1e-6);
  const auto slots = [](const StepPlans& of) { return std::ssize(of.offload.points.slots); };
  EXPECT_GT(slots(all), slots(some));
  EXPECT_GT(slots(some), 0);
  EXPECT_EQ(slots(none), 0);
  EXPECT_THAT(format_offload(none), HasSubstr("stays: its copies would not overlap with computation"));
  EXPECT_THAT(describe_offloading(some), HasSubstr("; forecast per microbatch: "));
  EXPECT_THAT(format_offload(some), HasSubstr("\n  forecast per microbatch: "));
  EXPECT_FALSE(none.offload.forecast);
  EXPECT_NEAR(some.offload.forecast->copy_out, some.offload.used_bytes / 2e9, 1e-9);
  EXPECT_GT(some.offload.forecast->step, 0);
}

TEST(OffloadPlan, ByForecastMovesWhatHidesAtTheDistanceThatWasSaid) {
  bool some_stay = false;
  for (const char* distance : {"0", "1", "2"}) {
    SCOPED_TRACE(distance);
    const Words words = offload({"auto"}) + Words{"--offload-distance", distance, "--num-layers", "8"};
    const StepPlans free = plans_of(words + rates_of_links(1e9)), tight = plans_of(words + rates_of_links(2));
    EXPECT_GT(std::ssize(free.offload.points.slots), std::ssize(tight.offload.points.slots));
    some_stay |= !tight.offload.points.empty();
    if (!tight.offload.forecast) continue;
    EXPECT_LE(tight.offload.forecast->waits(), 0.005 * tight.offload.forecast->step);
    for (const OffloadSlot& slot : tight.offload.points.slots) EXPECT_LE(slot.lag, 0) << slot.name;
    EXPECT_EQ(tight.offload.points.lag, std::max(std::stoi(distance), 1));
  }
  EXPECT_TRUE(some_stay);
}

TEST(OffloadPlan, ByForecastMovesWhatTheHostHasRoomFor) {
  for (const char* layout : {"", "--pipeline-model-parallel-size 2", "--pipeline-schedule gpipe"}) {
    SCOPED_TRACE(layout);
    const Words flags = offload({"auto"}) + rates_of_links(1e9) + words(layout);
    Options options = complete(plan_flags() + flags, 2);
    options.checkpoint.async_save = true;  // gives the bytes of a copy of the state
    const RunConfig config = run_config(options, 2);
    const StepPlans all = plan_steps(options, config, 0);
    options.checkpoint.async_save = false;
    const MemoryUse kept{.persistent = all.persistent, .arena = all.offload.kept_peak_bytes};
    const std::size_t room = all.host.peak_bytes / 2, taken = kept.total() + all.checkpoint_staging;
    options.machine.host_share = taken;  // too little on the CPU, which holds the step too, and enough for a device's
    EXPECT_GE(plan_steps(options, config, 0).host.peak_bytes, room);
    options.machine.host_is_device = true;
    EXPECT_TRUE(plan_steps(options, config, 0).offload.points.empty());
    options.machine.host_share = (taken + room) * 100 / 85;
    const StepPlans some = plan_steps(options, config, 0);
    EXPECT_LE(some.host.peak_bytes, room);
    EXPECT_GT(some.host.peak_bytes, room / 2);
    EXPECT_THAT(format_offload(some), HasSubstr("stays: not enough host memory"));
    EXPECT_LT(some.train.peak_bytes, all.offload.kept_peak_bytes);
    // Listed modules move, or are rejected at the start.
    options.offload.offload_modules = {"act"};
    const StepPlans named = plan_steps(options, config, 0);
    options.machine.host_share = 0;
    EXPECT_EQ(named.host.peak_bytes, plan_steps(options, config, 0).host.peak_bytes);
  }
}

TEST(OffloadPlan, KindsAskedForSaveWhatTheSlowdownBuys) {
  const auto stage = [](const char* slowdown) {
    const Words words =
        offload({"act"}) + rates_of_links(2) + Words{"--num-layers", "8", "--offload-slowdown", slowdown};
    const Options options = complete(plan_flags() + words, 1);
    const Rates rates = read_rates(options.forecast.rates);
    return make_forecast(options, 1, {.rates = &rates}).stages[0];
  };
  double saved = -1;
  for (const char* slowdown : {"0", "0.1", "100"}) {
    SCOPED_TRACE(slowdown);
    const StageForecast forecast = stage(slowdown);
    const auto saving = static_cast<double>(planned_offload(forecast.plans).saving_bytes);
    EXPECT_GT(saving, saved);
    saved = saving;
    const StepTimes& times = forecast.times;
    double computing = 0;
    for (const double seconds : times.action_seconds) computing += seconds;
    EXPECT_LE(times.offload.wait_out + times.offload.wait_back, std::stod(slowdown) * 4 * computing + 1e-12);
  }
}

TEST(OffloadPlan, WithRatesCopiesTakeTheirLinksTime) {
  const Options options = complete(plan_flags() + offload({"act"}), 1);
  const Rates slow = rates_with({"copy-to-host-gbps = 0.001", "copy-from-host-gbps = 0.002"});
  const Forecast forecast = make_forecast(options, 1, {.rates = &slow});
  const StageForecast& stage = forecast.stages[0];
  const double bytes = stage.plans.offload.used_bytes * 16;
  EXPECT_NEAR(stage.times.offload.copy_out, bytes / 1e6, 1e-6);
  EXPECT_NEAR(stage.times.offload.copy_back, bytes / 2e6, 1e-6);
  EXPECT_GT(stage.times.offload.wait_out, 0);
  EXPECT_GT(forecast.step->seconds, stage.times.offload.wait_out + stage.times.offload.wait_back);
  // Expert rows copied by a kernel use it too.
  const Words experts = kExperts + offload({"fused_group_mlp"}) + Words{"--expert-model-parallel-size", "2"};
  const Rates shared = rates_with({"copy-to-host-all-gbps = 0.002"});
  const StageForecast rows = make_forecast(complete(plan_flags() + experts, 2), 2, {.rates = &shared}).stages[0];
  EXPECT_NEAR(rows.times.offload.copy_out / (rows.plans.offload.used_bytes * 8 / 1e6), 1, 0.1);
  const Rates fast = rates_with({"copy-to-host-gbps = 1000000", "copy-from-host-gbps = 1000000"});
  const Forecast hidden = make_forecast(options, 1, {.rates = &fast});
  EXPECT_LT(hidden.stages[0].times.offload.wait_out, 1e-6);
}

}  // namespace
}  // namespace megalith::test
