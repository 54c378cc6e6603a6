// Tests of a layer of experts, run segment by segment, against the fp64 reference. Replayed, fused and recomputed runs
// are compared with the eager run.
#include "moe/moe_layer.h"
#include "moe/random_logits.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/base/rng.h"
#include "core/layers/recompute.h"
#include "core/model/config.h"
#include "tests/reference/activation.h"
#include "tests/reference/moe.h"
#include "tests/support/device_cases.h"
#include "tests/support/mlp_kind.h"
#include "tests/support/segment_harness.h"

namespace megalith::test {
namespace {

constexpr std::int64_t kSequences = 2, kTokensOfASequence = 8, kHidden = 8, kFfn = 16;
constexpr float kLossScale = 0.125f;  // of the harness

struct MoeCase {
  std::string name;
  MoeConfig moe;
  DeviceType device = DeviceType::kCpu;
  MlpKind kind = {};
  bool zero_centered = false;  // the norm
  friend void PrintTo(const MoeCase& c, std::ostream* out) { *out << c.name; }
};

MoeConfig experts(std::int64_t count, std::int64_t choices) {
  return {.num_experts = count, .ffn_hidden_size = kFfn, .router_topk = choices};
}

std::vector<MoeCase> cases() {
  std::vector<MoeCase> all;
  for (const DeviceType device : devices()) {
    const std::string backend = "_" + std::string(name_of(device));
    MoeConfig mixtral = experts(4, 2);
    mixtral.router_load_balancing_type = {"aux_loss"};
    mixtral.aux_loss_coeff = {0.5};
    mixtral.z_loss_coeff = 0.1;
    all.push_back({"mixtral" + backend, mixtral, device});
    MoeConfig deepseek = experts(8, 4);
    deepseek.router_score_function = MoeScoreFunction::kSigmoid;
    deepseek.router_topk_scaling_factor = 2.5;
    deepseek.router_num_groups = 4;
    deepseek.router_group_topk = 2;
    deepseek.router_load_balancing_type = {"seq_aux_loss"};
    deepseek.aux_loss_coeff = {0.5};
    deepseek.shared_expert_intermediate_size = 20;
    all.push_back({"deepseek" + backend, deepseek, device});
    MoeConfig gated = experts(4, 2);
    gated.shared_expert_intermediate_size = 80;  // two partial sums of the gate's gradient
    gated.shared_expert_gate = true;
    all.push_back({"qwen2" + backend, gated, device});
    MoeConfig single = experts(5, 1);
    single.router_pre_softmax = true;
    all.push_back({"one_choice" + backend, single, device});
    MoeConfig three = experts(8, 3);  // balancing losses
    three.router_pre_softmax = true;
    three.router_topk_scaling_factor = 1.5;
    three.router_num_groups = 2;
    three.router_group_topk = 1;
    three.router_load_balancing_type = {"seq_aux_loss", "global_aux_loss", "aux_loss"};
    three.aux_loss_coeff = {0.5, 0.75, 0.25};
    three.z_loss_coeff = 0.1;
    all.push_back({"three_losses" + backend, three, device});
    MoeConfig limited = mixtral;
    limited.expert_capacity_factor = 0.8;  // times the mean of 8 rows: 6.4, rounded up
    all.push_back({"lowest_dropped" + backend, limited, device});
    MoeConfig none = mixtral;
    none.expert_capacity_factor = 1e300;
    all.push_back({"none_dropped" + backend, none, device});
    MoeConfig last = deepseek;
    last.expert_capacity_factor = 0.5;
    last.token_drop_policy = MoeDropPolicy::kPosition;
    all.push_back({"last_dropped" + backend, last, device});
    for (const MlpKind& kind : {MlpKind{"swiglu", true}, {"gelu_tanh", false}, {"gelu", true}, {"squared_relu", true}})
      all.push_back({kind.name() + backend, kind.bias ? single : gated, device, kind, kind.activation == "gelu"});
    all.push_back({"squared_relu" + backend, deepseek, device, {"squared_relu", false}, true});
    all.push_back({"biases_dropped" + backend, limited, device, {"gelu_tanh", true}});
  }
  return all;
}

SegmentCase segment_case(const MoeCase& c, bool recompute_shared = false, DropoutSpec dropout = {}) {
  const auto build = [=](ParameterStore& store) -> std::unique_ptr<Segment> {
    static RowExchange one_rank;
    ModelConfig config{.num_layers = 1, .hidden_size = kHidden, .init_method_std = 0.5};
    config.moe = c.moe;
    c.kind.apply(config);
    const Norm norm(store, {.name = "pre_mlp_layernorm",
                            .size = kHidden,
                            .zero_centered = c.zero_centered,
                            .input_kind = SlotKind::kMlpNorm});
    const MoeSite site{.store = store,
                       .rows = one_rank,
                       .config = config,
                       .norm = norm,
                       .dropout = dropout,
                       .recompute_shared = recompute_shared};
    std::vector<std::unique_ptr<Segment>> segments;
    for (NamedSegment& one : moe_factory()(site)) segments.push_back(std::move(one.segment));
    return std::make_unique<Sequential>(std::move(segments));
  };
  return {.build = build,
          .inputs = {{kSequences * kTokensOfASequence, kHidden}, {kSequences * kTokensOfASequence, kHidden}},
          .gradients = 2,
          .sequences = kSequences,
          .seq_length = kTokensOfASequence,
          .experts = c.moe.balancing_coeff(MoeBalancing::kGlobal) != 0 ? c.moe.num_experts : 0,
          .device = c.device,
          .weight_std = 0.5f};
}

class MoeLayer : public OnDevice<MoeCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, MoeLayer, testing::ValuesIn(cases()), [](const auto& c) { return c.param.name; });

double gelu_tanh(double x) { return reference::gelu(x, false); }
double gelu(double x) { return reference::gelu(x, true); }

// Null for SwiGLU.
auto activation_of(const MlpKind& kind) -> double (*)(double) {
  if (kind.activation == "squared_relu") return reference::squared_relu;
  return kind.activation == "gelu" ? gelu : kind.activation == "gelu_tanh" ? gelu_tanh : nullptr;
}

std::vector<double> wide(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// Tolerance for about ten fp32 ops, relative to the tensor's norm. `want` has every step-th element.
void expect_near_reference(const std::vector<float>& got, const std::vector<double>& want, const std::string& name,
                           std::size_t step = 1) {
  ASSERT_EQ((got.size() + step - 1) / step, want.size()) << name;
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error += std::pow(static_cast<double>(got[i * step]) - want[i], 2);
    norm += want[i] * want[i];
  }
  EXPECT_GT(norm, 0) << name;
  EXPECT_LE(std::sqrt(error), 10 * tolerance(DType::kFp32, kSequences * kTokensOfASequence + kFfn) * std::sqrt(norm))
      << name;
}

struct Reference {
  reference::MoeSettings with;
  reference::MoeWeights weights;
  std::vector<double> hidden, residual, d_out, d_residual;
  reference::MoeRun fixed;  // provides fixed choices and dropped rows

