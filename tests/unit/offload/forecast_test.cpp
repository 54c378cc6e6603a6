// Copies beside computing.
#include "offload/forecast.h"

#include <gtest/gtest.h>

#include "tests/unit/offload/layered_step.h"

namespace megalith::test {
namespace {

OffloadStats copies(double out, double back) {
  const LayeredStep layered;
  return forecast_copies(layered.step(), layered.points(), layered.bytes(), LayeredStep::rates(out, back));
}

TEST(OffloadForecast, CopiesThatAreShorterThanALayerStallNothing) {
  const OffloadStats forecast = copies(0.5, 0.25);
  EXPECT_DOUBLE_EQ(forecast.copy_out, 4 * 0.5);  // all layers but the last
  EXPECT_DOUBLE_EQ(forecast.copy_back, 4 * 0.25);
  EXPECT_DOUBLE_EQ(forecast.waits(), 0);
}

TEST(OffloadForecast, CopiesThatAreLongerThanALayerStallEachOther) {
  // To the host: from 1 to 3 s for layer 0, whose wait stands behind layer 1, at 2 s: a second. The next copies begin
  // where the one before ends, and each is waited for a layer later.
  const OffloadStats forecast = copies(2, 0.01);
  EXPECT_DOUBLE_EQ(forecast.copy_out, 4 * 2);
  EXPECT_DOUBLE_EQ(forecast.wait_out, 4);
  EXPECT_NEAR(forecast.wait_back, 0, 1e-9);
}

}  // namespace
}  // namespace megalith::test
