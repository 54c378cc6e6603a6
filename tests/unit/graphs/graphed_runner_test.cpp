// Tests of captured runs of adding segments on the CPU: replays with other data, hooks, failures, changed properties.
#include "graphs/graphed_runner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "core/base/error.h"
#include "core/device/capture_guard.h"
#include "core/memory/memory_pool.h"
#include "core/ops/elementwise/elementwise.h"
#include "tests/support/matchers.h"

namespace megalith {
namespace {

// forward: y = x + x, kept. backward_data: g = dy + y. backward_weight: sum += y + g.
class Doubling : public Segment {
 public:
  explicit Doubling(const Tensor& sum) : sum_(sum) {}
  mutable int fail_in = 0;  // countdown; the verb that reaches 0 throws after its op
  std::function<void()> at_verb = [] {};

  TensorList forward(const Context& ctx, const Microbatch&, const TensorList& in, Stash& stash) const override {
    const Tensor y = ctx.empty(in[0].shape, DType::kFp32, "y");
    launch(ctx.compute, Add{.a = in[0], .b = in[0], .y = y});
    count();
    stash[0] = y;
    return {y};
  }
  TensorList backward_data(const Context& ctx, const Microbatch&, const TensorList& dy, Stash& stash) const override {
    const Tensor g = ctx.empty(dy[0].shape, DType::kFp32, "g");
    launch(ctx.compute, Add{.a = dy[0], .b = stash.at(0, "y"), .y = g});
    count();
    stash[1] = g;
    return {g};
  }
  void backward_weight(const Context& ctx, const Microbatch&, Stash& stash) const override {
    const Tensor both = ctx.empty(sum_.shape, DType::kFp32, "both");
    launch(ctx.compute, Add{.a = stash.at(0, "y"), .b = stash.at(1, "g"), .y = both});
    launch(ctx.compute, Add{.a = sum_, .b = both, .y = sum_});
    count();
  }

 private:
  void count() const {
    at_verb();
    if (fail_in > 0 && --fail_in == 0) throw std::runtime_error("out of luck");
  }
  Tensor sum_;
};

class GraphedRunnerTest : public testing::Test {
 protected:
  GraphedRunnerTest() {
    actions_.push_back({.kind = ActionKind::kForward, .segment = 0});
    actions_.push_back({.kind = ActionKind::kForward, .segment = 1});
    for (const int segment : {1, 0}) {
      actions_.push_back({.kind = ActionKind::kBackwardData, .segment = segment});
      actions_.push_back({.kind = ActionKind::kBackwardWeight, .segment = segment});
    }
  }
  ~GraphedRunnerTest() override { stream_.synchronize(); }

  Tensor floats(float value) {
    const Tensor t(pool_.allocate(4, MemoryCategory::kOther, "test"), DType::kFp32, {1});
    *t.as<float>() = value;
    return t;
  }
  void begin(float x, GraphedRunner& graphs, const GraphSignature& signature = {.plan = 7}) {
    stream_.synchronize();
    *input_.as<float>() = x;
    *sums_[0].as<float>() = *sums_[1].as<float>() = 0;
    graphs.begin_step(actions_, signature);
    begin_microbatch();
  }
  void begin_microbatch() {
    runner_.begin(0, microbatch_);
    runner_.set_inputs(0, {input_});
  }
  // For a list whose verbs are all in graphs.
  void pass_ahead(GraphedRunner& graphs) {
    for (std::size_t i = 0; i < actions_.size();) {
      if (actions_[i].kind == ActionKind::kBackwardData && actions_[i].segment == 1)
        runner_.set_output_gradients(0, runner_.outputs(0));
      const megalith::GraphRun* const run = graphs.run_at(i);
      ASSERT_NE(run, nullptr);
      graphs.capture_ahead(actions_, *run);
      i += run->count;
    }
  }
  // Runs microbatches with input `x` through graphs and returns the sums of the segments.
  std::vector<float> step(float x, GraphedRunner& graphs, const GraphSignature& signature = {.plan = 7}) {
    begin(x, graphs, signature);
    for (std::size_t i = 0; i < actions_.size();) {
      if (i > 0 && actions_[i].kind == ActionKind::kForward && actions_[i].segment == 0) begin_microbatch();
      if (actions_[i].kind == ActionKind::kBackwardData && actions_[i].segment == 1)
        runner_.set_output_gradients(0, runner_.outputs(0));
      const megalith::GraphRun* const run = graphs.run_at(i);
      if (run == nullptr) {
        runner_.run(actions_[i++]);
      } else {
        graphs.run(actions_, *run);
        i += run->count;
      }
    }
    stream_.synchronize();
    return {*sums_[0].as<float>(), *sums_[1].as<float>()};
  }
  // y0 = 2x, y1 = 4x; g1 = y1 + y1, g0 = g1 + y0.
  static std::vector<float> wanted(float x) { return {2 * x + 10 * x, 4 * x + 8 * x}; }

