// Kinds of a layer's kept activations, and the policy of each kind.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

namespace megalith {

// Selectable kinds of kept activations; kOther is always kept. The names are Megatron-LM's offload modules.
enum class SlotKind : std::uint8_t {
  kAttnNorm,    // residual stream before attention; read by backward_data
  kQkvLinear,   // norm output; read by backward_weight, refilled by the norm
  kCoreAttn,    // q, k, v; read by backward_data
  kAttnProj,    // attention output and statistics; read by backward_weight, refilled by attention
  kMlpNorm,     // residual stream before the MLP; read by backward_data
  kFc1,         // norm output; read by backward_weight, refilled by the norm
  kAct,         // fc1 output; read by backward_data
  kFc2,         // activation output; read by backward_weight, refilled by the activation
  kExpertFc1,   // norm output, before its rows are routed; read by backward_weight
  kMoeAct,      // fc1 output of experts; read by backward_data
  kExpertFc2,   // activation output of experts; read by backward_weight, refilled by the activation's gradient
  kOwn,         // tensors of a user's layer (apps/config/own.h)
  kLayerInput,  // inputs of fully recomputed segments
  kOther,
};
inline constexpr int kNumSlotKinds = 14;
std::string_view name_of(SlotKind kind);
std::optional<SlotKind> slot_kind_of(std::string_view name);  // kind of a selectable name

// kOffload: kept, and moved to host memory meanwhile by actions of offload/, transparently to segments.
enum class StashPolicy : std::uint8_t { kKeep, kRecompute, kOffload };
using SlotPolicies = std::array<StashPolicy, kNumSlotKinds>;  // one layer's policies by kind; default: all kept

// Policies of all layers; -1 is outside of layers.
class StashPolicies {
 public:
  void set(std::int64_t layer, SlotKind kind, StashPolicy policy) {
    layers_[layer][static_cast<std::size_t>(kind)] = policy;
  }
  StashPolicy of(std::int64_t layer, SlotKind kind) const { return of(layer)[static_cast<std::size_t>(kind)]; }
  const SlotPolicies& of(std::int64_t layer) const {
    static constexpr SlotPolicies kAllKept{};
    const auto found = layers_.find(layer);
    return found != layers_.end() ? found->second : kAllKept;
  }

 private:
  std::map<std::int64_t, SlotPolicies> layers_;
};

}  // namespace megalith
