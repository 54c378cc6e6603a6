// A layer of experts as segments: router | experts | merge. All experts are on every replica; with tensor parallelism
// each rank runs them on its own rows (which needs sequence parallelism), and their gradients are summed over the
// group.
#pragma once

#include "core/model/gpt.h"
#include "moe/experts.h"
#include "moe/router.h"

namespace megalith {

struct MoeOptions {
  ExpertSplit experts = {};       // of this rank
  SumCounts sum_counts = {};      // over the ranks of tp and cp, which share the sequences of a microbatch
  SumCounts sum_all_counts = {};  // over these and dp
};

// For GptFactories.
MoeFactory moe_factory(const MoeOptions& options = {});

}  // namespace megalith