  double loss() const {
    const reference::MoeRun run = reference::run_moe(with, weights, hidden, residual, &fixed);
    return std::inner_product(run.out.begin(), run.out.end(), d_out.begin(), 0.0) +
           std::inner_product(run.residual.begin(), run.residual.end(), d_residual.begin(), 0.0) +
           static_cast<double>(kLossScale) * (run.aux + run.z);
  }

  // Gradient of the loss by x, one of the vectors above.
  std::vector<double> gradient(std::vector<double>& x, std::size_t step = 1) const {
    constexpr double kStep = 1e-5;
    std::vector<double> quotients;
    for (std::size_t i = 0; i < x.size(); i += step) {
      double& value = x[i];
      const double at = value;
      value = at + kStep;
      const double above = loss();
      value = at - kStep;
      quotients.push_back((above - loss()) / (2 * kStep));
      value = at;
    }
    return quotients;
  }
};

Reference reference_of(const MoeCase& c, const SegmentResult& r, std::size_t microbatch = 0) {
  const MoeConfig& moe = c.moe;
  Reference ref;
  ref.with = {.router = {.is_sigmoid = moe.router_score_function == MoeScoreFunction::kSigmoid,
                         .over_all = moe.router_pre_softmax,
                         .scaling = moe.router_topk_scaling_factor,
                         .top_k = static_cast<std::size_t>(moe.router_topk),
                         .groups = static_cast<std::size_t>(std::max<std::int64_t>(moe.router_num_groups, 1)),
                         .open_groups = static_cast<std::size_t>(std::max<std::int64_t>(moe.router_group_topk, 1))},
              .hidden = kHidden,
              .experts = static_cast<std::size_t>(moe.num_experts),
              .ffn = kFfn,
              .shared_ffn = static_cast<std::size_t>(moe.shared_expert_intermediate_size),
              .activation = activation_of(c.kind),
              .zero_centered = c.zero_centered,
              .z_coeff = moe.z_loss_coeff,
              .drops_last = moe.token_drop_policy == MoeDropPolicy::kPosition};
  const double rows = kSequences * kTokensOfASequence * static_cast<double>(moe.router_topk);
  ref.with.capacity = static_cast<std::size_t>(
      std::min(rows, std::ceil(rows / static_cast<double>(moe.num_experts) * moe.expert_capacity_factor)));
  for (const MoeBalancing over : {MoeBalancing::kMicrobatch, MoeBalancing::kSequence, MoeBalancing::kGlobal}) {
    const double coeff = moe.balancing_coeff(over);
    const std::size_t tokens = over == MoeBalancing::kSequence ? kTokensOfASequence : kSequences * kTokensOfASequence;
    if (coeff != 0) ref.with.balances.push_back({.coeff = coeff, .tokens = tokens});
  }
  for (std::size_t i = 0; i < r.names.size(); ++i) {
    if (r.names[i] != "shared_experts.linear_gate.weight") {
      ref.weights[r.names[i]] = wide(r.weights[i]);
      continue;
    }
    const auto half = r.weights[i].begin() + static_cast<std::ptrdiff_t>(r.weights[i].size() / 2);  // [gate; up]
    ref.weights[r.names[i]] = {r.weights[i].begin(), half};
    ref.weights["shared_experts.linear_up.weight"] = {half, r.weights[i].end()};
  }
  ref.hidden = wide(r.inputs[2 * microbatch]);
  ref.residual = wide(r.inputs[2 * microbatch + 1]);
  ref.d_out = wide(r.output_gradients[2 * microbatch]);
  ref.d_residual = wide(r.output_gradients[2 * microbatch + 1]);
  return ref;
}

TEST_P(MoeLayer, AgreesWithTheReference) {
  const SegmentResult r = run_segment(segment_case(GetParam()), RunMode::kEager);
  Reference ref = reference_of(GetParam(), r);
  const reference::MoeRun want = reference::run_moe(ref.with, ref.weights, ref.hidden, ref.residual);
  ASSERT_GT(want.gap, 1e-4);  // otherwise rounding decides choices
  ref.fixed = want;
  expect_near_reference(r.outputs[0], want.out, "out");
  expect_near_reference(r.outputs[1], want.residual, "residual");
  const auto sum = [&](StepSum which) {
    return static_cast<double>(r.sums[static_cast<std::size_t>(index_of(which))]);
  };
  EXPECT_EQ(want.aux != 0, GetParam().moe.balancing_coeff() != 0);
  EXPECT_NEAR(sum(StepSum::kAuxLoss), want.aux, 1e-5 * want.aux);
  EXPECT_NEAR(sum(StepSum::kZLoss), want.z, 1e-5 * want.z);
  // Gradients of hidden and residual are equal.
  expect_near_reference(r.input_gradients[0], ref.gradient(ref.hidden), "d_hidden");
  EXPECT_EQ(r.input_gradients[0], r.input_gradients[1]);
  for (std::size_t i = 0; i < r.names.size(); ++i) {
    // Samples elements of a large tensor, and equally many of both halves of a pair.
    const bool is_pair = r.names[i] == "shared_experts.linear_gate.weight";
    std::vector<double>& weight = ref.weights.at(r.names[i]);
    const std::size_t step = is_pair ? 5 : weight.size() > 300 ? 23 : 1;
    ASSERT_TRUE(!is_pair || weight.size() % step == 0);
    std::vector<double> gradient = ref.gradient(weight, step);
    if (is_pair) {
      const std::vector<double> up = ref.gradient(ref.weights.at("shared_experts.linear_up.weight"), step);
      gradient.insert(gradient.end(), up.begin(), up.end());
    }
    expect_near_reference(r.main_gradients[i], gradient, r.names[i], step);
  }
}

// The output shows the dropped elements. The reference has no dropout, and its output gradient is masked.
TEST_P(MoeLayer, DropsTheGradientsOfWhatItDrops) {
  constexpr float kDropped = 0.25f;
  const SegmentResult r = run_segment(segment_case(GetParam(), false, {.p = kDropped}), RunMode::kEager);
  Reference ref = reference_of(GetParam(), r);
  ref.fixed = reference::run_moe(ref.with, ref.weights, ref.hidden, ref.residual);
  std::vector<double> want = ref.fixed.out;
  std::size_t dropped = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double scale = r.outputs[0][i] == 0 ? 0 : 1 / (1 - static_cast<double>(kDropped));
    want[i] *= scale;
    ref.d_out[i] *= scale;
    dropped += scale == 0 ? 1 : 0;
  }
  EXPECT_GT(dropped, want.size() / 8);
  EXPECT_LT(dropped, want.size() / 2);
  expect_near_reference(r.outputs[0], want, "out");
  constexpr std::size_t kStep = 13;  // sampling of elements
  expect_near_reference(r.input_gradients[0], ref.gradient(ref.hidden, kStep), "d_hidden", kStep);
}

