// Calls the GEMM of gemm_cpu.cpp for each expert; its results do not depend on the split of rows. Indexed rows are
// first copied to a contiguous buffer. A fused op runs the GEMM and then SwiGLU.
#include "moe/ops/grouped_gemm/grouped_gemm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/ops/data_faults.h"
#include "core/ops/dispatch.h"
#include "core/ops/gemm/gemm.h"
#include "core/ops/gemm/tile_pack.h"
#include "core/ops/loops.h"
#include "moe/ops/grouped_gemm/partial_sum.h"

namespace megalith {

namespace {

struct GroupedScratch {
  std::vector<std::byte> rows;  // indexed rows of an expert
  std::vector<float> sums;
};

struct ExpertRows {
  std::int64_t first, count;
};

// Invalid offsets cannot cause out-of-bounds accesses.
ExpertRows rows_of(const Tensor& offsets, std::int64_t expert, std::int64_t capacity) {
  const auto* at = offsets.as<const std::int32_t>() + expert;
  const std::int64_t first = std::clamp<std::int64_t>(at[0], 0, capacity);
  return {first, std::clamp<std::int64_t>(at[1], first, capacity) - first};
}

std::int64_t routed_rows(const Tensor& offsets, std::int64_t capacity) {
  const auto* at = offsets.as<const std::int32_t>();
  return std::clamp<std::int64_t>(at[offsets.size(0) - 1], 0, capacity);
}

// Calls visit(expert, rows); `capacity` rows in total.
template <class Visit>
void for_each_expert(const Tensor& offsets, std::int64_t capacity, Visit&& visit) {
  for (std::int64_t e = 0; e + 1 < offsets.size(0); ++e) visit(e, rows_of(offsets, e, capacity));
}

Tensor slice_rows(Tensor x, const ExpertRows& rows) {
  x.bound = nullptr;
  return x.slice(0, rows.first, rows.count);
}

Tensor matrix_of(const Tensor& matrices, const Tensor& offsets, std::int64_t expert) {
  if (!matrices) return {};
  const std::int64_t rows = matrices.size(0) / (offsets.size(0) - 1);
  return matrices.slice(0, expert * rows, rows);
}

// Rows of an expert, in `memory` if there is an index.
Tensor operand_rows(const Tensor& x, const Tensor& index, const ExpertRows& rows, std::vector<std::byte>& memory) {
  if (!index) return slice_rows(x, rows);
  const std::size_t size = size_of(x.dtype), bytes = static_cast<std::size_t>(x.size(1)) * size;
  memory.resize(std::max<std::size_t>(1, static_cast<std::size_t>(rows.count) * bytes));
  const auto* at = index.as<const std::int32_t>() + rows.first;
  if (bytes == 0) return Tensor(memory.data(), x.dtype, {rows.count, x.size(1)});
  for (std::int64_t r = 0; r < rows.count; ++r) {
    if (at[r] < 0 || at[r] >= x.size(0)) {
      raise_bad_route(std::array<std::int64_t, 4>{rows.first + r, at[r], 0, x.size(0)}.data());
    }
    const std::byte* row = x.as<const std::byte>() + at[r] * x.stride(0) * static_cast<std::int64_t>(size);
    std::memcpy(memory.data() + static_cast<std::size_t>(r) * bytes, row, bytes);
  }
  return Tensor(memory.data(), x.dtype, {rows.count, x.size(1)});
}

// c = a[:, :k] b + a[:, k:] b2, rounded once.
void multiply_both(const Tensor& a, const Tensor& b, const Tensor& b2, const Tensor& c, std::vector<float>& memory) {
  const std::int64_t k = b.size(0);
  Tensor sums = c;
  if (c.dtype != DType::kFp32) {
    memory.resize(static_cast<std::size_t>(std::max<std::int64_t>(1, c.numel())));
    sums = Tensor(memory.data(), DType::kFp32, c.shape);
  }
  compute(Gemm{.a = a.slice(1, 0, k), .b = b, .c = sums});
  compute(Gemm{.a = a.slice(1, k, k), .b = b2, .c = sums, .accumulate = true});
  if (c.dtype == DType::kFp32) return;
  const Rows<const float> from(sums);
  const Rows<bf16> to(c);
  for_each_row(c, [&](std::int64_t, const RowIndex& at) {
    for_each_element(c.size(1), [x = from[at], y = to[at]](auto i) { y.set(i, x[i]); });
  });
}

}  // namespace

void compute(const GroupedGemm& op) {
  auto& scratch = thread_scratch<GroupedScratch>();
  for_each_expert(op.offsets, op.c.size(0), [&](std::int64_t expert, const ExpertRows& rows) {
    if (rows.count == 0) return;
    const Tensor a = operand_rows(op.a, op.index, rows, scratch.rows), c = slice_rows(op.c, rows);
    const Tensor b = matrix_of(op.b, op.offsets, expert), b2 = matrix_of(op.b2, op.offsets, expert);
    if (b2 && !op.transpose_b) return multiply_both(a, b, b2, c, scratch.sums);
    const std::int64_t n = op.transpose_b ? b.size(0) : b.size(1);
    compute(Gemm{.a = a, .b = b, .c = c.slice(1, 0, n), .transpose_b = op.transpose_b});
    if (b2) compute(Gemm{.a = a, .b = b2, .c = c.slice(1, n, n), .transpose_b = true});
  });
}

void compute(const GroupedGemmWgrad& op) {
  auto& scratch = thread_scratch<GroupedScratch>();
  const std::int64_t capacity = op.a_index ? op.b.size(0) : op.a.size(0);
  for_each_expert(op.offsets, capacity, [&](std::int64_t expert, const ExpertRows& rows) {
    if (rows.count == 0 && op.accumulate) return;
    const Tensor a = operand_rows(op.a, op.a_index, rows, scratch.rows);
    const Tensor b = operand_rows(op.b, op.b_index, rows, scratch.rows);
    std::int64_t column = 0;
    for (const Tensor* c : {&op.c, &op.c2}) {
      const Tensor sum = matrix_of(*c, op.offsets, expert);
      if (!sum) continue;
      const Tensor part = a.slice(1, column, sum.size(0));
      compute(Gemm{.a = part, .b = b, .c = sum, .transpose_a = true, .accumulate = op.accumulate});
      column += sum.size(0);
    }
  });
}

void compute(const GroupedGemmSwiglu& op) {
  compute(product_of(op));
  compute(swiglu_of(op));
}

void compute(const GroupedGemmSwigluBackward& op) {
  compute(product_of(op));
  compute(swiglu_of(op));
}

void compute(const RoutedSwigluForward& op) {
  visit_float(op.y.dtype, [&]<class T>(T) {
    const std::int64_t columns = op.y.size(1);
    for (std::int64_t r = 0; r < routed_rows(op.offsets, op.y.size(0)); ++r) {
      const Row gate = op.x.as<const T>() + r * 2 * columns, up = gate + columns;
      const Row y = op.y.as<T>() + r * columns;
      for_each_element(columns, [=, weight = op.row_weight.as<const float>()[r]](auto i) {
        y.set(i, gate[i] * simd::logistic(gate[i]) * up[i]);
        y.set(i, y[i] * weight);  // times the rounded value
      });
    }
  });
}

namespace {

template <class T>
struct RoutedRow {
  Row<const T> gate, up, dy;
  Row<T> d_gate, d_up, y;
  float weight;
};

// Processes `columns` from `first` on; returns the sum of dy s. See SwigluBackward in activation.cpp.
template <class T>
float routed_swiglu_backward(const RoutedRow<T>& row, std::int64_t first, std::int64_t columns) {
  const Row gate = row.gate + first, up = row.up + first, dy = row.dy + first;
  const Row d_gate = row.d_gate + first, d_up = row.d_up + first, y = row.y + first;
  alignas(32) float terms[kPartialColumns] = {};
  const Row dy_s = terms;
  for_each_element(columns, [&, weight = row.weight](auto i) {
    const F32x8 g = gate[i], u = up[i], d = dy[i];
    const simd::Logistic s = simd::logistic_pair(g);
    const F32x8 gradient = d * weight;
    d_gate.set(i, gradient * (u * (s.value * fma(g, s.complement, 1.0f))));
    d_up.set(i, gradient * (g * s.value));
    y.set(i, g * simd::logistic(g) * u);
    const F32x8 rounded = y[i];
    y.set(i, rounded * weight);
    dy_s.set(i, d * rounded);
  });
  return sum_of_packs(terms);
}

}  // namespace

void compute(const RoutedSwigluBackward& op) {
  visit_float(op.dy.dtype, [&]<class T>(T) {
    const std::int64_t columns = op.dy.size(1), parts = op.d_row_weight_partial.size(1);
    for (std::int64_t r = 0; r < routed_rows(op.offsets, op.dy.size(0)); ++r) {
      const T* gate = op.x.as<const T>() + r * 2 * columns;
      T* d_gate = op.dx.as<T>() + r * 2 * columns;
      const RoutedRow<T> row{.gate = gate,
                             .up = gate + columns,
                             .dy = op.dy.as<const T>() + r * columns,
                             .d_gate = d_gate,
                             .d_up = d_gate + columns,
                             .y = op.y.as<T>() + r * columns,
                             .weight = op.row_weight.as<const float>()[r]};
      for (std::int64_t p = 0; p < parts; ++p) {
        const std::int64_t first = p * kPartialColumns;
        op.d_row_weight_partial.as<float>()[r * parts + p] =
            routed_swiglu_backward(row, first, std::min<std::int64_t>(kPartialColumns, columns - first));
      }
    }
  });
}

}  // namespace megalith
