#include "tests/unit/layers/segment_cases.h"

#include <stdexcept>

#include "core/layers/attention.h"
#include "core/layers/embedding.h"
#include "core/layers/linear.h"
#include "core/layers/lm_head.h"
#include "core/layers/mlp.h"
#include "core/layers/recompute.h"
#include "tests/support/device_cases.h"

namespace megalith::test {

namespace {

// B sequences of S tokens, hidden H, N heads, K query groups, F ffn, V vocabulary padded to P.
constexpr std::int64_t kB = 2, kS = 9, kT = kB * kS, kH = 24, kN = 4, kK = 2, kF = 20, kV = 61, kP = 64;
constexpr float kDropout = 0.2f;

std::unique_ptr<Linear> linear(ParameterStore& store, const LinearSpec& spec) {
  static RowExchange one_rank;
  return std::make_unique<Linear>(store, spec, one_rank);
}

struct Block {
  NormKind norm = NormKind::kRmsNorm;
  bool bias = false;
  bool qk_norm = false;
  std::int64_t groups = kK;
  std::int64_t head_dim = 6;
  std::int64_t rotary_dim = 0;
  Activation activation = Activation::kSwiglu;
  float dropout = 0;
};

Norm make_norm(ParameterStore& store, const Block& b, const std::string& name, std::int64_t size, SlotKind kind) {
  return Norm(store, {.name = name, .kind = b.norm, .size = size, .input_kind = kind});
}

std::unique_ptr<Segment> attention(ParameterStore& store, const Block& b) {
  const std::int64_t q = kN * b.head_dim, kv = b.groups * b.head_dim;
  Attention::Parts parts{.norm = make_norm(store, b, "norm", kH, SlotKind::kAttnNorm)};
  parts.qkv = linear(store, {.name = "qkv",
                             .inputs = kH,
                             .outputs = q + 2 * kv,
                             .bias = b.bias,
                             .input_kind = SlotKind::kQkvLinear,
                             .parts = {{"q", q}, {"k", kv}, {"v", kv}}});
  parts.proj = linear(store, {.name = "proj",
                              .inputs = q,
                              .outputs = kH,
                              .bias = b.bias,
                              .input_kind = SlotKind::kAttnProj,
                              .splits_inputs = true});
  parts.core = std::make_unique<CausalAttention>(
      CoreAttention::Spec{.heads = kN, .query_groups = b.groups, .head_dim = b.head_dim});
  if (b.qk_norm) {
    parts.q_norm = make_norm(store, b, "q_norm", b.head_dim, SlotKind::kCoreAttn);
    parts.k_norm = make_norm(store, b, "k_norm", b.head_dim, SlotKind::kCoreAttn);
  }
  return std::make_unique<Attention>(
      Attention::Spec{.rotary_dim = b.rotary_dim, .dropout = {.p = b.dropout, .layer = 3, .site = 1}},
      std::move(parts));
}

std::unique_ptr<Segment> mlp(ParameterStore& store, const Block& b) {
  const std::int64_t fc1 = b.activation == Activation::kSwiglu ? 2 * kF : kF;
  Mlp::Parts parts{.norm = make_norm(store, b, "mlp_norm", kH, SlotKind::kMlpNorm)};
  parts.fc1 =
      linear(store, {.name = "fc1", .inputs = kH, .outputs = fc1, .bias = b.bias, .input_kind = SlotKind::kFc1});
  parts.fc2 = linear(store, {.name = "fc2",
                             .inputs = kF,
                             .outputs = kH,
                             .bias = b.bias,
                             .input_kind = SlotKind::kFc2,
                             .splits_inputs = true});
  return std::make_unique<Mlp>(
      Mlp::Spec{.activation = b.activation, .dropout = {.p = b.dropout, .layer = 3, .site = 2}}, std::move(parts));
}

std::unique_ptr<Segment> layer(ParameterStore& store, const Block& b) {
  std::vector<std::unique_ptr<Segment>> segments;
  segments.push_back(attention(store, b));
  segments.push_back(mlp(store, b));
  return std::make_unique<Sequential>(std::move(segments));
}

using Make = std::unique_ptr<Segment> (*)(ParameterStore&, const Block&);

// (hidden, residual) in and out; the first block of a model gets no residual.
NamedCase block_case(std::string name, Make make, const Block& b, bool residual = true) {
  return {std::move(name),
          {.build = [make, b](ParameterStore& store) { return make(store, b); },
           .inputs = {{kT, kH}, residual ? Shape{kT, kH} : Shape{}},
           .gradients = 2,
           .sequences = kB,
           .seq_length = kS,
           .weight_std = 0.3f},
          b.dropout > 0};
}

NamedCase recomputed(NamedCase c) {
  c.name += "_recomputed";
  c.test.build = [inner = c.test.build](ParameterStore& store) { return std::make_unique<Recompute>(inner(store)); };
  return c;
}

NamedCase embedding_case(std::string name, std::int64_t positions, float dropout) {
  return {std::move(name),
          {.build =
               [=](ParameterStore& store) {
                 static RowExchange one_rank;
                 return std::make_unique<Embedding>(store,
                                                    Embedding::Spec{.table = {.vocab = kP, .hidden = kH, .rows = kP},
                                                                    .positions = positions,
                                                                    .dropout = {.p = dropout, .layer = -1}},
                                                    one_rank);
               },
           .sequences = kB,
           .seq_length = kS,
           .vocab = kV,
           .weight_std = 0.3f},
          dropout > 0};
}

NamedCase head_case(std::string name, NormKind norm, bool residual, std::int64_t loss_chunk_size = 0) {
  return {std::move(name),
          {.build =
               [norm, loss_chunk_size](ParameterStore& store) {
                 Parameter& words = store.add({.parts = {{.name = "words"}}, .shape = {kP, kH}});
                 static RowExchange one_rank;
                 return std::make_unique<LmHead>(LmHead::Spec{.vocab_size = kV, .loss_chunk_size = loss_chunk_size},
                                                 Norm(store, {.name = "norm", .kind = norm, .size = kH}), words,
                                                 one_rank);
               },
           .inputs = {{kT, kH}, residual ? Shape{kT, kH} : Shape{}},
           .gradients = 0,
           .sequences = kB,
           .seq_length = kS,
           .vocab = kV,
           .weight_std = 0.3f}};
}

NamedCase linear_case(std::string name, bool bias, std::vector<LinearSpec::Part> parts) {
  return {std::move(name),
          {.build =
               [=](ParameterStore& store) {
                 return linear(store, {.name = "linear", .inputs = kH, .outputs = 13, .bias = bias, .parts = parts});
               },
           .inputs = {{kT, kH}},
           .weight_std = 0.3f}};
}

std::vector<NamedCase> cases_with(std::int64_t head_dim) {
  const Block llama{.head_dim = head_dim, .rotary_dim = head_dim};
  const Block gpt2{.norm = NormKind::kLayerNorm,
                   .bias = true,
                   .groups = kN,
                   .head_dim = head_dim,
                   .activation = Activation::kGeluTanh,
                   .dropout = kDropout};
  const Block qwen3{.qk_norm = true, .head_dim = head_dim, .rotary_dim = 4, .dropout = kDropout};
  Block exact = gpt2;
  exact.activation = Activation::kGeluExact;
  exact.dropout = 0;
  Block centred_qk = gpt2;
  centred_qk.qk_norm = true;

  std::vector<NamedCase> cases = {
      embedding_case("embedding", 0, 0),
      embedding_case("embedding_positions", kS + 2, 0),
      embedding_case("embedding_positions_dropout", kS, kDropout),
      block_case("attention_mha_bias_dropout", attention, gpt2),
      block_case("attention_gqa_rope", attention, llama),
      block_case("attention_gqa_rope_first", attention, llama, false),
      block_case("attention_qk_rms_norm_partial_rope_dropout", attention, qwen3),
      block_case("attention_qk_layer_norm_dropout", attention, centred_qk, false),
      block_case("mlp_swiglu", mlp, llama),
      block_case("mlp_gelu_tanh_bias_dropout", mlp, gpt2),
      block_case("mlp_gelu_exact_bias", mlp, exact),
      block_case("layer", layer, llama),
      block_case("layer_qk_norm_dropout", layer, qwen3, false),
      head_case("head_rms_norm", NormKind::kRmsNorm, true),
      head_case("head_layer_norm", NormKind::kLayerNorm, true),
      head_case("head_alone", NormKind::kRmsNorm, false),
      head_case("head_chunks_of_5", NormKind::kLayerNorm, true, 5),
      head_case("head_chunks_of_9", NormKind::kRmsNorm, true, 9),
      head_case("head_one_chunk", NormKind::kRmsNorm, true, 100),
      linear_case("linear", false, {}),
      linear_case("linear_bias", true, {}),
      linear_case("linear_fused_bias", true, {{"a", 6}, {"b", 4}, {"c", 3}}),
  };
  cases.push_back(recomputed(block_case("attention_mha_bias_dropout", attention, gpt2)));
  cases.push_back(recomputed(block_case("mlp_swiglu", mlp, llama)));
  cases.push_back(recomputed(block_case("layer_qk_norm_dropout", layer, qwen3, false)));
  return cases;
}

}  // namespace

std::vector<NamedCase> all_segment_cases(DeviceType device) {
  constexpr std::int64_t kOddDim = 6, kDim = 8;  // attention in bf16 on CUDA requires multiples of 8
  std::vector<NamedCase> cases;
  const auto add = [&](NamedCase c, DType gradients, const char* suffix) {
    c.name += suffix;
    c.test.device = device;
    c.test.main_grads_dtype = gradients;
    if (device == DeviceType::kCuda) c.name += "_cuda";
    cases.push_back(std::move(c));
  };
  for (const NamedCase& c : cases_with(kOddDim)) add(c, DType::kFp32, "");
  for (NamedCase& c : cases_with(device == DeviceType::kCuda ? kDim : kOddDim)) {
    c.test.dtype = DType::kBf16;
    add(c, DType::kFp32, "_bf16");
    add(c, DType::kBf16, "_bf16_gradients");
  }
  return cases;
}

std::vector<NamedCase> all_segment_cases() {
  std::vector<NamedCase> cases;
  for (const DeviceType device : devices()) {
    for (NamedCase& c : all_segment_cases(device)) cases.push_back(std::move(c));
  }
  return cases;
}

NamedCase segment_case(const std::string& name, DeviceType device) {
  const std::string full_name = name + (device == DeviceType::kCuda ? "_cuda" : "");
  for (NamedCase& c : all_segment_cases(device)) {
    if (c.name == full_name) return c;
  }
  throw std::logic_error("no segment case " + full_name);
}

std::string name_of_segment_case(const testing::TestParamInfo<NamedCase>& info) { return info.param.name; }

void PrintTo(const NamedCase& c, std::ostream* out) { *out << c.name; }

}  // namespace megalith::test
