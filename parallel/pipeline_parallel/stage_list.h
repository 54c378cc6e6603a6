// Builder of a stage's list. Microbatches of each verb and chunk are numbered in ascending order.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

class StageList {
 public:
  void forward(int chunk) { add(ActionKind::kForward, chunk); }
  void backward_data(int chunk) { add(ActionKind::kBackwardData, chunk); }
  void backward_weight(int chunk) { add(ActionKind::kBackwardWeight, chunk); }
  void backward(int chunk) {  // both verbs, as one block
    backward_data(chunk);
    actions_.back().with_next = true;
    backward_weight(chunk);
  }
  // Number of actions of this verb and chunk so far.
  int count(ActionKind kind, int chunk) const {
    const auto found = next_.find({kind, chunk});
    return found == next_.end() ? 0 : found->second;
  }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  void add(ActionKind kind, int chunk) {
    actions_.push_back({.kind = kind, .chunk = chunk, .microbatch = next_[{kind, chunk}]++});
  }

  std::map<std::pair<ActionKind, int>, int> next_;  // next microbatch; key: verb, chunk
  std::vector<Action> actions_;
};

}  // namespace megalith
