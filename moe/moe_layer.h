// Segments of a layer of experts. If each rank holds all experts: router | experts | merge. With expert parallelism:
// router | dispatch | experts | return | merge. Under tensor parallelism each rank routes its own rows, which requires
// sequence parallelism. Gradients of experts are summed over the ranks with the same experts.
#pragma once

#include "core/model/gpt.h"
#include "moe/experts.h"
#include "moe/router.h"

namespace megalith {

struct MoeOptions {
  ExpertSplit experts = {};            // experts of this rank
  Dispatcher* dispatcher = nullptr;    // null: each rank holds all experts; outlives the model
  bool shared_expert_overlap = false;  // run the shared expert while rows are in flight
  SumCounts sum_counts = {};           // over tp and cp, whose ranks share a microbatch's sequences
  SumCounts sum_all_counts = {};       // over tp, cp and dp
};

// Factory for GptFactories.
MoeFactory moe_factory(const MoeOptions& options = {});

}  // namespace megalith
