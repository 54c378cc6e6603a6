#include "core/ops/activation_cpu.h"
#include "core/ops/dispatch.h"
#include "core/ops/loops.h"

namespace megalith {

namespace {

constexpr float kTwoSqrtTwoOverPi = 1.59576912f;

// gelu(x) = x cdf(x); its derivative is cdf(x) + x cdf'(x).
// In the tanh form cdf(x) = 0.5 (1 + tanh(u)) = logistic(2u): one exponential, and no cancellation in the lower tail.
// From |x| = 100 on the result no longer depends on the cubic term, which could overflow.
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

template <class T, bool exact>
void gelu_forward(const GeluForward& op) {
  const Row x = op.x.as<const T>();
  const Row y = op.y.as<T>();
  for_each_element(op.x.numel(), [=](auto i) { y.set(i, gelu<exact>(x[i])); });
}

template <class T, bool exact>
void gelu_backward(const GeluBackward& op) {
  const Row x = op.x.as<const T>(), dy = op.dy.as<const T>();
  const Row dx = op.dx.as<T>();
  for_each_element(op.x.numel(), [=](auto i) { dx.set(i, dy[i] * gelu_slope<exact>(x[i])); });
}

template <class T>
void swiglu_forward(const SwigluForward& op) {
  const std::int64_t columns = op.y.size(1);
  for (std::int64_t t = 0; t < op.y.size(0); ++t) {
    const T* x = op.x.as<const T>() + t * op.x.stride(0);
    const Row gate = x, up = x + columns;
    const Row y = op.y.as<T>() + t * op.y.stride(0);
    for_each_element(columns, [=](auto i) { y.set(i, gate[i] * simd::logistic(gate[i]) * up[i]); });
  }
}

// d silu(g) / dg = s (1 + g (1 - s)) with s = logistic(g).
template <class T>
void swiglu_backward(const SwigluBackward& op) {
  const std::int64_t columns = op.dy.size(1);
  for (std::int64_t t = 0; t < op.dy.size(0); ++t) {
    const T* x = op.x.as<const T>() + t * op.x.stride(0);
    T* dx = op.dx.as<T>() + t * op.dx.stride(0);
    const Row gate = x, up = x + columns, dy = op.dy.as<const T>() + t * op.dy.stride(0);
    const Row d_gate = dx, d_up = dx + columns, y = op.y ? op.y.as<T>() + t * op.y.stride(0) : nullptr;
    for_each_element(columns, [=](auto i) {
      const F32x8 g = gate[i], u = up[i], gradient = dy[i];
      const simd::Logistic s = simd::logistic_pair(g);
      d_gate.set(i, gradient * (u * (s.value * fma(g, s.complement, 1.0f))));
      d_up.set(i, gradient * (g * s.value));
      if (y) y.set(i, g * simd::logistic(g) * u);
    });
  }
}

}  // namespace

void compute(const GeluForward& op) {
  visit_float(op.x.dtype, [&op](auto type) {
    using T = decltype(type);
    op.exact ? gelu_forward<T, true>(op) : gelu_forward<T, false>(op);
  });
}

void compute(const GeluBackward& op) {
  visit_float(op.x.dtype, [&op](auto type) {
    using T = decltype(type);
    op.exact ? gelu_backward<T, true>(op) : gelu_backward<T, false>(op);
  });
}

void run(CpuStream& stream, const GeluForward& op) {
  stream.enqueue([op] { compute(op); });
}

void run(CpuStream& stream, const GeluBackward& op) {
  stream.enqueue([op] { compute(op); });
}

void run(CpuStream& stream, const SwigluForward& op) {
  stream.enqueue([op] { visit_float(op.y.dtype, [&op](auto type) { swiglu_forward<decltype(type)>(op); }); });
}

void run(CpuStream& stream, const SwigluBackward& op) {
  stream.enqueue([op] { visit_float(op.dy.dtype, [&op](auto type) { swiglu_backward<decltype(type)>(op); }); });
}

}  // namespace megalith
