#include "parallel/pipeline_parallel/segment_runner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <span>
#include <vector>

#include "core/memory/memory_pool.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"

namespace megalith {
namespace {

using Calls = std::vector<std::string>;

// Records the arguments of each verb: the microbatch by its number of sequences, tensors by their slot.
class Recorder : public Segment {
 public:
  Recorder(std::string name, Calls& calls, float* output) : name_(std::move(name)), calls_(calls), output_(output) {}

  TensorList forward(const Context&, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override {
    note("F", mb, inputs);
    stash[0] = Tensor(output_, DType::kFp32, {1});
    return {Tensor(output_, DType::kFp32, {1})};
  }
  TensorList backward_data(const Context&, const Microbatch& mb, const TensorList& gradients,
                           Stash& stash) const override {
    note(stash.has(0) ? "B" : "B without stash", mb, gradients);
    return {Tensor(output_, DType::kFp32, {1})};
  }
  void backward_weight(const Context&, const Microbatch& mb, Stash& stash) const override {
    note(stash.has(0) ? "W" : "W without stash", mb, {});
  }

 private:
  void note(const std::string& verb, const Microbatch& mb, const TensorList& tensors) const {
    std::string text = fmt::format("{} {} of {}", verb, name_, mb.sequences);
    if (tensors.size() > 0) text += fmt::format(" takes {}", *tensors[0].as<float>());
    calls_.push_back(text);
  }

  std::string name_;
  Calls& calls_;
  float* output_;
};

class SegmentRunnerTest : public testing::Test {
 protected:
  SegmentRunnerTest() {
    runner_.begin(0, {.sequences = 7});
    runner_.begin(1, {.sequences = 8});
  }

  void run(ActionKind kind, int segment, int column, int microbatch = 0) {
    runner_.run({.kind = kind, .microbatch = microbatch, .segment = segment, .column = column});
  }

  float values_[2] = {1, 2};  // outputs of the segments
  Calls calls_;
  MemoryPool pool_{DeviceType::kCpu};
  Stream stream_{DeviceType::kCpu, "test"};
  Arena arena_{pool_, Arena::Mode::kUnplanned};
  const Context ctx_{.compute = stream_, .arena = arena_};
  Recorder first_{"first", calls_, &values_[0]};
  Recorder second_{"second", calls_, &values_[1]};
  SegmentRunner runner_{ctx_, {{.name = "first", .segment = &first_}, {.name = "second", .segment = &second_}}};
};

TEST_F(SegmentRunnerTest, HandsTensorsFromSegmentToSegmentOfEachColumn) {
  EXPECT_EQ(runner_.num_segments(), 2);
  run(ActionKind::kForward, 0, 0);
  run(ActionKind::kForward, 0, 1);
  run(ActionKind::kForward, 1, 1);
  run(ActionKind::kForward, 1, 0);
  EXPECT_EQ(runner_.outputs(0)[0].data, &values_[1]);
  run(ActionKind::kBackwardData, 1, 0);
  run(ActionKind::kBackwardData, 0, 0);
  run(ActionKind::kBackwardWeight, 1, 0);
  run(ActionKind::kBackwardWeight, 0, 0);
  EXPECT_THAT(calls_, ElementsAre("F first of 7", "F first of 8", "F second of 8 takes 1", "F second of 7 takes 1",
                                  "B second of 7", "B first of 7 takes 2", "W second of 7", "W first of 7"));
}

TEST_F(SegmentRunnerTest, ForgetsTheStashAfterTheWeightGradientAndOutsideTraining) {
  run(ActionKind::kForward, 0, 0);
  run(ActionKind::kBackwardWeight, 0, 0);
  run(ActionKind::kBackwardWeight, 0, 0);
  runner_.begin(0, {.mode = Mode::kEval, .sequences = 7});
  run(ActionKind::kForward, 0, 0);
  run(ActionKind::kForward, 1, 0);
  run(ActionKind::kBackwardWeight, 1, 0);
  EXPECT_THAT(calls_, ElementsAre("F first of 7", "W first of 7", "W without stash first of 7", "F first of 7",
                                  "F second of 7 takes 1", "W without stash second of 7"));
}

// Leaves its input for the next segment of the layer, which reads it in forward and in backward.
class Leaver : public Segment {
 public:
  explicit Leaver(bool leaves) : leaves_(leaves) {}
  TensorList forward(const Context&, const Microbatch&, const TensorList& inputs, Stash& stash) const override {
    if (leaves_) {
      seen.push_back(stash.layer().has(0) ? 1.0f : 0.0f);
      stash.layer()[0] = inputs[0];
    }
    return {stash.layer().at(0, "what was left")};
  }
  TensorList backward_data(const Context&, const Microbatch&, const TensorList&, Stash& stash) const override {
    return {stash.layer().at(0, "what was left")};
  }
  void backward_weight(const Context&, const Microbatch&, Stash&) const override {}
  void wait_exchange(const Context&) const override { seen.push_back(100); }
  mutable std::vector<float> seen;

