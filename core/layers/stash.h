// What one segment keeps of one microbatch between its verbs. A slot has a kind, and each kind has one policy. Memory
// is not freed by hand: a slot lives until the last op that reads it (core/device/arena.h).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/tensor/tensor.h"

namespace megalith {

// The selectable kinds of kept activations; kOther is always kept. Names are those of Megatron's offload modules.
enum class SlotKind : std::uint8_t {
  kAttnNorm,   // residual stream before attention; read by backward_data
  kQkvLinear,  // norm output; read by backward_weight, refilled by the norm
  kCoreAttn,   // q, k, v; read by backward_data
  kAttnProj,   // attention output and statistics; read by backward_weight, refilled by attention
  kMlpNorm,    // residual stream before the MLP; read by backward_data
  kFc1,        // norm output; read by backward_weight, refilled by the norm
  kAct,        // fc1 output; read by backward_data
  kFc2,        // activation output; read by backward_weight, refilled by the activation
  kExpertFc1,  // norm output, before its rows are routed; read by backward_weight
  kMoeAct,     // fc1 output of experts; read by backward_data
  kExpertFc2,  // activation output of experts; read by backward_weight, refilled by the activation's gradient
  kLayerInput,  // inputs of what is wholly recomputed
  kOther,
};
inline constexpr int kNumSlotKinds = 13;
std::string_view name_of(SlotKind kind);
std::optional<SlotKind> slot_kind_of(std::string_view name);  // of a selectable one

// kOffload: kept, and moved to host memory for a while by actions that no segment knows of (offload/).
enum class StashPolicy : std::uint8_t { kKeep, kRecompute, kOffload };
using SlotPolicies = std::array<StashPolicy, kNumSlotKinds>;  // by kind, of one layer; default: all kept

// Of all layers, -1 being what belongs to none.
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

class Stash {
 public:
  explicit Stash(const SlotPolicies& policies = {}) : policies_(policies) {}
  Stash(const Stash& other) { *this = other; }
  Stash& operator=(const Stash& other);  // with its children
  Stash(Stash&&) = default;
  Stash& operator=(Stash&&) = default;

  struct Slot {
    Tensor tensor;
    SlotKind kind = SlotKind::kOther;
    bool present = false;
  };

  // A slot of kind kOther, made on first use: stash[kHidden] = ...
  Tensor& operator[](int slot);
  // Keeps `tensor` unless the policy of its kind says that it will be refilled.
  void save(int slot, SlotKind kind, const Tensor& tensor);
  void refill(int slot, const Tensor& tensor) { (*this)[slot] = tensor; }
  bool has(int slot) const;
  // A slot that must be there; `name` is printed where it is not.
  const Tensor& at(int slot, std::string_view name) const;

  // The stash of a part of the segment, of the same policies.
  Stash& child(int index);
  void clear();
  // Memory from `begin` on has moved to `to`: so have all views of it, which stay as they are otherwise. How many were.
  int rebind(const void* begin, std::size_t bytes, void* to);

  template <class Visitor>
  void for_each(const Visitor& visitor) const {
    for (const Slot& slot : slots_) {
      if (slot.present) visitor(slot);
    }
    for (const auto& part : children_) {
      if (part) part->for_each(visitor);
    }
  }

 private:
  Slot& slot(int index);

  static constexpr std::size_t kMaxSlots = 8;
  SlotPolicies policies_;
  std::array<Slot, kMaxSlots> slots_{};  // in place, so that references to slots stay valid
  std::vector<std::unique_ptr<Stash>> children_;
};

}  // namespace megalith
