#include "apps/config/layer_offload.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include "apps/config/memory_options.h"
#include "apps/config/offload_options.h"
#include "core/model/moe_config.h"
#include "core/tensor/dtype.h"

namespace megalith {

namespace {

using enum SlotKind;

bool contains(const std::vector<RecomputeLayers::Range>& ranges, std::int64_t layer) {
  return std::ranges::any_of(ranges, [layer](const RecomputeLayers::Range& range) { return range.contains(layer); });
}

std::int64_t number(std::string_view text) {
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

std::vector<bool> layers_with_own(const Options& options) {
  std::vector<bool> layers(static_cast<std::size_t>(options.num_layers()));
  for (std::size_t layer = 0; options.own.has_segment && layer < layers.size(); ++layer)
    layers[layer] = options.own.has_segment(options, static_cast<std::int64_t>(layer));
  return layers;
}

LayerKinds::LayerKinds(const Options& options, const std::vector<GptPart>& parts)
    : options_(options),
      parts_(parts),
      moe_layers_(moe_layers(options.moe(), options.num_layers())),
      own_layers_(layers_with_own(options)),
      recompute_(recompute_layers(options.memory, parts)),
      policies_(recompute_policies(options.memory, parts)) {}

bool LayerKinds::has(std::int64_t layer, SlotKind kind) const {
  const bool has_experts = moe_layers_[static_cast<std::size_t>(layer)];
  const bool has_shared = options_.moe().shared_expert_intermediate_size > 0;
  switch (kind) {
    case kAttnNorm:
    case kQkvLinear:
    case kCoreAttn:
    case kAttnProj:
    case kMlpNorm: return true;
    case kFc1: return !has_experts;
    case kAct:
    case kFc2: return !has_experts || has_shared;
    case kExpertFc1:
    case kMoeAct:
    case kExpertFc2: return has_experts;
    case kOwn: return has_own(layer);
    case kLayerInput:
    case kOther: return false;
  }
  return false;
}

KindState LayerKinds::of(std::int64_t layer, SlotKind kind) const {
  const bool has_experts = moe_layers_[static_cast<std::size_t>(layer)];
  const KindState recomputed = has(layer, kind) ? KindState::kRecomputed : KindState::kAbsent;
  const auto range = std::ranges::find_if(recompute_.ranges, [layer](const auto& r) { return r.contains(layer); });
  if (range != recompute_.ranges.end())
    return kind == kLayerInput && range->first == layer ? KindState::kKept : recomputed;
  const bool is_of_others =
      kind == kAttnNorm || kind == kQkvLinear || kind == kCoreAttn || kind == kAttnProj || kind == kOwn;
  if (contains(has_experts ? recompute_.moes : recompute_.mlps, layer) && !is_of_others)
    return kind == kLayerInput ? KindState::kKept : recomputed;
  if (has_experts && (kind == kAct || kind == kFc2) && contains(recompute_.shared_experts, layer)) return recomputed;
  if (policies_.of(layer, kind) == StashPolicy::kRecompute &&
      (kind != kExpertFc2 || recomputes_module(options_.memory, parts_, layer, "moe_act")))
    return recomputed;
  return has(layer, kind) ? KindState::kKept : KindState::kAbsent;
}

std::vector<OffloadModule> offload_modules_of(std::string_view word, std::int64_t num_layers) {
  const std::size_t colon = std::min(word.find(':'), word.size());
  const std::string_view name = word.substr(0, colon);
  OffloadModule module{.kind = kOther, .first = 0, .last = num_layers - 1};
  if (colon < word.size()) {
    const std::string_view range = word.substr(colon + 1);
    const std::size_t dash = range.find('-');
    module.first = number(range.substr(0, dash));
    module.last = dash == std::string_view::npos ? module.first : number(range.substr(dash + 1));
  }
  std::vector<OffloadModule> modules;
  const auto add = [&](SlotKind kind) {
    module.kind = kind;
    modules.push_back(module);
  };
  if (name == kFusedGroupMlp) {
    for (const SlotKind kind : {kExpertFc1, kMoeAct, kExpertFc2}) add(kind);
  } else if (const std::optional<SlotKind> kind = slot_kind_of(name)) {
    add(*kind);
  }
  return modules;
}

bool offloads_by_forecast(const Options& options) {
  const std::vector<std::string>& words = options.offload.offload_modules;
  return words.size() == 1 && words[0] == kAutoOffload;
}

StashPolicies stash_policies(const Options& options, const std::vector<GptPart>& parts) {
  StashPolicies policies = recompute_policies(options.memory, parts);
  const LayerKinds kinds(options, parts);
  const auto keeps = [&](std::int64_t layer, SlotKind kind) {
    return policies.of(layer, kind) != StashPolicy::kRecompute ||
           (kind == kExpertFc2 && kinds.of(layer, kind) == KindState::kKept);
  };
  for (const std::string& word : options.offload.offload_modules) {
    for (const OffloadModule& module : offload_modules_of(word, options.num_layers())) {
      for (const GptPart& part : parts) {
        const std::int64_t first = std::max(module.first, part.first_layer);
        const std::int64_t last = std::min(module.last, part.first_layer + part.num_layers - 1);
        for (std::int64_t layer = first; layer <= last; ++layer) {
          if (keeps(layer, module.kind)) policies.set(layer, module.kind, StashPolicy::kOffload);
        }
      }
    }
  }
  return policies;
}

OffloadRequest offload_request(const Options& options, const std::vector<GptPart>& parts) {
  const OffloadOptions& offload = options.offload;
  OffloadRequest request{.policies = stash_policies(options, parts),
                         .by_forecast = offloads_by_forecast(options),
                         .fraction = offload.activation_offload_fraction,
                         .max_bytes_of_layer = static_cast<std::size_t>(offload.offload_mb_per_layer) << 20,
                         .min_bytes = static_cast<std::size_t>(offload.min_offload_bytes)};
  if (offload.min_offloaded_tensor_size > 0) {
    request.min_bytes = static_cast<std::size_t>(offload.min_offloaded_tensor_size) * size_of(options.params_dtype());
  }
  return request;
}

}  // namespace megalith
