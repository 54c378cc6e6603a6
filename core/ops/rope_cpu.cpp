// Memory-bound, one pass. cos and sin are made once for kPositions positions and used for all samples and heads:
// directly at multiples of kPositions, from there by rotations in fp64, whose error (below 1e-14) vanishes in the
// rounding to fp32. Which positions a call covers does not matter.
#include <algorithm>
#include <cmath>

#include "core/ops/dispatch.h"
#include "core/ops/loops.h"
#include "core/ops/rope.h"

namespace megalith {

namespace {

constexpr std::int64_t kPositions = 16;
constexpr std::int64_t kMaxPairs = kMaxRotaryDim / 2;

struct Rotations {
  double frequency[kMaxPairs];
  double step_cos[kMaxPairs];  // of one position
  double step_sin[kMaxPairs];
  float cosine[kPositions][kMaxPairs];
  float sine[kPositions][kMaxPairs];
};

void set_frequencies(const Rope& op, Rotations& r) {
  const int pairs = static_cast<int>(op.rotary_dim / 2);
  for (int i = 0; i < pairs; ++i) {
    r.frequency[i] = rope_frequency(static_cast<double>(op.theta), i, pairs, op.scaling);
    r.step_cos[i] = std::cos(r.frequency[i]);
    r.step_sin[i] = std::sin(r.frequency[i]);
  }
}

// Positions `first` to first + kPositions - 1; `first` is a multiple of kPositions.
void set_rotations(std::int64_t first, std::int64_t pairs, bool backward, Rotations& r) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    const double angle = static_cast<double>(first) * r.frequency[i];
    double c = std::cos(angle), s = std::sin(angle);
    for (std::int64_t p = 0; p < kPositions; ++p) {
      r.cosine[p][i] = static_cast<float>(c);
      r.sine[p][i] = static_cast<float>(backward ? -s : s);
      const double next = c * r.step_cos[i] - s * r.step_sin[i];
      s = s * r.step_cos[i] + c * r.step_sin[i];
      c = next;
    }
  }
}

template <class T>
void rotate(const T* x, T* y, std::int64_t pairs, const float* cosine, const float* sine) {
  const Row x_low = x, x_high = x + pairs;
  const Row y_low = y, y_high = y + pairs;
  for_each_element(pairs, [=, cosine = Row(cosine), sine = Row(sine)](auto i) {
    const F32x8 low = x_low[i], high = x_high[i];
    y_low.set(i, fma(-high, sine[i], low * cosine[i]));
    y_high.set(i, fma(low, sine[i], high * cosine[i]));
  });
}

template <class T>
void rotate_all(const Rope& op) {
  Rotations r;
  set_frequencies(op, r);
  const std::int64_t tokens = op.x.size(1), heads = op.x.size(2), dim = op.x.size(3), pairs = op.rotary_dim / 2;
  const std::int64_t start = op.start == nullptr ? 0 : *op.start;
  require(start >= 0, "rope: op.start is negative");
  const std::int64_t half = op.part.gap == 0 ? tokens : tokens / 2;  // rows of a run of positions
  for (std::int64_t token = 0; token < tokens;) {
    const std::int64_t offset = start + op.part.position(token, tokens) - token;  // of the run's positions
    const std::int64_t first = (offset + token) / kPositions * kPositions;
    const std::int64_t end = std::min(token < half ? half : tokens, first + kPositions - offset);
    set_rotations(first, pairs, op.backward, r);
    for (std::int64_t b = 0; b < op.x.size(0); ++b) {
      for (std::int64_t t = token; t < end; ++t) {
        const std::int64_t p = offset + t - first;
        const T* x = op.x.as<const T>() + b * op.x.stride(0) + t * op.x.stride(1);
        T* y = op.y.as<T>() + b * op.y.stride(0) + t * op.y.stride(1);
        for (std::int64_t n = 0; n < heads; ++n, x += op.x.stride(2), y += op.y.stride(2)) {
          rotate(x, y, pairs, r.cosine[p], r.sine[p]);
          if (x != y) std::copy(x + op.rotary_dim, x + dim, y + op.rotary_dim);
        }
      }
    }
    token = end;
  }
}

}  // namespace

void run(CpuStream& stream, const Rope& op) {
  stream.enqueue([op] {
    if (op.x.numel() == 0) return;
    visit_float(op.x.dtype, [&op](auto type) { rotate_all<decltype(type)>(op); });
  });
}

}  // namespace megalith