// A microbatch's global-batch loss also counts earlier microbatches.
TEST_P(MoeLayer, CountsEarlierMicrobatches) {
  const MoeConfig& moe = GetParam().moe;
  if (moe.balancing_coeff(MoeBalancing::kGlobal) == 0) return;
  SegmentCase with = segment_case(GetParam());
  with.microbatches = 2;
  const SegmentResult r = run_segment(with, RunMode::kReplay);
  Reference first = reference_of(GetParam(), r), second = reference_of(GetParam(), r, 1);
  first.fixed = reference::run_moe(first.with, first.weights, first.hidden, first.residual);
  const double alone = reference::run_moe(second.with, second.weights, second.hidden, second.residual).aux;
  second.with.balances.back().earlier = first.fixed.counts;  // kGlobal comes last
  second.fixed = reference::run_moe(second.with, second.weights, second.hidden, second.residual);
  EXPECT_GT(std::abs(second.fixed.aux - alone), 1e-3 * alone);
  const double sum = first.fixed.aux + second.fixed.aux;
  EXPECT_NEAR(static_cast<double>(r.sums[static_cast<std::size_t>(StepSum::kAuxLoss)]), sum, 1e-5 * sum);
  expect_near_reference(r.input_gradients[2], second.gradient(second.hidden), "d_hidden");
}

