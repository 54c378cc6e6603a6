// The hazard checker against the definition, over thousands of random traces. A pair of accesses is a hazard if they
// overlap, one writes, and neither precedes the other in the transitive closure.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/device/graph.h"
#include "core/instruments/hazard_checker.h"
#include "tests/support/tier.h"
#include "tests/unit/device/happens_before.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

constexpr std::size_t kMemory = 24;
constexpr int kMaxOps = 400;

std::byte* watched_bytes() {
  static std::byte bytes[kMemory];
  return bytes;
}

// Names that distinguish ops and live as long as the process.
const char* op_name(int i) {
  static const std::deque<std::string> names = [] {
    std::deque<std::string> list;
    for (int n = 0; n < kMaxOps; ++n) list.push_back(std::to_string(n));
    return list;
  }();
  return names[static_cast<std::size_t>(i)].c_str();
}

struct RandomRanges {
  std::mt19937 engine;
  int below(int n) { return static_cast<int>(engine() % static_cast<unsigned>(n)); }
  bool chance(int percent) { return below(100) < percent; }
};

std::vector<AccessRange> random_ranges(RandomRanges& random, int write_percent) {
  std::vector<AccessRange> ranges;
  for (int r = 1 + random.below(3); r > 0; --r) {
    const int begin = random.below(static_cast<int>(kMemory));
    const int bytes = 1 + random.below(std::min(8, static_cast<int>(kMemory) - begin));
    ranges.push_back({watched_bytes() + begin, static_cast<std::size_t>(bytes), random.chance(write_percent)});
  }
  return ranges;
}

struct DoneOp {
  int node;
  std::string name;  // a captured op keeps its name at every replay
  std::vector<AccessRange> ranges;
};

bool conflict(const DoneOp& a, const DoneOp& b) {
  for (const AccessRange& x : a.ranges) {
    for (const AccessRange& y : b.ranges) {
      const auto* x_begin = static_cast<const std::byte*>(x.begin);
      const auto* y_begin = static_cast<const std::byte*>(y.begin);
      if ((x.write || y.write) && x_begin < y_begin + y.bytes && y_begin < x_begin + x.bytes) return true;
    }
  }
  return false;
}

// The reference's side of a trace: ops in the order in which they are enqueued.
struct Reference {
  explicit Reference(int num_lanes) : order(num_lanes) {}

  void op(int lane, const Access& access) {
    ops.push_back({order.op(lane), std::string(access.name()), access.ranges()});
  }
  bool hazard(std::size_t first, std::size_t second) const {
    return !order.ordered(ops[first].node, ops[second].node) && conflict(ops[first], ops[second]);
  }
  bool hazard(const std::string& first_name, const std::string& second_name) const {
    for (std::size_t second = 0; second < ops.size(); ++second) {
      if (ops[second].name != second_name) continue;
      for (std::size_t first = 0; first < second; ++first) {
        if (ops[first].name == first_name && hazard(first, second)) return true;
      }
    }
    return false;
  }
  // The first op that conflicts with an earlier one it is not ordered with.
  std::optional<std::size_t> first_hazard() const {
    for (std::size_t second = 0; second < ops.size(); ++second) {
      for (std::size_t first = 0; first < second; ++first) {
        if (hazard(first, second)) return second;
      }
    }
    return std::nullopt;
  }

  HappensBefore order;
  std::vector<DoneOp> ops;
};

// Returns whether the trace was clean. Every report must be a true hazard, and the first op that has one must be
// reported. After that op, one missing event may hide another.
bool compare(const HazardChecker& checker, const Reference& reference, unsigned seed) {
  const std::optional<std::size_t> expected = reference.first_hazard();
  EXPECT_EQ(checker.count() > 0, expected.has_value()) << "seed " << seed;
  for (const Hazard& hazard : checker.hazards()) {
    EXPECT_TRUE(reference.hazard(hazard.first_op, hazard.second_op)) << "seed " << seed << ": " << to_string(hazard);
  }
  if (expected.has_value() && !checker.hazards().empty()) {
    EXPECT_EQ(checker.hazards()[0].second_op, reference.ops[*expected].name) << "seed " << seed;
  }
  return !expected.has_value();
}

