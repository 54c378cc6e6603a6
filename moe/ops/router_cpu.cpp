// CPU kernels: plain loops over tokens. Sums over experts are in ascending order.
#include <algorithm>
#include <array>
#include <cmath>

#include "moe/ops/router.h"

namespace megalith {

namespace {

template <class Real>
using ExpertValues = std::array<Real, kMaxExperts>;

template <class Real>
Real sigmoid(Real x) {
  return 1 / (1 + std::exp(-x));
}

// True if score a is chosen ahead of b; NaN is last.
template <class Real>
bool before(Real a, Real b) {
  return a > b || (std::isnan(b) && !std::isnan(a));
}

// Takes the best value in [first, end) that is not taken, the first on a tie. At least one must remain.
template <class Real>
std::int64_t take_best(const Real* value, bool* taken, std::int64_t first, std::int64_t end) {
  std::int64_t best = -1;
  for (std::int64_t i = first; i < end; ++i) {
    if (!taken[i] && (best < 0 || before(value[i], value[best]))) best = i;
  }
  taken[best] = true;
  return best;
}

template <class Real>
struct Softmax {
  Real max, sum;
  Real of(Real x) const { return std::exp(x - max) / sum; }
  Real log_sum() const { return max + std::log(sum); }
};

template <class Real>
Softmax<Real> softmax_of(const Real* x, std::int64_t count) {
  Softmax<Real> result{.max = *std::max_element(x, x + count), .sum = 0};
  for (std::int64_t e = 0; e < count; ++e) result.sum += std::exp(x[e] - result.max);
  return result;
}

// Computes P of the load-balancing loss, and returns the loss: sum of l_e P_e.
template <class Real>
Real balance_scores(RouterScore score, const Real* x, const float* loads, std::int64_t experts,
                    const Softmax<Real>& softmax, ExpertValues<Real>& scores) {
  Real sum = 0, loss = 0;
  if (score == RouterScore::kSigmoid) {
    for (std::int64_t e = 0; e < experts; ++e) sum += sigmoid(x[e]);
  }
  for (std::int64_t e = 0; e < experts; ++e) {
    const Real p = score == RouterScore::kSigmoid ? sigmoid(x[e]) / (sum + kSigmoidEpsilon) : softmax.of(x[e]);
    scores[static_cast<std::size_t>(e)] = p;
    loss += loads[e] * p;
  }
  return loss;
}

// Marks the experts of all groups except the best as taken.
template <class Real>
void close_groups(const RouterTopk& op, const Real* x, const Real* score, bool* taken) {
  const std::int64_t experts = op.logits.size(1), size = experts / op.num_groups;
  const std::int64_t best_of_group = op.choice.size(1) / op.group_topk;
  const bool is_softmax = op.score == RouterScore::kSoftmax;
  const Softmax<Real> softmax = is_softmax ? softmax_of(x, experts) : Softmax<Real>{};
  std::array<Real, kMaxExpertGroups> group_score{};
  std::array<bool, kMaxExpertGroups> open{};
  for (std::int64_t g = 0; g < op.num_groups; ++g) {
    for (std::int64_t i = 0; i < best_of_group; ++i) {
      const std::int64_t e = take_best(score, taken, g * size, (g + 1) * size);
      const bool unbiased = op.score == RouterScore::kSigmoid && !op.expert_bias;
      group_score[static_cast<std::size_t>(g)] += is_softmax ? softmax.of(x[e]) : unbiased ? sigmoid(x[e]) : score[e];
    }
  }
  for (std::int64_t i = 0; i < op.group_topk; ++i) take_best(group_score.data(), open.data(), 0, op.num_groups);
  for (std::int64_t e = 0; e < experts; ++e) taken[e] = !open[static_cast<std::size_t>(e / size)];
}

template <class Real>
void choose(const RouterTopk& op, std::int64_t token, const Real* x, std::int32_t* choice) {
  const std::int64_t experts = op.logits.size(1), choices = op.choice.size(1);
  const float* bias = op.expert_bias.as<const float>();
  ExpertValues<Real> biased;
  for (std::int64_t e = 0; bias != nullptr && e < experts; ++e)
    biased[static_cast<std::size_t>(e)] = sigmoid(x[e]) + static_cast<Real>(bias[e]);
  const Real* score = bias != nullptr ? biased.data() : x;
  std::array<bool, kMaxExperts> taken{};
  if (op.group_topk < op.num_groups) close_groups(op, x, score, taken.data());
  for (std::int64_t k = 0; k < choices; ++k)
    choice[k] = static_cast<std::int32_t>(take_best(score, taken.data(), 0, experts));
  if (!std::isnan(score[choice[0]])) return;
  const std::int64_t step = spread_step(experts);
  for (std::int64_t k = 0; k < choices; ++k)
    choice[k] = static_cast<std::int32_t>((token * choices + k) * step % experts);
}

template <class Real>
void weigh(const RouterTopk& op, const Real* x, const std::int32_t* choice, float* to) {
  const std::int64_t choices = op.choice.size(1);
  std::array<Real, kMaxChoices> weights;
  Real* const weight = weights.data();
  Softmax<Real> softmax{};
  if (op.score == RouterScore::kSoftmax) softmax = softmax_of(x, op.logits.size(1));
  Real sum = 0;
  for (std::int64_t k = 0; k < choices; ++k) {
    const Real logit = x[choice[k]];
    switch (op.score) {
      case RouterScore::kSoftmaxOfChosen: weight[k] = std::exp(logit - x[choice[0]]); break;
      case RouterScore::kSoftmax: weight[k] = softmax.of(logit); break;
      case RouterScore::kSigmoid: weight[k] = sigmoid(logit); break;
    }
    sum += weight[k];
  }
  if (op.score == RouterScore::kSigmoid) sum = choices > 1 ? sum + kSigmoidEpsilon : 1;
  if (op.score == RouterScore::kSoftmax) sum = 1;
  for (std::int64_t k = 0; k < choices; ++k) to[k] = static_cast<float>(weight[k] / sum * op.scaling_factor);
}

// w: weights, s: scaling factor, D = sum over k of w_k d_weight_k. The gradient of logit c_k is:
//   softmax of the chosen: w (d_weight - D / s);  sigmoid: the same times 1 - sigmoid(x), without D if K = 1
//   softmax of all: w d_weight, and for each logit -softmax(x) D
template <class Real>
void add_weight_gradient(const RouterTopkBackward& op, std::int64_t token, const Real* x, const Softmax<Real>& softmax,
                         Real* d) {
  const std::int64_t experts = op.d_logits.size(1), choices = op.choice.size(1);
  const std::int32_t* choice = op.choice.as<const std::int32_t>() + token * choices;
  const float* weight = op.weight.as<const float>() + token * choices;
  const float* d_weight = op.d_weight.as<const float>() + token * choices;
  Real dot = 0;
  for (std::int64_t k = 0; k < choices; ++k) dot += static_cast<Real>(weight[k]) * d_weight[k];
  if (op.score == RouterScore::kSoftmax) {
    for (std::int64_t e = 0; e < experts; ++e) d[e] -= softmax.of(x[e]) * dot;
  }
  if (op.score == RouterScore::kSoftmax || (op.score == RouterScore::kSigmoid && choices == 1)) dot = 0;
  for (std::int64_t k = 0; k < choices; ++k) {
    const std::int64_t e = choice[k];
    if (e < 0 || e >= experts) continue;
    const Real slope = op.score == RouterScore::kSigmoid ? sigmoid(-x[e]) : 1;
    d[e] += weight[k] * slope * (d_weight[k] - dot / op.scaling_factor);
  }
}

template <class Real>
void add_loss_gradients(const RouterTopkBackward& op, const Real* x, const Softmax<Real>& softmax, Real* d) {
  const std::int64_t experts = op.d_logits.size(1);
  if (op.z_scale != 0) {
    const Real factor = 2 * op.z_scale * op.parameters->router_scale * softmax.log_sum();
    for (std::int64_t e = 0; e < experts; ++e) d[e] += factor * softmax.of(x[e]);
  }
  if (op.loads) {
    const auto* loads = op.loads.as<const float>();
    ExpertValues<Real> scores;
    const Real mean = balance_scores(op.score, x, loads, experts, softmax, scores);
    const float factor = op.parameters->router_scale;
    for (std::int64_t e = 0; e < experts; ++e) {
      const Real slope = op.score == RouterScore::kSigmoid ? sigmoid(-x[e]) : 1;
      d[e] += factor * scores[static_cast<std::size_t>(e)] * slope * (loads[e] - mean);
    }
  }
}

template <class Real>
void route(const RouterTopk& op) {
  const std::int64_t experts = op.logits.size(1), choices = op.choice.size(1);
  for (std::int64_t token = 0; token < op.logits.size(0); ++token) {
    const Real* x = op.logits.as<const Real>() + token * experts;
    std::int32_t* choice = op.choice.as<std::int32_t>() + token * choices;
    choose(op, token, x, choice);
    float* weight = op.weight.as<float>() + token * choices;
    weigh(op, x, choice, weight);
    if (!op.positions || op.positions.as<const std::int32_t>()[token] >= 0) continue;
    std::fill_n(choice, choices, -1);
    std::fill_n(weight, choices, 0.0f);
  }
}

template <class Real>
void differentiate(const RouterTopkBackward& op) {
  const std::int64_t experts = op.d_logits.size(1);
  for (std::int64_t token = 0; token < op.d_logits.size(0); ++token) {
    const Real* x = needs_logits(op) ? op.logits.as<const Real>() + token * experts : nullptr;
    const Softmax<Real> softmax = x != nullptr ? softmax_of(x, experts) : Softmax<Real>{};
    ExpertValues<Real> d{};
    add_weight_gradient(op, token, x, softmax, d.data());
    if (op.choice.as<const std::int32_t>()[token * op.choice.size(1)] >= 0)
      add_loss_gradients(op, x, softmax, d.data());
    float* const to = op.d_logits.as<float>() + token * experts;
    for (std::int64_t e = 0; e < experts; ++e) to[e] = static_cast<float>(d[static_cast<std::size_t>(e)]);
  }
}

template <class Real>
void add_losses(const RouterLosses& op) {
  const std::int64_t experts = op.logits.size(1);
  double aux = 0, z = 0;
  for (std::int64_t token = 0; token < op.logits.size(0); ++token) {
    if (op.choice && op.choice.as<const std::int32_t>()[token * op.choice.size(1)] < 0) continue;
    const Real* x = op.logits.as<const Real>() + token * experts;
    const Softmax<Real> softmax = softmax_of(x, experts);
    const auto log_sum = static_cast<double>(softmax.log_sum());
    z += log_sum * log_sum;
    if (op.aux) {
      ExpertValues<Real> scores;
      aux += static_cast<double>(balance_scores(op.score, x, op.loads.as<const float>(), experts, softmax, scores));
    }
  }
  const auto add = [](const Tensor& to, float scale, double sum) {
    if (to)
      *to.as<float>() = static_cast<float>(static_cast<double>(*to.as<float>()) + static_cast<double>(scale) * sum);
  };
  add(op.aux, 1, aux);
  add(op.z, op.z_scale, z);
}

}  // namespace

void compute(const RouterTopk& op) {
  if (op.logits.dtype == DType::kFp64) return route<double>(op);
  route<float>(op);
}

void compute(const RouterTopkBackward& op) {
  if (needs_logits(op) && op.logits.dtype == DType::kFp64) return differentiate<double>(op);
  differentiate<float>(op);
}

void compute(const RelativeLoads& op) {
  const std::int64_t experts = op.loads.size(1), step = op.offsets.size(0) == 1 ? 0 : experts + 1;
  const auto* counted = op.counted.as<const std::int32_t>();
  for (std::int64_t row = 0; row < op.loads.size(0); ++row) {
    const auto* offsets = op.offsets.as<const std::int32_t>() + row * step;
    auto* loads = op.loads.as<float>() + row * experts;
    const auto rows_of = [&](std::int64_t e) {
      return std::int64_t{offsets[e + 1]} - offsets[e] + (counted != nullptr ? counted[e] : 0);
    };
    std::int64_t all = 0;
    for (std::int64_t e = 0; e < experts; ++e) all += rows_of(e);
    const float scale = all > 0 ? op.coeff * static_cast<float>(experts) / static_cast<float>(all) : 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      const float load = scale * static_cast<float>(rows_of(e));
      loads[e] = op.adds ? loads[e] + load : load;
    }
  }
}

void compute(const RouterLosses& op) {
  if (op.logits.dtype == DType::kFp64) return add_losses<double>(op);
  add_losses<float>(op);
}

}  // namespace megalith
