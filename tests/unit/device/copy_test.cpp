#include "core/device/copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "core/device/graph.h"
#include "core/instruments/hazard_checker.h"
#include "core/instruments/timeline.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

class CopyTest : public BackendTest {};
MEGALITH_BACKEND_TESTS(CopyTest);

TEST_P(CopyTest, MovesBytesBothWaysInTheStreamsOrder) {
  Stream stream(device(), "compute");
  const std::array<int, 4> host{1, 2, 3, 4};
  std::array<int, 4> device{};
  std::array<int, 4> back{};
  copy_from_host(stream, device.data(), host.data(), sizeof(host));
  enqueue(stream, [&] { device[2] *= 10; });
  copy_to_host(stream, back.data(), device.data(), sizeof(back));
  copy_to_host(stream, nullptr, nullptr, 0);
  stream.synchronize();
  EXPECT_EQ(back, (std::array<int, 4>{1, 2, 30, 4}));
}

TEST_P(CopyTest, TheHostMustWaitBeforeItReadsTheCopyOrReusesItsSource) {
  std::array<int, 4> host{};
  std::array<int, 4> device{};
  HazardChecker checker;
  Stream stream(this->device(), "compute", {.hazards = &checker});
  Event done("copied");
  copy_from_host(stream, device.data(), host.data(), sizeof(host));
  stream.record(done);
  stream.synchronize_host(done);
  stream.announce_host(access_of({.name = "next batch", .ranges = {writes(host)}}));
  EXPECT_EQ(checker.count(), 0);
  copy_to_host(stream, host.data(), device.data(), sizeof(host));
  stream.announce_host(access_of({.name = "read loss", .ranges = {reads(host)}}));
  ASSERT_EQ(checker.hazards().size(), 1u);
  EXPECT_EQ(checker.hazards()[0].first_op, "copy_to_host");
  EXPECT_EQ(checker.hazards()[0].second_op, "read loss");
}

TEST_P(CopyTest, MayBeCapturedAndCopiesWhatTheHostHoldsAtReplay) {
  Stream stream(device(), "compute");
  Graph graph("upload");
  int host = 1;
  int device = 0;
  graph.begin_capture(stream);
  copy_from_host(stream, &device, &host, sizeof(host));
  graph.end_capture();
  host = 5;
  graph.replay(stream);
  stream.synchronize();
  EXPECT_EQ(device, 5);
}

TEST(Copy, APlanRecordsItAndTouchesNothing) {
  Timeline timeline;
  Stream stream(DeviceType::kPlan, "compute", {.timeline = &timeline});
  copy_from_host(stream, reinterpret_cast<void*>(4096), reinterpret_cast<void*>(8192), 64);
  ASSERT_EQ(timeline.entries().size(), 1u);
  EXPECT_EQ(timeline.entries()[0].access.name(), "copy_from_host");
  EXPECT_EQ(timeline.entries()[0].access.ranges().size(), 2u);
}

}  // namespace
}  // namespace megalith