 private:
  bool leaves_;
};

TEST_F(SegmentRunnerTest, SegmentsOfALayerOfExpertsShareAStashInEachColumn) {
  const Leaver leaver(true), reader(false);
  SegmentRunner runner(ctx_, {{.name = "router", .segment = &leaver, .module = SegmentModule::kMoeRouter, .unit = 1},
                              {.name = "merge", .segment = &reader, .module = SegmentModule::kMoe, .unit = 1}});
  const auto run = [&](ActionKind kind, int segment, int column) {
    runner.run({.kind = kind, .segment = segment, .column = column});
  };
  const auto slots = [&](int column) {
    int count = 0;
    runner.for_each_slot(column, [&](const Stash::Slot&) { ++count; });
    return count;
  };
  for (const int column : {0, 1}) {
    runner.begin(column, {.sequences = 7});
    runner.set_inputs(column, {Tensor(&values_[column], DType::kFp32, {1})});
    for (const int segment : {0, 1}) run(ActionKind::kForward, segment, column);
  }
  for (const int column : {0, 1}) {
    EXPECT_EQ(runner.outputs(column)[0].data, &values_[column]);
    run(ActionKind::kBackwardData, 1, column);
    EXPECT_EQ(runner.input_gradients(column)[0].data, &values_[column]);
    EXPECT_EQ(slots(column), 1);
  }
  // The layer's stash is a part of the state of a graph's segments.
  const SegmentRunner::HostState state = runner.host_state(0, 1, 1);
  float moved = 0;
  EXPECT_EQ(runner.rebind(0, &values_[0], sizeof(float), &moved), 1);
  run(ActionKind::kBackwardData, 1, 0);
  EXPECT_EQ(runner.input_gradients(0)[0].data, &moved);
  runner.restore(0, state);
  run(ActionKind::kBackwardData, 1, 0);
  EXPECT_EQ(runner.input_gradients(0)[0].data, &values_[0]);
  // The next forward begins with an empty one.
  run(ActionKind::kForward, 0, 0);
  EXPECT_THAT(leaver.seen, ElementsAre(0, 0, 0));
  // No tensor of it stays: offload would copy views of memory that others use by then.
  run(ActionKind::kBackwardData, 0, 0);
  EXPECT_EQ(slots(0), 0);
  runner.begin(0, {.mode = Mode::kEval, .sequences = 7});
  runner.set_inputs(0, {Tensor(&values_[0], DType::kFp32, {1})});
  for (const int segment : {0, 1}) run(ActionKind::kForward, segment, 0);
  EXPECT_EQ(slots(0), 0);
  runner.wait_exchange({.kind = ActionKind::kWaitExchange, .item = 0, .gradient = true});
  EXPECT_EQ(leaver.seen.back(), 100);
}

TEST_F(SegmentRunnerTest, HooksReadGradientsThatHaveArrived) {
  const Leaver leaver(true);
  SegmentRunner runner(ctx_, {{.name = "dispatch", .segment = &leaver, .module = SegmentModule::kMoeDispatch}});
  runner.begin(0, {.sequences = 7});
  runner.set_inputs(0, {Tensor(&values_[0], DType::kFp32, {1})});
  runner.run({.kind = ActionKind::kForward, .segment = 0});
  runner.run({.kind = ActionKind::kBackwardData, .segment = 0});
  EXPECT_THAT(leaver.seen, ElementsAre(0));  // returning gradients
  runner.hooks(0).add(HookPoint::kPostBackward, [&](const HookContext&) { leaver.seen.push_back(1); });
  runner.run({.kind = ActionKind::kForward, .segment = 0});
  runner.run({.kind = ActionKind::kBackwardData, .segment = 0});
  EXPECT_THAT(leaver.seen, ElementsAre(0, 0, 100, 1));
}

TEST_F(SegmentRunnerTest, RunsHooksAroundEachVerb) {
  for (int point = 0; point < kNumHookPoints; ++point) {
    const auto at = static_cast<HookPoint>(point);
    runner_.hooks(1).add(at, [this, at](const HookContext& hook) {
      calls_.push_back(fmt::format("{} {} {} microbatch {} {}", name_of(at), hook.segment, hook.segment_index,
                                   hook.microbatch, name_of(hook.verb)));
    });
  }
  run(ActionKind::kForward, 0, 1, 9);
  run(ActionKind::kForward, 1, 1, 9);
  run(ActionKind::kBackwardData, 1, 1, 9);
  run(ActionKind::kBackwardWeight, 1, 1, 9);
  EXPECT_THAT(calls_, ElementsAre("F first of 8",  // has no hooks
                                  "pre_forward second 1 microbatch 9 forward", "F second of 8 takes 1",
                                  "post_forward second 1 microbatch 9 forward",
                                  "pre_backward second 1 microbatch 9 backward_data", "B second of 8",
                                  "post_backward second 1 microbatch 9 backward_data",
                                  "pre_weight second 1 microbatch 9 backward_weight", "W second of 8",
                                  "post_weight second 1 microbatch 9 backward_weight"));
}

// The second segment's lists: each only at its points.
TEST_F(SegmentRunnerTest, HooksSeeTheTensorsOfTheirVerb) {
  const auto data = [](std::span<const Tensor> tensors) {
    std::vector<const void*> addresses;
    for (const Tensor& tensor : tensors) addresses.push_back(tensor.data);
    return addresses;
  };
  struct Seen {
    std::vector<const void*> inputs, outputs, gradients;
    bool operator==(const Seen&) const = default;
  };
  std::map<HookPoint, Seen> seen;
  for (int point = 0; point < kNumHookPoints; ++point) {
    const auto at = static_cast<HookPoint>(point);
    runner_.hooks(1).add(at, [&, at](const HookContext& hook) {
      EXPECT_EQ(hook.ctx, &ctx_);
      EXPECT_EQ(hook.column, 1);
      seen[at] = {data(hook.inputs), data(hook.outputs), data(hook.gradients)};
    });
  }
  float gradient = 3;
  run(ActionKind::kForward, 0, 0);
  run(ActionKind::kForward, 0, 1);
  run(ActionKind::kForward, 1, 1);
  runner_.set_output_gradients(1, {Tensor(&gradient, DType::kFp32, {1})});
  run(ActionKind::kBackwardData, 1, 1);
  run(ActionKind::kBackwardWeight, 1, 1);
  EXPECT_EQ(seen[HookPoint::kPreForward], (Seen{.inputs = {&values_[0]}}));
  EXPECT_EQ(seen[HookPoint::kPostForward], (Seen{.outputs = {&values_[1]}}));
  EXPECT_EQ(seen[HookPoint::kPreBackward], (Seen{.gradients = {&gradient}}));
  EXPECT_EQ(seen[HookPoint::kPostBackward], (Seen{.gradients = {&values_[1]}}));
  EXPECT_EQ(seen[HookPoint::kPreWeight], Seen());
  EXPECT_EQ(seen[HookPoint::kPostWeight], Seen());
}

TEST_F(SegmentRunnerTest, AHookThatThrowsEndsTheVerb) {
  runner_.hooks(0).add(HookPoint::kPreForward, [](const HookContext&) { throw std::runtime_error("peer lost"); });
  EXPECT_THAT(error_of(ExitCode::kInternal, [&] { run(ActionKind::kForward, 0, 0, 3); }),
              HasSubstr("hook pre_forward of segment first (microbatch 3): peer lost"));
  EXPECT_TRUE(calls_.empty());
}

TEST_F(SegmentRunnerTest, AListOfHooksThatDoesNotFitIsRefused) {
  EXPECT_THAT(error_of(ExitCode::kInternal, [&] { runner_.set_hooks(std::vector<HookTable>(3)); }),
              AllOf(HasSubstr("expected 2 lists, one a segment"), HasSubstr("got 3")));
}

}  // namespace
}  // namespace megalith
