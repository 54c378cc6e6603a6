// Plain loops in the order of the choices. What a table says is checked before anything is written.
#include <algorithm>

#include "core/ops/data_faults.h"
#include "core/ops/dispatch.h"
#include "core/ops/loops.h"
#include "core/ops/route_rows.h"

namespace megalith {

namespace {

// The first `count` entries of a table, all low <= entry < limit.
const std::int32_t* checked(const Tensor& table, std::int64_t count, std::int64_t low, std::int64_t limit) {
  const auto* entry = table.as<const std::int32_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    if (entry[i] >= low && entry[i] < limit) continue;
    const std::int64_t values[] = {i, entry[i], low, limit};
    raise_bad_route(values);
  }
  return entry;
}

// The row of each choice, -1: none. `x`: has the rows.
const std::int32_t* checked_positions(const Tensor& position, const Tensor& x) {
  const std::int64_t rows = x.bound != nullptr ? std::min<std::int64_t>(*x.bound, x.size(0)) : x.size(0);
  return checked(position, position.numel(), -1, rows);
}

}  // namespace

void compute(const ExpertOffsets& op) {
  const std::int64_t slots = op.choice.numel(), choices = op.choice.size(1), experts = op.offsets.numel() - 1;
  const std::int32_t* choice = checked(op.choice, slots, -1, experts);
  auto* offsets = op.offsets.as<std::int32_t>();
  auto* token = op.token.as<std::int32_t>();
  auto* position = op.position.as<std::int32_t>();
  std::fill_n(offsets, experts + 1, 0);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    if (choice[slot] >= 0) ++offsets[choice[slot] + 1];
  }
  for (std::int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  // From here on each is the expert's next row, and in the end the first row of the next expert.
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    position[slot] = choice[slot] >= 0 ? offsets[choice[slot]]++ : -1;
    if (position[slot] >= 0) token[position[slot]] = static_cast<std::int32_t>(slot / choices);
  }
  std::copy_backward(offsets, offsets + experts, offsets + experts + 1);
  offsets[0] = 0;
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
  const std::int64_t columns = op.x.size(1), tokens = op.position.size(0), choices = op.position.size(1);
  const std::int32_t* position = checked_positions(op.position, op.x);
  visit_float(op.x.dtype, [&]<class T>(T) {
    const Row x = op.x.as<const T>();
    for (std::int64_t token = 0; token < tokens; ++token) {
      const Row y = op.y.as<T>() + token * columns;
      const std::int32_t* rows = position + token * choices;
      for_each_element(columns, [=](auto i) {
        F32x8 sum = broadcast(0.0f);
        for (std::int64_t k = 0; k < choices; ++k) {
          if (rows[k] >= 0) sum += (x + rows[k] * columns)[i];
        }
        y.set(i, sum);
      });
    }
  });
}

void compute(const PermuteWeights& op) {
  const std::int32_t* position = checked_positions(op.position, op.row_weight);
  for (std::int64_t slot = 0; slot < op.weight.numel(); ++slot) {
    if (position[slot] >= 0) op.row_weight.as<float>()[position[slot]] = op.weight.as<const float>()[slot];
  }
}

void compute(const UnpermuteWeightGradients& op) {
  const std::int32_t* position = checked_positions(op.position, op.partial);
  const std::int64_t parts = op.partial.size(1);
  for (std::int64_t slot = 0; slot < op.position.numel(); ++slot) {
    float sum = 0;
    for (std::int64_t p = 0; p < parts && position[slot] >= 0; ++p)
      sum += op.partial.as<const float>()[position[slot] * parts + p];
    op.d_weight.as<float>()[slot] = sum;
  }
}

}  // namespace megalith
