#include "core/ops/norm/norm.h"

#include <algorithm>
#include <cmath>

#include "core/ops/dispatch.h"
#include "core/ops/fields.h"
#include "core/ops/loops.h"

namespace megalith {

namespace {

// Returns the shape of a statistic.
template <class Op>
Shape inputs(const Op& op, Fields& f) {
  f.in(op.x, "op.x").floating().rank(2, 4).strided_rows().bounded();
  f.in(op.weight, "op.weight").dtype(op.x.dtype).shape({op.x.size(-1)});
  f.expect(op.x.size(-1) >= 1, "op.x", "a last dim of at least 1", op.x.shape);
  return {op.x.numel() / op.x.size(-1)};
}

template <class Op>
Shape forward(const Op& op, Fields& f) {
  const Shape statistic = inputs(op, f);
  f.expect(op.residual.present() == op.sum.present(), "op.sum", "present exactly with op.residual",
           op.sum ? "op.sum alone" : "op.residual alone");
  f.in(op.residual, "op.residual").like(op.x).strided_rows().optional();
  f.out(op.sum, "op.sum").like(op.x).strided_rows().may_be(op.x).may_be(op.residual).optional();
  f.out(op.y, "op.y").like(op.x).strided_rows();
  f.out(op.rstd, "op.rstd").dtype(DType::kFp32).shape(statistic);
  return statistic;
}

template <class Op>
Shape backward(const Op& op, Fields& f) {
  const Shape statistic = inputs(op, f);
  f.in(op.dy, "op.dy").like(op.x).strided_rows();
  f.in(op.rstd, "op.rstd").dtype(DType::kFp32).shape(statistic);
  f.in(op.d_residual, "op.d_residual").like(op.x).strided_rows().optional();
  f.out(op.dx, "op.dx").like(op.x).strided_rows().may_be(op.dy).may_be(op.d_residual);
  const std::int64_t partials = std::max<std::int64_t>(op.d_weight_partial.size(0), 1);
  f.out(op.d_weight_partial, "op.d_weight_partial").dtype(DType::kFp32).shape({partials, op.x.size(-1)});
  return statistic;
}

}  // namespace

void fields(const RmsNormForward& op, Fields& f) { forward(op, f); }

void fields(const RmsNormBackward& op, Fields& f) {
  backward(op, f);
  f.out(op.y, "op.y").like(op.x).strided_rows().optional();
}

void fields(const LayerNormForward& op, Fields& f) {
  const Shape statistic = forward(op, f);
  f.in(op.bias, "op.bias").dtype(op.x.dtype).shape({op.x.size(-1)});
  f.out(op.mean, "op.mean").dtype(DType::kFp32).shape(statistic);
}

void fields(const LayerNormBackward& op, Fields& f) {
  const Shape statistic = backward(op, f);
  f.in(op.mean, "op.mean").dtype(DType::kFp32).shape(statistic);
  f.out(op.d_bias_partial, "op.d_bias_partial").like(op.d_weight_partial);
}

// Memory-bound: a row is read from memory once and then from L1; backward adds to a row of partial sums that stays in
// L1. Deterministic: the sums over a row have fixed lanes, and a row of partial sums covers a fixed eighth of the rows
// in ascending order.
namespace {

// The normalized row: x, or x + residual as `sum` stores it.
template <class T>
Row<const T> add_residual(Row<const T> x, Row<const T> residual, Row<T> sum, std::int64_t length) {
  if (!residual) return x;
  for_each_element(length, [=](auto i) { sum.set(i, x[i] + residual[i]); });
  return sum;
}

// Factors of a row's elements.
template <class T>
struct Factors {
  Row<const T> weight;
  float center;

