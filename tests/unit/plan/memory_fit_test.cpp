// Flags that plan reports if a rank does not fit its device.
#include <gmock/gmock.h>

#include <algorithm>

#include "apps/forecast/forecast.h"
#include "apps/forecast/memory_fit.h"
#include "tests/unit/plan/plan_support.h"

namespace megalith::test {
namespace {

constexpr int kWorld = 4;
constexpr const char* kSize = " --bf16 --micro-batch-size 4 --seq-length 2048 --hidden-size 128";

Words flags_with(const std::string& more) { return plan_flags() + words(kSize + (" " + more)); }

std::size_t memory_of(const std::string& more, const Rates& rates) {
  const Forecast forecast = make_forecast(complete(flags_with(more), kWorld), kWorld, {.rates = &rates});
  std::size_t bytes = 0;
  for (const StageForecast& stage : forecast.stages) bytes = std::max(bytes, stage.memory.total());
  return bytes;
}

TEST(MemoryFit, FlagsHaveTheMemoryThatTheyAreReportedWith) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  const Options options = complete(flags_with(""), kWorld);
  const std::size_t whole = memory_of("", rates);
  std::vector<FittingFlags> found = find_fitting_flags(options, kWorld, rates, whole - 1);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].flags, "--use-distributed-optimizer");
  EXPECT_EQ(found[1].flags, "--micro-batch-size 2");
  std::vector<FittingFlags> several = found;  // of the least memory that something reaches
  for (std::size_t part = 19; part > 0; --part) {
    const std::vector<FittingFlags> next = find_fitting_flags(options, kWorld, rates, whole * part / 20);
    if (next.empty()) break;
    several = next;
  }
  ASSERT_EQ(several.size(), 1U);
  EXPECT_THAT(several[0].flags, testing::StartsWith("--use-distributed-optimizer --micro-batch-size 2 "));
  found.push_back(several[0]);
  for (const FittingFlags& fitting : found) {
    SCOPED_TRACE(fitting.flags);
    EXPECT_LT(fitting.bytes, whole);
    expect_memory_of_suggestion(memory_of(fitting.flags, rates), fitting.bytes);
  }
  EXPECT_TRUE(find_fitting_flags(options, kWorld, rates, 1).empty());
}

}  // namespace
}  // namespace megalith::test
