// Slots: fixed memory that holds gathered weights and unreduced gradients. Each unit keeps one slot for weights and one
// for gradients. Therefore addresses are fixed, memory is known before the run, and captured graphs stay valid. Units
// of one kind and size form a family. A family's units use its slots round-robin in model order. In a sweep through the
// layers, the next layer's slot is the next to become free. When backward starts, the last layers are still gathered.
// Dense units and experts of equal size form separate families; otherwise one layer would occupy all slots.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/layers/parameter.h"

namespace megalith {

struct UnitSlots {
  static constexpr int kResident = -1;

  std::vector<int> of_weights;                // slot of each unit, or kResident
  std::vector<int> of_gradients;              // slot of each unit, or kResident
  std::vector<std::int64_t> weight_elements;  // size of each slot: its largest unit
  std::vector<std::int64_t> gradient_elements;
  std::vector<int> weight_family;       // family of each weight slot
  std::vector<int> gradient_family;     // family of each gradient slot
  std::optional<DType> gradient_dtype;  // dtype of the slots; absent: that of the shards

  bool has_weights() const { return !weight_elements.empty(); }
  bool has_gradients() const { return !gradient_elements.empty(); }
};

struct SlotCounts {  // per family
  int weights = 2;
  int gradients = 2;
};

// Assigns slots to the units that are not resident. The units of `in_turn` share one slot: embedding and head are used
// at different times.
UnitSlots assign_slots(std::span<const ParameterUnit> units, const SlotCounts& counts,
                       std::span<const int> in_turn = {});

}  // namespace megalith
