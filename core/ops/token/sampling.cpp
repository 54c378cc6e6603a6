#include "core/ops/token/sampling.h"

#include <algorithm>
#include <limits>
#include <span>

#include "core/base/rng.h"
#include "core/ops/data_faults.h"
#include "core/ops/dispatch.h"
#include "core/ops/fields.h"
#include "core/ops/loops.h"

namespace megalith {

// Weight and index of each candidate, for one row at a time.
std::size_t workspace_bytes(const Sample& op, DeviceType) {
  return static_cast<std::size_t>(op.vocab_size) * (sizeof(float) + sizeof(std::int32_t));
}

void fields(const Sample& op, Fields& f) {
  f.in(op.logits, "op.logits").floating().rank(2).strided_rows();
  f.out(op.out, "op.out").dtype(DType::kInt32).shape({op.logits.size(0)});
  f.range(static_cast<double>(op.vocab_size), 1, static_cast<double>(op.logits.size(1)), "op.vocab_size");
  f.in(op.position, "op.position");
  f.in(op.streams, "op.streams").dtype(DType::kInt32).shape({op.logits.size(0)}).optional();
  f.workspace(op.workspace);
  f.range(op.temperature, 0, std::numeric_limits<float>::max(), "op.temperature");
  f.range(op.top_k, 0, std::numeric_limits<int>::max(), "op.top_k");
  f.range(op.top_p, 0, 1, "op.top_p");
}

void fields(const NextPosition& op, Fields& f) {
  f.out(op.start, "op.start");
  f.inout(op.position, "op.position");
}

namespace {

// Returns the first of the largest logits; NaN compares false and is skipped.
template <class T>
std::int32_t argmax(const T* x, std::int64_t columns, std::int64_t row) {
  std::int64_t best = -1;
  float largest = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < columns; ++i) {
    const float value = to_float(x[i]);
    if (value > largest) {
      largest = value;
      best = i;
    }
  }
  if (best < 0) raise_no_logits(&row);
  return static_cast<std::int32_t>(best);
}

using Tokens = std::span<std::int32_t>;

double total_of(Tokens tokens, const float* weight) {
  double sum = 0;
  for (const std::int32_t token : tokens) sum += static_cast<double>(weight[token]);
  return sum;
}

// Returns the shortest prefix of the ranking with `top_p` of the weight. A heap sorts only as many tokens as needed.
template <class Before>
Tokens nucleus(Tokens tokens, const float* weight, double top_p, const Before& before) {
  const auto after = [&](std::int32_t a, std::int32_t b) { return before(b, a); };
  const double wanted = top_p * total_of(tokens, weight);
  std::make_heap(tokens.begin(), tokens.end(), after);
  auto rest = tokens.end();  // end of the heap; the ranked tokens follow
  for (double sum = 0; rest != tokens.begin() && (rest == tokens.end() || sum < wanted);) {
    std::pop_heap(tokens.begin(), rest, after);
    sum += static_cast<double>(weight[*--rest]);
  }
  return {rest, tokens.end()};
}

// Inverts the cumulative distribution in token order, so that the draw does not depend on the ranking.
std::int32_t draw(Tokens tokens, const float* weight, double uniform_number) {
  if (!std::is_sorted(tokens.begin(), tokens.end())) std::sort(tokens.begin(), tokens.end());
  const double target = uniform_number * total_of(tokens, weight);
  double sum = 0;
  for (const std::int32_t token : tokens) {
    sum += static_cast<double>(weight[token]);
    if (sum > target) return token;
  }
  return tokens.back();
}

// `best` is the largest logit's token.
template <class T>
std::int32_t sample(const Sample& op, const T* x, std::int32_t best, std::int64_t row) {
  // exp((logit - max) / temperature), by token; candidate tokens follow in the workspace.
  float* weight = op.workspace.as<float>();
  for_each_element(op.vocab_size,
                   [=, logit = Row(x), to = Row(weight), max = to_float(x[best]),
                    temperature = op.temperature](auto i) { to.set(i, simd::exp((logit[i] - max) / temperature)); });
  auto* const first = reinterpret_cast<std::int32_t*>(weight + op.vocab_size);
  std::int32_t* end = first;
  for (std::int32_t i = 0; i < op.vocab_size; ++i) {
    if (weight[i] > 0) *end++ = i;
  }
  Tokens tokens(first, end);
  if (tokens.empty()) return best;  // the largest logit is +inf
  // Larger logits first, ties to the lower index. Not weights: unequal logits may round to equal weights.
  const auto before = [x](std::int32_t a, std::int32_t b) {
    const float left = to_float(x[a]), right = to_float(x[b]);
    return left != right ? left > right : a < b;
  };
  if (const auto kept = static_cast<std::size_t>(op.top_k); kept > 0 && kept < tokens.size()) {
    std::nth_element(tokens.begin(), tokens.begin() + op.top_k, tokens.end(), before);
    tokens = tokens.first(kept);
  }
  if (op.top_p > 0 && op.top_p < 1) tokens = nucleus(tokens, weight, static_cast<double>(op.top_p), before);
  const auto stream = static_cast<std::uint32_t>(op.streams ? op.streams.as<const std::int32_t>()[row] : row);
  const PhiloxCounter words =
      philox4x32_10({static_cast<std::uint32_t>(*op.position), stream}, derive_key(op.seed, {0, 0, 0, kRngSampling}));
  return draw(tokens, weight, uniform(words[0], words[1]));
}

}  // namespace

void compute(const Sample& op) {
  visit_float(op.logits.dtype, [&]<class T>(T) {
    for (std::int64_t row = 0; row < op.out.numel(); ++row) {
      const T* x = op.logits.as<const T>() + row * op.logits.stride(0);
      const std::int32_t best = argmax(x, op.vocab_size, row);
      const bool certain = op.temperature == 0 || op.top_k == 1;
      op.out.as<std::int32_t>()[row] = certain ? best : sample(op, x, best, row);
    }
  });
}

void compute(const NextPosition& op) { *op.start = (*op.position)++; }

}  // namespace megalith
