#include "moe/ops/grouped_bias.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/ops/data_faults.h"
#include "core/ops/dispatch.h"
#include "core/ops/gemm/tile_pack.h"
#include "core/ops/loops.h"
#include "moe/ops/expert_fields.h"

namespace megalith {

namespace {

// Declares a gradient [rows, columns], or [any, columns] with an index.
template <class Op>
void routed_gradient_in(const Op& op, const Shape& shape, DTypeSet dtypes, Fields& f) {
  Field& dy = f.in(op.dy, "op.dy").dtype(dtypes).strided_rows();
  dy.shape({op.index ? op.dy.size(0) : shape[0], shape[1]});
  if (!op.index) dy.bounded_by(op.offsets);
}

// Calls visit(expert, row) for the live rows. Invalid offsets cannot cause out-of-bounds accesses.
template <class Visit>
void for_each_routed_row(const Tensor& offsets, std::int64_t capacity, Visit&& visit) {
  const auto* at = offsets.as<const std::int32_t>();
  for (std::int64_t e = 0; e + 1 < offsets.size(0); ++e) {
    const std::int64_t first = std::clamp<std::int64_t>(at[e], 0, capacity);
    const std::int64_t end = std::clamp<std::int64_t>(at[e + 1], first, capacity);
    for (std::int64_t r = first; r < end; ++r) visit(e, r);
  }
}

// Returns the row of dy that routed row `r` reads.
template <class Op>
std::int64_t gradient_row(const Op& op, std::int64_t r) {
  if (!op.index) return r;
  const std::int64_t row = op.index.template as<const std::int32_t>()[r];
  if (row < 0 || row >= op.dy.size(0)) raise_bad_route(std::array<std::int64_t, 4>{r, row, 0, op.dy.size(0)}.data());
  return row;
}

float weight_or_one(const Tensor& row_weight, std::int64_t r) {
  return row_weight ? row_weight.as<const float>()[r] : 1;
}

}  // namespace

void fields(const GroupedBias& op, Fields& f) {
  const std::int64_t count = experts(op.offsets, f);
  f.inout(op.x, "op.x").floating().rank(2).strided_rows().bounded_by(op.offsets);
  f.in(op.bias, "op.bias").dtype(op.x.dtype).shape({count * op.x.size(1)}).of_experts(count);
  weights_in(op.row_weight, op.x.size(0), op.offsets, f).optional();
}

void fields(const GroupedBiasDot& op, Fields& f) {
  const std::int64_t count = experts(op.offsets, f);
  f.in(op.bias, "op.bias").floating().rank(1).of_experts(count);
  f.expect(op.bias.numel() % count == 0, "op.bias", "equal sizes for each expert of op.offsets", op.bias.shape);
  f.inout(op.d_row_weight_partial, "op.d_row_weight_partial").dtype(DType::kFp32).rank(2).bounded_by(op.offsets);
  f.expect(op.d_row_weight_partial.size(1) >= 1, "op.d_row_weight_partial", "at least one partial sum",
           op.d_row_weight_partial.shape);
  const std::int64_t rows = op.d_row_weight_partial.size(0);
  f.in(op.index, "op.index").dtype(DType::kInt32).shape({rows}).bounded_by(op.offsets).optional();
  routed_gradient_in(op, {rows, op.bias.numel() / count}, DTypeSet{op.bias.dtype}, f);
}

void fields(const GroupedBiasGradient& op, Fields& f) {
  const std::int64_t count = experts(op.offsets, f), rows = op.index ? op.index.size(0) : op.dy.size(0);
  f.out(op.d_bias, "op.d_bias").floating().rank(1).of_experts(count).read_if(op.accumulate);
  f.expect(op.d_bias.numel() % count == 0, "op.d_bias", "equal sizes for each expert of op.offsets", op.d_bias.shape);
  const DTypeSet dtypes = op.d_bias.dtype == DType::kBf16 ? DTypeSet{DType::kBf16} : kFloatTypes;
  f.in(op.index, "op.index").dtype(DType::kInt32).rank(1).bounded_by(op.offsets).optional();
  routed_gradient_in(op, {rows, op.d_bias.numel() / count}, dtypes, f);
  weights_in(op.row_weight, rows, op.offsets, f).optional();
}

void compute(const GroupedBias& op) {
  visit_float(op.x.dtype, [&]<class T>(T) {
    const std::int64_t columns = op.x.size(1);
    for_each_routed_row(op.offsets, op.x.size(0), [&](std::int64_t expert, std::int64_t r) {
      const Row bias = op.bias.as<const T>() + expert * columns;
      const Row x = op.x.as<T>() + r * op.x.stride(0);
      for_each_element(columns,
                       [=, weight = weight_or_one(op.row_weight, r)](auto i) { x.set(i, x[i] + bias[i] * weight); });
    });
  });
}

void compute(const GroupedBiasDot& op) {
  visit_float(op.dy.dtype, [&]<class T>(T) {
    const std::int64_t columns = op.dy.size(1), rows = op.d_row_weight_partial.size(0);
    const std::int64_t parts = op.d_row_weight_partial.size(1);
    for_each_routed_row(op.offsets, rows, [&](std::int64_t expert, std::int64_t r) {
      const Row bias = op.bias.as<const T>() + expert * columns;
      const Row dy = op.dy.as<const T>() + gradient_row(op, r) * op.dy.stride(0);
      const auto [dot] = sum_elements<1>(columns, [=](auto& lanes, auto i) { lanes[0] += dy[i] * bias[i]; });
      op.d_row_weight_partial.as<float>()[r * parts] += dot;
    });
  });
}

void compute(const GroupedBiasGradient& op) {
  auto& sums = thread_scratch<std::vector<float>>();
  visit_float(op.dy.dtype, op.d_bias.dtype, [&]<class T, class Sum>(T, Sum) {
    const std::int64_t columns = op.dy.size(1), count = op.offsets.size(0) - 1;
    const std::int64_t rows = op.index ? op.index.size(0) : op.dy.size(0);
    sums.assign(static_cast<std::size_t>(count * columns), 0.0f);
    std::vector<bool> has_rows(static_cast<std::size_t>(count));
    for_each_routed_row(op.offsets, rows, [&](std::int64_t expert, std::int64_t r) {
      has_rows[static_cast<std::size_t>(expert)] = true;
      const Row<float> sum = sums.data() + expert * columns;
      const Row dy = op.dy.as<const T>() + gradient_row(op, r) * op.dy.stride(0);
      for_each_element(columns,
                       [=, weight = weight_or_one(op.row_weight, r)](auto i) { sum.set(i, sum[i] + dy[i] * weight); });
    });
    for (std::int64_t e = 0; e < count; ++e) {
      if (op.accumulate && !has_rows[static_cast<std::size_t>(e)]) continue;
      const Row<float> sum = sums.data() + e * columns;
      const Row d_bias = op.d_bias.as<Sum>() + e * columns;
      for_each_element(columns,
                       [=, adds = op.accumulate](auto i) { d_bias.set(i, adds ? d_bias[i] + sum[i] : sum[i]); });
    }
  });
}

}  // namespace megalith
