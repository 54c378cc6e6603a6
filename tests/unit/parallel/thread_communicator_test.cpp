// Ranks as threads: the collective cases, and the errors of ranks that disagree or fail.
#include "tests/thread_ranks/thread_communicator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/distributed/collective_cases.h"
#include "tests/support/matchers.h"
#include "tests/support/tier.h"

namespace megalith {
namespace {

using std::chrono::milliseconds;

class ThreadCollectives : public testing::TestWithParam<int> {
 protected:
  void check(void (*body)(Communicator&, const test::CollectiveForm&)) {
    ThreadWorld(GetParam()).run([&](Communicator& group) { body(group, {}); });
  }
};

TEST_P(ThreadCollectives, AllReduce) { check(test::check_all_reduce); }
TEST_P(ThreadCollectives, ReduceScatter) { check(test::check_reduce_scatter); }
TEST_P(ThreadCollectives, AllGather) { check(test::check_all_gather); }
TEST_P(ThreadCollectives, AllToAll) { check(test::check_all_to_all); }
TEST_P(ThreadCollectives, AllToAllV) { check(test::check_all_to_all_v); }
TEST_P(ThreadCollectives, Shift) { check(test::check_shift); }
TEST_P(ThreadCollectives, ShiftOfMemoryThatCannotBeShared) { check(test::check_shift_of_shared_memory); }
TEST_P(ThreadCollectives, MessagesToSharedMemory) {
  for (const bool shares : {false, true}) {
    ThreadWorld world(GetParam(), std::chrono::minutes(1), shares);
    world.run([](Communicator& group) { test::check_messages_to_shared_memory(group, {}); });
  }
}
TEST_P(ThreadCollectives, Broadcast) { check(test::check_broadcast); }
TEST_P(ThreadCollectives, SendReceive) { check(test::check_send_receive); }
TEST_P(ThreadCollectives, HostCalls) { check(test::check_host_calls); }
TEST_P(ThreadCollectives, Split) { check(test::check_split); }
TEST_P(ThreadCollectives, ConcurrentGroups) { check(test::check_concurrent_groups); }
TEST_P(ThreadCollectives, RefusedCalls) { check(test::check_refused_calls); }
TEST_P(ThreadCollectives, Stats) { check(test::check_stats); }

INSTANTIATE_TEST_SUITE_P(Ranks, ThreadCollectives,
                         testing::ValuesIn(test::one_of(2) == 1 ? std::vector<int>{1, 2, 3, 4, 5}
                                                                : std::vector<int>{1, 3, 5}),
                         [](const auto& ranks) { return std::to_string(ranks.param); });

using Values = std::vector<float>;
Tensor tensor_of(Values& values) {
  return Tensor(values.data(), DType::kFp32, {static_cast<std::int64_t>(values.size())});
}

// The message and code with which each rank's body ended; empty for none. The world's error is ignored.
struct RankOutcome {
  std::string message;
  ExitCode code = ExitCode::kOk;
};
template <class Body>
std::vector<RankOutcome> outcomes(ThreadWorld& world, Body body) {
  std::vector<RankOutcome> result(static_cast<std::size_t>(world.size()));
  try {
    world.run([&](Communicator& group) {
      try {
        body(group);
      } catch (const Error& error) {
        result[static_cast<std::size_t>(group.rank())] = {error.what(), error.code()};
        throw;
      }
    });
  } catch (const Error&) {
  }
  return result;
}

// Each rank has a stream, which it waits for, and four values.
template <class Body>
std::vector<RankOutcome> outcomes_of_streams(int ranks, Body body) {
  ThreadWorld world(ranks);
  return outcomes(world, [&body](Communicator& group) {
    Values values(4);
    Stream stream(DeviceType::kCpu, "comm");
    const AbortOnUnwind guard(group);
    body(group, stream, values);
    stream.synchronize();
  });
}
TEST(ThreadWorld, RanksThatDisagreeAboutASizeAllFail) {
  const auto result = outcomes_of_streams(3, [](Communicator& group, Stream& stream, Values& values) {
    if (group.rank() == 2) values.resize(5);
    launch(stream, AllReduce{.group = group, .buffer = tensor_of(values)});
  });
  for (const RankOutcome& outcome : result) {
    EXPECT_THAT(outcome.message, HasSubstr("group world: expected the same call on all ranks, got all_reduce fp32 of 4 "
                                           "elements on rank 0 and all_reduce fp32 of 5 elements on rank 2"));
    EXPECT_EQ(outcome.code, ExitCode::kCommunication);
  }
}

TEST(ThreadWorld, RanksThatMakeDifferentCallsAllFail) {
  const auto result = outcomes_of_streams(2, [](Communicator& group, Stream& stream, Values& values) {
    if (group.rank() == 0) {
      launch(stream, AllReduce{.group = group, .buffer = tensor_of(values)});
    } else {
      launch(stream, Broadcast{.group = group, .buffer = tensor_of(values), .root = 0});
    }
  });
  for (const RankOutcome& outcome : result)
    EXPECT_THAT(outcome.message, HasSubstr("expected the same call on all ranks"));
}

TEST(ThreadWorld, RanksThatDisagreeAboutARootAllFail) {
  const auto result = outcomes_of_streams(2, [](Communicator& group, Stream& stream, Values& values) {
    launch(stream, Broadcast{.group = group, .buffer = tensor_of(values), .root = group.rank()});
  });
  for (const RankOutcome& outcome : result) EXPECT_THAT(outcome.message, HasSubstr("(root or reduction 1) on rank 1"));
}

TEST(ThreadWorld, CountsOfAllToAllThatDoNotFitFailOnAllRanks) {
  const auto result = outcomes_of_streams(2, [](Communicator& group, Stream& stream, Values& values) {
    Values out(4);
    // Rank 0 sends two rows to rank 1, which expects three.
    const std::vector<std::int64_t> sent{1, group.rank() == 0 ? 2 : 1};
    const std::vector<std::int64_t> received{group.rank() == 0 ? 1 : 3, 1};
    launch(stream,
           AllToAll{
               .group = group, .in = tensor_of(values), .out = tensor_of(out), .in_rows = sent, .out_rows = received});
    stream.synchronize();
  });
  for (const RankOutcome& outcome : result) {
    EXPECT_THAT(outcome.message, HasSubstr("rank 1 expects 3 rows from rank 0, which sends 2"));
  }
}

TEST(ThreadWorld, AMessageOfAnotherSizeFailsOnBothSides) {
  const auto result = outcomes_of_streams(2, [](Communicator& group, Stream& stream, Values& values) {
    if (group.rank() == 0) {
      launch(stream, Send{.group = group, .buffer = tensor_of(values), .peer = 1});
    } else {
      values.resize(3);
      launch(stream, Receive{.group = group, .buffer = tensor_of(values), .peer = 0});
    }
  });
  for (const RankOutcome& outcome : result)
    EXPECT_THAT(outcome.message, HasSubstr("rank 1 expects 12 bytes from rank 0, which sends 16"));
}

TEST(ThreadWorld, ARankThatThrowsReleasesPeersThatWait) {
  const auto result = outcomes_of_streams(4, [](Communicator& group, Stream& stream, Values& values) {
    if (group.rank() == 3) fail({.code = ExitCode::kFileIo, .subject = "a file"});
    if (group.rank() == 2) {
      group.host_barrier();
    } else if (group.rank() == 1) {
      launch(stream, Receive{.group = group, .buffer = tensor_of(values), .peer = 3});
    } else {
      launch(stream, AllReduce{.group = group, .buffer = tensor_of(values)});
    }
  });
  for (std::size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(result[r].message, "rank 3 of group world failed");
    EXPECT_EQ(result[r].code, ExitCode::kCommunication);
  }
  EXPECT_EQ(result[3].code, ExitCode::kFileIo);
}

// The case AbortOnUnwind exists for: the failing rank's own stream waits for peers that wait for the rank.
TEST(ThreadWorld, ARankThatThrowsWhileItsStreamWaitsEnds) {
  const auto result = outcomes_of_streams(2, [](Communicator& group, Stream& stream, Values& values) {
    if (group.rank() == 1) {
      launch(stream, AllReduce{.group = group, .buffer = tensor_of(values)});
      fail({.subject = "rank 1"});
    }
    group.host_barrier();
    launch(stream, AllReduce{.group = group, .buffer = tensor_of(values)});
  });
  EXPECT_EQ(result[0].message, "rank 1 of group world failed");
  EXPECT_THAT(result[1].message, HasSubstr("rank 1"));
}

TEST(ThreadWorld, TheFirstErrorIsRethrown) {
  ThreadWorld world(3);
  EXPECT_THROW(world.run([](Communicator& group) {
    if (group.rank() == 1) throw std::out_of_range("index 7");
    group.host_barrier();
  }),
               std::out_of_range);
}

TEST(ThreadWorld, CallsAfterAnAbortFailAtOnce) {
  ThreadWorld world(2);
  const std::unique_ptr<Communicator> rank0 = world.communicator(0);
  const std::unique_ptr<Communicator> rank1 = world.communicator(1);
  rank1->abort("the disk is full");
  rank1->abort("a later message");
  try {
    rank0->host_barrier();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the disk is full");
  }
  std::vector<float> values(4);
  Stream stream(DeviceType::kCpu, "comm");
  launch(stream, AllReduce{.group = *rank0, .buffer = tensor_of(values)});
  EXPECT_THROW(stream.synchronize(), Error);
  launch(stream, Send{.group = *rank0, .buffer = tensor_of(values), .peer = 1});
  EXPECT_THROW(stream.synchronize(), Error);
  launch(stream, Receive{.group = *rank0, .buffer = tensor_of(values), .peer = 1});
  EXPECT_THROW(stream.synchronize(), Error);
}

TEST(ThreadWorld, APeerThatNeverComesIsAnErrorThatNamesTheCall) {
  ThreadWorld collective(2, milliseconds(100));
  const auto late = outcomes(collective, [](Communicator& group) {
    if (group.rank() == 0) group.host_barrier();
  });
  EXPECT_THAT(late[0].message, HasSubstr("host_barrier on group world (host): only 1 of 2 ranks came within 100 ms"));
  EXPECT_EQ(late[0].code, ExitCode::kCommunication);
  ThreadWorld message(2, milliseconds(100));
  const auto lost = outcomes(message, [](Communicator& group) {
    std::vector<float> values(4);
    Stream stream(DeviceType::kCpu, "comm");
    if (group.rank() == 0) launch(stream, Send{.group = group, .buffer = tensor_of(values), .peer = 1});
    stream.synchronize();
  });
  EXPECT_THAT(lost[0].message, HasSubstr("send on group world: rank 1 did not come within 100 ms"));
}

}  // namespace
}  // namespace megalith
