#include "core/ops/elementwise/activation.h"

#include "core/ops/dispatch.h"
#include "core/ops/fields.h"
#include "core/ops/loops.h"

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

constexpr float kTwoSqrtTwoOverPi = 1.59576912f;

// gelu(x) = x cdf(x); its derivative is cdf(x) + x cdf'(x). In the tanh form cdf(x) = 0.5 (1 + tanh(u)) = logistic(2u):
// one exponential, and no cancellation in the lower tail. From |x| = 100 on the result no longer depends on the cubic
// term, which could overflow.
struct GeluArgument {
  F32x8 x2;
  F32x8 z;  // 2u
};

GeluArgument gelu_argument(F32x8 x) {
  const F32x8 x2 = _mm256_min_ps(x * x, broadcast(1e4f));
  return {x2, x * fma(x2, kTwoSqrtTwoOverPi * 0.044715f, kTwoSqrtTwoOverPi)};
}

template <bool exact>
F32x8 gelu(F32x8 x) {
  if constexpr (exact) return x * simd::normal_distribution(x).below;
  return x * simd::logistic(gelu_argument(x).z);
}

template <bool exact>
F32x8 gelu_slope(F32x8 x) {
  if constexpr (exact) {
    constexpr float kInverseSqrtTwoPi = 0.398942280f;
    const simd::Normal normal = simd::normal_distribution(x);
    return fma(x, normal.gauss * kInverseSqrtTwoPi, normal.below);
  }
  const GeluArgument argument = gelu_argument(x);
  const simd::Logistic s = simd::logistic_pair(argument.z);
  const F32x8 z_slope = fma(argument.x2, 3 * kTwoSqrtTwoOverPi * 0.044715f, kTwoSqrtTwoOverPi);
  return fma(x, s.value * s.complement * z_slope, s.value);
}

}  // namespace

void compute(const GeluForward& op) {
  visit_float(op.x.dtype, [&]<class T>(T) {
    const Row x = op.x.as<const T>();
    const Row y = op.y.as<T>();
    const std::int64_t n = op.x.numel();
    if (op.exact) return for_each_element(n, [=](auto i) { y.set(i, gelu<true>(x[i])); });
    for_each_element(n, [=](auto i) { y.set(i, gelu<false>(x[i])); });
  });
}

void compute(const GeluBackward& op) {
  visit_float(op.x.dtype, [&]<class T>(T) {
    const Row x = op.x.as<const T>(), dy = op.dy.as<const T>();
    const Row dx = op.dx.as<T>();
    const std::int64_t n = op.x.numel();
    if (op.exact) return for_each_element(n, [=](auto i) { dx.set(i, dy[i] * gelu_slope<true>(x[i])); });
    for_each_element(n, [=](auto i) { dx.set(i, dy[i] * gelu_slope<false>(x[i])); });
  });
}

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
