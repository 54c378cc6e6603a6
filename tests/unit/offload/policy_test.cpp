// Tests of the choice of candidates by request, and of the reasons for those that stay.
#include "offload/policy.h"
#include "tests/support/matchers.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

constexpr std::size_t kMib = 1 << 20;

OffloadCandidate candidate(int chunk, std::int64_t layer, SlotKind kind, std::size_t bytes) {
  return {.slot = {.chunk = chunk, .bytes = bytes, .kind = kind, .kinds = {kind}, .layer = layer},
          .views = {{kind, layer}}};
}

// fc1 (2 MiB) and act (4 MiB) of 5 layers, in the order of forward. Those of the last layer return immediately.
std::vector<OffloadCandidate> five_layers(int chunk = 0) {
  std::vector<OffloadCandidate> all;
  for (int layer = 0; layer < 5; ++layer) {
    all.push_back(candidate(chunk, layer, SlotKind::kFc1, 2 * kMib));
    all.push_back(candidate(chunk, layer, SlotKind::kAct, 4 * kMib));
    all[all.size() - 2].straight_back = all.back().straight_back = layer == 4;
  }
  return all;
}

OffloadRequest request(std::initializer_list<SlotKind> kinds, std::int64_t first = 0, std::int64_t last = 4) {
  OffloadRequest made;
  for (const SlotKind kind : kinds) {
    for (std::int64_t layer = first; layer <= last; ++layer) made.policies.set(layer, kind, StashPolicy::kOffload);
  }
  return made;
}

// Moving slots as text, such as "0:fc1 1:fc1".
std::string moved(const std::vector<OffloadCandidate>& candidates, const OffloadRequest& of) {
  std::string text;
  for (const OffloadSlot& slot : moving(candidates, choose_offloads(candidates, of)))
    text += (text.empty() ? "" : " ") + std::to_string(slot.layer) + ":" + std::string(name_of(slot.kind));
  return text;
}

std::vector<std::string> reasons(const std::vector<OffloadCandidate>& candidates, const OffloadRequest& of) {
  std::vector<std::string> all;
  for (const OffloadChoice& choice : choose_offloads(candidates, of)) all.push_back(choice.reason);
  return all;
}

TEST(OffloadPolicy, TakesTheKindsAndLayersAskedForButTheLast) {
  EXPECT_EQ(moved(five_layers(), request({SlotKind::kFc1})), "0:fc1 1:fc1 2:fc1 3:fc1");
  EXPECT_EQ(moved(five_layers(), request({SlotKind::kAct}, 1, 2)), "1:act 2:act");
  EXPECT_EQ(moved(five_layers(), request({SlotKind::kFc2})), "");
  EXPECT_EQ(moved(five_layers(), {}), "");
  const auto all = reasons(five_layers(), request({SlotKind::kFc1}));
  EXPECT_EQ(all[0], "");
  EXPECT_EQ(all[1], "not in --offload-modules");
  EXPECT_EQ(all[8], "needed again at once");
}

TEST(OffloadPolicy, KeepsTheLastGroupsOfEachChunkByTheFraction) {
  std::vector<OffloadCandidate> both = five_layers(0);
  for (const OffloadCandidate& other : five_layers(1)) both.push_back(other);
  OffloadRequest of = request({SlotKind::kFc1});
  of.fraction = 0.5;  // int(4 x 0.5) = 2 stay in each chunk
  EXPECT_EQ(moved(both, of), "0:fc1 1:fc1 0:fc1 1:fc1");
  EXPECT_THAT(reasons(both, of)[4], HasSubstr("--activation-offload-fraction 0.5"));
  of.fraction = 0.8;  // int(0.8) = 0
  EXPECT_EQ(moved(both, of), "0:fc1 1:fc1 2:fc1 3:fc1 0:fc1 1:fc1 2:fc1 3:fc1");
  of.fraction = 0.75;  // int(1)
  EXPECT_EQ(moved(five_layers(), of), "0:fc1 1:fc1 2:fc1");
  of.fraction = 0;
  EXPECT_EQ(moved(both, of), "");
}

