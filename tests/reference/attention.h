// fp64 reference of attention, causal or of all keys, with grouped queries, from its definition, with the magnitudes
// that first-order error analysis needs: a score that is off by e changes its probability by the factor 1 + e.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace megalith::reference {

using Vector = std::vector<double>;

struct AttentionSizes {
  std::size_t samples, queries, keys, heads, kv_heads, dim;
  std::size_t start = 0;  // position of query 0: query s sees keys 0 .. start + s
  double scale = 1;
  bool causal = true;  // else a query sees all keys

  std::size_t visible(std::size_t s) const { return causal ? start + s + 1 : keys; }

  std::size_t query(std::size_t b, std::size_t s, std::size_t n) const { return ((b * queries + s) * heads + n) * dim; }
  std::size_t key(std::size_t b, std::size_t t, std::size_t n) const {
    return ((b * keys + t) * kv_heads + n / (heads / kv_heads)) * dim;
  }
  std::size_t statistic(std::size_t b, std::size_t n, std::size_t s) const { return (b * heads + n) * queries + s; }
};

inline double dot(const double* a, const double* b, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

inline double dot_of_magnitudes(const double* a, const double* b, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += std::abs(a[i] * b[i]);
  return sum;
}

struct AttentionOutput {
  Vector out, lse;
  Vector out_magnitude, lse_magnitude;
};

inline AttentionOutput attention(const Vector& q, const Vector& k, const Vector& v, const AttentionSizes& z) {
  AttentionOutput r;
  r.out.assign(q.size(), 0);
  r.out_magnitude.assign(q.size(), 0);
  r.lse.assign(z.samples * z.heads * z.queries, 0);
  r.lse_magnitude = r.lse;
  for (std::size_t b = 0; b < z.samples; ++b) {
    for (std::size_t n = 0; n < z.heads; ++n) {
      for (std::size_t s = 0; s < z.queries; ++s) {
        const std::size_t visible = z.visible(s);
        Vector score(visible), size(visible);
        double largest = -INFINITY;
        for (std::size_t t = 0; t < visible; ++t) {
          score[t] = z.scale * dot(&q[z.query(b, s, n)], &k[z.key(b, t, n)], z.dim);
          size[t] = z.scale * dot_of_magnitudes(&q[z.query(b, s, n)], &k[z.key(b, t, n)], z.dim);
          largest = std::max(largest, score[t]);
        }
        double total = 0, mean_size = 0;
        for (std::size_t t = 0; t < visible; ++t) total += std::exp(score[t] - largest);
        for (std::size_t t = 0; t < visible; ++t) mean_size += std::exp(score[t] - largest) / total * size[t];
        for (std::size_t t = 0; t < visible; ++t) {
          const double p = std::exp(score[t] - largest) / total;
          for (std::size_t d = 0; d < z.dim; ++d) {
            const double term = p * v[z.key(b, t, n) + d];
            r.out[z.query(b, s, n) + d] += term;
            r.out_magnitude[z.query(b, s, n) + d] += std::abs(term) * (1 + size[t] + mean_size);
          }
        }
        const std::size_t at = z.statistic(b, n, s);
        r.lse[at] = largest + std::log(total);
        r.lse_magnitude[at] = 1 + std::abs(largest) + std::log(total) + mean_size;
      }
    }
  }
  return r;
}

struct AttentionGradient {
  Vector dq, dk, dv;
  Vector dq_magnitude, dk_magnitude, dv_magnitude;
};

struct AttentionSaved {
  const Vector &out, &lse;  // as forward stored them
};

inline AttentionGradient attention_gradient(const Vector& q, const Vector& k, const Vector& v, const Vector& d_out,
                                            const AttentionSaved& saved, const AttentionSizes& z) {
  AttentionGradient r;
  r.dq.assign(q.size(), 0);
  r.dk.assign(k.size(), 0);
  r.dv.assign(v.size(), 0);
  r.dq_magnitude = r.dq;
  r.dk_magnitude = r.dk;
  r.dv_magnitude = r.dv;
  for (std::size_t b = 0; b < z.samples; ++b) {
    for (std::size_t n = 0; n < z.heads; ++n) {
      for (std::size_t s = 0; s < z.queries; ++s) {
        const std::size_t row = z.query(b, s, n);
        const double lse = saved.lse[z.statistic(b, n, s)];
        const double delta = dot(&d_out[row], &saved.out[row], z.dim);
        const double delta_size = dot_of_magnitudes(&d_out[row], &saved.out[row], z.dim);
        for (std::size_t t = 0; t < z.visible(s); ++t) {
          const std::size_t key = z.key(b, t, n);
          const double p = std::exp(z.scale * dot(&q[row], &k[key], z.dim) - lse);
          const double grown =
              p * (1 + z.scale * dot_of_magnitudes(&q[row], &k[key], z.dim) + std::abs(lse));  // p with its error
          const double ds = z.scale * p * (dot(&d_out[row], &v[key], z.dim) - delta);
          const double ds_size = z.scale * grown * (dot_of_magnitudes(&d_out[row], &v[key], z.dim) + delta_size);
          for (std::size_t d = 0; d < z.dim; ++d) {
            r.dq[row + d] += ds * k[key + d];
            r.dk[key + d] += ds * q[row + d];
            r.dv[key + d] += p * d_out[row + d];
            r.dq_magnitude[row + d] += ds_size * std::abs(k[key + d]);
            r.dk_magnitude[key + d] += ds_size * std::abs(q[row + d]);
            r.dv_magnitude[key + d] += grown * std::abs(d_out[row + d]);
          }
        }
      }
    }
  }
  return r;
}

}  // namespace megalith::reference