  template <class Op>
  explicit Factors(const Op& op) : weight(op.weight.template as<const T>()), center(op.zero_centered ? 1.0f : 0.0f) {}
  template <class Index>
  F32x8 operator[](Index i) const {
    return weight[i] + center;
  }
};

// Calls visit(row, at, part) for the rows of each part of the weight and bias gradients, which begin at 0.
template <class Visit>
void for_each_row_of_parts(const Tensor& x, const Tensor& partial, Visit&& visit) {
  const std::int64_t rows = live_rows(x), parts = partial.size(0), length = partial.size(1);
  for (std::int64_t part = 0; part < parts; ++part) {
    for_each_row(x, rows * part / parts, rows * (part + 1) / parts,
                 [&](std::int64_t row, const RowIndex& at) { visit(row, at, part * length); });
  }
}

}  // namespace

void compute(const RmsNormForward& op) {
  visit_float(op.x.dtype, [&]<class T>(T) {
    const Rows<const T> xs(op.x), residuals(op.residual);
    const Rows<T> sums(op.sum), ys(op.y);
    const Factors<T> weight(op);
    const std::int64_t length = op.x.size(-1);
    for_each_row(op.x, [&](std::int64_t row, const RowIndex& at) {
      const Row x = add_residual(xs[at], residuals[at], sums[at], length);
      const Row y = ys[at];
      const auto [squares] =
          sum_elements<1>(length, [=](auto& lanes, auto i) { lanes[0] = fma(x[i], x[i], lanes[0]); });
      const float rstd = 1 / std::sqrt(squares / static_cast<float>(length) + op.eps);
      for_each_element(length, [=](auto i) { y.set(i, x[i] * rstd * weight[i]); });
      op.rstd.as<float>()[row] = rstd;
    });
  });
}

void compute(const LayerNormForward& op) {
  visit_float(op.x.dtype, [&]<class T>(T) {
    const Rows<const T> xs(op.x), residuals(op.residual);
    const Rows<T> sums(op.sum), ys(op.y);
    const Factors<T> weight(op);
    const Row bias = op.bias.as<const T>();
    const std::int64_t length = op.x.size(-1);
    for_each_row(op.x, [&](std::int64_t row, const RowIndex& at) {
      const Row x = add_residual(xs[at], residuals[at], sums[at], length);
      const Row y = ys[at];
      const auto [total] = sum_elements<1>(length, [=](auto& lanes, auto i) { lanes[0] += x[i]; });
      const float mean = total / static_cast<float>(length);
      const auto centred = [=](auto i) { return x[i] - mean; };
      const auto [squares] =
          sum_elements<1>(length, [=](auto& lanes, auto i) { lanes[0] = fma(centred(i), centred(i), lanes[0]); });
      const float rstd = 1 / std::sqrt(squares / static_cast<float>(length) + op.eps);
      for_each_element(length, [=](auto i) { y.set(i, fma(centred(i) * rstd, weight[i], bias[i])); });
      op.mean.as<float>()[row] = mean;
      op.rstd.as<float>()[row] = rstd;
    });
  });
}

void compute(const RmsNormBackward& op) {
  visit_float(op.x.dtype, [&]<class T>(T) {
    const Rows<const T> dys(op.dy), xs(op.x), d_residuals(op.d_residual);
    const Rows<T> dxs(op.dx), ys(op.y);
    const Factors<T> weight(op);
    const std::int64_t length = op.x.size(-1);
    std::fill_n(op.d_weight_partial.as<float>(), op.d_weight_partial.numel(), 0.0f);
    for_each_row_of_parts(op.x, op.d_weight_partial, [&](std::int64_t row, const RowIndex& at, std::int64_t part) {
      const Row dy = dys[at], x = xs[at], d_residual = d_residuals[at];
      const Row dx = dxs[at], y = ys[at];
      const float rstd = op.rstd.as<const float>()[row];
      const auto [gh] = sum_elements<1>(
          length, [=](auto& lanes, auto i) { lanes[0] = fma(dy[i] * weight[i], x[i] * rstd, lanes[0]); });
      const float mean_gh = gh / static_cast<float>(length);
      const Row d_weight = op.d_weight_partial.as<float>() + part;
      for_each_element(length, [=](auto i) {
        const F32x8 gradient = dy[i], h = x[i] * rstd;
        if (y) y.set(i, h * weight[i]);
        const F32x8 d = fma(-h, mean_gh, gradient * weight[i]) * rstd;
        dx.set(i, d_residual ? d + d_residual[i] : d);
        d_weight.set(i, fma(gradient, h, d_weight[i]));
      });
    });
  });
}

void compute(const LayerNormBackward& op) {
  visit_float(op.x.dtype, [&]<class T>(T) {
    const Rows<const T> dys(op.dy), xs(op.x), d_residuals(op.d_residual);
    const Rows<T> dxs(op.dx);
    const Factors<T> weight(op);
    const std::int64_t length = op.x.size(-1);
    std::fill_n(op.d_weight_partial.as<float>(), op.d_weight_partial.numel(), 0.0f);
    std::fill_n(op.d_bias_partial.as<float>(), op.d_bias_partial.numel(), 0.0f);
    for_each_row_of_parts(op.x, op.d_weight_partial, [&](std::int64_t row, const RowIndex& at, std::int64_t part) {
      const Row dy = dys[at], x = xs[at], d_residual = d_residuals[at];
      const Row dx = dxs[at];
      const float mean = op.mean.as<const float>()[row], rstd = op.rstd.as<const float>()[row];
      const auto [g, gh] = sum_elements<2>(length, [=](auto& lanes, auto i) {
        const F32x8 term = dy[i] * weight[i];
        lanes[0] += term;
        lanes[1] = fma(term, (x[i] - mean) * rstd, lanes[1]);
      });
      const float mean_g = g / static_cast<float>(length), mean_gh = gh / static_cast<float>(length);
      const Row d_weight = op.d_weight_partial.as<float>() + part, d_bias = op.d_bias_partial.as<float>() + part;
      for_each_element(length, [=](auto i) {
        const F32x8 gradient = dy[i], h = (x[i] - mean) * rstd;
        const F32x8 d = fma(-h, mean_gh, fma(gradient, weight[i], -mean_g));
        dx.set(i, d_residual ? fma(d, rstd, d_residual[i]) : d * rstd);
        d_weight.set(i, fma(gradient, h, d_weight[i]));
        d_bias.set(i, d_bias[i] + gradient);
      });
    });
  });
}

}  // namespace megalith
