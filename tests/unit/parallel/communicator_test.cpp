// Behavior common to all communicators: announcing to the instruments, plan streams, and the rule of one stream at a
// time.
#include "parallel/comm/communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/device/graph.h"
#include "core/instruments/timeline.h"
#include "core/tensor/bf16.h"
#include "parallel/comm/gpu_share.h"
#include "parallel/comm/plan_communicator.h"
#include "parallel/comm/reduce_parts.h"
#include "parallel/comm/sequence_check.h"
#include "parallel/comm/single_communicator.h"
#include "tests/support/matchers.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace megalith {
namespace {

template <std::size_t kSize>
Tensor tensor_of(std::array<float, kSize>& values) {
  return Tensor(values.data(), DType::kFp32, {static_cast<std::int64_t>(kSize)});
}

// Rank 0 of a group of two whose all-reduce is a function of the test.
class ScriptedCommunicator final : public Communicator {
 public:
  explicit ScriptedCommunicator(std::function<void()> all_reduce)
      : Communicator("scripted", 0, 2), all_reduce_(std::move(all_reduce)) {}
  void host_barrier() override {}
  std::vector<std::string> host_all_gather(const std::string& mine) override { return {mine, mine}; }
  bool host_any(bool mine) override { return mine; }
  std::unique_ptr<Communicator> split(int, int, const std::string&) override { return nullptr; }
  void abort(const std::string&) override {}

 protected:
  void run(const Collective&) override { all_reduce_(); }

