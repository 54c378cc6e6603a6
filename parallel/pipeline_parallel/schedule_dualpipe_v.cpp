#include <queue>

#include "parallel/pipeline_parallel/schedules.h"
#include "parallel/pipeline_parallel/stage_list.h"

namespace megalith {

std::vector<Action> dualpipe_v(const StageShape& shape) {
  const int p = shape.num_stages, s = shape.stage, after = p - s - 1;
  StageList list;
  std::queue<int> held_back;  // chunks with pending W
  const auto backward_data = [&](int chunk) {
    list.backward_data(chunk);
    held_back.push(chunk);
  };
  const auto backward_weight = [&] {
    list.backward_weight(held_back.front());
    held_back.pop();
  };
  const auto pair = [&](int forward, int backward) {
    list.forward(forward);  // the output is sent before the backward runs
    list.backward(backward);
  };

  for (int i = 0; i < 2 * after; ++i) list.forward(0);
  for (int i = 0; i < s + 1; ++i) {
    list.forward(0);
    list.forward(1);
  }
  for (int i = 0; i < after; ++i) {
    backward_data(1);
    backward_weight();
    list.forward(1);
  }
  for (int i = 0; i < shape.num_microbatches - 2 * p + s + 1; ++i) {
    if (i == 0 && after == 0) {  // unjoined on the last stage: the backward's input comes from its own forward
      list.forward(0);
      list.backward(1);
    } else {
      pair(0, 1);
    }
    pair(1, 0);
  }
  for (int i = 0; i < after; ++i) {
    list.backward(1);
    pair(1, 0);
  }
  // Backwards only. The later half delays W, to fill the waits between the gradients that follow.
  for (int i = 0; i < 2 * (s + 1); ++i) {
    const int chunk = 1 - i % 2;
    if (i > s) {
      backward_data(chunk);
    } else {
      list.backward(chunk);
    }
  }
  for (int i = 0; i < after; ++i) {
    backward_weight();
    backward_data(0);
  }
  while (!held_back.empty()) backward_weight();
  return list.take();
}

}  // namespace megalith
