#include <algorithm>
#include <limits>

#include "core/base/rng.h"
#include "core/ops/data_faults.h"
#include "core/ops/dispatch.h"
#include "core/ops/loops.h"
#include "core/ops/sampling.h"

namespace megalith {

namespace {

// The first of the largest logits; NaN compares false and is passed over.
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

// The tokens that may still be drawn, and the weight exp((logit - max) / temperature) of every token.
template <class T>
struct Candidates {
  const T* logit;       // by token
  float* weight;        // by token
  std::int32_t* token;  // those left
  std::int64_t count = 0;
  bool in_token_order = true;  // until a filter ranks them

  // Larger logits first, of equal ones the lower index. Weights would not do: unequal logits may round to equal ones.
  auto before() const {
    return [x = logit](std::int32_t a, std::int32_t b) {
      const float left = to_float(x[a]);
      const float right = to_float(x[b]);
      return left != right ? left > right : a < b;
    };
  }
  double total() const {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(weight[token[i]]);
    return sum;
  }
};

template <class T>
Candidates<T> all_candidates(const Sample& op, const T* x, float max) {
  Candidates<T> all;
  all.logit = x;
  all.weight = op.workspace.as<float>();
  all.token = reinterpret_cast<std::int32_t*>(all.weight + op.vocab_size);
  float* weight = all.weight;
  for_each_element(op.vocab_size, [=, logit = Row(x), to = Row(weight), temperature = op.temperature](auto i) {
    to.set(i, simd::exp((logit[i] - max) / temperature));
  });
  for (std::int64_t i = 0; i < op.vocab_size; ++i) {
    if (weight[i] > 0) all.token[all.count++] = static_cast<std::int32_t>(i);
  }
  return all;
}

// Keeps the `count` first, in no order.
template <class T>
void keep_first(Candidates<T>& candidates, std::int64_t count) {
  if (count >= candidates.count) return;
  candidates.in_token_order = false;
  std::nth_element(candidates.token, candidates.token + count, candidates.token + candidates.count,
                   candidates.before());
  candidates.count = count;
}

// Keeps the shortest list of first ones that holds `top_p` of the weight. Only as many are sorted as turn out to
// matter.
template <class T>
void keep_nucleus(Candidates<T>& candidates, double top_p) {
  candidates.in_token_order = false;
  const double wanted = top_p * candidates.total();
  double sum = 0;
  std::int64_t sorted = 0;
  for (std::int64_t next = 64; sorted < candidates.count; next *= 4) {
    const std::int64_t end = std::min(next, candidates.count);
    std::partial_sort(candidates.token + sorted, candidates.token + end, candidates.token + candidates.count,
                      candidates.before());
    for (; sorted < end; ++sorted) {
      sum += static_cast<double>(candidates.weight[candidates.token[sorted]]);
      if (sum >= wanted) {
        candidates.count = sorted + 1;
        return;
      }
    }
  }
}

// Inverts the cumulative distribution in the order of tokens, so that the draw does not depend on how they were ranked.
template <class T>
std::int32_t draw(Candidates<T>& candidates, double uniform_number) {
  if (!candidates.in_token_order) std::sort(candidates.token, candidates.token + candidates.count);
  const double target = uniform_number * candidates.total();
  double sum = 0;
  for (std::int64_t i = 0; i < candidates.count; ++i) {
    sum += static_cast<double>(candidates.weight[candidates.token[i]]);
    if (sum > target) return candidates.token[i];
  }
  return candidates.token[candidates.count - 1];
}

template <class T>
void sample(const Sample& op) {
  const PhiloxKey key = derive_key(op.seed, {0, 0, 0, kRngSampling});
  const auto position = static_cast<std::uint32_t>(*op.position);
  for (std::int64_t row = 0; row < op.out.numel(); ++row) {
    const T* x = op.logits.as<const T>() + row * op.logits.stride(0);
    std::int32_t& out = op.out.as<std::int32_t>()[row];
    out = argmax(x, op.vocab_size, row);
    if (op.temperature == 0 || op.top_k == 1) continue;
    Candidates<T> candidates = all_candidates(op, x, to_float(x[out]));
    if (candidates.count == 0) continue;  // the largest logit is +inf
    if (op.top_k > 0) keep_first(candidates, op.top_k);
    if (op.top_p > 0 && op.top_p < 1) keep_nucleus(candidates, static_cast<double>(op.top_p));
    const PhiloxCounter words = philox4x32_10({position, static_cast<std::uint32_t>(row), 0, 0}, key);
    out = draw(candidates, uniform(words[0], words[1]));
  }
}

}  // namespace

void run(CpuStream& stream, const Sample& op) {
  stream.enqueue([op] { visit_float(op.logits.dtype, [&op](auto type) { sample<decltype(type)>(op); }); });
}

}  // namespace megalith
