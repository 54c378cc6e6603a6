// A step with simple numbers for the tests of forecasts and placements. It has one microbatch, and one slot a layer.
// Forward, backward_data and backward_weight of a layer take one second each.
#pragma once

#include <vector>

#include "offload/forecast.h"
#include "parallel/pipeline_parallel/lowering.h"

namespace megalith::test {

struct LayeredStep {
  static constexpr int kLayers = 5;
  static constexpr double kGb = 1e9;

  LayeredStep() {
    const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 1, 1, 1);
    actions = lower_training_step(insert_messages(schedule, 0), {kLayers}, {});
    for (const Action& action : actions) seconds.push_back(action.segment >= 0 ? 1 : 0);
    for (int layer = 0; layer < kLayers; ++layer) {
      layers.push_back(layer);
      OffloadSlot slot{.segment = layer, .bytes = 1'000'000'000, .kind = SlotKind::kAct, .layer = layer};
      slot.last_writer = slot.last_forward_reader = {.kind = ActionKind::kForward, .segment = layer};
      slot.first_backward_reader = {.kind = ActionKind::kBackwardData, .segment = layer};
      if (layer + 1 < kLayers) slots.push_back(slot);
    }
  }
  StepSeconds step() const { return {.actions = actions, .seconds = seconds}; }
  OffloadPoints points() const { return {.slots = slots, .layer_of_segment = layers}; }
  std::vector<double> bytes() const { return std::vector<double>(slots.size(), kGb); }
  // Rates of links that move one slot in `out` and `back` seconds.
  static CopyRates rates(double out, double back) { return {.out = kGb / out, .back = kGb / back}; }

  std::vector<Action> actions;
  std::vector<double> seconds;
  std::vector<int> layers;
  std::vector<OffloadSlot> slots;  // of all layers except the last
};

}  // namespace megalith::test
