// What --recompute-granularity and the flags with it ask of each layer. Layers are counted within each part, as
// Megatron counts them within a stage.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/options.h"
#include "core/layers/stash.h"
#include "core/model/gpt.h"

namespace megalith {

RecomputeLayers recompute_layers(const TrainingOptions& options, const std::vector<GptPart>& parts);

// Of the segments of a layer, -1 of those that belong to none.
StashPolicies stash_policies(const TrainingOptions& options, const std::vector<GptPart>& parts, std::int64_t layer);

}  // namespace megalith
