// Offload of each layer by --offload-modules and related flags, and the kinds of slots that a layer has.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "apps/config/options.h"
#include "core/layers/stash.h"
#include "core/model/gpt.h"
#include "core/model/layer_recompute.h"
#include "offload/policy.h"

namespace megalith {

// State of a kind according to the flags. Custom segments may keep further kinds, which a recording finds.
enum class KindState {
  kAbsent,      // no slot of the layer has the kind
  kRecomputed,  // the layer has the kind but keeps nothing of it
  kKept,
};

// For each layer, true if it has a custom segment.
std::vector<bool> layers_with_own(const Options& options);

class LayerKinds {
 public:
  LayerKinds(const Options& options, const std::vector<GptPart>& parts);
  KindState of(std::int64_t layer, SlotKind kind) const;
  bool has_own(std::int64_t layer) const { return own_layers_[static_cast<std::size_t>(layer)]; }

 private:
  bool has(std::int64_t layer, SlotKind kind) const;

  const Options& options_;
  std::vector<GptPart> parts_;
  std::vector<bool> moe_layers_;
  std::vector<bool> own_layers_;
  RecomputeLayers recompute_;
  StashPolicies policies_;
};

// Kind in the layers [first, last].
struct OffloadModule {
  SlotKind kind = SlotKind::kOther;
  std::int64_t first = 0;
  std::int64_t last = 0;
};
inline constexpr std::string_view kAutoOffload = "auto";
inline constexpr std::string_view kFusedGroupMlp = "fused_group_mlp";

// Modules of one valid word of --offload-modules other than auto.
std::vector<OffloadModule> offload_modules_of(std::string_view word, std::int64_t num_layers);
bool offloads_by_forecast(const Options& options);

// Policies of recomputed and offloaded slots; `parts`: the parts of one stage, or all parts.
StashPolicies stash_policies(const Options& options, const std::vector<GptPart>& parts);
OffloadRequest offload_request(const Options& options, const std::vector<GptPart>& parts);

}  // namespace megalith
