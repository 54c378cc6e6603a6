#include <algorithm>

#include "parallel/pipeline_parallel/schedules.h"
#include "parallel/pipeline_parallel/stage_list.h"

namespace megalith {

std::vector<Action> interleaved(const StageShape& shape) {
  StageList list;
  // Chunk of the i-th forward: n microbatches of chunk 0, the same n of chunk 1, ... of the last, then the next n. The
  // last group may be smaller. Backwards run through the chunks in reverse order.
  const auto chunk_of = [&](int i) {
    const int group = i / (shape.group * shape.num_chunks);
    const int size = std::min(shape.group, shape.num_microbatches - group * shape.group);
    return (i - group * shape.group * shape.num_chunks) / size;
  };
  const int total = shape.num_microbatches * shape.num_chunks;
  const int warm_up = std::min(
      2 * (shape.num_stages - shape.stage - 1) + (shape.num_chunks - 1) * shape.group + shape.forwards_ahead, total);
  for (int step = 0; step < total + warm_up; ++step) {
    if (step < total) list.forward(chunk_of(step));
    if (step >= warm_up) list.backward(shape.num_chunks - 1 - chunk_of(step - warm_up));
  }
  return list.take();
}

}  // namespace megalith
