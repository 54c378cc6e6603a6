// Tests that a recording is rejected if an op accesses a slot that has left the device.
#include "offload/recorded_way.h"

#include <gtest/gtest.h>

#include "core/device/stream.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"

namespace megalith {
namespace {

using Kind = ActionKind;

// Two microbatches in one column. In each, forward of segment 0 writes the slot, which leaves and returns for backward.
class RecordedWay : public testing::Test {
 protected:
  enum Place { kForward, kOffload, kWait, kBetween, kBackward, kActionsOfMicrobatch };

  // An op "late reader" accesses the slot of microbatch 0 in action `place` of microbatch `when`.
  void record(int when, int place) {
    void* of_first = nullptr;
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      const auto begin = [&](Kind kind, int segment, int item) {
        actions_.push_back({.kind = kind, .microbatch = microbatch, .segment = segment, .item = item});
        entries_.push_back(timeline_.entries().size());
        if (when == microbatch && place == static_cast<int>(actions_.size() - 1) % kActionsOfMicrobatch)
          touch(of_first, "late reader");
      };
      arena_.begin_scope({.column = 0, .segment = 0, .verb = 0});
      void* const slot = arena_.allocate(256, MemoryCategory::kActivations, "act");
      if (microbatch == 0) of_first = slot;
      begin(Kind::kForward, 0, -1);
      touch(slot, "writer");
      begin(Kind::kOffload, -1, 0);
      touch(slot, "copy");
      begin(Kind::kWaitOffload, -1, 0);
      begin(Kind::kForward, 1, -1);
      begin(Kind::kBackwardData, 0, -1);
    }
  }
  std::string verdict() const {
    return result_of(ExitCode::kInternal, [&]() -> std::string {
      verify_recording(timeline_, arena_, actions_, entries_, points_);
      return "taken";
    });
  }

  void touch(void* memory, const char* name) {
    Access access(name);
    access.add(memory, 1, false);
    compute_.announce(access);
  }

  MemoryPool pool_{DeviceType::kPlan};
  Timeline timeline_;
  Arena arena_{pool_, Arena::Mode::kRecording};
  Stream compute_{DeviceType::kPlan, "compute", {.timeline = &timeline_}};
  std::vector<Action> actions_;
  std::vector<std::size_t> entries_;
  OffloadPoints points_{.slots = {{.segment = 0, .bytes = 256, .name = "layer 3 mlp: act"}}};
};

TEST_F(RecordedWay, TakesReadersThatComeBeforeTheCopysEnd) {
  record(0, kWait);
  EXPECT_EQ(actions_.size(), 2u * kActionsOfMicrobatch);
  EXPECT_EQ(verdict(), "taken");
}

TEST_F(RecordedWay, RefusesAReaderAfterTheCopysEnd) {
  record(0, kBetween);
  EXPECT_THAT(verdict(),
              AllOf(HasSubstr("offload: op late reader in "), HasSubstr("forward chunk 0 microbatch 0 segment 1"),
                    HasSubstr("memory that is on the device"), HasSubstr("layer 3 mlp: act")));
}

TEST_F(RecordedWay, RefusesAReaderInTheNextMicrobatchOfTheColumn) {
  record(1, kForward);
  EXPECT_THAT(verdict(), HasSubstr("op late reader"));
}

TEST_F(RecordedWay, RefusesAWaitForMoreThanWasAllocated) {
  record(0, kWait);
  actions_.push_back({.kind = Kind::kWaitOffload, .item = 0});
  entries_.push_back(timeline_.entries().size());
  EXPECT_THAT(verdict(), HasSubstr("a slot was not allocated in each microbatch"));
}

}  // namespace
}  // namespace megalith