// In binary, 10 x (1 - 0.8) is less than 2, and 10 x (1 - 0.9) less than 1.
TEST(OffloadPolicy, TakesTheFractionOfTenAsADecimalNumber) {
  std::vector<OffloadCandidate> ten;
  for (int layer = 0; layer < 10; ++layer) ten.push_back(candidate(0, layer, SlotKind::kFc1, kMib));
  OffloadRequest of = request({SlotKind::kFc1}, 0, 9);
  for (int tenths = 0; tenths <= 10; ++tenths) {
    of.fraction = tenths / 10.0;
    EXPECT_EQ(moving(ten, choose_offloads(ten, of)).size(), static_cast<std::size_t>(tenths));
  }
}

TEST(OffloadPolicy, CountsAKindInALayerAsOneGroup) {
  std::vector<OffloadCandidate> two;  // attention's output and statistics
  for (int layer = 0; layer < 2; ++layer) {
    two.push_back(candidate(0, layer, SlotKind::kAttnProj, 2 * kMib));
    two.push_back(candidate(0, layer, SlotKind::kAttnProj, kMib));
  }
  OffloadRequest of = request({SlotKind::kAttnProj});
  of.fraction = 0.5;
  EXPECT_EQ(moved(two, of), "0:attn_proj 0:attn_proj");
}

TEST(OffloadPolicy, FillsALayersShareWithTheLargestThatFit) {
  OffloadRequest of = request({SlotKind::kFc1, SlotKind::kAct});
  of.max_bytes_of_layer = 5 * kMib;
  EXPECT_EQ(moved(five_layers(), of), "0:act 1:act 2:act 3:act");
  EXPECT_EQ(reasons(five_layers(), of)[0], "beyond --offload-mb-per-layer");
  of.max_bytes_of_layer = 3 * kMib;
  EXPECT_EQ(moved(five_layers(), of), "0:fc1 1:fc1 2:fc1 3:fc1");
  of.max_bytes_of_layer = 6 * kMib;
  EXPECT_EQ(moving(five_layers(), choose_offloads(five_layers(), of)).size(), 8u);
}

TEST(OffloadPolicy, KeepsWhatIsSmall) {
  OffloadRequest of = request({SlotKind::kFc1, SlotKind::kAct});
  of.min_bytes = 2 * kMib;
  EXPECT_EQ(moving(five_layers(), choose_offloads(five_layers(), of)).size(), 8u);
  of.min_bytes = 2 * kMib + 1;
  EXPECT_EQ(moved(five_layers(), of), "0:act 1:act 2:act 3:act");
  EXPECT_EQ(reasons(five_layers(), of)[0], "smaller than 2097153 bytes");
}

TEST(OffloadPolicy, SaysWhatTheRecordingSaysOfAStorageThatCannotLeave) {
  std::vector<OffloadCandidate> all = five_layers();
  all[0].stays = "handed on";
  EXPECT_EQ(moved(all, request({SlotKind::kFc1})), "1:fc1 2:fc1 3:fc1");
  EXPECT_EQ(reasons(all, request({SlotKind::kFc1}))[0], "handed on");
}

TEST(OffloadPolicy, TakesAStorageIfOneOfItsKindsIsAskedFor) {
  std::vector<OffloadCandidate> all = {candidate(0, 0, SlotKind::kMlpNorm, 2 * kMib)};
  all[0].views.push_back({SlotKind::kLayerInput, 1});
  EXPECT_EQ(moved(all, request({SlotKind::kLayerInput})), "0:mlp_norm");
  EXPECT_EQ(moved(all, request({SlotKind::kLayerInput}, 0, 0)), "");
}

// Layer 0 has segments 0 to 2, layer 1 has segment 3. -1: the common distance.
TEST(OffloadPolicy, TightensCopiesWithinALayer) {
  struct Case {
    int read, needed;  // segments of the last forward and the first backward reader
    bool between_layers;
    int lag, ahead;
  };
  for (const Case& each : {Case{0, 0, false, 0, 0}, Case{1, 2, false, 0, -1}, Case{2, 1, false, -1, 0},
                           Case{2, 2, false, -1, -1}, Case{3, 3, false, -1, -1}, Case{2, 0, true, 0, -1}}) {
    SCOPED_TRACE(testing::Message() << "read by " << each.read << ", needed by " << each.needed);
    OffloadSlot slot;
    slot.last_forward_reader.segment = each.read;
    slot.first_backward_reader.segment = each.needed;
    tighten(slot, {.layer_of_segment = {0, 0, 0, 1}, .between_layers = each.between_layers});
    EXPECT_EQ(slot.lag, each.lag);
    EXPECT_EQ(slot.ahead, each.ahead);
  }
}

}  // namespace
}  // namespace megalith
