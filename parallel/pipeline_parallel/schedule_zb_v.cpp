#include <algorithm>

#include "parallel/pipeline_parallel/schedules.h"
#include "parallel/pipeline_parallel/stage_list.h"

namespace megalith {

std::vector<Action> zb_v(const StageShape& shape) {
  const int p = shape.num_stages, s = shape.stage;
  // The order is for at least 2p - 1 microbatches; with fewer, steps of the missing microbatches are left out.
  const int microbatches = std::max(2 * p - 1, shape.num_microbatches);
  StageList list;
  const auto backward = [&](int chunk) {  // two blocks: the gradient is sent before W
    list.backward_data(chunk);
    list.backward_weight(chunk);
  };
  // Warm-up: fills this stage's memory until the first microbatch returns to stage 0's second chunk.
  for (int i = 0; i < 2 * (p - s) - 1; ++i) list.forward(0);
  for (int i = 0; i < s; ++i) {
    list.forward(1);
    list.forward(0);
  }
  for (int i = 0; i < p - s; ++i) {
    list.forward(1);
    backward(1);
  }
  // Steady: alternates one forward and one backward of each chunk.
  while (list.count(ActionKind::kForward, 1) < microbatches) {
    if (list.count(ActionKind::kForward, 0) < microbatches) list.forward(0);
    backward(0);
    list.forward(1);
    backward(1);
  }
  // Cool-down: gradients first, W when nothing else can run.
  for (int i = 0; i < s; ++i) {
    list.backward_data(0);
    list.backward_data(1);
  }
  for (int i = 0; i < p - s; ++i) {
    list.backward_data(0);
    list.backward_weight(0);
  }
  for (const int chunk : {1, 0}) {
    while (list.count(ActionKind::kBackwardWeight, chunk) < microbatches) list.backward_weight(chunk);
  }
  std::vector<Action> actions = list.take();
  std::erase_if(actions, [&](const Action& action) { return action.microbatch >= shape.num_microbatches; });
  return actions;
}

}  // namespace megalith
