// What --offload-modules and its companions ask of each layer, and which kinds of slots a layer has at all.
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

// By the flags alone. Segments of a user's own may keep other kinds too, which a recording then finds.
enum class KindState {
  kAbsent,      // no slot of the layer has the kind
  kRecomputed,  // it has, but nothing is kept of it
  kKept,
};

// Of each layer whether it has a segment of the user's own.
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

// Layers [first, last] of a kind.
struct OffloadModule {
  SlotKind kind = SlotKind::kOther;
  std::int64_t first = 0;
  std::int64_t last = 0;
};
inline constexpr std::string_view kAutoOffload = "auto";
inline constexpr std::string_view kFusedGroupMlp = "fused_group_mlp";

// Of one word of --offload-modules but auto, whose form was checked.
std::vector<OffloadModule> offload_modules_of(std::string_view word, std::int64_t num_layers);
bool offloads_by_forecast(const Options& options);

// With what is recomputed and what is offloaded; `parts` are those of a stage, or of all.
StashPolicies stash_policies(const Options& options, const std::vector<GptPart>& parts);
OffloadRequest offload_request(const Options& options, const std::vector<GptPart>& parts);

}  // namespace megalith
