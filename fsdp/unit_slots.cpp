#include "fsdp/unit_slots.h"

#include <algorithm>
#include <map>
#include <utility>

namespace megalith {

UnitSlots assign_slots(std::span<const ParameterUnit> units, const SlotCounts& counts, std::span<const int> in_turn) {
  constexpr std::int64_t kInTurn = -1;
  struct Family {
    int number = 0;
    std::vector<int> slots;
    std::size_t next = 0;
  };
  const auto assign = [&](int slots, bool ParameterUnit::*resident, std::vector<int>& slot_of,
                          std::vector<std::int64_t>& sizes) {
    std::vector<int> family_of;                                    // per slot
    std::map<std::pair<UnitKind, std::int64_t>, Family> families;  // by size
    for (int u = 0; u < static_cast<int>(units.size()); ++u) {
      const ParameterUnit& unit = units[static_cast<std::size_t>(u)];
      slot_of.push_back(UnitSlots::kResident);
      if (unit.*resident || unit.numel == 0) continue;
      const bool alternates = std::ranges::find(in_turn, u) != in_turn.end();
      const Family unknown{.number = static_cast<int>(families.size()), .slots = {}};
      Family& family = families.emplace(std::pair(unit.kind, alternates ? kInTurn : unit.numel), unknown).first->second;
      if (family.slots.size() < static_cast<std::size_t>(alternates ? 1 : slots)) {
        family.slots.push_back(static_cast<int>(sizes.size()));
        family_of.push_back(family.number);
        sizes.push_back(0);
      }
      slot_of.back() = family.slots[family.next++ % family.slots.size()];
      std::int64_t& elements = sizes[static_cast<std::size_t>(slot_of.back())];
      elements = std::max(elements, unit.numel);
    }
    return family_of;
  };
  UnitSlots assigned;
  assigned.weight_family =
      assign(counts.weights, &ParameterUnit::resident_weights, assigned.of_weights, assigned.weight_elements);
  assigned.gradient_family =
      assign(counts.gradients, &ParameterUnit::resident_gradients, assigned.of_gradients, assigned.gradient_elements);
  return assigned;
}

}  // namespace megalith
