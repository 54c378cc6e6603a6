// CPU kernels: plain loops over choices. Tables are checked before any output is written.
#include <algorithm>
#include <limits>

#include "core/ops/dispatch.h"
#include "core/ops/loops.h"
#include "moe/ops/route_rows.h"
#include "moe/ops/route_tables_cpu.h"

namespace megalith {

void compute(const ExpertOffsets& op) {
  constexpr std::int64_t kAnyExpert = std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1;
  const std::int64_t choices = op.choice.size(1), slots = bounded_rows(op.choice) * choices;
  const std::int64_t experts = op.offsets.numel() - 1, room = op.token.numel();
  const std::int32_t* choice = checked(op.choice, slots, -1, op.all_experts > 0 ? op.all_experts : kAnyExpert);
  auto* offsets = op.offsets.as<std::int32_t>();
  auto* token = op.token.as<std::int32_t>();
  auto* position = op.position.as<std::int32_t>();
  // Local index of a chosen expert; -1 or at least `experts` for other experts.
  const auto expert = [&](std::int64_t slot) { return std::max<std::int64_t>(choice[slot] - op.first_expert, -1); };
  const auto is_own = [&](std::int64_t e) { return e >= 0 && e < experts; };
  std::fill_n(offsets, experts + 1, 0);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    if (is_own(expert(slot))) ++offsets[expert(slot) + 1];
  }
  for (std::int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  if (op.wanted) *op.wanted.as<std::int32_t>() = offsets[experts];
  // offsets[e] now is the next row of expert e. After the loop it is the first row of expert e + 1.
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    const std::int32_t row = is_own(expert(slot)) ? offsets[expert(slot)]++ : -1;
    position[slot] = row < room ? row : -1;
    if (position[slot] >= 0) token[row] = static_cast<std::int32_t>(slot / choices);
  }
  std::copy_backward(offsets, offsets + experts, offsets + experts + 1);
  offsets[0] = 0;
  for (std::int64_t e = 1; e <= experts; ++e)
    offsets[e] = static_cast<std::int32_t>(std::min<std::int64_t>(offsets[e], room));
}

void compute(const PermuteRows& op) {
  const std::int64_t columns = op.x.size(1), capacity = op.index.numel();
  const std::int32_t last = op.offsets.as<const std::int32_t>()[op.offsets.numel() - 1];
  const std::int64_t rows = std::min<std::int64_t>(last, capacity);
  const std::int32_t* index = checked(op.index, rows, 0, op.x.size(0));
  visit_float(op.x.dtype, [&]<class T>(T) {
    for (std::int64_t row = 0; row < rows; ++row)
      std::copy_n(op.x.as<const T>() + index[row] * columns, columns, op.y.as<T>() + row * columns);
  });
}

void compute(const UnpermuteRows& op) {
  const std::int64_t columns = op.y.size(1), width = op.x.size(1), parts = columns > 0 ? width / columns : 1;
  const std::int64_t tokens = bounded_rows(op.position), choices = op.position.size(1);
  const std::int32_t* position = checked_positions(op.position, op.x);
  visit_float(op.x.dtype, [&]<class T>(T) {
    const Row x = op.x.as<const T>();
    for (std::int64_t token = 0; token < tokens; ++token) {
      const Row y = op.y.as<T>() + token * columns;
      const std::int32_t* rows = position + token * choices;
      for_each_element(columns, [=](auto i) {
        F32x8 sum = broadcast(0.0f);
        for (std::int64_t k = 0; k < choices; ++k) {
          for (std::int64_t s = 0; s < parts && rows[k] >= 0; ++s) sum += (x + rows[k] * width + s * columns)[i];
        }
        y.set(i, sum);
      });
    }
  });
}

void compute(const PermuteWeights& op) {
  const std::int32_t* position = checked_positions(op.position, op.row_weight);
  const std::int64_t slots = bounded_rows(op.position) * op.position.size(1);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    if (position[slot] >= 0) op.row_weight.as<float>()[position[slot]] = op.weight.as<const float>()[slot];
  }
}

void compute(const UnpermuteWeightGradients& op) {
  const std::int32_t* position = checked_positions(op.position, op.partial);
  const std::int64_t parts = op.partial.size(1), slots = bounded_rows(op.position) * op.position.size(1);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    float sum = 0;
    for (std::int64_t p = 0; p < parts && position[slot] >= 0; ++p)
      sum += op.partial.as<const float>()[position[slot] * parts + p];
    op.d_weight.as<float>()[slot] = sum;
  }
}

}  // namespace megalith