bool compare_random_trace(unsigned seed) {
  RandomRanges random{std::mt19937(seed)};
  const int lanes = 2 + random.below(4);
  const int events = 1 + random.below(5);
  const int write_percent = 10 + random.below(50);
  const int op_percent = 20 + random.below(40);
  HazardChecker checker;
  Reference reference(lanes);
  for (int lane = 1; lane < lanes; ++lane) EXPECT_EQ(checker.add_lane("lane " + std::to_string(lane)), lane);
  const int length = 5 + random.below(60);
  for (int i = 0; i < length; ++i) {
    const int lane = random.chance(8) ? HazardChecker::kHost : 1 + random.below(lanes - 1);
    const auto event = static_cast<std::uint64_t>(random.below(events));
    if (random.chance(op_percent)) {
      const TestOp op{.name = op_name(static_cast<int>(reference.ops.size())),
                      .ranges = random_ranges(random, write_percent)};
      checker.op(lane, access_of(op));
      reference.op(lane, access_of(op));
    } else if (lane != HazardChecker::kHost && random.chance(45)) {
      checker.record(lane, event);
      reference.order.record(lane, event);
    } else if (random.chance(95)) {
      checker.wait(lane, event);
      reference.order.wait(lane, event);
    } else {
      const int other = 1 + random.below(lanes - 1);
      checker.join(lane, other);
      reference.order.join(lane, other);
    }
  }
  return compare(checker, reference, seed);
}

TEST(HazardCheckerRandom, AgreesWithTheTransitiveClosureOnEveryTrace) {
  const unsigned traces = 20000 / static_cast<unsigned>(test::one_of(test::kIsSlow ? 100 : 10));
  unsigned clean = 0;
  for (unsigned seed = 0; seed < traces && !HasFailure(); ++seed) clean += compare_random_trace(seed) ? 1 : 0;
  EXPECT_GT(clean, traces / 10);  // both outcomes occur often
  EXPECT_LT(clean, traces * 9 / 10);
}

// A random step over real streams and graphs. Captured actions are kept in words, and expanded at each replay.
class RandomProgram {
 public:
  explicit RandomProgram(unsigned seed) : random_{std::mt19937(seed)}, write_percent_(5 + random_.below(30)) {
    for (int s = 0; s < kStreams; ++s) {
      streams_.emplace_back(DeviceType::kCpu, "stream " + std::to_string(s), Instruments{.hazards = &checker_});
    }
    for (int e = 0; e < kEvents; ++e) events_.emplace_back("event " + std::to_string(e));
    for (Captured& captured : graphs_) capture(captured);
    const int length = 5 + random_.below(30);
    for (int i = 0; i < length; ++i) act();
    for (Stream& stream : streams_) stream.synchronize();
  }

  bool agrees(unsigned seed) const { return compare(checker_, reference_, seed); }
  int replays() const { return replays_; }

 private:
  static constexpr int kStreams = 3;
  static constexpr int kEvents = 3;

  enum class Kind { kOp, kRecord, kWait, kRecordExternal, kWaitExternal };
  struct Entry {
    Kind kind;
    std::size_t lane;         // 0 is the origin
    std::uint64_t event = 0;  // inside: a separate number; external: index into events_
    const Access* access = nullptr;
  };
  struct Captured {
    Graph graph{"graph"};
    std::deque<Access> accesses;
    std::vector<Entry> entries;
    std::size_t num_lanes = 1;
  };

  Stream& stream(std::size_t s) { return streams_[s]; }
  int reference_lane(std::size_t s) const { return static_cast<int>(s) + 1; }

  TestOp random_op() {
    TestOp op{.name = op_name(num_ops_), .ranges = random_ranges(random_, write_percent_)};
    ++num_ops_;
    return op;
  }

