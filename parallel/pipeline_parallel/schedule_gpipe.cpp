#include "parallel/pipeline_parallel/schedules.h"
#include "parallel/pipeline_parallel/stage_list.h"

namespace megalith {

std::vector<Action> gpipe(const StageShape& shape) {
  StageList list;
  for (int i = 0; i < shape.num_microbatches; ++i) list.forward(0);
  for (int i = 0; i < shape.num_microbatches; ++i) list.backward(0);
  return list.take();
}

}  // namespace megalith
