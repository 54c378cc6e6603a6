// What --recompute-granularity and the flags with it ask of each layer. Layers are counted within each part, as
// Megatron counts them within a stage.
#pragma once

#include <cstdint>
#include <vector>

#include "core/layers/stash.h"
#include "core/model/gpt_part.h"

namespace megalith {

struct MemoryOptions;

RecomputeLayers recompute_layers(const MemoryOptions& options, const std::vector<GptPart>& parts);

StashPolicies recompute_policies(const MemoryOptions& options, const std::vector<GptPart>& parts);
// --recompute-modules names the module, and the layer is one of those in which it acts.
bool recomputes_module(const MemoryOptions& options, const std::vector<GptPart>& parts, std::int64_t layer,
                       const char* module);

}  // namespace megalith
