#include "core/ops/activation_cpu.h"
#include "core/ops/dispatch.h"
#include "core/ops/simd_math.h"

namespace megalith {

namespace {

using simd::F32x8;
using simd::set1;

constexpr float kTwoSqrtTwoOverPi = 1.59576912f;

// gelu(x) = x cdf(x); its derivative is cdf(x) + x cdf'(x).
// In the tanh form cdf(x) = 0.5 (1 + tanh(u)) = logistic(2u): one exponential, and no cancellation in the lower tail.
// From |x| = 100 on the result no longer depends on the cubic term, which could overflow.
struct GeluArgument {
  F32x8 x2;
  F32x8 z;  // 2u
};

inline GeluArgument gelu_argument(F32x8 x) {
  const F32x8 x2 = _mm256_min_ps(_mm256_mul_ps(x, x), set1(1e4f));
  return {x2, _mm256_mul_ps(x, _mm256_fmadd_ps(x2, set1(kTwoSqrtTwoOverPi * 0.044715f), set1(kTwoSqrtTwoOverPi)))};
}

template <bool exact>
F32x8 gelu(F32x8 x) {
  if constexpr (exact) return _mm256_mul_ps(x, simd::normal_distribution(x).below);
  return _mm256_mul_ps(x, simd::logistic(gelu_argument(x).z));
}

template <bool exact>
F32x8 gelu_slope(F32x8 x) {
  if constexpr (exact) {
    const simd::Normal normal = simd::normal_distribution(x);
    const F32x8 inverse_sqrt_two_pi = set1(0.398942280f);
    return _mm256_fmadd_ps(x, _mm256_mul_ps(normal.gauss, inverse_sqrt_two_pi), normal.below);
  }
  const GeluArgument argument = gelu_argument(x);
  const simd::Logistic s = simd::logistic_pair(argument.z);
  const F32x8 z_slope = _mm256_fmadd_ps(argument.x2, set1(3 * kTwoSqrtTwoOverPi * 0.044715f), set1(kTwoSqrtTwoOverPi));
  return _mm256_fmadd_ps(x, _mm256_mul_ps(_mm256_mul_ps(s.value, s.complement), z_slope), s.value);
}

template <class T, bool exact>
void gelu_forward(const GeluForward& op) {
  const T* x = op.x.as<const T>();
  T* y = op.y.as<T>();
  simd::for_each_vector(op.x.numel(),
                        [=](std::int64_t i, auto load, auto store) { store(y + i, gelu<exact>(load(x + i))); });
}

template <class T, bool exact>
void gelu_backward(const GeluBackward& op) {
  const T* x = op.x.as<const T>();
  const T* dy = op.dy.as<const T>();
  T* dx = op.dx.as<T>();
  simd::for_each_vector(op.x.numel(), [=](std::int64_t i, auto load, auto store) {
    store(dx + i, _mm256_mul_ps(load(dy + i), gelu_slope<exact>(load(x + i))));
  });
}

template <class T>
void swiglu_forward(const SwigluForward& op) {
  const std::int64_t columns = op.y.size(1);
  for (std::int64_t t = 0; t < op.y.size(0); ++t) {
    const T* gate = op.x.as<const T>() + t * op.x.stride(0);
    const T* up = gate + columns;
    T* y = op.y.as<T>() + t * op.y.stride(0);
    simd::for_each_vector(columns, [=](std::int64_t i, auto load, auto store) {
      const F32x8 g = load(gate + i);
      store(y + i, _mm256_mul_ps(_mm256_mul_ps(g, simd::logistic(g)), load(up + i)));
    });
  }
}

// d silu(g) / dg = s (1 + g (1 - s)) with s = logistic(g).
template <class T>
void swiglu_backward(const SwigluBackward& op) {
  const std::int64_t columns = op.dy.size(1);
  for (std::int64_t t = 0; t < op.dy.size(0); ++t) {
    const T* gate = op.x.as<const T>() + t * op.x.stride(0);
    const T* up = gate + columns;
    const T* dy = op.dy.as<const T>() + t * op.dy.stride(0);
    T* d_gate = op.dx.as<T>() + t * op.dx.stride(0);
    T* d_up = d_gate + columns;
    T* y = op.y ? op.y.as<T>() + t * op.y.stride(0) : nullptr;
    simd::for_each_vector(columns, [=](std::int64_t i, auto load, auto store) {
      const F32x8 g = load(gate + i);
      const F32x8 u = load(up + i);
      const F32x8 gradient = load(dy + i);
      const simd::Logistic s = simd::logistic_pair(g);
      const F32x8 slope = _mm256_mul_ps(s.value, _mm256_fmadd_ps(g, s.complement, set1(1.0f)));
      store(d_gate + i, _mm256_mul_ps(gradient, _mm256_mul_ps(u, slope)));
      store(d_up + i, _mm256_mul_ps(gradient, _mm256_mul_ps(g, s.value)));
      if (y != nullptr) store(y + i, _mm256_mul_ps(_mm256_mul_ps(g, simd::logistic(g)), u));
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
