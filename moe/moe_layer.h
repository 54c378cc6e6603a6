// A layer of experts as segments: router | experts | merge where each rank has all experts, and with ranks that share
// them out router | dispatch | experts | return | merge. With tensor parallelism each rank routes its own rows (which
// needs sequence parallelism), and gradients of experts are summed over the ranks that hold the same.
#pragma once

#include "core/model/gpt.h"
#include "moe/experts.h"
#include "moe/router.h"

namespace megalith {

struct MoeOptions {
  ExpertSplit experts = {};            // of this rank
  Dispatcher* dispatcher = nullptr;    // of the ranks that share out experts, outlives the model; null: each has all
  bool shared_expert_overlap = false;  // the shared expert runs while rows travel
  SumCounts sum_counts = {};           // over the ranks of tp and cp, which share the sequences of a microbatch
  SumCounts sum_all_counts = {};       // over these and dp
};

// For GptFactories.
MoeFactory moe_factory(const MoeOptions& options = {});

}  // namespace megalith