// Random logits replace the router's own, for choices and weights.
TEST_P(MoeLayer, DrawsLogitsToForceBalance) {
  MoeCase c = GetParam();
  c.moe.router_force_load_balancing = true;
  const SegmentCase with = segment_case(c);
  const SegmentResult r = run_segment(with, RunMode::kEager);
  Reference ref = reference_of(c, r);
  const std::int64_t experts = c.moe.num_experts;
  std::vector<float> drawn(static_cast<std::size_t>(kSequences * kTokensOfASequence * experts));
  Stream cpu(DeviceType::kCpu, "draw");
  draw_logits(cpu, Tensor(drawn.data(), DType::kFp32, {kSequences * kTokensOfASequence, experts}),
              {.seed = with.seed, .name_hash = hash_name("router.random logits"), .std = 1},
              {.seq_length = kTokensOfASequence});
  cpu.synchronize();
  for (auto row = drawn.begin(); row != drawn.end(); row += experts)
    ref.with.own_logits.emplace_back(row, row + experts);
  expect_near_reference(r.outputs[0], reference::run_moe(ref.with, ref.weights, ref.hidden, ref.residual).out, "out");
}

std::vector<DType> dtypes() { return {DType::kFp32, DType::kBf16}; }

void expect_same_sums(const SegmentResult& a, const SegmentResult& b) {
  expect_same_bits(a, b);
  EXPECT_EQ(a.sums, b.sums);
}

