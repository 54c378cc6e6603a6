// Copies beside computing, in numbers that can be checked by hand: one microbatch, layers of a second forward, backward
// and weight each, links that move a slot of 1 GB in the time said.
#include "offload/forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/pipeline_parallel/lowering.h"

namespace megalith {
namespace {

using Kind = ActionKind;

constexpr int kLayers = 5;
constexpr double kGb = 1e9;

struct Model {
  Model() {
    const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 1, 1, 1);
    actions = lower_training_step(insert_messages(schedule, 0), {kLayers}, {});
    for (const Action& action : actions) seconds.push_back(action.segment >= 0 ? 1 : 0);
    for (int layer = 0; layer < kLayers; ++layer) {
      layers.push_back(layer);
      OffloadSlot slot{.segment = layer, .bytes = 1 << 20, .kind = SlotKind::kAct, .layer = layer};
      slot.last_writer = slot.last_forward_reader = {.kind = Kind::kForward, .segment = layer};
      slot.first_backward_reader = {.kind = Kind::kBackwardData, .segment = layer};
      candidates.push_back({.slot = slot, .views = {{SlotKind::kAct, layer}}, .straight_back = layer + 1 == kLayers});
      request.policies.set(layer, SlotKind::kAct, StashPolicy::kOffload);
    }
  }
  StepSeconds step() const { return {.actions = actions, .seconds = seconds}; }
  OffloadPoints points() const {
    return {.slots = moving(candidates, choose_offloads(candidates, request)), .layer_of_segment = layers};
  }
  CopyForecast copies(const CopyRates& rates) const {
    const OffloadPoints all = points();
    const std::vector<double> bytes(all.slots.size(), kGb);
    return forecast_copies(step(), {.points = all, .bytes = bytes, .moves = std::vector<bool>(bytes.size(), true)},
                           rates);
  }
  // The layers that move.
  std::vector<std::int64_t> hidden(const CopyRates& rates) const {
    std::vector<OffloadChoice> choices = choose_offloads(candidates, request);
    const std::vector<double> bytes(candidates.size(), kGb);
    keep_what_stalls(step(), {.candidates = candidates, .bytes = bytes, .layer_of_segment = layers, .rates = rates},
                     choices);
    std::vector<std::int64_t> moved;
    for (const OffloadSlot& slot : moving(candidates, choices)) moved.push_back(slot.layer);
    return moved;
  }

  std::vector<Action> actions;
  std::vector<double> seconds;
  std::vector<int> layers;
  std::vector<OffloadCandidate> candidates;
  OffloadRequest request;
};

TEST(OffloadForecast, CopiesThatAreShorterThanALayerStallNothing) {
  const CopyForecast copies = Model().copies({.out = kGb / 0.5, .back = kGb / 0.25});
  EXPECT_DOUBLE_EQ(copies.out_seconds, 4 * 0.5);  // all layers but the last
  EXPECT_DOUBLE_EQ(copies.back_seconds, 4 * 0.25);
  EXPECT_DOUBLE_EQ(copies.stalls(), 0);
}

TEST(OffloadForecast, CopiesThatAreLongerThanALayerStallEachOther) {
  // To the host: from 1 to 3 s for layer 0, whose wait stands behind layer 1, at 2 s: a second. The next copies begin
  // where the one before ends, and each is waited for a layer later.
  const CopyForecast copies = Model().copies({.out = kGb / 2, .back = kGb * 100});
  EXPECT_DOUBLE_EQ(copies.out_seconds, 4 * 2);
  EXPECT_DOUBLE_EQ(copies.out_stalls, 4);
  EXPECT_NEAR(copies.back_stalls, 0, 1e-9);
}

TEST(OffloadForecast, CopiesStandAsNearAsTheyHide) {
  Model model;
  // Two segments a layer: slots of the first may leave and come back beside the second.
  const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 1, 1, 1);
  model.actions = lower_training_step(insert_messages(schedule, 0), {2 * kLayers}, {});
  model.seconds.clear();
  for (const Action& action : model.actions) model.seconds.push_back(action.segment >= 0 ? 1 : 0);
  model.layers.clear();
  for (int segment = 0; segment < 2 * kLayers; ++segment) model.layers.push_back(segment / 2);
  for (OffloadCandidate& candidate : model.candidates) {
    OffloadSlot& slot = candidate.slot;
    slot.segment = slot.last_writer.segment = slot.last_forward_reader.segment = slot.first_backward_reader.segment =
        2 * static_cast<int>(slot.layer);
  }
  const auto chosen = [&](double seconds) {
    OffloadPoints points = model.points();
    const std::vector<double> bytes(points.slots.size(), kGb);
    choose_distances(model.step(), {.bytes = bytes, .rates = {.out = kGb / seconds, .back = kGb / seconds}}, points);
    return points;
  };
  const OffloadPoints near = chosen(0.5), far = chosen(1.5), further = chosen(2.5);
  EXPECT_EQ(near.slots[0].lag, 0);
  EXPECT_EQ(near.slots[0].ahead, 0);
  EXPECT_EQ(far.slots[0].lag, -1);
  EXPECT_EQ(far.lag, 1);
  EXPECT_GE(further.lag, 1);
}

TEST(OffloadForecast, TakesAsMuchAsHides) {
  const Model model;
  EXPECT_THAT(model.hidden({.out = kGb / 0.5, .back = kGb / 0.5}),
              testing::ElementsAre(0, 1, 2));  // layer 3 would be away for no time
  const std::vector<std::int64_t> some = model.hidden({.out = kGb / 1.5, .back = kGb / 1.5});
  EXPECT_THAT(model.hidden({.out = kGb / 50, .back = kGb / 50}), testing::IsEmpty());
  EXPECT_LT(some.size(), 3u);
}

}  // namespace
}  // namespace megalith
