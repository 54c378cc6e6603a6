#include "core/layers/stash_policies.h"

namespace megalith {

namespace {

constexpr std::array<std::string_view, kNumSlotKinds> kNames = {
    "attn_norm", "qkv_linear", "core_attn", "attn_proj",  "mlp_norm", "fc1",         "act",
    "fc2",       "expert_fc1", "moe_act",   "expert_fc2", "own",      "layer_input", "other"};

}  // namespace

std::string_view name_of(SlotKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

std::optional<SlotKind> slot_kind_of(std::string_view name) {
  for (int kind = 0; kind < static_cast<int>(SlotKind::kOther); ++kind) {
    if (kNames[static_cast<std::size_t>(kind)] == name) return static_cast<SlotKind>(kind);
  }
  return std::nullopt;
}

}  // namespace megalith
