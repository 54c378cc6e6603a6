// plan_arena against the definition, over thousands of random steps. Two buffers may share bytes only if every access
// of one precedes every access of the other in the transitive closure.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/memory/arena.h"
#include "tests/support/tier.h"
#include "tests/unit/device/happens_before.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

struct Random {
  std::mt19937 engine;
  int below(int n) { return static_cast<int>(engine() % static_cast<unsigned>(n)); }
  bool chance(int percent) { return below(100) < percent; }
};

struct LiveBuffer {
  ArenaKey key;  // with its use
  void* address;
  std::vector<int> nodes;  // its accesses, in the reference
};

// Records a random step of a few microbatches on 1 to 3 streams, and the same for the reference.
class RandomStep {
 public:
  explicit RandomStep(unsigned seed) : random_{std::mt19937(seed)}, lanes_(1 + random_.below(3)), order_(lanes_ + 1) {
    for (int lane = 0; lane < lanes_; ++lane) timeline_.add_lane("stream " + std::to_string(lane));
    const int microbatches = 1 + random_.below(3);
    const int microbatch_seed = random_.below(1 << 30);
    for (int m = 0; m < microbatches; ++m) {
      // Keys and sizes repeat in every microbatch; the accesses vary.
      Random sizes{std::mt19937(static_cast<unsigned>(microbatch_seed))};
      recent_ = buffers_.size();
      microbatch_ = m;
      for (int segment = 0; segment < 3; ++segment) run_segment(segment, sizes);
      for (int lane = 1; lane < lanes_; ++lane) {
        record(lane);
        wait(0, next_event_ - 1);
      }
      // The next microbatch uses the same keys on all lanes.
      record(0);
      for (int lane = 1; lane < lanes_; ++lane) wait(lane, next_event_ - 1);
    }
  }

  ArenaPlan plan(bool by_use) const { return plan_arena(timeline_, arena_, {.by_use = by_use}); }
  const std::vector<LiveBuffer>& buffers() const { return buffers_; }
  int lanes() const { return lanes_; }

  bool all_before(const LiveBuffer& a, const LiveBuffer& b) const {
    for (int x : a.nodes) {
      for (int y : b.nodes) {
        if (x >= y || !order_.ordered(x, y)) return false;
      }
    }
    return true;
  }

 private:
  void run_segment(int segment, Random& sizes) {
    arena_.begin_scope({.column = 0, .segment = segment, .verb = 0});
    std::int32_t ordinal = 0;
    for (int i = 0; i < 8; ++i) {
      if (sizes.chance(60)) {
        const auto bytes = static_cast<std::size_t>(1 + sizes.below(2000)) << 20;  // so that gaps count
        void* address = arena_.allocate(bytes, MemoryCategory::kActivations, "x");
        buffers_.push_back({{{0, segment, 0}, ordinal++, microbatch_}, address, {}});
      }
      const int lane = random_.below(lanes_);
      if (random_.chance(25)) record(lane);
      if (next_event_ > 0 && random_.chance(40)) {
        wait(random_.below(lanes_),
             next_event_ - 1 -
                 static_cast<std::uint64_t>(random_.below(static_cast<int>(std::min<std::uint64_t>(next_event_, 4)))));
      }
      if (buffers_.size() > recent_) op(lane);
    }
  }

  void op(int lane) {
    Access access("op");
    const int node = order_.op(lane + 1);
    const auto available = static_cast<int>(buffers_.size() - recent_);
    for (int r = 1 + random_.below(3); r > 0; --r) {
      // The youngest most often.
      const int age = std::min(random_.below(available), random_.below(available));
      LiveBuffer& buffer = buffers_[buffers_.size() - 1 - static_cast<std::size_t>(age)];
      access.add(buffer.address, 1, random_.chance(50));
      buffer.nodes.push_back(node);
    }
    timeline_.op(lane, access);
  }
  void record(int lane) {
    timeline_.record(lane, next_event_);
    order_.record(lane + 1, next_event_++);
  }
  void wait(int lane, std::uint64_t event) {
    timeline_.wait(lane, event);
    order_.wait(lane + 1, event);
  }

  Random random_;
  int lanes_;
  HappensBefore order_;
  Timeline timeline_;
  MemoryPool pool_{DeviceType::kPlan};
  Arena arena_{pool_, Arena::Mode::kRecording};
  std::vector<LiveBuffer> buffers_;
  std::size_t recent_ = 0;  // first buffer of the microbatch
  int microbatch_ = 0;      // each uses all scopes once
  std::uint64_t next_event_ = 0;
};

const ArenaPlan::Slot& slot_of(const LiveBuffer& buffer, const ArenaPlan& plan) {
  return plan.slots.at({buffer.key.scope, buffer.key.ordinal, plan.by_use ? buffer.key.use : ArenaKey::kEveryUse});
}

// The most bytes between first and last access at once, on one stream, by trying every op.
std::size_t live_bytes_of_one_stream(const RandomStep& step, const ArenaPlan& plan) {
  std::size_t most = 0;
  for (const LiveBuffer& at : step.buffers()) {
    for (int node : at.nodes) {
      std::size_t live = 0;
      for (const LiveBuffer& b : step.buffers()) {
        if (!b.nodes.empty() && b.nodes.front() <= node && node <= b.nodes.back()) live += slot_of(b, plan).bytes;
      }
      most = std::max(most, live);
    }
  }
  return most;
}

TEST(ArenaPlanRandom, BuffersThatShareBytesAreOrdered) {
  const unsigned steps = 3000 / static_cast<unsigned>(test::one_of(test::kIsSlow ? 100 : 10));
  std::int64_t sharing_on[4] = {0, 0, 0, 0};
  for (unsigned seed = 0; seed < steps && !HasFailure(); ++seed) {
    const RandomStep step(seed);
    const ArenaPlan plan = step.plan(seed % 2 == 1);
    EXPECT_GE(plan.peak_bytes, plan.live_bytes);
    if (step.lanes() == 1) {
      EXPECT_EQ(plan.live_bytes, live_bytes_of_one_stream(step, plan)) << "seed " << seed;
    }
    const std::vector<LiveBuffer>& buffers = step.buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const ArenaPlan::Slot& a = slot_of(buffers[i], plan);
      ASSERT_LE(a.offset + a.bytes, plan.peak_bytes);
      for (std::size_t j = i + 1; j < buffers.size(); ++j) {
        const ArenaPlan::Slot& b = slot_of(buffers[j], plan);
        if (a.offset >= b.offset + b.bytes || b.offset >= a.offset + a.bytes) continue;
        if (buffers[i].nodes.empty() || buffers[j].nodes.empty()) continue;
        ASSERT_TRUE(step.all_before(buffers[i], buffers[j]) || step.all_before(buffers[j], buffers[i]))
            << "seed " << seed << ": buffers " << i << " and " << j << " of " << step.lanes() << " lanes";
        ++sharing_on[step.lanes()];
      }
    }
  }
  for (int lanes = 1; lanes <= 3; ++lanes) EXPECT_GT(sharing_on[lanes], static_cast<int>(steps) / 3) << lanes;
}

}  // namespace
}  // namespace megalith
