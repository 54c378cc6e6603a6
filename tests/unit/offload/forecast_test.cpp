// Tests of the forecast of copies that run concurrently with computation.
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
  EXPECT_DOUBLE_EQ(forecast.copy_out, 4 * 0.5);  // all layers except the last
  EXPECT_DOUBLE_EQ(forecast.copy_back, 4 * 0.25);
  EXPECT_DOUBLE_EQ(forecast.waits(), 0);
}

TEST(OffloadForecast, CopiesThatAreLongerThanALayerStallEachOther) {
  // Layer 0 is copied to the host from 1 s to 3 s. Its wait after layer 1, at 2 s, takes 1 s. Each later copy starts at
  // the end of the previous one, and its wait is one layer later.
  const OffloadStats forecast = copies(2, 0.01);
  EXPECT_DOUBLE_EQ(forecast.copy_out, 4 * 2);
  EXPECT_DOUBLE_EQ(forecast.wait_out, 4);
  EXPECT_NEAR(forecast.wait_back, 0, 1e-9);
}

}  // namespace
}  // namespace megalith::test
