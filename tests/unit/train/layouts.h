// Layouts of thread ranks for the tests of their combinations: flags, sizes that fit all of them, and the required
// activity of each.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/train/training_support.h"

namespace megalith::test {

struct Family {
  std::string name;
  Words flags;
  // Suffix of tensors whose gradient is rounding around 0: without RoPE, a bias of the keys changes no attention.
  std::string no_gradient = {};
};
// LayerNorm, biases, GELU, learned positions, tied table; RMSNorm, SwiGLU, RoPE, norms of q and k, two heads of keys
// and values, untied table; one such head, tied and with biases of q, k and v.
const std::vector<Family>& families();

const Words& schedules();  // every schedule

// State that replicas shard.
enum class Sharing {
  kNone,
  kOverlapped,  // nothing, and sums overlap backward
  // Like kOverlapped, and:
  kOptimizer,        // the optimizer's state, whose parameters are gathered
  kUnits,            // parameters and gradients
  kUnitsSummedLast,  // parameters; gradients are summed once
  kGradients,
  kUnitsOfTwoInstances,  // parameters and gradients within each of two instances, and the update between them
  kExpertUnits,          // like kOptimizer, with experts like kUnitsSummedLast
};
constexpr int kNumSharings = 8;

struct Layout {
  int tensor = 1;
  bool sequence = false;
  bool overlap = false;  // tensor-parallel rows overlap GEMMs; with sequence
  int pipeline = 1;
  int data = 1;
  std::string schedule = "1f1b";
  Sharing sharing = Sharing::kNone;
  int context = 1;
  std::string communication = "p2p";  // with context parallelism
  int expert = 1;                     // divides tensor x context x data
  int expert_tensor = 1;

  int ranks() const { return tensor * pipeline * data * context; }
  int chunks() const;  // per stage
  bool gathers_units() const;
  bool sums_each_microbatch() const;
  bool is_v() const { return schedule == "zb-v" || schedule == "dualpipe-v"; }
  Words flags() const;
  std::string name() const;
};

RunResult train(const Words& flags, const Layout& layout);

// A layout given by flags, if Layout has no field for them.
struct Way {
  std::string name;
  Words flags = {};
  int ranks = 1;
  Words saving = {};  // more flags of its runs that save
};
Way way_of(const Layout& layout);
void PrintTo(const Way& way, std::ostream* out);
RunResult train(const Words& flags, const Way& way);

// Prepares a run in which an element of a unit's gradients becomes NaN on one rank. This occurs after the backward of a
// segment, in these calls of its hook, one per microbatch.
struct Poison {
  std::set<int> calls;
  int rank = 0;
  int segment = 0;
  int unit = 1;  // -1: the last one
  std::int64_t element = 5;
  double value = std::nan("");
};
std::function<void(Trainer&, int)> poison(const Poison& what);
std::function<void(Trainer&, int)> poison_weights(int of_rank);  // an element of each unit, ahead of the first step
// Step 2 of the poisoned run was skipped: its update is missing, and all numbers are finite.
void expect_second_step_skipped(const RunResult& poisoned, const RunResult& clean);

// Differences that the comparison of replicas reports at the end of a step, by rank, after damage(rank, its number) has
// changed a rank's state. An earlier comparison must report none.
std::map<int, std::string> warned_replicas(const Words& flags, const Way& way,
                                           const std::function<void(Rank&, int)>& damage);

struct Sizes {
  std::int64_t layers = 4;
  std::int64_t hidden = 16;
  std::int64_t seq_length = 8;  // one sequence a microbatch
  std::int64_t global_batch = 8;
};
// The same for all schedules of a layout.
Sizes sizes_of(const Layout& layout);
Words sizes_for(const Layout& layout);

struct StepCounts {
  std::int64_t steps = 0;
  std::int64_t evaluations = 0;  // each of one step
};
// Expects that each rank took part in the layout in a run of `steps` steps. Checks number and bytes of stage messages,
// collectives of tensor and context groups, and buckets or units reduced and gathered. Memory must be as planned, and
// copies have equal bits.
void expect_acted(const RunResult& run, const Layout& layout, const Sizes& sizes, const StepCounts& counts,
                  std::int64_t bytes_per_element);

}  // namespace megalith::test