TEST_P(MoeLayer, HasTheSameBitsReplayedAndFused) {
  for (const DType dtype : dtypes()) {
    MoeCase c = GetParam();
    SegmentCase with = segment_case(c);
    with.dtype = dtype;
    with.microbatches = 2;
    const SegmentResult unfused = run_segment(with, RunMode::kEager);
    const SegmentResult replayed = run_segment(with, RunMode::kReplay);
    EXPECT_EQ(replayed.replays, 6);
    expect_same_sums(unfused, replayed);
    with.delay_weights = true;
    expect_same_sums(unfused, run_segment(with, RunMode::kEager));
    c.moe.use_transformer_engine_op_fuser = true;
    with.build = segment_case(c).build;
    const SegmentResult fused = run_segment(with, RunMode::kReplay);
    expect_same_sums(unfused, fused);
    EXPECT_EQ(unfused.activations, fused.activations);
    // One in forward and one in backward of each microbatch.
    EXPECT_EQ(replayed.captured_ops, fused.captured_ops + (c.kind.name() == "swiglu" ? 4 : 0));
  }
}

TEST_P(MoeLayer, HasTheSameBitsRecomputed) {
  MoeCase c = GetParam();
  for (const bool fused : {false, true}) {
    c.moe.use_transformer_engine_op_fuser = fused;
    SegmentCase with = segment_case(c);
    with.dtype = DType::kBf16;
    with.microbatches = 2;
    with.delay_weights = true;
    const SegmentResult kept = run_segment(with, RunMode::kEager);
    const std::size_t rows = 2 * kSequences * kTokensOfASequence * static_cast<std::size_t>(c.moe.router_topk);
    EXPECT_EQ(kept.activations.at("expert_fc2"), rows * kFfn * 2);
    EXPECT_EQ(kept.activations.at("moe_act"), rows * (c.kind.activation == "swiglu" ? 2 : 1) * kFfn * 2);
    EXPECT_EQ(kept.activations.at("expert_fc1"), 2 * kSequences * kTokensOfASequence * kHidden * 2);
    with.policies[static_cast<std::size_t>(SlotKind::kExpertFc2)] = StashPolicy::kRecompute;
    const SegmentResult recomputed = run_segment(with, RunMode::kEager);
    expect_same_sums(kept, recomputed);
    EXPECT_FALSE(recomputed.activations.contains("expert_fc2"));
    if (c.moe.shared_expert_intermediate_size == 0) continue;
    EXPECT_TRUE(recomputed.activations.contains("act"));
    with.build = segment_case(c, true).build;
    const SegmentResult shared = run_segment(with, RunMode::kEager);
    expect_same_sums(kept, shared);
    EXPECT_FALSE(shared.activations.contains("act"));
    EXPECT_FALSE(shared.activations.contains("fc2"));
  }
}

// A fully recomputed layer sums its losses once.
TEST_P(MoeLayer, KeepsItsInputsAloneWhereItIsRecomputed) {
  SegmentCase with = segment_case(GetParam());
  with.microbatches = 2;
  const SegmentResult kept = run_segment(with, RunMode::kEager);
  with.build = [inner = with.build](ParameterStore& store) { return std::make_unique<Recompute>(inner(store)); };
  const SegmentResult again = run_segment(with, RunMode::kEager);
  expect_same_sums(kept, again);
  EXPECT_TRUE(again.activations.empty());
}

TEST_P(MoeLayer, EvaluatesWithoutLosses) {
  SegmentCase with = segment_case(GetParam());
  const SegmentResult train = run_segment(with, RunMode::kEager);
  with.mode = Mode::kEval;
  const SegmentResult evaluated = run_segment(with, RunMode::kEager);
  EXPECT_EQ(evaluated.outputs, train.outputs);
  EXPECT_EQ(evaluated.sums, std::vector<float>(num_step_sums(1)));
}

TEST_P(MoeLayer, GeneratesWithoutDropping) {
  MoeCase c = GetParam();
  SegmentCase with = segment_case(c);
  with.mode = Mode::kGenerate;
  const SegmentResult generated = run_segment(with, RunMode::kEager);
  const bool limits = c.moe.expert_capacity_factor > 0 && c.moe.expert_capacity_factor < 1;
  if (limits) {
    EXPECT_NE(generated.outputs, run_segment(segment_case(c), RunMode::kEager).outputs);
  }
  c.moe.expert_capacity_factor = 0;
  with.build = segment_case(c).build;
  EXPECT_EQ(generated.outputs, run_segment(with, RunMode::kEager).outputs);
}

}  // namespace
}  // namespace megalith::test