 private:
  std::function<void()> all_reduce_;
};

TEST(Communicator, TwoStreamsAtOnceAreAnError) {
  std::promise<void> begun;
  std::promise<void> leave;
  ScriptedCommunicator group([&] {
    begun.set_value();
    leave.get_future().wait();
  });
  std::array<float, 4> values{};
  Stream first(DeviceType::kCpu, "first");
  Stream second(DeviceType::kCpu, "second");
  launch(first, AllReduce{.group = group, .buffer = tensor_of(values)});
  begun.get_future().wait();
  launch(second, AllReduce{.group = group, .buffer = tensor_of(values)});
  std::string message;
  try {
    second.synchronize();
  } catch (const Error& error) {
    message = error.what();
  }
  leave.set_value();
  first.synchronize();
  EXPECT_THAT(message, HasSubstr("group scripted: expected one stream at a time, got two"));
}

TEST(Communicator, AnErrorOfACallSurfacesAtTheNextSynchronizeAndTheGroupStaysUsable) {
  int calls = 0;
  ScriptedCommunicator group([&] {
    if (++calls == 1) fail({.code = ExitCode::kCommunication, .subject = "a lost peer"});
  });
  std::array<float, 4> values{};
  Stream stream(DeviceType::kCpu, "comm");
  launch(stream, AllReduce{.group = group, .buffer = tensor_of(values)});
  EXPECT_THROW(stream.synchronize(), Error);
  launch(stream, AllReduce{.group = group, .buffer = tensor_of(values)});
  stream.synchronize();
  EXPECT_EQ(calls, 2);
}

TEST(PlanCommunicator, AnnouncesWhatTheCallsReadAndWrite) {
  Timeline timeline;
  Stream stream(DeviceType::kPlan, "comm", {.timeline = &timeline});
  PlanCommunicator group("dp", {.rank = 1, .size = 4});
  std::array<float, 8> small{}, other{};
  std::array<float, 32> large{};
  const std::vector<std::int64_t> rows{0, 1, 2, 3};
  launch(stream, AllReduce{.group = group, .buffer = tensor_of(small)});
  launch(stream, ReduceScatter{.group = group, .in = tensor_of(large), .out = tensor_of(small)});
  launch(stream, AllGather{.group = group, .in = tensor_of(small), .out = tensor_of(large)});
  launch(stream,
         AllToAll{.group = group, .in = tensor_of(large), .out = tensor_of(small), .in_rows = rows, .out_rows = rows});
  launch(stream, Shift{.group = group, .in = tensor_of(small), .out = tensor_of(other), .step = 3});
  launch(stream, Broadcast{.group = group, .buffer = tensor_of(small), .root = 0});
  launch(stream, Broadcast{.group = group, .buffer = tensor_of(small), .root = 1});
  launch(stream, Send{.group = group, .buffer = tensor_of(small), .peer = 0});
  launch(stream, Receive{.group = group, .buffer = tensor_of(small), .peer = 0});
  struct Seen {
    std::string_view name;
    std::size_t read = 0;
    std::size_t written = 0;
    bool operator==(const Seen&) const = default;
  };
  std::vector<Seen> seen;
  for (const Timeline::Entry& entry : timeline.entries()) {
    ASSERT_EQ(entry.kind, Timeline::Kind::kOp);
    Seen one{entry.access.name()};
    for (const AccessRange& range : entry.access.ranges()) (range.write ? one.written : one.read) += range.bytes;
    seen.push_back(one);
  }
  EXPECT_THAT(seen,
              ElementsAre(Seen{"all_reduce", 32, 32}, Seen{"reduce_scatter", 128, 32}, Seen{"all_gather", 32, 128},
                          Seen{"all_to_all", 24, 24}, Seen{"shift", 32, 32}, Seen{"broadcast", 0, 32},
                          Seen{"broadcast", 32, 0}, Seen{"send", 32, 0}, Seen{"receive", 0, 32}));
  EXPECT_EQ(group.stats().collectives, 9);
}

TEST(PlanCommunicator, HasTheGroupsOfAnyLayout) {
  PlanCommunicator world("world", {.rank = 5, .size = 8});
  const std::vector<int> ranks{1, 5, 7};
  const std::unique_ptr<Communicator> group = world.subgroup(ranks, "tp");
  EXPECT_EQ(group->size(), 3);
  EXPECT_EQ(group->rank(), 1);
  EXPECT_THROW(world.subgroup(std::vector<int>{0, 1}, "tp"), Error);
  EXPECT_THROW(world.split(0, 0, "tp"), Error);
  EXPECT_THAT(world.host_all_gather("x"), testing::SizeIs(8));
  EXPECT_TRUE(world.host_any(true));
}

TEST(PlanCommunicator, RefusesAStreamThatComputes) {
  PlanCommunicator group("dp", {.rank = 0, .size = 2});
  std::array<float, 8> values{};
  Stream stream(DeviceType::kCpu, "comm");
  launch(stream, AllReduce{.group = group, .buffer = tensor_of(values)});
  EXPECT_THROW(stream.synchronize(), Error);
}

TEST(SingleCommunicator, EnqueuesNothingWhereThereIsNothingToDo) {
  Timeline timeline;
  Stream stream(DeviceType::kPlan, "comm", {.timeline = &timeline});
  SingleCommunicator group("dp");
  std::array<float, 8> values{};
  launch(stream, AllReduce{.group = group, .buffer = tensor_of(values)});
  launch(stream, Broadcast{.group = group, .buffer = tensor_of(values), .root = 0});
  EXPECT_TRUE(timeline.entries().empty());
}

TEST(SingleCommunicator, CopiesWhereInAndOutDiffer) {
  SingleCommunicator group("dp");
  Stream stream(DeviceType::kCpu, "comm");
  std::array<float, 3> in{1, 2, 3};
  std::array<float, 3> gathered{};
  std::array<float, 3> scattered{};
  std::array<float, 3> exchanged{};
  launch(stream, AllGather{.group = group, .in = tensor_of(in), .out = tensor_of(gathered)});
  launch(stream, ReduceScatter{.group = group, .in = tensor_of(in), .out = tensor_of(scattered)});
  launch(stream, AllToAll{.group = group, .in = tensor_of(in), .out = tensor_of(exchanged)});
  stream.synchronize();
  EXPECT_EQ(gathered, in);
  EXPECT_EQ(scattered, in);
  EXPECT_EQ(exchanged, in);
  EXPECT_EQ(group.stats().collectives, 0);
}

// A captured collective runs at each replay, on the buffers it was captured with.
TEST(Communicator, CollectivesCanBeCapturedAndReplayed) {
  ThreadWorld(2).run([](Communicator& world) {
    std::array<float, 3> values{1, 2, 3};
    Stream stream(DeviceType::kCpu, "comm");
    const AbortOnUnwind guard(world);
    Graph graph("sum");
    graph.begin_capture(stream);
    launch(stream, AllReduce{.group = world, .buffer = tensor_of(values)});
    graph.end_capture();
    EXPECT_EQ(values[0], 1);
    for (int i = 0; i < 3; ++i) graph.replay(stream);
    stream.synchronize();
    EXPECT_THAT(values, ElementsAre(8, 16, 24));
    EXPECT_EQ(graph.num_ops(), 1);
  });
}

TEST(Communicator, ReplaysCountAndAreNumbered) {
  ThreadWorld(2).run([](Communicator& world) {
    std::array<float, 3> values{1, 2, 3};
    Stream stream(DeviceType::kCpu, "comm");
    const AbortOnUnwind guard(world);
    Graph graph("sum");
    graph.begin_capture(stream);
    launch(stream, AllReduce{.group = world, .buffer = tensor_of(values), .label = "sums"});
    launch(stream, Broadcast{.group = world, .buffer = tensor_of(values), .root = 1});
    graph.end_capture();
    EXPECT_EQ(world.stats().collectives, 0) << "nothing ran";
    EXPECT_EQ(world.recorder().sequence_so_far().length, 0u);
    graph.replay(stream);
    stream.synchronize();
    EXPECT_EQ(world.stats().collectives, 2);
    EXPECT_EQ(world.stats().bytes, world.rank() == 1 ? 24 : 12);
    const std::uint64_t once = world.recorder().sequence_so_far().hash;
    graph.replay(stream);
    launch(stream, AllReduce{.group = world, .buffer = tensor_of(values)});
    stream.synchronize();
    EXPECT_EQ(world.stats().collectives, 5);
    EXPECT_EQ(world.stats().bytes, world.rank() == 1 ? 60 : 36);
    const std::vector<CollectiveCall> calls = world.recorder().last();
    ASSERT_EQ(calls.size(), 5u);
    EXPECT_EQ(to_string(calls[2]), "all_reduce #3 (sums: fp32, 3 elements)");
    EXPECT_EQ(to_string(calls[4]), "all_reduce #5 (fp32, 3 elements)");
    EXPECT_EQ(world.recorder().sequence_so_far().length, 5u);
    EXPECT_NE(world.recorder().sequence_so_far().hash, once);
    EXPECT_EQ(difference_of_sequences(world), "");
  });
}

// A captured call is recorded again at each replay, so that a report lists it however many calls were dropped since.
TEST(Communicator, ACallThatHangsInAReplayIsNamedAfterTenThousand) {
  std::atomic<bool> seen = false;
  ThreadWorld(2).run([&](Communicator& world) {
    constexpr int kReplays = 10'000;
    std::array<float, 1> values{};
    Stream stream(DeviceType::kCpu, "comm");
    const AbortOnUnwind guard(world);
    Graph graph("sum");
    graph.begin_capture(stream);
    launch(stream, AllReduce{.group = world, .buffer = tensor_of(values), .label = "scores"});
    launch(stream, Broadcast{.group = world, .buffer = tensor_of(values), .root = 1, .label = "choice"});
    graph.end_capture();
    for (int i = 0; i < kReplays; ++i) graph.replay(stream);
    stream.synchronize();
    EXPECT_EQ(world.stats().collectives, 2 * kReplays);
    if (world.rank() == 1) {
      while (!seen) std::this_thread::yield();  // the call that the other rank's report is about
    }
    graph.replay(stream);
    if (world.rank() == 0) {
      std::optional<CollectiveCall> hanging;
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (!hanging && std::chrono::steady_clock::now() < end) hanging = world.recorder().current();
      EXPECT_TRUE(hanging && to_string(*hanging) == "all_reduce #20001 (scores: fp32, 1 elements)");
      seen = true;
    }
    stream.synchronize();
  });
}

TEST(Communicator, ACaptureThatIsAbortedCountsNothing) {
  ThreadWorld(2).run([](Communicator& world) {
    std::array<float, 3> values{};
    Stream stream(DeviceType::kCpu, "comm");
    Graph graph("sum");
    graph.begin_capture(stream);
    launch(stream, AllReduce{.group = world, .buffer = tensor_of(values)});
    graph.abort_capture();
    EXPECT_EQ(world.stats().collectives, 0);
    EXPECT_EQ(world.recorder().calls(), 0u);
  });
}

TEST(ReduceParts, SumsInRankOrderAndRoundsBf16Once) {
  // In bf16 arithmetic each 1 added to 256 would be lost; in fp32 they are not.
  std::vector<std::vector<bf16>> parts{{to_bf16(256)}, {to_bf16(1)}, {to_bf16(1)}};
  std::vector<const void*> pointers;
  for (const auto& part : parts) pointers.push_back(part.data());
  bf16 out;
  reduce_parts(ReduceOp::kSum, DType::kBf16, pointers, &out, 1);
  EXPECT_EQ(to_float(out), 258.0f);
  // (1e8 + -1e8) + 1 is 1, while 1e8 + (-1e8 + 1) is 0 in fp32.
  const float a = 1e8f;
  const float b = -1e8f;
  const float c = 1;
  float sum = 0;
  reduce_parts(ReduceOp::kSum, DType::kFp32, std::vector<const void*>{&a, &b, &c}, &sum, 1);
  EXPECT_EQ(sum, 1.0f);
  reduce_parts(ReduceOp::kSum, DType::kFp32, std::vector<const void*>{&b, &c, &a}, &sum, 1);
  EXPECT_EQ(sum, 0.0f);
}

TEST(ReduceParts, IntegerSumsWrapAround) {
  const std::int32_t x = std::numeric_limits<std::int32_t>::max();
  const std::int32_t one = 1;
  std::int32_t out = 0;
  reduce_parts(ReduceOp::kSum, DType::kInt32, std::vector<const void*>{&x, &one}, &out, 1);
  EXPECT_EQ(out, std::numeric_limits<std::int32_t>::min());
}

TEST(GpuShare, IsRefusedToRanksBeyondThoseThatMayShare) {
  const std::vector<std::string> gpus = {"A on a", "B on a", "A on a", "A on b", "A on a"};
  for (const int rank : {0, 1, 3}) EXPECT_EQ(gpu_share_fault(gpus, rank, 1), "");
  EXPECT_EQ(
      gpu_share_fault(gpus, 2, 1),
      "--device cuda: a GPU for each rank: expected a GPU that rank 0 does not use, got GPU A on a; start at most "
      "one process a GPU on each node, or check CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(gpu_share_fault(gpus, 2, 2), "");
  EXPECT_EQ(gpu_share_fault(gpus, 4, 2),
            "--device cuda: a GPU for 2 ranks (MEGALITH_RANKS_PER_GPU): expected a GPU that fewer than 2 other ranks "
            "use, got GPU A on a of ranks 0, 2; start at most 2 processes a GPU on each node, or check "
            "CUDA_VISIBLE_DEVICES");
}

}  // namespace
}  // namespace megalith
