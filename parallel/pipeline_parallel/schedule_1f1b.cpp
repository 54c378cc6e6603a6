#include <algorithm>

#include "parallel/pipeline_parallel/schedules.h"
#include "parallel/pipeline_parallel/stage_list.h"

namespace megalith {

std::vector<Action> one_forward_one_backward(const StageShape& shape) {
  StageList list;
  const int warm_up = std::min(shape.num_stages - shape.stage - 1 + shape.forwards_ahead, shape.num_microbatches);
  for (int step = 0; step < shape.num_microbatches + warm_up; ++step) {
    if (step < shape.num_microbatches) list.forward(0);
    if (step >= warm_up) list.backward(0);
  }
  return list.take();
}

}  // namespace megalith
