#include "core/ops/elementwise/activation.h"

#include "core/ops/dispatch.h"
#include "core/ops/elementwise/pointwise_cpu.h"
#include "core/ops/fields.h"

namespace megalith {

void fields(const GeluForward& op, Fields& f) {
  f.in(op.x, "op.x").floating().any_shape();
  f.out(op.y, "op.y").like(op.x).may_be(op.x);
}

void fields(const GeluBackward& op, Fields& f) {
  f.in(op.x, "op.x").floating().any_shape();
  f.in(op.dy, "op.dy").like(op.x);
  f.out(op.dx, "op.dx").like(op.x).may_be(op.dy).may_be(op.x);
}

void fields(const SquaredReluForward& op, Fields& f) {
  f.in(op.x, "op.x").floating().any_shape();
  f.out(op.y, "op.y").like(op.x).may_be(op.x);
}

void fields(const SquaredReluBackward& op, Fields& f) {
  f.in(op.x, "op.x").floating().any_shape();
  f.in(op.dy, "op.dy").like(op.x);
  f.out(op.dx, "op.dx").like(op.x).may_be(op.dy).may_be(op.x);
}

void fields(const SwigluForward& op, Fields& f) {
  f.out(op.y, "op.y").floating().rank(2).strided_rows();
  f.in(op.x, "op.x").shape({op.y.size(0), 2 * op.y.size(1)}).dtype(op.y.dtype).strided_rows();
}

void fields(const SwigluBackward& op, Fields& f) {
  f.in(op.dy, "op.dy").floating().rank(2).strided_rows();
  f.in(op.x, "op.x").shape({op.dy.size(0), 2 * op.dy.size(1)}).dtype(op.dy.dtype).strided_rows();
  f.out(op.dx, "op.dx").like(op.x).strided_rows().may_be(op.x);
  f.out(op.y, "op.y").like(op.dy).strided_rows().may_be(op.dy).optional();
}

namespace {

template <Pointwise kFunction>
void compute_forward(const Tensor& from, const Tensor& to) {
  visit_float(from.dtype, [&]<class T>(T) {
    const Row x = from.as<const T>();
    const Row y = to.as<T>();
    for_each_element(from.numel(), [=](auto i) { y.set(i, pointwise<kFunction>(x[i])); });
  });
}

template <Pointwise kFunction, class Op>
void compute_backward(const Op& op) {
  visit_float(op.x.dtype, [&]<class T>(T) {
    const Row x = op.x.template as<const T>(), dy = op.dy.template as<const T>();
    const Row dx = op.dx.template as<T>();
    for_each_element(op.x.numel(), [=](auto i) { dx.set(i, dy[i] * pointwise_slope<kFunction>(x[i])); });
  });
}

}  // namespace

void compute(const GeluForward& op) {
  if (op.exact) return compute_forward<Pointwise::kGeluExact>(op.x, op.y);
  compute_forward<Pointwise::kGeluTanh>(op.x, op.y);
}

void compute(const GeluBackward& op) {
  if (op.exact) return compute_backward<Pointwise::kGeluExact>(op);
  compute_backward<Pointwise::kGeluTanh>(op);
}

void compute(const SquaredReluForward& op) { compute_forward<Pointwise::kSquaredRelu>(op.x, op.y); }
void compute(const SquaredReluBackward& op) { compute_backward<Pointwise::kSquaredRelu>(op); }

void compute(const SwigluForward& op) {
  visit_float(op.x.dtype, [&]<class T>(T) {
    const Rows<const T> xs(op.x);
    const Rows<T> ys(op.y);
    const std::int64_t columns = op.y.size(1);
    for_each_row(op.y, [&](std::int64_t, const RowIndex& at) {
      const Row gate = xs[at], up = gate + columns;
      for_each_element(columns, [=, y = ys[at]](auto i) { y.set(i, gate[i] * simd::logistic(gate[i]) * up[i]); });
    });
  });
}

// d silu(g) / dg = s (1 + g (1 - s)) with s = logistic(g).
void compute(const SwigluBackward& op) {
  visit_float(op.x.dtype, [&]<class T>(T) {
    const Rows<const T> xs(op.x), dys(op.dy);
    const Rows<T> dxs(op.dx), ys(op.y);
    const std::int64_t columns = op.dy.size(1);
    for_each_row(op.dy, [&](std::int64_t, const RowIndex& at) {
      const Row gate = xs[at], up = gate + columns, dy = dys[at];
      const Row d_gate = dxs[at], d_up = d_gate + columns, y = ys[at];
      for_each_element(columns, [=](auto i) {
        const F32x8 g = gate[i], u = up[i], gradient = dy[i];
        const simd::Logistic s = simd::logistic_pair(g);
        d_gate.set(i, gradient * (u * (s.value * fma(g, s.complement, 1.0f))));
        d_up.set(i, gradient * (g * s.value));
        if (y) y.set(i, g * simd::logistic(g) * u);
      });
    });
  });
}

}  // namespace megalith
