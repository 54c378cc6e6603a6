// Ops of a graph that was captured on one stream run concurrently if their announced accesses allow it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/device/cuda_stream_state.h"
#include "core/device/graph.h"
#include "core/instruments/hazard_checker.h"
#include "tests/unit/device/cuda_test.h"

namespace megalith {
namespace {

class CudaSpreadTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    compute_ = std::make_unique<Stream>(DeviceType::kCuda, "compute", Instruments{.hazards = &hazards_});
    comm_ = std::make_unique<Stream>(DeviceType::kCuda, "comm", Instruments{.hazards = &hazards_});
  }
  template <class Enqueue>
  void captured(const char* name, const std::vector<AccessRange>& ranges, Enqueue&& enqueue) {
    Access access(name);
    for (const AccessRange& range : ranges) access.add(range.begin, range.bytes, range.write);
    compute_->announce(access);
    enqueue(*compute_);
  }

  HazardChecker hazards_;
  std::unique_ptr<Stream> compute_, comm_;
};

TEST_F(CudaSpreadTest, AnOpRunsConcurrentlyWithAnEarlierOneUnlessTheyConflict) {
  Graph graph("spread");
  int *gate = flags(1), *x = flags(1), *y = flags(1), *z = flags(1);
  graph.begin_capture(*compute_);
  captured("produce", {writes(*x)}, [&](Stream& s) {
    spin(s, gate, 1);
    add(s, x, 1);
  });
  captured("consume", {reads(*x), writes(*y)}, [&](Stream& s) { copy_by_kernel(s, y, x); });
  captured("beside", {writes(*z)}, [&](Stream& s) { signal(s, gate, 1); });
  graph.end_capture();
  EXPECT_EQ(graph.num_nodes(), 4u);
  graph.replay(*compute_);
  compute_->synchronize();
  EXPECT_LT(seconds(), 5) << "the op that opens the gate waited for the one that waits for it";
  EXPECT_EQ(read_flag(y), 1);
  EXPECT_EQ(hazards_.count(), 0);
}

TEST_F(CudaSpreadTest, ThePartOfAWorkspaceThatAnOpLeavesAloneHoldsNoOtherOpBack) {
  struct {
    int* gate;
    int* workspace;
  } at{flags(1), flags(2)};
  int *x = flags(1), *y = flags(1);
  const AccessRange whole{at.workspace, 2 * sizeof(int), true};
  Graph graph("workspace");
  graph.begin_capture(*compute_);
  captured("first", {whole, writes(*x)}, [&](Stream& s) {
    s.cuda()->state().capture.touches(at.workspace, 0);
    spin(s, at.gate, 1);
  });
  // A GPU need not run independent nodes concurrently.
  captured("behind", {reads(*x), writes(*y)}, [&](Stream& s) { copy_by_kernel(s, y, x); });
  captured("second", {whole}, [&](Stream& s) {
    s.cuda()->state().capture.touches(at.workspace, sizeof(int));
    signal(s, at.gate, 1);
  });
  graph.end_capture();
  graph.replay(*compute_);
  compute_->synchronize();
  EXPECT_LT(seconds(), 5);
  EXPECT_EQ(hazards_.count(), 0);
}

TEST_F(CudaSpreadTest, TheHazardCheckerSeesEachLaneOfAReplay) {
  int *x = flags(1), *y = flags(1);
  Graph graph("lanes");
  graph.begin_capture(*compute_);
  captured("x", {writes(*x)}, [&](Stream& s) { add(s, x, 1); });
  captured("y", {writes(*y)}, [&](Stream& s) { add(s, y, 1); });
  graph.end_capture();
  for (int i = 0; i < 3; ++i) graph.replay(*compute_);
  EXPECT_EQ(hazards_.count(), 0);
  op(*comm_, "late", y, [&](Stream& s) { add(s, y, 1); });
  ASSERT_EQ(hazards_.hazards().size(), 1u);
  EXPECT_EQ(hazards_.hazards()[0].first_op, "y");
  EXPECT_EQ(hazards_.hazards()[0].first_lane, "compute in a graph on compute");
  compute_->synchronize();
  comm_->synchronize();
}

// Ranks that enqueue their collectives in different orders would wait for each other for good.
TEST_F(CudaSpreadTest, AGraphThatMeetsOtherRanksStaysAChain) {
  int *x = flags(1), *y = flags(1), *order = flags(1);
  Graph graph("chain");
  graph.begin_capture(*compute_);
  captured("gather", {writes(*x)}, [&](Stream& s) {
    s.cuda()->state().capture.meets_ranks = true;
    add(s, order, 1);
    add(s, x, 1);
  });
  captured("beside", {writes(*y)}, [&](Stream& s) { copy_by_kernel(s, y, order); });
  graph.end_capture();
  for (int i = 1; i <= 20; ++i) {
    graph.replay(*compute_);
    compute_->synchronize();
    ASSERT_EQ(read_flag(y), i);
  }
}

}  // namespace
}  // namespace megalith
