// Parts of the reference GPT that need no weights: the three arithmetics, activations, RoPE and attention from their
// definitions. A Number is double or float; stored(x) rounds x as a tensor of that arithmetic keeps it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

#include "tests/reference/rope_scaling.h"

namespace megalith::reference {

struct Fp64 {
  using Number = double;
  static double stored(double x) { return x; }
};

struct Fp32 {
  using Number = float;
  static float stored(float x) { return x; }
};

struct Bf16Storage {
  using Number = float;
  // To 8 significant bits, ties to even. Results of interest are normal numbers.
  static float stored(float x) {
    int exponent = 0;
    const float mantissa = std::frexp(x, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
  }
};

template <class Number>
Number sigmoid(Number x) {
  return 1 / (1 + std::exp(-x));
}

template <class Number>
Number tanh_gelu_argument(Number x) {
  return static_cast<Number>(std::sqrt(2 / std::numbers::pi)) * (x + static_cast<Number>(0.044715) * x * x * x);
}

template <class Number>
Number gelu(Number x, bool exact) {
  if (exact) return x / 2 * std::erfc(-x / std::numbers::sqrt2_v<Number>);
  return x / 2 * (1 + std::tanh(tanh_gelu_argument(x)));
}

template <class Number>
Number gelu_slope(Number x, bool exact) {
  if (exact) {
    const Number density = std::exp(-x * x / 2) * static_cast<Number>(1 / std::sqrt(2 * std::numbers::pi));
    return std::erfc(-x / std::numbers::sqrt2_v<Number>) / 2 + x * density;
  }
  const Number t = std::tanh(tanh_gelu_argument(x));
  const Number slope =
      static_cast<Number>(std::sqrt(2 / std::numbers::pi)) * (1 + 3 * static_cast<Number>(0.044715) * x * x);
  return (1 + t) / 2 + x / 2 * (1 - t * t) * slope;
}

struct AttentionShape {
  std::size_t sequences = 1, length = 1, heads = 1, groups = 1, dim = 1;
  std::size_t rotary_dim = 0;  // 0: no RoPE
  double rotary_base = 10000;
  RopeScaling rope_scaling = {};
};

template <class Number>
struct Heads {
  std::vector<Number> q, k, v;  // [T, N, D], [T, groups, D] twice
};

template <class Number>
struct Attended {
  std::vector<Number> out;  // [T, N, D]
  std::vector<Number> lse;  // [T, N] log of the sum of exp(score)
};

template <class Arithmetic>
class AttentionMath {
  using Number = typename Arithmetic::Number;
  using Vector = std::vector<Number>;

 public:
  explicit AttentionMath(const AttentionShape& shape) : z_(shape), rows_(shape.sequences * shape.length) {}

  // In place, rotate-half, q or k; sign -1 is the gradient.
  void rotate(Vector& x, int sign) const {
    const std::size_t half = z_.rotary_dim / 2, heads = x.size() / (rows_ * z_.dim);
    const double factor = attention_factor(z_.rope_scaling);
    for (std::size_t i = 0; i < half; ++i) {
      const double frequency = scaled_frequency(z_.rotary_base, i, z_.rotary_dim, z_.rope_scaling);
      for (std::size_t row = 0; row < rows_ * heads; ++row) {
        const double angle = sign * static_cast<double>(row / heads % z_.length) * frequency;
        const auto cosine = static_cast<Number>(factor * std::cos(angle));
        const auto sine = static_cast<Number>(factor * std::sin(angle));
        Number& low = x[row * z_.dim + i];
        Number& high = x[row * z_.dim + i + half];
        const Number turned = stored(low * cosine - high * sine);
        high = stored(high * cosine + low * sine);
        low = turned;
      }
    }
  }

  // Causal: a query sees the rows of its sequence up to its own.
  // A query sees the last `window` rows of its sequence up to its own; 0: all of them.
  Attended<Number> attend(const Heads<Number>& h, std::size_t window) const {
    Attended<Number> a{Vector(h.q.size()), Vector(rows_ * z_.heads)};
    for_each_query(window, [&](std::size_t n, std::size_t t, std::size_t first) {
      Vector scores;
      for (std::size_t s = first; s <= t; ++s) scores.push_back(scale() * dot(h.q, query(t, n), h.k, key(s, n)));
      const Number largest = *std::max_element(scores.begin(), scores.end());
      Number sum = 0;
      for (const Number score : scores) sum += std::exp(score - largest);
      a.lse[t * z_.heads + n] = largest + std::log(sum);
      for (std::size_t d = 0; d < z_.dim; ++d) {
        Number out = 0;
        for (std::size_t s = first; s <= t; ++s)
          out += std::exp(scores[s - first] - largest) / sum * h.v[key(s, n) + d];
        a.out[query(t, n) + d] = stored(out);
      }
    });
    return a;
  }

  Heads<Number> attend_back(const Heads<Number>& h, const Attended<Number>& a, const Vector& d_out,
                            std::size_t window) const {
    Heads<Number> d{Vector(h.q.size()), Vector(h.k.size()), Vector(h.v.size())};
    for_each_query(window, [&](std::size_t n, std::size_t t, std::size_t first) {
      const std::size_t q = query(t, n);
      const Number delta = dot(d_out, q, a.out, q);
      for (std::size_t s = first; s <= t; ++s) {
        const std::size_t k = key(s, n);
        const Number p = std::exp(scale() * dot(h.q, q, h.k, k) - a.lse[t * z_.heads + n]);
        const Number d_score = scale() * p * (dot(d_out, q, h.v, k) - delta);
        for (std::size_t e = 0; e < z_.dim; ++e) {
          d.q[q + e] += d_score * h.k[k + e];
          d.k[k + e] += d_score * h.q[q + e];
          d.v[k + e] += p * d_out[q + e];
        }
      }
    });
    for (Vector* x : {&d.q, &d.k, &d.v}) {
      for (Number& value : *x) value = stored(value);
    }
    return d;
  }

 private:
  static Number stored(Number x) { return Arithmetic::stored(x); }
  Number scale() const { return 1 / std::sqrt(static_cast<Number>(z_.dim)); }

  template <class Visit>  // visit(head, row of the query, first row that it sees)
  void for_each_query(std::size_t window, Visit&& visit) const {
    for (std::size_t t = 0; t < rows_; ++t) {
      const std::size_t begin = t / z_.length * z_.length, seen = t - begin + 1;
      const std::size_t first = window == 0 || seen < window ? begin : t + 1 - window;
      for (std::size_t n = 0; n < z_.heads; ++n) visit(n, t, first);
    }
  }
  // The first element of query head n, and of the key/value head that it uses.
  std::size_t query(std::size_t t, std::size_t n) const { return (t * z_.heads + n) * z_.dim; }
  std::size_t key(std::size_t t, std::size_t n) const { return (t * z_.groups + n * z_.groups / z_.heads) * z_.dim; }

  Number dot(const Vector& a, std::size_t i, const Vector& b, std::size_t j) const {
    Number sum = 0;
    for (std::size_t d = 0; d < z_.dim; ++d) sum += a[i + d] * b[j + d];
    return sum;
  }

  AttentionShape z_;
  std::size_t rows_;
};

}  // namespace megalith::reference
