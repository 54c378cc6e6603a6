// ExchangeRows of ranks as threads, of one rank and of a plan; and that no host waits for its counts.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/instruments/timeline.h"
#include "parallel/comm/plan_communicator.h"
#include "parallel/comm/single_communicator.h"
#include "tests/distributed/exchange_rows_cases.h"
#include "tests/support/matchers.h"
#include "tests/support/tier.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace megalith {
namespace {

class ThreadExchange : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  void check(void (*body)(Communicator&, const test::CollectiveForm&)) {
    const auto [ranks, captured] = GetParam();
    ThreadWorld(ranks).run(
        [&, is_captured = captured](Communicator& group) { body(group, {.captured = is_captured}); });
  }
};
TEST_P(ThreadExchange, Rows) { check(test::check_exchange_rows); }
TEST_P(ThreadExchange, Refused) { check(test::check_refused_exchanges); }
INSTANTIATE_TEST_SUITE_P(Ranks, ThreadExchange,
                         testing::Combine(testing::ValuesIn(test::one_of(2) == 1 ? std::vector<int>{1, 2, 3, 5}
                                                                                 : std::vector<int>{1, 3}),
                                          testing::Bool()));

TEST(SingleExchange, Rows) {
  SingleCommunicator group("dispatch");
  test::check_exchange_rows(group, {});
}

template <class T, std::size_t n>
Tensor tensor_of(std::array<T, n>& values, const Shape& shape) {
  return Tensor(values.data(), test::kDTypeOf<T>, shape);
}

// Rows of two ranks: both send a row to rank 0 and two to rank 1.
struct Memory {
  std::array<float, 3> in{}, out{-1, -1, -1};
  std::array<std::int32_t, 6> sends{};
  ExchangeRows op(Communicator& group) {
    return {.group = group,
            .rows = {{.in = tensor_of(in, {3, 1}), .out = tensor_of(out, {3, 1})}},
            .sends = tensor_of(sends, {2, 3}),
            .pair_room = 3,
            .expected_rows = 2,
            .label = "tokens"};
  }
};

// Rank 1's counts arrive 50 ms after all hosts have enqueued everything: a host that waited for them would hang.
TEST(ThreadExchange, NoHostWaitsForCounts) {
  std::promise<void> enqueued[2];
  std::promise<void> release;
  std::atomic<bool> counted{false};
  ThreadWorld(2).run([&](Communicator& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    Memory memory;
    std::array<std::int32_t, 3> counts{};
    for (float& x : memory.in) x = static_cast<float>(10 * group.rank() + (&x - memory.in.data()));
    Stream stream(DeviceType::kCpu, "comm");
    const AbortOnUnwind guard(group);
    stream.cpu()->enqueue([&] {
      if (rank == 1) release.get_future().wait();
      counts = {0, 1, 3};
      if (rank == 1) counted = true;
    });
    launch(stream, AllGather{.group = group, .in = tensor_of(counts, {3}), .out = tensor_of(memory.sends, {6})});
    launch(stream, memory.op(group));
    Event done("done");
    stream.record(done);
    EXPECT_FALSE(counted) << "the host of rank " << rank << " came here only behind the counts";
    enqueued[rank].set_value();
    if (rank == 1) {
      enqueued[0].get_future().wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_FALSE(counted);
      release.set_value();
    }
    stream.synchronize_host(done);
    EXPECT_THAT(memory.out, rank == 0 ? testing::ElementsAre(0, 10, -1) : testing::ElementsAre(1, 2, 11));
  });
}

// Impossible counts lose rows; memory outside of the output is unchanged.
TEST(ThreadExchange, WrongCountsWriteNothingElse) {
  ThreadWorld(2).run([&](Communicator& group) {
    struct {
      std::array<float, 4> before{7, 7, 7, 7};
      Memory memory;
      std::array<float, 4> after{7, 7, 7, 7};
    } all;
    Stream stream(DeviceType::kCpu, "comm");
    const AbortOnUnwind guard(group);
    for (const std::array<std::int32_t, 6>& sends :
         {std::array<std::int32_t, 6>{0, 100, 2'000'000'000, -5, 9, 3}, {0, 3, 1, 2, -7, 90}, {-9, -9, 9, 3, 3, 3}}) {
      all.memory.sends = sends;
      ExchangeRows op = all.memory.op(group);
      op.pair_room = 1'000'000;
      launch(stream, op);
      stream.synchronize();
      EXPECT_THAT(all.before, testing::Each(7));
      EXPECT_THAT(all.after, testing::Each(7));
    }
  });
}

TEST(ThreadExchange, ARankThatMakesAnotherCallFailsOnAll) {
  std::array<std::string, 2> messages;
  try {
    ThreadWorld(2).run([&](Communicator& group) {
      Memory memory;
      Stream stream(DeviceType::kCpu, "comm");
      const AbortOnUnwind guard(group);
      if (group.rank() == 0) launch(stream, memory.op(group));
      if (group.rank() == 1) launch(stream, AllReduce{.group = group, .buffer = tensor_of(memory.in, {3})});
      try {
        stream.synchronize();
      } catch (const Error& error) {
        messages[static_cast<std::size_t>(group.rank())] = error.what();
        throw;
      }
    });
  } catch (const Error&) {
  }
  for (const std::string& message : messages) {
    EXPECT_THAT(message, HasSubstr("expected the same call on all ranks, got exchange_rows fp32 of 12 elements"));
    EXPECT_THAT(message, HasSubstr("on rank 0 and all_reduce fp32 of 3 elements"));
  }
}

TEST(PlanExchange, AnnouncesMemoryAndExpectedBytes) {
  Timeline timeline;
  Stream stream(DeviceType::kPlan, "comm", {.timeline = &timeline});
  PlanCommunicator group("dispatch", {.rank = 1, .size = 2});
  Memory memory;
  const ExchangeRows op = memory.op(group);
  std::array<std::uint8_t, 32> room{};
  ASSERT_EQ(exchange_room_bytes(op), 32) << "a part to send and one that comes, 3 rows of 4 bytes each";
  launch(stream, PaddedExchangeRows{op, tensor_of(room, {32})});
  ASSERT_EQ(timeline.entries().size(), 1u);
  const Access& access = timeline.entries()[0].access;
  std::vector<std::size_t> read, written;
  for (const AccessRange& range : access.ranges()) (range.write ? written : read).push_back(range.bytes);
  EXPECT_THAT(read, testing::ElementsAre(12, 24));
  EXPECT_THAT(written, testing::ElementsAre(12, 32));
  EXPECT_EQ(access.moved_bytes(), 16u);
  ASSERT_EQ(group.calls().size(), 1u);
  EXPECT_EQ(group.calls()[0].kind, "exchange_rows");
  EXPECT_EQ(group.calls()[0].bytes, 8u) << "two rows of a float";
  EXPECT_EQ(group.stats().bytes, 8);
}

}  // namespace
}  // namespace megalith
