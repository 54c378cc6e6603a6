#include "core/model/layer_recompute.h"

#include <algorithm>

namespace megalith {

namespace {

// Returns the layers with recomputed selected modules.
std::vector<RecomputeLayers::Range> selective_layers(const RecomputeOptions& options,
                                                     const std::vector<GptPart>& parts) {
  std::vector<RecomputeLayers::Range> ranges;
  if (options.recompute_granularity != RecomputeGranularity::kSelective) return ranges;
  for (const GptPart& part : parts) {
    const std::int64_t most = options.recompute_num_layers == 0 ? part.num_layers : options.recompute_num_layers;
    ranges.push_back({.first = part.first_layer, .count = std::min(most, part.num_layers)});
  }
  return ranges;
}

bool selects(const RecomputeOptions& options, const char* module) {
  return std::ranges::find(options.recompute_modules, module) != options.recompute_modules.end();
}

}  // namespace

RecomputeLayers recompute_layers(const RecomputeOptions& options, const std::vector<GptPart>& parts) {
  RecomputeLayers recompute;
  if (selects(options, "mlp")) recompute.mlps = selective_layers(options, parts);
  if (selects(options, "moe")) recompute.moes = selective_layers(options, parts);
  if (selects(options, "shared_experts")) recompute.shared_experts = selective_layers(options, parts);
  if (options.recompute_granularity != RecomputeGranularity::kFull) return recompute;
  const std::int64_t step = std::max<std::int64_t>(1, options.recompute_num_layers);
  for (const GptPart& part : parts) {
    const std::int64_t end = part.first_layer + part.num_layers;
    if (options.recompute_method == RecomputeMethod::kUniform) {
      for (std::int64_t first = part.first_layer; first < end; first += step)
        recompute.ranges.push_back({.first = first, .count = std::min(step, end - first)});
    } else {
      for (std::int64_t layer = part.first_layer; layer < std::min(part.first_layer + step, end); ++layer)
        recompute.ranges.push_back({.first = layer, .count = 1});
    }
  }
  return recompute;
}

StashPolicies recompute_policies(const RecomputeOptions& options, const std::vector<GptPart>& parts) {
  StashPolicies policies;
  const auto recompute = [&](const std::vector<RecomputeLayers::Range>& ranges, SlotKind kind) {
    for (const RecomputeLayers::Range& range : ranges) {
      for (std::int64_t layer = range.first; layer < range.first + range.count; ++layer)
        policies.set(layer, kind, StashPolicy::kRecompute);
    }
  };
  // The activation's gradient kernel recomputes this input of the experts' fc2.
  for (const GptPart& part : parts) recompute({{part.first_layer, part.num_layers}}, SlotKind::kExpertFc2);
  const std::vector<RecomputeLayers::Range> layers = selective_layers(options, parts);
  for (const std::string& module : options.recompute_modules) {
    if (module == "core_attn") recompute(layers, SlotKind::kAttnProj);
    if (module == "layernorm") {
      recompute(layers, SlotKind::kQkvLinear);
      recompute(layers, SlotKind::kFc1);
    }
    if (module == "mlp_act") recompute(layers, SlotKind::kFc2);
    if (module == "own") recompute(layers, SlotKind::kOwn);
  }
  return policies;
}

bool recomputes_module(const RecomputeOptions& options, const std::vector<GptPart>& parts, std::int64_t layer,
                       const char* module) {
  const std::vector<RecomputeLayers::Range> layers = selective_layers(options, parts);
  return selects(options, module) &&
         std::ranges::any_of(layers, [layer](const RecomputeLayers::Range& range) { return range.contains(layer); });
}

}  // namespace megalith
