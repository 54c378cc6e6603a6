// Tests of the choice of slots by host memory. Each layer takes one second. The first layer's slot is away longest, and
// all slots are on the host at the end of forward.
#include "offload/host_room.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "offload/lowering.h"
#include "tests/support/matchers.h"
#include "tests/unit/offload/layered_step.h"

namespace megalith::test {
namespace {

TEST(OffloadHostRoom, IsForTheSlotsThatAreAwayLongest) {
  const LayeredStep layered;
  OffloadPoints points = layered.points();
  const auto fit = [&](double room) { return with_room_on_host(layered.step(), points, room * LayeredStep::kGb); };
  EXPECT_THAT(fit(4), ElementsAre(true, true, true, true));
  EXPECT_THAT(fit(3.9), ElementsAre(true, true, true, false));
  EXPECT_THAT(fit(1), ElementsAre(true, false, false, false));
  EXPECT_THAT(fit(0), ElementsAre(false, false, false, false));
  points.slots[1].bytes *= 3;  // a later slot may fit if this one does not
  EXPECT_THAT(fit(3), ElementsAre(true, false, true, true));
}

TEST(OffloadHostRoom, DoesNotDependOnDistances) {
  const LayeredStep layered;
  OffloadPoints points = layered.points();
  points.lag = points.ahead = 3;
  EXPECT_THAT(with_room_on_host(layered.step(), points, 2 * LayeredStep::kGb), ElementsAre(true, true, false, false));
}

// The second microbatch's copy starts while the first microbatch's slot is still on the host.
TEST(OffloadHostRoom, CountsWhatLeavesWhereAnotherComesBack) {
  const LayeredStep layered;
  const OffloadPoints points{.slots = {layered.slots[0]}, .layer_of_segment = layered.layers};
  std::vector<Action> actions;
  const auto add = [&](ActionKind kind, int microbatch) {
    actions.push_back(
        {.kind = kind, .microbatch = microbatch, .segment = kind == ActionKind::kLoad ? -1 : 0, .column = microbatch});
  };
  for (const int microbatch : {0, 1}) {
    add(ActionKind::kLoad, microbatch);
    add(ActionKind::kForward, microbatch);
  }
  for (const int microbatch : {0, 1}) {
    add(ActionKind::kBackwardData, microbatch);
    add(ActionKind::kBackwardWeight, microbatch);
  }
  int held = 0, most = 0;
  for (const Action& action : insert_offloads(actions, points)) {
    if (action.kind == ActionKind::kOffload) most = std::max(most, ++held);
    if (action.kind == ActionKind::kWaitReload) --held;
  }
  EXPECT_EQ(most, 2);
  const std::vector<double> seconds(actions.size(), 1);
  for (const auto& [room, fits] : {std::pair{2.0, true}, {1.9, false}}) {
    EXPECT_THAT(with_room_on_host({.actions = actions, .seconds = seconds}, points, room * LayeredStep::kGb),
                ElementsAre(fits));
  }
}

}  // namespace
}  // namespace megalith::test
