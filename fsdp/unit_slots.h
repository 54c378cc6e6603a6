// Where sharded units are while they are whole: slots, which a unit has for good, one for its weights and one for its
// gradients. So addresses are fixed, memory is known before the run, and captured graphs stay valid. Units of one kind
// and size, a family, take its slots in turn, in the order of the model: a sweep through the layers finds the slot of
// the layer after next free, and at the turn from forward to backward the last layers are still whole. Dense units and
// experts of one size have slots of their own: in turn with each other they would take those of one layer only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/layers/parameter.h"

namespace megalith {

struct UnitSlots {
  static constexpr int kResident = -1;

  std::vector<int> of_weights;                // of each unit its slot, or kResident
  std::vector<int> of_gradients;              // likewise
  std::vector<std::int64_t> weight_elements;  // of each slot, those of the largest unit in it
  std::vector<std::int64_t> gradient_elements;
  std::vector<int> weight_family;       // of each slot of weights, which units have it
  std::vector<int> gradient_family;     // likewise
  std::optional<DType> gradient_dtype;  // of whole gradients; left out: that of the shards

  bool has_weights() const { return !weight_elements.empty(); }
  bool has_gradients() const { return !gradient_elements.empty(); }
};

struct SlotCounts {  // of each family
  int weights = 2;
  int gradients = 2;
};

// Of the units that are not resident. Those of `in_turn` (embedding and head, which are used far from each other) share
// one slot.
UnitSlots assign_slots(std::span<const ParameterUnit> units, const SlotCounts& counts,
                       std::span<const int> in_turn = {});

}  // namespace megalith
