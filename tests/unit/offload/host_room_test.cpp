// Slots that the host has memory for. Layer after layer a second each: the first layer's slot is away the longest, and
// all are on the host at the end of forward.
#include "offload/host_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/offload/layered_step.h"

namespace megalith {
namespace {

using test::LayeredStep;
using ::testing::ElementsAre;

TEST(OffloadHostRoom, IsForTheSlotsThatAreAwayLongest) {
  const LayeredStep layered;
  OffloadPoints points = layered.points();
  const auto fit = [&](double room) { return with_room_on_host(layered.step(), points, room * LayeredStep::kGb); };
  EXPECT_THAT(fit(4), ElementsAre(true, true, true, true));
  EXPECT_THAT(fit(3.9), ElementsAre(true, true, true, false));
  EXPECT_THAT(fit(1), ElementsAre(true, false, false, false));
  EXPECT_THAT(fit(0), ElementsAre(false, false, false, false));
  points.slots[1].bytes *= 3;  // a later one may fit where this one does not
  EXPECT_THAT(fit(3), ElementsAre(true, false, true, true));
}

TEST(OffloadHostRoom, DoesNotDependOnDistances) {
  const LayeredStep layered;
  OffloadPoints points = layered.points();
  points.lag = points.ahead = 3;
  EXPECT_THAT(with_room_on_host(layered.step(), points, 2 * LayeredStep::kGb), ElementsAre(true, true, false, false));
}

}  // namespace
}  // namespace megalith
