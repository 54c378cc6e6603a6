// Finds each expert's limit by a radix select over keys, eight bits at a time, and then filters the choices.
#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "core/ops/data_faults.h"
#include "moe/ops/expert_capacity.h"

namespace megalith {

namespace {

constexpr RowLimit kAllRows{0, std::numeric_limits<std::int32_t>::max()};

// Key with the order of the weights.
std::uint32_t key_of(const float* weight, std::int32_t row) {
  if (weight == nullptr) return 0;
  const auto bits = std::bit_cast<std::uint32_t>(weight[row]);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

RowLimit limit_of(const float* weight, std::int32_t first, std::int32_t end, std::int64_t capacity) {
  if (end - first <= capacity) return kAllRows;
  if (weight == nullptr) return {0, first + static_cast<std::int32_t>(capacity) - 1};
  std::uint32_t key = 0, known = 0;  // bits found so far of the last key that stays, and their mask
  std::int64_t left = capacity;      // rows with these bits that stay
  for (int shift = 24; shift >= 0; shift -= 8) {
    std::array<std::int64_t, 256> count{};
    for (std::int32_t row = first; row < end; ++row) {
      const std::uint32_t other = key_of(weight, row);
      if ((other & known) == key) ++count[other >> shift & 255u];
    }
    std::uint32_t digit = 255;
    for (; count[digit] < left; --digit) left -= count[digit];
    key |= digit << shift;
    known |= 255u << shift;
  }
  std::int32_t row = first;
  for (;; ++row) {
    if (key_of(weight, row) == key && --left == 0) return {key, row};
  }
}

void check_route(std::int64_t slot, std::int32_t value, std::int64_t low, std::int64_t limit) {
  if (value >= low && value < limit) return;
  const std::int64_t values[] = {slot, value, low, limit};
  raise_bad_route(values);
}

}  // namespace

void compute(const LimitExpertRows& op) {
  const auto *offsets = op.offsets.as<const std::int32_t>(), *choice = op.choice.as<const std::int32_t>();
  const auto* position = op.position.as<const std::int32_t>();
  const auto* weight = op.row_weight.as<const float>();
  auto* limit = op.workspace.as<RowLimit>();
  auto* kept = op.kept.as<std::int32_t>();
  const std::int64_t rows = op.choice.numel(), experts = op.offsets.numel() - 1;
  const auto row_at = [&](std::int64_t e) {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(offsets[e], 0, rows));
  };
  for (std::int64_t e = 0; e < experts; ++e) limit[e] = limit_of(weight, row_at(e), row_at(e + 1), op.capacity);
  for (std::int64_t slot = 0; slot < rows; ++slot) {
    check_route(slot, choice[slot], -1, experts);
    kept[slot] = choice[slot];
    if (choice[slot] < 0) continue;
    check_route(slot, position[slot], 0, rows);
    const std::uint32_t key = key_of(weight, position[slot]);
    const RowLimit& of = limit[choice[slot]];
    if (key < of.key || (key == of.key && position[slot] > of.last_row)) kept[slot] = -1;
  }
}

}  // namespace megalith
