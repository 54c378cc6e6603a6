// fp64 reference of attention, causal or of all keys, with grouped queries, a window and packed documents, from its
// definition. It returns magnitudes for first-order error analysis: a score error of e changes its probability by the
// factor 1 + e.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace megalith::reference {

using Vector = std::vector<double>;

struct AttentionDocument {
  std::size_t first_query, queries, first_key, keys;
};

struct SeenKeys {
  std::size_t first, count;
};

struct AttentionSizes {
  std::size_t samples, queries, keys, heads, kv_heads, dim;
  std::size_t start = 0;  // position of query 0: query s sees keys 0 .. start + s
  double scale = 1;
  bool causal = true;                             // otherwise a query sees all keys
  std::size_t window = 0;                         // if causal, a query sees the last ones up to its own; 0: all
  std::vector<AttentionDocument> documents = {};  // each query is in one, and sees that one's keys; empty: one of all

  SeenKeys seen(std::size_t s) const {
    AttentionDocument in{0, queries, 0, keys};
    for (const AttentionDocument& d : documents) {
      if (s >= d.first_query && s < d.first_query + d.queries) in = d;
    }
    if (!causal) return {in.first_key, in.keys};
    const std::size_t count = start + s - in.first_query + 1, seen = window == 0 ? count : std::min(window, count);
    return {in.first_key + count - seen, seen};
  }

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

struct AttentionOutput {
  Vector out, lse;
  Vector out_magnitude, lse_magnitude;
};

// A query without keys has out 0 and lse -inf.
AttentionOutput attention(const Vector& q, const Vector& k, const Vector& v, const AttentionSizes& z);

struct AttentionGradient {
  Vector dq, dk, dv;
  Vector dq_magnitude, dk_magnitude, dv_magnitude;
};

struct AttentionSaved {
  const Vector &out, &lse;  // stored by forward
};

AttentionGradient attention_gradient(const Vector& q, const Vector& k, const Vector& v, const Vector& d_out,
                                     const AttentionSaved& saved, const AttentionSizes& z);

}  // namespace megalith::reference
