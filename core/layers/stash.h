// Tensors that one segment keeps of one microbatch between its verbs. A slot has a kind, and each kind has one policy.
// Memory is not freed explicitly: a slot lives until the last op that reads it (core/memory/arena.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/layers/stash_policies.h"
#include "core/tensor/tensor.h"

namespace megalith {

class Stash {
 public:
  explicit Stash(const SlotPolicies& policies = {}) : policies_(policies) {}
  Stash(const Stash& other) { *this = other; }
  Stash& operator=(const Stash& other);  // copies the children; each stash keeps its layer
  Stash(Stash&&) = default;
  Stash& operator=(Stash&&) = default;

  struct Slot {
    Tensor tensor;
    SlotKind kind = SlotKind::kOther;
    bool present = false;
    bool never_offload = false;
    bool handed = false;
  };

  // Returns a slot of kind kOther, created on first use: stash[kHidden] = ...
  Tensor& operator[](int slot);
  // Keeps `tensor`, unless the policy of its kind refills the slot.
  void save(int slot, SlotKind kind, const Tensor& tensor);
  // Keeps `tensor` under every policy: nothing refills it.
  void keep(int slot, SlotKind kind, const Tensor& tensor);
  void refill(int slot, const Tensor& tensor) { (*this)[slot] = tensor; }
  // Keeps the storage of the slot's tensor on the device, even if other views of it have an offloaded kind. Call after
  // the slot is filled, in each forward. No effect on a slot that will be refilled.
  void never_offload(int slot);
  bool has(int slot) const;
  // Returns a slot that must exist; the error has `name`.
  const Tensor& at(int slot, std::string_view name) const;

  // Passes a tensor to a later segment of the layer, in the same verb. The slot keeps nothing: for_each() skips it.
  void hand(int slot, const Tensor& tensor);
  // Returns the stash of a part of the segment, with the same policies and layer.
  Stash& child(int index);
  // Returns the stash that the segments of a layer share in a column. Its owner clears it ahead of the layer's first
  // forward.
  Stash& layer() const;
  void set_layer(Stash& layer) { layer_ = &layer; }
  void clear();
  // Updates all views of memory that moved from `begin` to `to`. Returns their number.
  int rebind(const void* begin, std::size_t bytes, void* to);

  template <class Visitor>
  void for_each(const Visitor& visitor) const {
    for (const Slot& slot : slots_) {
      if (slot.present && !slot.handed) visitor(slot);
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
  Stash* layer_ = nullptr;
};

}  // namespace megalith
