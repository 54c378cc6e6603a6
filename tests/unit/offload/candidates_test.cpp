// Tests of the search for candidates in small recordings: writers, readers, kinds, and storages that cannot leave.
#include "offload/candidates.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/support/error_of.h"
#include "tests/support/matchers.h"

namespace megalith {
namespace {

using ::testing::SizeIs;
using Kind = ActionKind;

// One segment in each of two layers, and a last segment without a layer.
const std::vector<SegmentName> kSegments = {{"layer 0", 0}, {"layer 1", 1}, {"head", -1}};

class Candidates : public testing::Test {
 protected:
  // Begins an action; following calls belong to it.
  void action(Kind kind, int segment, int microbatch = 0, int chunk = 0) {
    actions_.push_back({.kind = kind,
                        .chunk = chunk,
                        .microbatch = microbatch,
                        .segment = segment,
                        .column = 10 * chunk + microbatch});
    entries_.push_back(timeline_.entries().size());
    const bool is_verb = segment >= 0;
    arena_.begin_scope(
        {.column = actions_.back().column, .segment = segment, .verb = is_verb ? static_cast<int>(kind) : 7});
  }
  void* allocate(std::size_t bytes = 512) { return arena_.allocate(bytes, MemoryCategory::kWorkspace, "tensor"); }
  void keep(void* data, SlotKind kind, bool bounded = false, bool never_offload = false) {
    arena_.classify(data, MemoryCategory::kActivations, name_of(kind), bounded, never_offload);
  }
  void touch(void* data, bool writes) {
    Access access("op");
    access.add(data, 256, writes);
    timeline_.op(lane_, access);
  }
  void write(void* data) { touch(data, true); }
  void read(void* data) { touch(data, false); }

  // Records forward and backward of a microbatch. `layer 0` makes and keeps x, `layer 1` reads it, and backward of
  // `layer 0` reads it.
  void* microbatch(int number, const std::function<void(void*)>& before_backward = nullptr) {
    action(Kind::kForward, 0, number);
    void* x = allocate();
    write(x);
    keep(x, SlotKind::kFc1);
    action(Kind::kForward, 1, number);
    read(x);
    action(Kind::kForward, 2, number);
    if (before_backward) before_backward(x);
    for (int segment = 2; segment >= 0; --segment) {
      action(Kind::kBackwardData, segment, number);
      action(Kind::kBackwardWeight, segment, number);
      if (segment == 0) read(x);
    }
    return x;
  }

  std::vector<OffloadCandidate> found(bool between_layers = false) {
    return find_candidates({.arena = arena_,
                            .timeline = timeline_,
                            .actions = actions_,
                            .entries = entries_,
                            .between_layers = between_layers},
                           kSegments);
  }

