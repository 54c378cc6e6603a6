#include "moe/ops/routed_activation.h"

#include <algorithm>
#include <type_traits>

#include "core/ops/dispatch.h"
#include "core/ops/elementwise/pointwise_cpu.h"
#include "moe/ops/expert_fields.h"
#include "moe/ops/grouped_gemm/partial_sum.h"

namespace megalith {

namespace {

std::int64_t live_rows_of(const Tensor& offsets, std::int64_t capacity) {
  return std::clamp<std::int64_t>(offsets.as<const std::int32_t>()[offsets.size(0) - 1], 0, capacity);
}

// Calls visit(std::integral_constant<Pointwise, ...>).
template <class Visit>
void visit_pointwise(Pointwise function, Visit&& visit) {
  switch (function) {
    case Pointwise::kGeluTanh: return visit(std::integral_constant<Pointwise, Pointwise::kGeluTanh>());
    case Pointwise::kGeluExact: return visit(std::integral_constant<Pointwise, Pointwise::kGeluExact>());
    case Pointwise::kSquaredRelu: return visit(std::integral_constant<Pointwise, Pointwise::kSquaredRelu>());
  }
}

template <class T>
struct ActivationRow {
  Row<const T> x, dy;
  Row<T> dx, y;
  float weight;
};

// Processes `columns` from `first` on; returns the sum of dy s.
template <Pointwise kFunction, class T>
float backward_of_block(const ActivationRow<T>& row, std::int64_t first, std::int64_t columns) {
  const Row x = row.x + first, dy = row.dy + first;
  const Row dx = row.dx + first, y = row.y + first;
  alignas(32) float terms[kPartialColumns] = {};
  const Row dy_s = terms;
  for_each_element(columns, [&, weight = row.weight](auto i) {
    const F32x8 at = x[i], d = dy[i];
    dx.set(i, d * weight * pointwise_slope<kFunction>(at));
    y.set(i, pointwise<kFunction>(at));
    const F32x8 rounded = y[i];
    y.set(i, rounded * weight);
    dy_s.set(i, d * rounded);
  });
  return sum_of_packs(terms);
}

}  // namespace

void fields(const RoutedActivationForward& op, Fields& f) {
  experts(op.offsets, f);
  f.out(op.y, "op.y").floating().rank(2).bounded_by(op.offsets);
  f.in(op.x, "op.x").like(op.y).bounded_by(op.offsets);
  weights_in(op.row_weight, op.y.size(0), op.offsets, f);
}

void fields(const RoutedActivationBackward& op, Fields& f) {
  experts(op.offsets, f);
  f.in(op.dy, "op.dy").floating().rank(2).bounded_by(op.offsets);
  const std::int64_t rows = op.dy.size(0);
  f.in(op.x, "op.x").like(op.dy).bounded_by(op.offsets);
  weights_in(op.row_weight, rows, op.offsets, f);
  f.out(op.dx, "op.dx").like(op.x).may_be(op.x).bounded_by(op.offsets);
  f.out(op.y, "op.y").like(op.dy).may_be(op.dy).bounded_by(op.offsets);
  partial_out(op.d_row_weight_partial, {rows, op.dy.size(1)}, op.offsets, f);
}

void compute(const RoutedActivationForward& op) {
  visit_float(op.y.dtype, [&]<class T>(T) {
    visit_pointwise(op.function, [&](auto function) {
      const std::int64_t columns = op.y.size(1);
      for (std::int64_t r = 0; r < live_rows_of(op.offsets, op.y.size(0)); ++r) {
        const Row x = op.x.as<const T>() + r * columns;
        const Row y = op.y.as<T>() + r * columns;
        for_each_element(columns, [=, weight = op.row_weight.as<const float>()[r]](auto i) {
          y.set(i, pointwise<function()>(x[i]));
          y.set(i, y[i] * weight);  // times the rounded value
        });
      }
    });
  });
}

void compute(const RoutedActivationBackward& op) {
  visit_float(op.dy.dtype, [&]<class T>(T) {
    visit_pointwise(op.function, [&](auto function) {
      const std::int64_t columns = op.dy.size(1), parts = op.d_row_weight_partial.size(1);
      for (std::int64_t r = 0; r < live_rows_of(op.offsets, op.dy.size(0)); ++r) {
        const ActivationRow<T> row{.x = op.x.as<const T>() + r * columns,
                                   .dy = op.dy.as<const T>() + r * columns,
                                   .dx = op.dx.as<T>() + r * columns,
                                   .y = op.y.as<T>() + r * columns,
                                   .weight = op.row_weight.as<const float>()[r]};
        for (std::int64_t p = 0; p < parts; ++p) {
          const std::int64_t first = p * kPartialColumns;
          op.d_row_weight_partial.as<float>()[r * parts + p] =
              backward_of_block<function()>(row, first, std::min<std::int64_t>(kPartialColumns, columns - first));
        }
      }
    });
  });
}

}  // namespace megalith
