// What one segment keeps of one microbatch between its verbs. A slot has a kind, and each kind has one policy. Memory
// is not freed by hand: a slot lives until the last op that reads it (core/memory/arena.h).
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
  Stash& operator=(const Stash& other);  // with its children; each keeps its own layer
  Stash(Stash&&) = default;
  Stash& operator=(Stash&&) = default;

  struct Slot {
    Tensor tensor;
    SlotKind kind = SlotKind::kOther;
    bool present = false;
    bool never_offload = false;
    bool handed = false;
  };

  // A slot of kind kOther, made on first use: stash[kHidden] = ...
  Tensor& operator[](int slot);
  // Keeps `tensor` unless the policy of its kind says that it will be refilled.
  void save(int slot, SlotKind kind, const Tensor& tensor);
  // Likewise of a kind, but kept under every policy: nothing refills it.
  void keep(int slot, SlotKind kind, const Tensor& tensor);
  void refill(int slot, const Tensor& tensor) { (*this)[slot] = tensor; }
  // The storage of the slot's tensor stays on the device, whatever other views of it have a kind that moves. Call it
  // after the slot is filled, in each forward. A slot that will be refilled holds nothing, so the call does nothing.
  void never_offload(int slot);
  bool has(int slot) const;
  // A slot that must be there; `name` is printed where it is not.
  const Tensor& at(int slot, std::string_view name) const;

  // For a later segment of the layer, in the same verb: the slot keeps nothing, so for_each() passes it by.
  void hand(int slot, const Tensor& tensor);
  // The stash of a part of the segment, of the same policies and the same layer.
  Stash& child(int index);
  // The stash that the segments of a layer share in a column: what one of them leaves for others. Its owner clears it
  // before the layer's first forward.
  Stash& layer() const;
  void set_layer(Stash& layer) { layer_ = &layer; }
  void clear();
  // Memory from `begin` on has moved to `to`: so have all views of it, which stay as they are otherwise. How many were.
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