  Timeline timeline_;
  int lane_ = timeline_.add_lane("compute");
  MemoryPool pool_{DeviceType::kPlan};
  Arena arena_{pool_, Arena::Mode::kRecording};
  std::vector<Action> actions_;
  std::vector<std::size_t> entries_;
};

TEST_F(Candidates, HaveWriterAndReadersOfAllMicrobatches) {
  microbatch(0);
  microbatch(1);
  const std::vector<OffloadCandidate> all = found();
  ASSERT_THAT(all, SizeIs(1));
  const OffloadSlot& slot = all[0].slot;
  EXPECT_EQ(all[0].stays, "");
  EXPECT_EQ(slot.kind, SlotKind::kFc1);
  EXPECT_EQ(slot.layer, 0);
  EXPECT_EQ(slot.bytes, 512u);
  EXPECT_EQ(slot.segment, 0);
  EXPECT_EQ(slot.last_writer, (SlotVerb{Kind::kForward, 0}));
  EXPECT_EQ(slot.last_forward_reader, (SlotVerb{Kind::kForward, 1}));
  EXPECT_EQ(slot.first_backward_reader, (SlotVerb{Kind::kBackwardWeight, 0}));
  EXPECT_EQ(slot.name, "layer 0: fc1");
  EXPECT_FALSE(slot.bounded);
  EXPECT_FALSE(all[0].straight_back);  // layer 1 runs in between
  EXPECT_EQ(slot.key(1).scope.column, 1);
}

TEST_F(Candidates, OfTheLastLayerComeStraightBack) {
  action(Kind::kForward, 1);
  void* x = allocate();
  write(x);
  keep(x, SlotKind::kAct);
  action(Kind::kForward, 2);
  action(Kind::kBackwardData, 2);
  action(Kind::kBackwardData, 1);
  read(x);
  ASSERT_THAT(found(), SizeIs(1));
  EXPECT_TRUE(found()[0].straight_back);
}

TEST_F(Candidates, AreWholeStoragesWithAllTheirKinds) {
  action(Kind::kForward, 0);
  void* qkv = allocate(3 * 256);
  write(qkv);
  for (int part = 0; part < 3; ++part) keep(static_cast<std::byte*>(qkv) + 256 * part, SlotKind::kCoreAttn);
  keep(qkv, SlotKind::kOther);
  action(Kind::kForward, 1);
  keep(qkv, SlotKind::kLayerInput);  // no op reads it
  action(Kind::kForward, 2);
  action(Kind::kBackwardData, 1);
  action(Kind::kBackwardData, 0);
  read(static_cast<std::byte*>(qkv) + 256);  // accesses a view only
  const std::vector<OffloadCandidate> all = found();
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_EQ(all[0].slot.kind, SlotKind::kCoreAttn);
  EXPECT_EQ(all[0].slot.layer, 0);
  EXPECT_EQ(all[0].slot.bytes, 3u * 256);
  EXPECT_THAT(all[0].slot.kinds, ElementsAre(SlotKind::kCoreAttn, SlotKind::kLayerInput));
  EXPECT_THAT(all[0].views, ElementsAre(OffloadCandidate::View{SlotKind::kCoreAttn, 0},
                                        OffloadCandidate::View{SlotKind::kLayerInput, 1}));
  EXPECT_EQ(all[0].slot.last_forward_reader, (SlotVerb{Kind::kForward, 1}));  // a saver is a reader
}

// Index of the view that is marked never_offload, of any kind and segment; -1: none.
class MarkedCandidates : public Candidates, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Views, MarkedCandidates, testing::Range(-1, 4));

TEST_P(MarkedCandidates, StayWhereAnyViewIsNeverToBeOffloaded) {
  const int marked = GetParam();
  action(Kind::kForward, 0);
  void* x = allocate(1024);
  write(x);
  keep(x, SlotKind::kCoreAttn, false, marked == 0);
  keep(static_cast<std::byte*>(x) + 256, SlotKind::kOther, false, marked == 1);
  action(Kind::kForward, 1);
  read(x);
  keep(static_cast<std::byte*>(x) + 512, SlotKind::kOther, false, marked == 2);
  keep(x, SlotKind::kOwn, false, marked == 3);
  action(Kind::kForward, 2);
  action(Kind::kBackwardData, 0);
  read(x);
  ASSERT_THAT(found(), SizeIs(1));
  EXPECT_EQ(found()[0].stays, marked < 0 ? "" : "its layer marks it never_offload");
}

TEST_F(Candidates, AreNotWhatNoKindCanName) {
  action(Kind::kForward, 0);
  void* x = allocate();
  write(x);
  keep(x, SlotKind::kOther);
  action(Kind::kBackwardData, 0);
  read(x);
  EXPECT_THAT(found(), IsEmpty());
}

// Within a layer, bounded rows may leave only after the verb that stashes their number. Between layers, the graph
// records when they were written.
TEST_F(Candidates, KnowThatTheirRowsAreBounded) {
  action(Kind::kForward, 0);
  void* x = allocate();
  write(x);
  action(Kind::kForward, 1);
  read(x);
  keep(x, SlotKind::kExpertFc1, true);
  action(Kind::kBackwardData, 1);
  read(x);
  action(Kind::kBackwardData, 0);
  ASSERT_THAT(found(), SizeIs(1));
  const OffloadSlot slot = found()[0].slot;
  EXPECT_TRUE(slot.bounded);
  EXPECT_EQ(slot.last_writer, (SlotVerb{Kind::kForward, 1}));
  EXPECT_EQ(found(true)[0].slot.last_writer, (SlotVerb{Kind::kForward, 0}));
}

TEST_F(Candidates, ThatWereReceivedAreWrittenByTheirFirstReader) {
  action(Kind::kPostReceive, -1);
  void* x = allocate();
  write(x);
  action(Kind::kForward, 0);
  read(x);
  keep(x, SlotKind::kAttnNorm);
  action(Kind::kForward, 1);
  action(Kind::kBackwardData, 1);
  action(Kind::kBackwardData, 0);
  read(x);
  ASSERT_THAT(found(), SizeIs(1));
  const OffloadCandidate one = found()[0];
  EXPECT_EQ(one.stays, "");
  EXPECT_EQ(one.slot.segment, -1);
  EXPECT_EQ(one.slot.layer, 0);
  EXPECT_EQ(one.slot.last_writer, (SlotVerb{Kind::kForward, 0}));
}

TEST_F(Candidates, StayWhereOtherActionsReadThem) {
  microbatch(0, [this](void* x) {
    action(Kind::kForward, 0, 0, 1);  // another chunk, in its own column
    read(x);
  });
  ASSERT_THAT(found(), SizeIs(1));
  EXPECT_THAT(found()[0].stays, HasSubstr("another chunk"));
}

TEST_F(Candidates, MayBeSentAfterTheChunksLastVerbAlone) {
  microbatch(0, [this](void* x) {
    action(Kind::kSend, -1);
    read(x);
  });
  ASSERT_THAT(found(), SizeIs(1));
  EXPECT_THAT(found()[0].stays, HasSubstr("when the chunk's output is sent"));
}

TEST_F(Candidates, StayWhereBackwardDoesNotReadThem) {
  action(Kind::kForward, 0);
  void* x = allocate();
  write(x);
  keep(x, SlotKind::kFc2);
  ASSERT_THAT(found(), SizeIs(1));
  EXPECT_THAT(found()[0].stays, HasSubstr("backward does not read"));
}

TEST_F(Candidates, ThatDifferBetweenMicrobatchesAreAnError) {
  microbatch(0);
  microbatch(1, [this](void* x) { read(x); });  // by the head
  EXPECT_THAT(error_of(ExitCode::kInternal, [this] { found(); }), HasSubstr("layer 0: fc1 of chunk 0"));
}

}  // namespace
}  // namespace megalith
