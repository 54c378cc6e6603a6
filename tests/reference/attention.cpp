#include "tests/reference/attention.h"

#include <cmath>
#include <limits>

#include "tests/reference/matrix.h"

namespace megalith::reference {

namespace {

using Column = Eigen::VectorXd;

// First `rows` rows of one head, [rows, dim], at a stride of `stride` elements.
auto head(const Vector& x, std::size_t first, std::size_t rows, const AttentionSizes& z, std::size_t stride) {
  return Eigen::Map<const Matrix<double>, 0, Eigen::OuterStride<>>(
      x.data() + first, static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(z.dim),
      Eigen::OuterStride<>(static_cast<Eigen::Index>(stride)));
}
auto head(Vector& x, std::size_t first, std::size_t rows, const AttentionSizes& z, std::size_t stride) {
  return Eigen::Map<Matrix<double>, 0, Eigen::OuterStride<>>(x.data() + first, static_cast<Eigen::Index>(rows),
                                                             static_cast<Eigen::Index>(z.dim),
                                                             Eigen::OuterStride<>(static_cast<Eigen::Index>(stride)));
}

// One query's row of a tensor like q, as a column; the keys or values that it sees.
template <class Values>
auto query_row(Values& x, const AttentionSizes& z, std::size_t b, std::size_t s, std::size_t n) {
  return head(x, z.query(b, s, n), 1, z, z.dim).row(0).transpose();
}
template <class Values>
auto seen_rows(Values& x, const AttentionSizes& z, std::size_t b, std::size_t s, std::size_t n) {
  const SeenKeys seen = z.seen(s);
  return head(x, z.key(b, seen.first, n), seen.count, z, z.kv_heads * z.dim);
}

template <class Visit>
void for_each_query(const AttentionSizes& z, Visit&& visit) {
  for (std::size_t b = 0; b < z.samples; ++b) {
    for (std::size_t n = 0; n < z.heads; ++n) {
      for (std::size_t s = 0; s < z.queries; ++s) {
        if (z.seen(s).count > 0) visit(b, s, n);
      }
    }
  }
}

}  // namespace

AttentionOutput attention(const Vector& q, const Vector& k, const Vector& v, const AttentionSizes& z) {
  AttentionOutput r;
  r.out = r.out_magnitude = Vector(q.size());
  r.lse_magnitude = Vector(z.samples * z.heads * z.queries);
  r.lse = Vector(r.lse_magnitude.size(), -std::numeric_limits<double>::infinity());
  for_each_query(z, [&](std::size_t b, std::size_t s, std::size_t n) {
    const auto keys = seen_rows(k, z, b, s, n), values = seen_rows(v, z, b, s, n);
    const auto query = query_row(q, z, b, s, n);
    const Column score = z.scale * keys * query, size = z.scale * keys.cwiseAbs() * query.cwiseAbs();
    const double largest = score.maxCoeff(), total = (score.array() - largest).exp().sum();
    const Column p = (score.array() - largest).exp() / total;
    const double mean_size = p.dot(size);
    const Column p_size = p.array() * (1 + size.array() + mean_size);
    query_row(r.out, z, b, s, n) = values.transpose() * p;
    query_row(r.out_magnitude, z, b, s, n) = values.cwiseAbs().transpose() * p_size;
    const std::size_t at = z.statistic(b, n, s);
    r.lse[at] = largest + std::log(total);
    r.lse_magnitude[at] = 1 + std::abs(largest) + std::log(total) + mean_size;
  });
  return r;
}

AttentionGradient attention_gradient(const Vector& q, const Vector& k, const Vector& v, const Vector& d_out,
                                     const AttentionSaved& saved, const AttentionSizes& z) {
  AttentionGradient r;
  r.dq = r.dq_magnitude = Vector(q.size());
  r.dk = r.dv = r.dk_magnitude = r.dv_magnitude = Vector(k.size());
  for_each_query(z, [&](std::size_t b, std::size_t s, std::size_t n) {
    const auto keys = seen_rows(k, z, b, s, n), values = seen_rows(v, z, b, s, n);
    const auto query = query_row(q, z, b, s, n), gradient = query_row(d_out, z, b, s, n);
    const auto out = query_row(saved.out, z, b, s, n);
    const double lse = saved.lse[z.statistic(b, n, s)], delta = gradient.dot(out);
    const double delta_size = gradient.cwiseAbs().dot(out.cwiseAbs());
    const Column p = (z.scale * (keys * query).array() - lse).exp();
    const Column p_size = p.array() * (1 + z.scale * (keys.cwiseAbs() * query.cwiseAbs()).array() + std::abs(lse));
    const Column ds = z.scale * p.array() * ((values * gradient).array() - delta);
    const Column ds_size = z.scale * p_size.array() * ((values.cwiseAbs() * gradient.cwiseAbs()).array() + delta_size);
    query_row(r.dq, z, b, s, n) += keys.transpose() * ds;
    seen_rows(r.dk, z, b, s, n) += ds * query.transpose();
    seen_rows(r.dv, z, b, s, n) += p * gradient.transpose();
    query_row(r.dq_magnitude, z, b, s, n) += keys.cwiseAbs().transpose() * ds_size;
    seen_rows(r.dk_magnitude, z, b, s, n) += ds_size * query.cwiseAbs().transpose();
    seen_rows(r.dv_magnitude, z, b, s, n) += p_size * gradient.cwiseAbs().transpose();
  });
  return r;
}

}  // namespace megalith::reference