  void capture(Captured& captured) {
    std::deque<Event> inside;
    std::vector<bool> joined(kStreams, false);
    joined[0] = true;
    std::vector<std::size_t> lane_of(kStreams, 0);
    const auto record = [&](std::size_t s) {
      inside.emplace_back("inside");
      stream(s).record(inside.back());
      captured.entries.push_back({Kind::kRecord, lane_of[s], inside.size() - 1});
    };
    const auto wait = [&](std::size_t s, std::size_t event) {
      if (!joined[s]) lane_of[s] = captured.num_lanes++;
      joined[s] = true;
      stream(s).wait(inside[event]);
      captured.entries.push_back({Kind::kWait, lane_of[s], event});
    };
    captured.graph.begin_capture(stream(0));
    for (int i = 3 + random_.below(15); i > 0; --i) {
      const auto s = static_cast<std::size_t>(random_.below(kStreams));
      const auto external = static_cast<std::size_t>(random_.below(kEvents));
      if (!joined[s] || random_.chance(30)) {
        if (!inside.empty()) wait(s, static_cast<std::size_t>(random_.below(static_cast<int>(inside.size()))));
      } else if (random_.chance(45)) {
        record(s);
      } else if (random_.chance(80)) {
        const TestOp op = random_op();
        enqueue(stream(s), op);
        captured.accesses.push_back(access_of(op));
        captured.entries.push_back({Kind::kOp, lane_of[s], 0, &captured.accesses.back()});
      } else if (random_.chance(50)) {
        stream(s).record_external(events_[external]);
        captured.entries.push_back({Kind::kRecordExternal, lane_of[s], external});
      } else {
        stream(s).wait_external(events_[external]);
        captured.entries.push_back({Kind::kWaitExternal, lane_of[s], external});
      }
    }
    for (std::size_t s = 1; s < kStreams; ++s) {
      if (!joined[s]) continue;
      record(s);
      wait(0, inside.size() - 1);
    }
    captured.graph.end_capture();
  }

  void act() {
    const auto s = static_cast<std::size_t>(random_.below(kStreams));
    const auto number = static_cast<std::size_t>(random_.below(kEvents));
    Event& event = events_[number];
    if (random_.chance(25)) {
      replay(graphs_[static_cast<std::size_t>(random_.below(2))], s);
    } else if (random_.chance(25)) {
      const TestOp op = random_op();
      enqueue(stream(s), op);
      reference_.op(reference_lane(s), access_of(op));
    } else if (random_.chance(45)) {
      stream(s).record(event);
      reference_.order.record(reference_lane(s), number);
    } else if (random_.chance(90)) {
      stream(s).wait(event);
      reference_.order.wait(reference_lane(s), number);
    } else {
      stream(s).synchronize();
      reference_.order.join(0, reference_lane(s));
    }
  }

  void replay(Captured& captured, std::size_t s) {
    ++replays_;
    captured.graph.replay(stream(s));
    std::vector<int> lanes{reference_lane(s)};
    while (lanes.size() < captured.num_lanes) lanes.push_back(reference_.order.add_lane_after(lanes[0]));
    const std::uint64_t first_inside = next_inside_;
    for (const Entry& entry : captured.entries) {
      const int lane = lanes[entry.lane];
      switch (entry.kind) {
        case Kind::kOp: reference_.op(lane, *entry.access); break;
        case Kind::kRecord: reference_.order.record(lane, first_inside + entry.event); break;
        case Kind::kWait: reference_.order.wait(lane, first_inside + entry.event); break;
        case Kind::kRecordExternal: reference_.order.record(lane, entry.event); break;
        case Kind::kWaitExternal: reference_.order.wait(lane, entry.event); break;
      }
    }
    next_inside_ += 1000;
  }

  RandomRanges random_;
  int write_percent_;
  HazardChecker checker_;
  std::deque<Stream> streams_;
  std::deque<Event> events_;
  Captured graphs_[2];
  Reference reference_{kStreams + 1};
  std::uint64_t next_inside_ = 1000;
  int num_ops_ = 0;
  int replays_ = 0;
};

TEST(HazardCheckerRandom, AgreesWithTheTransitiveClosureOverReplaysOfForkedGraphs) {
  const unsigned programs = 1000 / static_cast<unsigned>(test::one_of(test::kIsSlow ? 25 : 5));
  unsigned clean = 0;
  int replays = 0;
  for (unsigned seed = 0; seed < programs && !HasFailure(); ++seed) {
    const RandomProgram program(seed);
    clean += program.agrees(seed) ? 1 : 0;
    replays += program.replays();
  }
  EXPECT_GT(replays, static_cast<int>(programs));
  EXPECT_GT(clean, programs / 10);
  EXPECT_LT(clean, programs * 9 / 10);
}

}  // namespace
}  // namespace megalith
