// A schedule is data: per stage the order in which chunks run the verbs of their microbatches. Lowering (lowering.h)
// expands it; one executor (executor.h) runs it; the memory plan, the report and later features read the same list.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

enum class ActionKind : std::uint8_t {
  kZeroGradients,  // step begins
  kLoad,           // a microbatch's tokens and parameters to the device
  kForward,
  kBackwardData,
  kBackwardWeight,
  kTieGradients,  // gradients of tied uses join their parameter's
  kReduce,        // `bucket`: start its gradient reduction
  kFinishReduce,  // the compute stream may use the reduced gradients
  kReduceLoss,    // sum over data-parallel ranks
  kOptimizerStep,
};
inline constexpr int kNumActionKinds = 10;
std::string_view name_of(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::kForward;
  int chunk = 0;
  int microbatch = 0;
  int segment = -1;  // set by lowering; -1: the whole chunk
  int column = 0;    // set by lowering: which in-flight microbatch's memory
  int bucket = -1;   // kReduce
  friend bool operator==(const Action&, const Action&) = default;
};
std::string to_string(const Action& action);

enum class ScheduleKind : std::uint8_t { k1F1B };

// Actions of one stage: forward, backward_data and backward_weight of each chunk and microbatch, each exactly once.
// 1F1B (Narayanan et al. 2021, arXiv:2104.04473): min(stages - stage - 1, M) warm-up forwards, then one forward and one
// backward in turn, then the remaining backwards. backward_weight follows its backward_data, ascending in microbatches.
struct Schedule {
  int num_stages = 1;
  int num_chunks = 1;
  int num_microbatches = 1;
  std::vector<std::vector<Action>> stages;
};
Schedule make_schedule(ScheduleKind kind, int num_stages, int num_chunks, int num_microbatches);

}  // namespace megalith
