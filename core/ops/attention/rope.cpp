#include "core/ops/attention/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/ops/dispatch.h"
#include "core/ops/fields.h"
#include "core/ops/loops.h"

namespace megalith {

void check_rotation(std::int64_t rotary_dim, float theta, const RopeScaling& s, std::int64_t head_dim, Fields& f) {
  const std::int64_t limit = std::min(head_dim, kMaxRotaryDim);
  if (rotary_dim < 2 || rotary_dim > limit || rotary_dim % 2 != 0) {
    fail({.subject = "op.rotary_dim",
          .expected = fmt::format("an even number of 2 to {}", limit),
          .got = fmt::format("{}", rotary_dim)});
  }
  f.expect(theta > 0, "op.theta", "more than 0", theta);
  if (!(s.factor >= 1) || !(s.low_freq_factor > 0) || !(s.high_freq_factor > s.low_freq_factor) ||
      s.original_max_position_embeddings < 1) {
    fail({.subject = "op.scaling",
          .expected = "a factor of at least 1, frequency factors that rise from above 0, and original positions",
          .got = fmt::format("{}, {} to {}, {}", s.factor, s.low_freq_factor, s.high_freq_factor,
                             s.original_max_position_embeddings)});
  }
  if (s.kind != RopeScalingKind::kYarn) return;
  f.expect(theta > 1, "op.theta", "more than 1 for YaRN", theta);
  if (!(s.beta_slow > 0) || !(s.beta_fast >= s.beta_slow) || !(s.mscale >= 0) || !(s.mscale_all_dim >= 0) ||
      !(s.attention_factor >= 0)) {
    fail({.subject = "op.scaling",
          .expected = "betas that fall to above 0, and an mscale, mscale_all_dim and attention factor of at least 0",
          .got = fmt::format("{} to {}, {}, {}, {}", s.beta_fast, s.beta_slow, s.mscale, s.mscale_all_dim,
                             s.attention_factor)});
  }
}

void fields(const Rope& op, Fields& f) {
  f.in(op.x, "op.x").floating().rank(4).strided_rows();
  f.in(op.start, "op.start").optional();
  f.out(op.y, "op.y").like(op.x).strided_rows().may_be(op.x);
  check_rotation(op.rotary_dim, op.theta, op.scaling, op.x.size(3), f);
  check_part(op.part, op.x.size(1), "op.part");
  f.in(op.positions, "op.positions").optional().dtype(DType::kInt32).shape({op.x.size(0) * op.x.size(1)});
  f.expect(!op.positions || (op.start == nullptr && op.part.first == 0 && op.part.gap == 0), "op.positions",
           "neither op.start nor op.part with the rows' own positions", op.positions.shape);
}

// Memory-bound, one pass. cos and sin are computed once for kPositions positions and used for all heads, and for all
// samples unless each row has its own position.
// Between multiples of kPositions they come from fp64 rotations, whose error (below 1e-14) vanishes in the rounding to
// fp32. Results do not depend on the positions of a call.
namespace {

constexpr std::int64_t kPositions = 16;
constexpr std::int64_t kMaxPairs = kMaxRotaryDim / 2;

struct Rotations {
  double frequency[kMaxPairs];
  double step_cos[kMaxPairs];  // rotation by one position
  double step_sin[kMaxPairs];
  double scale = 1;  // of cosines and sines
  float cosine[kPositions][kMaxPairs];
  float sine[kPositions][kMaxPairs];
  std::int64_t first = -1;  // position of the first ones
};

void set_frequencies(const Rope& op, Rotations& r) {
  const int pairs = static_cast<int>(op.rotary_dim / 2);
  const RopeFrequencies frequencies = rope_frequencies(static_cast<double>(op.theta), pairs, op.scaling);
  r.scale = frequencies.attention_factor;
  for (int i = 0; i < pairs; ++i) {
    r.frequency[i] = frequencies[i];
    r.step_cos[i] = std::cos(r.frequency[i]);
    r.step_sin[i] = std::sin(r.frequency[i]);
  }
}

// Sets positions `first` to first + kPositions - 1; `first` is a multiple of kPositions.
void set_rotations(std::int64_t first, std::int64_t pairs, bool backward, Rotations& r) {
  if (r.first == first) return;
  r.first = first;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const double angle = static_cast<double>(first) * r.frequency[i];
    double c = std::cos(angle), s = std::sin(angle);
    for (std::int64_t p = 0; p < kPositions; ++p) {
      r.cosine[p][i] = static_cast<float>(r.scale * c);
      r.sine[p][i] = static_cast<float>(r.scale * (backward ? -s : s));
      const double next = c * r.step_cos[i] - s * r.step_sin[i];
      s = s * r.step_cos[i] + c * r.step_sin[i];
      c = next;
    }
  }
}

// Rotates rows at `position` and the ones that follow, all within kPositions of a multiple.
void rotate(const Rope& op, const Tensor& x, const Tensor& y, std::int64_t position, Rotations& r) {
  const std::int64_t pairs = op.rotary_dim / 2, first = position / kPositions * kPositions;
  const std::int64_t rest = x.data == y.data ? 0 : x.size(3) - op.rotary_dim;  // elements to copy
  set_rotations(first, pairs, op.backward, r);
  visit_float(x.dtype, [&]<class T>(T) {
    const Rows<const T> xs(x);
    const Rows<T> ys(y);
    for_each_row(x, [&](std::int64_t, const RowIndex& at) {
      const std::int64_t p = position - first + at[1];
      const Row x_low = xs[at], x_high = x_low + pairs;
      const Row y_low = ys[at], y_high = y_low + pairs;
      for_each_element(pairs, [=, cosine = Row(r.cosine[p]), sine = Row(r.sine[p])](auto i) {
        const F32x8 low = x_low[i], high = x_high[i];
        y_low.set(i, fma(-high, sine[i], low * cosine[i]));
        y_high.set(i, fma(low, sine[i], high * cosine[i]));
      });
      for_each_element(rest, [from = x_high + pairs, to = y_high + pairs](auto i) { to.set(i, from[i]); });
    });
  });
}

// Rotates each sample's rows by their own positions, in runs of consecutive ones.
void rotate_by_position(const Rope& op, Rotations& r) {
  const std::int64_t tokens = op.x.size(1);
  for (std::int64_t b = 0; b < op.x.size(0); ++b) {
    const auto* const positions = op.positions.as<const std::int32_t>() + b * tokens;
    const Tensor x = op.x.slice(0, b, 1), y = op.y.slice(0, b, 1);
    for (std::int64_t token = 0, count = 1; token < tokens; token += count) {
      require(positions[token] >= -1, "rope: a position is below -1");
      const std::int64_t position = std::max(positions[token], 0);
      const std::int64_t most = std::min(tokens - token, kPositions - position % kPositions);
      for (count = 1; count < most && positions[token + count] == position + count;) ++count;
      rotate(op, x.slice(1, token, count), y.slice(1, token, count), position, r);
    }
  }
}

}  // namespace

void compute(const Rope& op) {
  if (op.x.numel() == 0) return;
  Rotations r;
  set_frequencies(op, r);
  if (op.positions) return rotate_by_position(op, r);
  const std::int64_t tokens = op.x.size(1);
  const std::int64_t start = op.start == nullptr ? 0 : *op.start;
  require(start >= 0, "rope: op.start is negative");
  const std::int64_t half = op.part.gap == 0 ? tokens : tokens / 2;  // rows of a run of positions
  for (std::int64_t token = 0; token < tokens;) {
    const std::int64_t position = start + op.part.position(token, tokens);
    const std::int64_t count = std::min((token < half ? half : tokens) - token, kPositions - position % kPositions);
    rotate(op, op.x.slice(1, token, count), op.y.slice(1, token, count), position, r);
    token += count;
  }
}

}  // namespace megalith
