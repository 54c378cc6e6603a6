// Calls of Sequential and Recompute; segment_test.cpp tests that bits equal the plain run.
#include "core/layers/recompute.h"

#include <gtest/gtest.h>

#include "core/memory/memory_pool.h"
#include "tests/support/matchers.h"

namespace megalith {
namespace {

using Calls = std::vector<std::string>;

// Records its verbs and forwards its tensors.
class Recorder : public Segment {
 public:
  Recorder(std::string name, Calls& calls) : name_(std::move(name)), calls_(calls) {}

  TensorList forward(const Context&, const Microbatch&, const TensorList& inputs, Stash& stash) const override {
    calls_.push_back(name_ + " forward");
    stash[0] = inputs[0];
    return inputs;
  }
  TensorList backward_data(const Context&, const Microbatch&, const TensorList& gradients,
                           Stash& stash) const override {
    calls_.push_back(name_ + (stash.has(0) ? " backward_data" : " backward_data without its stash"));
    stash[1] = gradients[0];
    return gradients;
  }
  void backward_weight(const Context&, const Microbatch&, Stash& stash) const override {
    calls_.push_back(name_ +
                     (stash.has(0) && stash.has(1) ? " backward_weight" : " backward_weight without its stash"));
  }

 private:
  std::string name_;
  Calls& calls_;
};

class Decorators : public testing::Test {
 protected:
  std::unique_ptr<Segment> recorder(const std::string& name) { return std::make_unique<Recorder>(name, calls_); }
  std::unique_ptr<Segment> chain() {
    std::vector<std::unique_ptr<Segment>> segments;
    segments.push_back(recorder("a"));
    segments.push_back(recorder("b"));
    return std::make_unique<Sequential>(std::move(segments));
  }
  int slots(const Stash& stash) {
    int count = 0;
    stash.for_each([&](const Stash::Slot&) { ++count; });
    return count;
  }

  float memory_[2] = {};
  const Tensor x_{&memory_[0], DType::kFp32, {1}};
  const Tensor residual_{&memory_[1], DType::kFp32, {1}};
  MemoryPool pool_{DeviceType::kCpu};
  Stream stream_{DeviceType::kCpu, "test"};
  Arena arena_{pool_, Arena::Mode::kUnplanned};
  const Context ctx_{.compute = stream_, .arena = arena_};
  const Microbatch mb_;
  Calls calls_;
  Stash stash_;
};

TEST_F(Decorators, AChainRunsForwardsAndBackwardsInTurn) {
  const std::unique_ptr<Segment> segment = chain();
  EXPECT_EQ(segment->forward(ctx_, mb_, {x_, residual_}, stash_)[1].data, residual_.data);
  EXPECT_EQ(segment->backward_data(ctx_, mb_, {x_, residual_}, stash_)[0].data, x_.data);
  segment->backward_weight(ctx_, mb_, stash_);
  EXPECT_THAT(calls_, ElementsAre("a forward", "b forward", "b backward_data", "a backward_data", "b backward_weight",
                                  "a backward_weight"));
}

TEST_F(Decorators, RecomputeKeepsTheInputsAndRunsForwardAgain) {
  const Recompute segment(chain());
  segment.forward(ctx_, mb_, {x_, Tensor{}}, stash_);
  EXPECT_EQ(slots(stash_), 2) << "the inputs, the absent one too";
  EXPECT_EQ(stash_.at(0, "input").data, x_.data);
  segment.backward_data(ctx_, mb_, {x_, residual_}, stash_);
  segment.backward_weight(ctx_, mb_, stash_);
  EXPECT_THAT(calls_, ElementsAre("a forward", "b forward",  // kept nothing
                                  "a forward", "b forward", "b backward_data", "a backward_data", "b backward_weight",
                                  "a backward_weight"));
}

TEST_F(Decorators, ARecomputedSegmentInsideAnotherIsRunThreeTimes) {
  const Recompute segment(std::make_unique<Recompute>(recorder("a")));
  segment.forward(ctx_, mb_, {x_}, stash_);
  segment.backward_data(ctx_, mb_, {x_}, stash_);
  segment.backward_weight(ctx_, mb_, stash_);
  EXPECT_THAT(calls_, ElementsAre("a forward", "a forward", "a forward", "a backward_data", "a backward_weight"));
}

}  // namespace
}  // namespace megalith
