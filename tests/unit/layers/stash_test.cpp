#include "core/layers/stash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/support/error_of.h"
#include "tests/support/matchers.h"

namespace megalith {
namespace {

class StashTest : public testing::Test {
 protected:
  Tensor tensor(int i) { return Tensor(&memory_[i], DType::kFp32, {1}); }

  std::vector<SlotKind> kinds() {
    std::vector<SlotKind> all;
    stash_.for_each([&](const Stash::Slot& slot) { all.push_back(slot.kind); });
    return all;
  }

  SlotPolicies recompute(SlotKind kind) {
    SlotPolicies policies{};
    policies[static_cast<std::size_t>(kind)] = StashPolicy::kRecompute;
    return policies;
  }

  float memory_[4] = {};
  Stash stash_;
};

TEST_F(StashTest, KeepsByDefault) {
  stash_.save(0, SlotKind::kCoreAttn, tensor(0));
  stash_[3] = tensor(3);
  EXPECT_TRUE(stash_.has(0));
  EXPECT_FALSE(stash_.has(1));
  EXPECT_EQ(stash_.at(0, "q").data, &memory_[0]);
  EXPECT_EQ(stash_.at(3, "input").data, &memory_[3]);
  EXPECT_EQ(kinds(), (std::vector<SlotKind>{SlotKind::kCoreAttn, SlotKind::kOther}));
}

TEST_F(StashTest, DropsWhatItsPolicyRecomputesAndTakesItBackWhenRefilled) {
  stash_ = Stash(recompute(SlotKind::kFc2));
  stash_.save(1, SlotKind::kFc2, tensor(1));
  stash_.save(2, SlotKind::kFc1, tensor(2));
  EXPECT_FALSE(stash_.has(1));
  EXPECT_TRUE(stash_.has(2));
  EXPECT_EQ(kinds(), (std::vector<SlotKind>{SlotKind::kFc1}));
  stash_.refill(1, tensor(0));
  EXPECT_TRUE(stash_.has(1));
  EXPECT_EQ(stash_.at(1, "activation").data, &memory_[0]);
}

TEST_F(StashTest, KeepsUnderEveryPolicyWhatNothingRefills) {
  stash_ = Stash(recompute(SlotKind::kOwn));
  stash_.keep(0, SlotKind::kOwn, tensor(0));
  stash_.save(1, SlotKind::kOwn, tensor(1));
  EXPECT_EQ(stash_.at(0, "input").data, &memory_[0]);
  EXPECT_FALSE(stash_.has(1));
  EXPECT_EQ(kinds(), (std::vector<SlotKind>{SlotKind::kOwn}));
}

TEST_F(StashTest, MarksWhatIsNeverOffloadedUntilItIsFilledAgain) {
  const auto marks = [&] {
    std::vector<bool> all;
    stash_.for_each([&](const Stash::Slot& slot) { all.push_back(slot.never_offload); });
    return all;
  };
  stash_ = Stash(recompute(SlotKind::kFc2));
  stash_.save(0, SlotKind::kOwn, tensor(0));
  stash_[1] = tensor(1);
  stash_.save(2, SlotKind::kFc2, tensor(2));
  for (const int slot : {0, 1, 2}) stash_.never_offload(slot);
  EXPECT_EQ(marks(), (std::vector<bool>{true, true}));
  stash_.refill(2, tensor(2));
  EXPECT_EQ(marks(), (std::vector<bool>{true, true, false}));
  stash_.save(0, SlotKind::kOwn, tensor(0));
  EXPECT_EQ(marks(), (std::vector<bool>{false, true, false}));
}

TEST_F(StashTest, ADroppedSlotForgetsTheMicrobatchBefore) {
  stash_ = Stash(recompute(SlotKind::kFc2));
  stash_.refill(1, tensor(1));
  stash_.save(1, SlotKind::kFc2, tensor(2));
  EXPECT_FALSE(stash_.has(1));
}

TEST_F(StashTest, AMissingSlotIsNamed) {
  EXPECT_THAT(error_of(ExitCode::kInternal, [&] { stash_.at(2, "attention output"); }), HasSubstr("attention output"));
}

TEST_F(StashTest, PartsHaveStashesOfTheirOwn) {
  Stash& second = stash_.child(2);
  second[0] = tensor(0);
  Stash& first = stash_.child(1);  // must not move the other
  first[0] = tensor(1);
  EXPECT_EQ(&stash_.child(2), &second);
  EXPECT_EQ(stash_.child(2).at(0, "x").data, &memory_[0]);
  EXPECT_EQ(stash_.child(1).at(0, "x").data, &memory_[1]);
  EXPECT_FALSE(stash_.has(0));
  EXPECT_EQ(kinds().size(), 2u);
}

// The rest of the verb reads handed tensors; no stash keeps or moves them.
TEST_F(StashTest, KeepsNothingOfWhatIsHanded) {
  stash_.hand(0, tensor(0));
  stash_.hand(1, {});  // an absent tensor is handed too
  EXPECT_EQ(stash_.at(0, "x").data, &memory_[0]);
  EXPECT_TRUE(stash_.has(1));
  EXPECT_TRUE(kinds().empty());
  EXPECT_EQ(stash_.rebind(&memory_[0], sizeof(float), &memory_[3]), 0);
  EXPECT_EQ(stash_.at(0, "x").data, &memory_[0]);
}

TEST_F(StashTest, PartsShareTheLayerAndCopiesKeepTheirOwn) {
  EXPECT_THROW(stash_.layer(), Error);
  Stash layer, other;
  stash_.set_layer(layer);
  stash_.child(0).layer()[0] = tensor(2);
  EXPECT_EQ(layer.at(0, "x").data, &memory_[2]);
  Stash copy;
  copy.set_layer(other);
  copy = stash_;
  EXPECT_EQ(&copy.child(0).layer(), &other);
}

TEST_F(StashTest, ReferencesToSlotsStayValid) {
  Tensor& first = stash_[0];
  first = tensor(0);
  for (int i = 1; i < 8; ++i) stash_[i] = tensor(1);
  for (int i = 0; i < 20; ++i) stash_.child(i);
  EXPECT_EQ(&stash_[0], &first);
  EXPECT_EQ(first.data, &memory_[0]);
}

TEST_F(StashTest, ClearsItsPartsToo) {
  stash_[0] = tensor(0);
  stash_.child(0)[1] = tensor(1);
  stash_.clear();
  EXPECT_TRUE(kinds().empty());
  EXPECT_FALSE(stash_.has(0));
  EXPECT_FALSE(stash_.child(0).has(1));
}

TEST_F(StashTest, ASlotOutOfRangeIsAnError) {
  EXPECT_THROW(stash_[8], Error);
  EXPECT_THROW(stash_[-1], Error);
  EXPECT_THROW(stash_.save(8, SlotKind::kOther, tensor(0)), Error);
  EXPECT_FALSE(stash_.has(8));
  EXPECT_FALSE(stash_.has(-1));
}

TEST(SlotKinds, HaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  for (int kind = 0; kind < kNumSlotKinds; ++kind) names.insert(name_of(static_cast<SlotKind>(kind)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kNumSlotKinds));
  EXPECT_EQ(name_of(SlotKind::kCoreAttn), "core_attn");
}

}  // namespace
}  // namespace megalith