  void record_hooks() {
    for (int segment = 0; segment < 2; ++segment) {
      for (const HookPoint point : segment == 0 ? std::vector{HookPoint::kPreForward, HookPoint::kPostWeight}
                                                : std::vector{HookPoint::kPostForward, HookPoint::kPreBackward}) {
        runner_.hooks(segment).add(point, [this, point](const HookContext& hook) {
          EXPECT_FALSE(stream_.capturing());
          EXPECT_FALSE(captures_.active());
          calls_.push_back(fmt::format("{} {} {}", name_of(point), hook.segment, name_of(hook.phase)));
        });
      }
    }
  }
  template <class Act>
  static std::string error_of(const Act& act) {
    try {
      act();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  CaptureGuard captures_;
  MemoryPool pool_{DeviceType::kCpu};
  Stream stream_{DeviceType::kCpu, "test", {.captures = &captures_}};
  Arena arena_{pool_, Arena::Mode::kUnplanned};
  const Context ctx_{.compute = stream_, .arena = arena_};
  Tensor input_ = floats(0);
  Tensor sums_[2] = {floats(0), floats(0)};
  Doubling first_{sums_[0]}, second_{sums_[1]};
  Microbatch microbatch_{.sequences = 1, .seq_length = 1};
  SegmentRunner runner_{ctx_,
                        {{.name = "first", .segment = &first_, .module = SegmentModule::kAttention, .unit = 1},
                         {.name = "second", .segment = &second_, .module = SegmentModule::kMlp, .unit = 1}}};
  std::vector<Action> actions_;
  std::vector<std::string> calls_;
};

TEST_F(GraphedRunnerTest, ReplaysWithOtherData) {
  for (const GraphModules& modules : {GraphModules{.layer = true}, GraphModules{.attention = true, .mlp = true}}) {
    GraphedRunner graphs(ctx_, runner_, modules);
    for (const float x : {1.0f, 2.0f, -3.0f}) EXPECT_EQ(step(x, graphs), wanted(x));
    const GraphedRunner::Stats& stats = graphs.stats();
    EXPECT_EQ(stats.graphs, modules.layer ? 2 : 4);
    EXPECT_EQ(stats.ops, 8);
    EXPECT_EQ(stats.replays, 3 * stats.graphs);
    EXPECT_TRUE(graphs.complete());
  }
}

// Captures forward and runs backward eagerly, so backward reads outputs and stashes that a replay produced.
TEST_F(GraphedRunnerTest, AReplayLeavesWhatTheVerbsLeaveOnTheHost) {
  std::vector<Action> backward(actions_.begin() + 2, actions_.end());
  actions_.resize(2);
  GraphedRunner graphs(ctx_, runner_, {.layer = true});
  for (const float x : {1.0f, 5.0f}) {
    step(x, graphs);
    runner_.set_output_gradients(0, runner_.outputs(0));
    for (const Action& action : backward) runner_.run(action);
    stream_.synchronize();
    EXPECT_EQ((std::vector<float>{*sums_[0].as<float>(), *sums_[1].as<float>()}), wanted(x));
  }
  EXPECT_EQ(graphs.stats().replays, 2);
}

// The second segment's backward_weight runs early in one microbatch and late in the other. A hook gives it a separate
// graph.
TEST_F(GraphedRunnerTest, AReplayOfWeightsAloneKeepsWhatOthersPass) {
  const Action data[] = {actions_[4], actions_[2]}, weight[] = {actions_[5], actions_[3]};
  actions_ = {actions_[0], actions_[1], data[1], weight[1], data[0],   weight[0],
              actions_[0], actions_[1], data[1], data[0],   weight[0], weight[1]};
  for (std::size_t i = 6; i < actions_.size(); ++i) actions_[i].microbatch = 1;
  runner_.hooks(1).add(HookPoint::kPreWeight, [](const HookContext&) {});
  GraphedRunner graphs(ctx_, runner_, {.attention = true, .mlp = true});
  for (const float x : {1.0f, 3.0f}) {
    EXPECT_EQ(step(x, graphs), wanted(2 * x));  // sum of two microbatches
    EXPECT_EQ(*runner_.input_gradients(0)[0].as<float>(), 10 * x);
  }
  EXPECT_EQ(graphs.stats().graphs, 5);
  EXPECT_EQ(graphs.stats().replays, 2 * 2 * 5);
}

TEST_F(GraphedRunnerTest, HooksRunOutsideAtCaptureAndAroundEachReplay) {
  record_hooks();
  GraphedRunner graphs(ctx_, runner_, {.layer = true});
  for (const char* phase : {"capture", "replay", "replay"}) {
    calls_.clear();
    EXPECT_EQ(step(2, graphs), wanted(2));
    std::vector<std::string> want;
    for (const char* hook : {"pre_forward first", "post_forward second", "pre_backward second", "post_weight first"})
      want.push_back(fmt::format("{} {}", hook, phase));
    EXPECT_EQ(calls_, want);
  }
}

// The pass ahead executes nothing: the sums are those of the steps.
TEST_F(GraphedRunnerTest, HooksRunOnceAheadAndThenAroundTheReplays) {
  record_hooks();
  GraphedRunner graphs(ctx_, runner_, {.layer = true});
  std::vector<std::string> want;
  for (const char* phase : {"capture_ahead", "replay", "replay"}) {
    for (const char* hook : {"pre_forward first", "post_forward second", "pre_backward second", "post_weight first"})
      want.push_back(fmt::format("{} {}", hook, phase));
  }
  begin(2, graphs);
  pass_ahead(graphs);
  EXPECT_TRUE(graphs.complete());
  EXPECT_EQ(graphs.stats().replays, 0);
  for (const float x : {2.0f, 3.0f}) EXPECT_EQ(step(x, graphs), wanted(x));
  EXPECT_EQ(calls_, want);
}

// Covers the compute stream and another stream of the caller.
TEST_F(GraphedRunnerTest, WhatHooksEnqueueIsCompleteBeforeACaptureBegins) {
  for (const bool ahead : {false, true}) {
    SCOPED_TRACE(ahead);
    Stream side(DeviceType::kCpu, "side", {.captures = &captures_});
    std::atomic<int> enqueued = 0, complete = 0, captured = 0;
    runner_.set_hooks(std::vector<HookTable>(2));
    for (const HookPoint point : {HookPoint::kPreForward, HookPoint::kPostForward, HookPoint::kPreBackward}) {
      runner_.hooks(point == HookPoint::kPreForward ? 0 : 1).add(point, [&](const HookContext& hook) {
        for (Stream* stream : {&hook.ctx->compute, &side}) {
          ++enqueued;
          stream->announce(Access("slow"));
          stream->cpu()->enqueue([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            ++complete;
          });
        }
      });
    }
    first_.at_verb = second_.at_verb = [&] {
      if (!stream_.capturing()) return;
      ++captured;
      EXPECT_EQ(complete, enqueued);
    };
    GraphedRunner graphs(ctx_, runner_, {.layer = true});
    graphs.synchronize_by([&] {
      stream_.synchronize();
      side.synchronize();
    });
    if (ahead) {
      begin(2, graphs);
      pass_ahead(graphs);
    }
    EXPECT_EQ(step(2, graphs), wanted(2));
    EXPECT_EQ(captured, 6);
    EXPECT_EQ(enqueued, ahead ? 2 * 2 * 3 : 2 * 3);
    side.synchronize();
  }
  first_.at_verb = second_.at_verb = [] {};
}

TEST_F(GraphedRunnerTest, AFailedCaptureDropsAllGraphsAndASecondOneWorks) {
  GraphedRunner graphs(ctx_, runner_, {.layer = true});
  second_.fail_in = 2;  // its backward_data, after the capture of forward
  EXPECT_THAT(error_of([&] { step(1, graphs); }),
              AllOf(HasSubstr("capture of graph second backward_data to first backward_weight, column 0"),
                    HasSubstr("in segment second, backward_data after op add"), HasSubstr("out of luck")));
  EXPECT_EQ(graphs.stats().graphs, 0);
  EXPECT_EQ(graphs.stats().replays, 1);  // replay of forward, counted since construction
  EXPECT_FALSE(stream_.capturing());
  EXPECT_FALSE(captures_.active());
  for (const Action& action : std::vector<Action>(actions_.begin() + 2, actions_.end())) {
    if (action.segment == 1 && action.kind == ActionKind::kBackwardData)
      runner_.set_output_gradients(0, runner_.outputs(0));
    runner_.run(action);  // forward's results are intact
  }
  stream_.synchronize();
  EXPECT_EQ(*sums_[0].as<float>(), wanted(1)[0]);
  EXPECT_EQ(step(3, graphs), wanted(3));
  EXPECT_EQ(step(4, graphs), wanted(4));
  EXPECT_EQ(graphs.stats().graphs, 2);
  EXPECT_EQ(graphs.stats().replays, 1 + 2 * 2);
}

TEST_F(GraphedRunnerTest, AHookThatThrowsLeavesNoCapture) {
  for (const HookPoint point : {HookPoint::kPreForward, HookPoint::kPostWeight}) {
    runner_.set_hooks(std::vector<HookTable>(2));
    bool throws = true;
    runner_.hooks(0).add(point, [&](const HookContext&) {
      if (std::exchange(throws, false)) throw std::runtime_error("peer lost");
    });
    GraphedRunner graphs(ctx_, runner_, {.layer = true});
    EXPECT_THAT(error_of([&] { step(1, graphs); }),
                HasSubstr(fmt::format("hook {} of segment first (microbatch 0): peer lost", name_of(point))));
    EXPECT_FALSE(captures_.active());
    EXPECT_EQ(step(2, graphs), wanted(2));
    EXPECT_EQ(step(3, graphs), wanted(3));
  }
}

TEST_F(GraphedRunnerTest, DriftIsAnErrorThatNamesWhatChanged) {
  GraphedRunner graphs(ctx_, runner_, {.layer = true});
  const GraphSignature captured{.actions = 1, .plan = 1, .addresses = 1, .microbatches = 1};
  step(1, graphs, captured);
  const auto changed = [&](std::uint64_t GraphSignature::*field) {
    GraphSignature now = captured;
    now.*field = 99;
    return error_of([&] { step(1, graphs, now); });
  };
  EXPECT_THAT(changed(&GraphSignature::actions), HasSubstr("the list of actions has changed"));
  EXPECT_THAT(changed(&GraphSignature::plan), HasSubstr("the memory plan has changed"));
  EXPECT_THAT(changed(&GraphSignature::addresses), HasSubstr("an address of memory, parameters or gradients"));
  EXPECT_THAT(changed(&GraphSignature::microbatches), HasSubstr("the number of microbatches"));
  EXPECT_THAT(changed(&GraphSignature::sequences), HasSubstr("the sequences of a microbatch"));
  EXPECT_THAT(changed(&GraphSignature::seq_length), HasSubstr("the sequence length"));
  EXPECT_THAT(changed(&GraphSignature::gemms), HasSubstr("the choice of GEMM algorithms"));
  EXPECT_THAT(changed(&GraphSignature::hooks), HasSubstr("the number of hooks"));
  EXPECT_EQ(step(2, graphs, captured), wanted(2));
}

TEST_F(GraphedRunnerTest, AReplayRefusesAnotherMicrobatch) {
  GraphedRunner graphs(ctx_, runner_, {.layer = true});
  step(1, graphs);
  const Microbatch captured = microbatch_;
  const auto with = [&](auto change) {
    change();
    const std::string error = error_of([&] { step(1, graphs); });
    microbatch_ = captured;
    return error;
  };
  EXPECT_THAT(with([&] { microbatch_.mode = Mode::kEval; }), HasSubstr("the mode has changed"));
  EXPECT_THAT(with([&] { microbatch_.sequences = 2; }), HasSubstr("the size of the microbatch"));
  EXPECT_THAT(with([&] { microbatch_.seq_length = 2; }), HasSubstr("the size of the microbatch"));
  for (Tensor Microbatch::*const tensor :
       {&Microbatch::tokens, &Microbatch::labels, &Microbatch::sums, &Microbatch::expert_counts,
        &Microbatch::balance_counts, &Microbatch::room_needed, &Microbatch::rows_sent})
    EXPECT_THAT(with([&] { microbatch_.*tensor = input_; }), HasSubstr("an address of the microbatch"));
  const MicrobatchParameters others{};
  EXPECT_THAT(with([&] { microbatch_.parameters = &others; }), HasSubstr("an address of the microbatch"));
  EXPECT_EQ(step(3, graphs), wanted(3));
  const Tensor before = std::exchange(input_, floats(0));
  EXPECT_THAT(error_of([&] { step(1, graphs); }), HasSubstr("the address of an input has changed"));
  input_ = Tensor(before.data, DType::kFp32, {1, 1});
  EXPECT_THAT(error_of([&] { step(1, graphs); }), HasSubstr("the address of an input has changed"));
  input_ = before;
  EXPECT_EQ(step(2, graphs), wanted(2));
}

}  // namespace
}  // namespace megalith
