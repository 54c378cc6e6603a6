// Recompute of each layer by --recompute-granularity and its related flags. Layers are counted within each part, as
// Megatron counts them within a stage.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/layers/stash.h"
#include "core/model/gpt_part.h"

namespace megalith {

enum class RecomputeGranularity { kNone, kSelective, kFull };
enum class RecomputeMethod { kUniform, kBlock };

struct RecomputeOptions {
  RecomputeGranularity recompute_granularity = RecomputeGranularity::kNone;
  RecomputeMethod recompute_method = RecomputeMethod::kUniform;  // with kFull
  // uniform: layers per chunk; block and selective: recomputed layers of each part; 0: 1, or all if selective
  std::int64_t recompute_num_layers = 0;
  std::vector<std::string> recompute_modules;  // with kSelective: core_attn, layernorm, mlp, mlp_act
};

RecomputeLayers recompute_layers(const RecomputeOptions& options, const std::vector<GptPart>& parts);

StashPolicies recompute_policies(const RecomputeOptions& options, const std::vector<GptPart>& parts);
// Returns whether --recompute-modules has `module` and recomputes it in `layer`.
bool recomputes_module(const RecomputeOptions& options, const std::vector<GptPart>& parts, std::int64_t layer,
                       const char* module);

}  // namespace megalith
