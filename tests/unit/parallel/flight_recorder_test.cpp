// Records that groups keep of their calls, comparison of sequences, and the report of a hang.
#include <gtest/gtest.h>

#include <mutex>

#include "parallel/comm/sequence_check.h"
#include "parallel/watch/awake_time.h"
#include "parallel/watch/flight_recorder.h"
#include "parallel/watch/hang_report.h"
#include "tests/support/matchers.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace megalith {
namespace {

constexpr int kFp32 = static_cast<int>(DType::kFp32);

CollectiveCall call(std::string_view kind, std::int64_t count = 10, int dtype = kFp32) {
  return {.kind = kind, .dtype = dtype, .count = count};
}

TEST(FlightRecorder, KeepsTheLast64CallsAndTheOneThatRuns) {
  FlightRecorder recorder("dp");
  EXPECT_TRUE(recorder.last().empty());
  EXPECT_FALSE(recorder.current());
  for (int i = 1; i <= 65; ++i) {
    recorder.begin(call("all_reduce", i));
    EXPECT_EQ(recorder.current()->sequence, static_cast<std::uint64_t>(i));
    recorder.end();
    EXPECT_FALSE(recorder.current());
  }
  recorder.begin({.kind = "send", .dtype = kFp32, .count = 3, .argument = 2, .point_to_point = true, .label = "x"});
  const auto last = recorder.last();
  ASSERT_EQ(last.size(), 64u);
  EXPECT_EQ(last.front().sequence, 3u);
  EXPECT_EQ(last[62].sequence, 65u);
  EXPECT_EQ(to_string(last.back()), "send #1 (x: fp32, 3 elements to rank 2)");
  EXPECT_TRUE(last.back().runs());
  EXPECT_EQ(recorder.sequence(), 65u);
}

TEST(FlightRecorder, TheDumpIsJson) {
  FlightRecorder recorder("a \"group\"");
  recorder.set_world_ranks({1, 3});
  recorder.begin(call("all_reduce"));
  recorder.end();
  recorder.begin({.kind = "host_barrier"});
  FlightRecorder empty("empty");
  const std::string json = dump_json(1, 4, "why\n", {&recorder, &empty});
  EXPECT_THAT(json, ::testing::StartsWith("{\"rank\": 1, \"world_size\": 4, \"time\": \"20"));
  EXPECT_THAT(json, HasSubstr("Z\", \"reason\": \"why\\u000a\", \"groups\": ["));
  EXPECT_THAT(json, HasSubstr("{\"group\": \"a \\\"group\\\"\", \"ranks\": [1, 3], \"calls\": ["));
  EXPECT_THAT(json, HasSubstr("{\"sequence\": 1, \"kind\": \"all_reduce\", \"tensor\": \"\", \"dtype\": \"fp32\", "
                              "\"count\": 10, \"root_or_peer\": null, \"state\": \"ended\", \"began_ms\": -"));
  EXPECT_THAT(json, HasSubstr("\"state\": \"running\", \"began_ms\": -"));
  EXPECT_THAT(json, HasSubstr("\"ended_ms\": null}]}"));
  EXPECT_THAT(json, HasSubstr("{\"group\": \"empty\", \"ranks\": [], \"calls\": []}"));
}

// The host enqueues and continues; the GPU lags by more than a thousand calls.
TEST(FlightRecorder, FollowsAGpuThatLagsTheHost) {
  FlightRecorder recorder("dp");
  const auto enqueue = [&](const CollectiveCall& each) {
    recorder.begin(each);
    recorder.end();
  };
  recorder.set_device_progress(0, false, {});
  for (int i = 1; i <= 10; ++i) enqueue(call("all_reduce", i));
  enqueue({.kind = "send", .dtype = kFp32, .count = 3, .argument = 2, .point_to_point = true});
  for (int i = 11; i <= 1200; ++i) enqueue(call("all_reduce", i));
  EXPECT_FALSE(recorder.current());
  EXPECT_EQ(recorder.sequence(), 0u);
  EXPECT_EQ(recorder.calls(), 1201u);

  const auto since = CollectiveCall::Clock::now();
  recorder.set_device_progress(300, true, since);
  ASSERT_TRUE(recorder.current());
  EXPECT_EQ(recorder.current()->sequence, 299u);
  EXPECT_EQ(recorder.current()->began, since);
  EXPECT_TRUE(recorder.current()->runs());
  EXPECT_EQ(recorder.sequence(), 299u);
  const auto last = recorder.last();
  ASSERT_EQ(last.size(), 64u);
  EXPECT_EQ(last[30].sequence, 298u);
  EXPECT_FALSE(last[30].runs() || last[30].waits);
  EXPECT_TRUE(last[31].runs());
  EXPECT_EQ(last[32].sequence, 300u);
  EXPECT_TRUE(last[32].waits);
  EXPECT_THAT(dump_json(0, 2, "", {&recorder}),
              HasSubstr("\"count\": 300, \"root_or_peer\": null, \"state\": \"enqueued\""));

  recorder.set_device_progress(300, false, since);
  EXPECT_FALSE(recorder.current());
  EXPECT_EQ(recorder.sequence(), 299u);
  recorder.set_device_progress(2, true, since);
  EXPECT_EQ(to_string(*recorder.current()), "all_reduce #2 (fp32, 2 elements)");
  recorder.set_device_progress(1201, false, since);
  EXPECT_EQ(recorder.sequence(), 1200u);
  EXPECT_EQ(recorder.last().size(), 64u);
}

TEST(FlightRecorder, GroupsRecordWhatTheirStreamsRan) {
  ThreadWorld world(2);
  world.run([](Communicator& group) {
    std::vector<float> values(6);
    Stream stream(DeviceType::kCpu, "comm");
    const AbortOnUnwind guard(group);
    const Tensor buffer(values.data(), DType::kFp32, {6});
    launch(stream, AllReduce{.group = group, .buffer = buffer, .label = "gradients"});
    launch(stream, Broadcast{.group = group, .buffer = buffer, .root = 1});
    stream.synchronize();
    const auto last = group.recorder().last();
    ASSERT_EQ(last.size(), 2u);
    EXPECT_EQ(to_string(last[0]), "all_reduce #1 (gradients: fp32, 6 elements)");
    EXPECT_EQ(to_string(last[1]), "broadcast #2 (fp32, 6 elements from root 1)");
    EXPECT_FALSE(last[1].runs());
    EXPECT_EQ(difference_of_sequences(group), "");
  });
}

// Difference between `calls` of rank 1 and three all-reduces of the others.
std::string difference(const std::vector<CollectiveCall>& calls) {
  std::mutex mutex;
  std::string text;
  ThreadWorld world(3);
  world.run([&](Communicator& group) {
    FlightRecorder& recorder = group.recorder();
    const std::vector<CollectiveCall> usual(3, call("all_reduce"));
    for (const CollectiveCall& each : group.rank() == 1 ? calls : usual) {
      recorder.announce(each);
    }
    const std::string mine = difference_of_sequences(group);
    const std::lock_guard lock(mutex);
    if (text.empty()) text = mine;
    EXPECT_EQ(mine, text);
  });
  return text;
}

TEST(FlightRecorder, SequencesThatDifferAreNamed) {
  const CollectiveCall usual = call("all_reduce");
  const auto expected = [](int number, const std::string& other) {
    return HasSubstr("collective #" + std::to_string(number) +
                     " on group world: expected the same call on all ranks, got " +
                     (number > 3 ? "none" : "all_reduce fp32 x 10") + " on rank 0 and " + other + " on rank 1; ");
  };
  EXPECT_EQ(difference({usual, usual, usual}), "");
  EXPECT_THAT(difference({usual, call("all_gather"), usual}), expected(2, "all_gather fp32 x 10"));
  EXPECT_THAT(difference({usual, usual, call("all_reduce", 11)}), expected(3, "all_reduce fp32 x 11"));
  EXPECT_THAT(difference({call("all_reduce", 20, static_cast<int>(DType::kBf16)), usual, usual}),
              expected(1, "all_reduce bf16 x 20"));
  EXPECT_THAT(difference({usual, usual}), expected(3, "none"));
  EXPECT_THAT(difference({usual, usual, usual, usual}), expected(4, "all_reduce fp32 x 10"));
  // Sends and receives are between two ranks.
  EXPECT_EQ(difference({usual, {.kind = "send", .dtype = kFp32, .argument = 2, .point_to_point = true}, usual, usual}),
            "");
}

TEST(HangReport, SaysWhoWaitsForWhom) {
  CollectiveCall late = call("all_reduce");
  late.sequence = 12;
  late.label = "loss";
  HangReport report{.me = 0,
                    .group = "dp",
                    .members = {0, 1, 2, 5},
                    .late = late,
                    .timeout = std::chrono::milliseconds(1500),
                    .states = {}};
  const auto state = [](std::uint64_t last, std::uint64_t running, const std::string& text) {
    RankState s;
    s.groups.push_back({.name = "tp", .sequence = 3, .running_sequence = 0, .running = "", .running_ms = 0});
    s.groups.push_back(
        {.name = "dp", .sequence = last, .running_sequence = running, .running = text, .running_ms = 2000});
    return rank_state_from(to_text(s));
  };
  report.states[0] = state(12, 12, to_string(late));
  report.states[1] = state(12, 12, "all_gather #12 (fp32, 4 elements)");
  report.states[2] = state(11, 0, "");
  EXPECT_EQ(to_string(report),
            "all_reduce #12 (loss: fp32, 10 elements) on group dp: expected its ranks 0, 1, 2, 5 within 1.5 s "
            "(--comm-timeout), got only rank 0; rank 1 is in all_gather #12 (fp32, 4 elements) on group dp for 2.0 s; "
            "its last call on the group was #12; rank 2 is in no collective, so it computes or is blocked elsewhere; "
            "its last call on the group was #11; rank 5 gave no answer, so the process is stopped, lost or starved");
  report.place_of = [](int rank) { return "ep " + std::to_string(rank % 2); };
  const std::string text = to_string(report);
  for (const char* part :
       {"only rank 0 (ep 0);", "; rank 1 (ep 1) is in", "; rank 2 (ep 0) is in", "rank 5 (ep 1) gave"})
    EXPECT_NE(text.find(part), std::string::npos) << part << text;
}

// The report of rank 0 of two; rank 1 runs `other`.
std::string report_of(CollectiveCall late, CollectiveCall other) {
  late.sequence = other.sequence = 12;
  HangReport report{
      .me = 0, .group = "dp", .members = {0, 1}, .late = late, .timeout = std::chrono::seconds(1), .states = {}};
  const auto state = [](const CollectiveCall& in) {
    RankState s;
    s.groups.push_back(
        {.name = "dp", .sequence = 12, .running_sequence = 12, .running = to_string(in), .running_ms = 1});
    return s;
  };
  report.states = {{0, state(late)}, {1, state(other)}};
  return to_string(report);
}

TEST(HangReport, CallsOfOneNumberThatDifferAreReported) {
  const auto differs = [](const std::string& other) {
    return HasSubstr("got only rank 0; rank 1 is in " + other + " on group dp");
  };
  const std::string all = "got all, whose messages are lost or slow";
  EXPECT_THAT(report_of(call("all_reduce"), call("all_reduce")), HasSubstr(all));
  EXPECT_THAT(report_of(call("all_reduce"), call("all_reduce", 9)), differs("all_reduce #12 (fp32, 9 elements)"));
  EXPECT_THAT(report_of(call("all_reduce"), call("all_reduce", 10, static_cast<int>(DType::kBf16))),
              differs("all_reduce #12 (bf16, 10 elements)"));
  EXPECT_THAT(report_of(call("all_to_all"), call("all_to_all", 9)), HasSubstr(all));
  EXPECT_THAT(report_of(call("all_to_all"), call("all_gather")), differs("all_gather #12 (fp32, 10 elements)"));
}

TEST(HangReport, ASendWaitsForItsPeerAlone) {
  HangReport report{.me = 4,
                    .group = "pp",
                    .members = {2, 4, 6},
                    .late = {.kind = "send", .dtype = kFp32, .count = 3, .argument = 2, .point_to_point = true},
                    .timeout = std::chrono::seconds(1),
                    .states = {}};
  report.states[4].groups.push_back({.name = "pp", .running = to_string(report.late)});
  EXPECT_THAT(
      to_string(report),
      HasSubstr("expected its ranks 4, 6 within 1.0 s (--comm-timeout), got only rank 4; rank 6 gave no answer"));
}

// The peer waits for it in another group.
TEST(HangReport, ASilentRankIsNamedInGroupsOfOthersToo) {
  CollectiveCall late = call("receive");
  late.point_to_point = true;
  HangReport report{.me = 0,
                    .group = "pp",
                    .members = {2, 0},
                    .late = late,
                    .timeout = std::chrono::seconds(1),
                    .states = {},
                    .world = 4};
  const std::string rows = "exchange_rows #7 (rows of layer 1's experts: fp32, 4 elements)";
  report.states[0].groups.push_back({.name = "pp", .running = to_string(late)});
  report.states[1] = {};
  report.states[2].groups.push_back({.name = "dispatch", .running_sequence = 7, .running = rows, .running_ms = 1000});
  EXPECT_THAT(to_string(report), testing::AllOf(HasSubstr("rank 2 is in " + rows + " on group dispatch for 1.0 s"),
                                                testing::EndsWith("; rank 3 gave no answer, so the process is "
                                                                  "stopped, lost or starved")));
}

// A machine that stalls more often than once in a timeout hides no hang.
TEST(AwakeTime, CountsOneSecondOfEachSuspension) {
  using std::chrono::milliseconds;
  AwakeTime awake;
  const AwakeTime::Clock::time_point start = AwakeTime::Clock::now();
  EXPECT_EQ(awake.since(start), milliseconds(0));
  for (const int at : {0, 50, 100}) awake.look(start + milliseconds(at));
  EXPECT_EQ(awake.since(start), milliseconds(100));
  awake.look(start + milliseconds(10'100));
  EXPECT_EQ(awake.since(start), milliseconds(1100));
  EXPECT_EQ(awake.since(start + milliseconds(1600)), milliseconds(0));  // while it was suspended
  for (const int at : {10'200, 13'200, 13'300}) awake.look(start + milliseconds(at));
  EXPECT_EQ(awake.since(start), milliseconds(2300));
  EXPECT_EQ(awake.since(start + milliseconds(10'150)), milliseconds(1150));
  EXPECT_EQ(awake.since(start + milliseconds(13'250)), milliseconds(50));
}

TEST(HangReport, StatesTravelAsText) {
  RankState state{.late = true, .groups = {}};
  EXPECT_TRUE(rank_state_from(to_text(state)).late);
  EXPECT_TRUE(rank_state_from(to_text(state)).groups.empty());
  EXPECT_FALSE(rank_state_from("").late);
}

}  // namespace
}  // namespace megalith
