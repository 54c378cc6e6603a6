#include "core/hf/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/strict_json.h"
#include "core/hf/hf_members.h"
#include "core/hf/hf_rope.h"
#include "core/model/config.h"
#include "core/model/layer_pattern.h"

namespace megalith {

namespace {

using nlohmann::json;

constexpr std::int64_t kMaxLayers = 10'000;  // larger models are rejected anyway

ModelConfig read_gpt2(HfMembers& file) {
  ModelConfig model;
  model.num_layers = file.integer("n_layer");
  model.hidden_size = file.integer("n_embd");
  model.num_attention_heads = file.integer("n_head");
  model.ffn_hidden_size = file.integer_or("n_inner", 0);
  model.max_position_embeddings = file.integer("n_positions");
  model.norm_epsilon = file.positive_or("layer_norm_epsilon", 1e-5);
  const std::string activation =
      file.find("activation_function") == nullptr ? "gelu_new" : file.text("activation_function");
  if (activation == "gelu") {
    model.activation_func = ActivationFunction::kGelu;
  } else if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    refuse_format(file.subject("activation_function"), "gelu_new, gelu_pytorch_tanh or gelu", printable(activation),
                  kHfNotBuilt);
  }
  file.only("scale_attn_weights", true, "scores are divided by the root of the head's width");
  file.only("scale_attn_by_inverse_layer_idx", false, "other scales are not built");
  file.only("add_cross_attention", false, "the model has a decoder alone");
  return model;
}

bool is_mistral_like(HfFamily family) { return family == HfFamily::kMistral || family == HfFamily::kMixtral; }

// Reads `layer_types`; `layers` are those with a window, as the other keys say.
void read_layer_types(HfMembers& file, std::int64_t window, HfFamily family, std::vector<bool>& layers) {
  const json* types = file.find("layer_types");
  if (types == nullptr) return;
  const std::string subject = file.subject("layer_types");
  require_array(*types, subject);
  if (types->size() != layers.size())
    refuse_content(subject, fmt::format("the {} layers of num_hidden_layers", layers.size()),
                   fmt::format("{}", types->size()));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const json& type = (*types)[i];
    const bool is_full = type == "full_attention", slides = type == "sliding_attention";
    if (window == 0 && !is_full) refuse_format(subject, "full_attention in all layers", show_json(type), kHfNotBuilt);
    if (window > 0 && is_mistral_like(family) && !slides)
      refuse_format(subject, "sliding_attention in all layers with sliding_window", show_json(type), kHfNotBuilt);
    if (!is_full && !slides)
      refuse_format(subject, "full_attention or sliding_attention", show_json(type), kHfNotBuilt);
    layers[i] = slides;
  }
}

// Reads the sliding window: tokens that a token sees, itself included; null: all. Mistral and Mixtral have it in all
// layers. Qwen2 and Qwen3 have it in the layers of `layer_types`, otherwise from layer `max_window_layers` on.
void read_windows(HfMembers& file, ModelConfig& model, HfFamily family) {
  constexpr std::int64_t kUsualWindow = 4096, kUsualFirst = 28;  // of absent keys in transformers
  const bool has_switch = !is_mistral_like(family), is_null = file.is_null("sliding_window");
  if (family == HfFamily::kQwen3Moe)
    file.only("use_sliding_window", false, "versions of transformers differ in its layers");
  const bool is_on = !has_switch || file.boolean_or("use_sliding_window", false);
  const std::int64_t absent = family == HfFamily::kMixtral ? 0 : kUsualWindow;
  const std::int64_t window = is_on && !is_null ? file.integer_or("sliding_window", absent) : 0;
  std::vector<bool> layers(static_cast<std::size_t>(std::min(model.num_layers, kMaxLayers)), window > 0);
  if (window > 0 && has_switch) {
    const json* value = file.find("max_window_layers");
    const std::int64_t first =
        value == nullptr ? kUsualFirst : json_integer(*value, 0, kMaxHfInteger, file.subject("max_window_layers"));
    std::fill_n(layers.begin(), std::min(first, std::ssize(layers)), false);
  }
  read_layer_types(file, window, family, layers);
  if (std::ranges::find(layers, true) == layers.end()) return;
  model.window_size = {window - 1, 0};
  const bool all = std::ranges::find(layers, false) == layers.end();
  if (!all) model.window_attn_skip_freq = layer_pattern(layers);
}

void read_biases(HfMembers& file, ModelConfig& model, HfFamily family) {
  const bool attention = file.boolean_or("attention_bias", false);
  if (family == HfFamily::kLlama && file.boolean_or("mlp_bias", false)) {
    if (!attention)
      refuse_format(file.subject("mlp_bias"), "false: biases of the MLP alone are not built", "true", kHfNotBuilt);
    model.add_bias_linear = true;
  } else {
    model.add_qkv_bias = model.add_attn_proj_bias = attention;
  }
}

// Reads Qwen3-MoE's layers with experts: every `step`-th layer without the file's exceptions.
std::string read_layers(HfMembers& file, std::int64_t num_layers) {
  const std::int64_t step = file.integer_or("decoder_sparse_step", 1);
  std::vector<bool> has_experts(static_cast<std::size_t>(std::min(num_layers, kMaxLayers)));
  for (std::size_t i = 0; i < has_experts.size(); ++i) has_experts[i] = (static_cast<std::int64_t>(i) + 1) % step == 0;
  if (const json* dense = file.find("mlp_only_layers"); dense != nullptr) {
    require_array(*dense, file.subject("mlp_only_layers"));
    const auto last = static_cast<std::int64_t>(has_experts.size()) - 1;
    for (const json& layer : *dense)
      has_experts[static_cast<std::size_t>(json_integer(layer, 0, last, file.subject("mlp_only_layers")))] = false;
  }
  const bool all = std::ranges::find(has_experts, false) == has_experts.end();
  return all ? MoeConfig().layer_freq : layer_pattern(has_experts);
}

void read_experts(HfMembers& file, ModelConfig& model, HfFamily family) {
  MoeConfig& moe = model.moe;
  // transformers 4 and published files of Qwen3-MoE have num_experts; 5 writes num_local_experts for both families.
  moe.num_experts = file.integer(file.find("num_experts") == nullptr ? "num_local_experts" : "num_experts");
  if (const std::int64_t other = file.integer_or("num_local_experts", moe.num_experts); other != moe.num_experts)
    refuse_content(file.subject("num_local_experts"), "the value that num_experts has",
                   fmt::format("{} and {}", other, moe.num_experts));
  moe.router_topk = file.integer("num_experts_per_tok");
  if (const double coeff = file.at_least_0_or("router_aux_loss_coef", 0); coeff > 0) {
    moe.router_load_balancing_type = {"aux_loss"};
    moe.aux_loss_coeff = {coeff};
  }
  if (file.boolean_or("output_router_logits", false))
    refuse_format(file.subject("output_router_logits"), "false", "true",
                  "set it to false, the model's logits are the same; training has --moe-aux-loss-coeff");
  if (family == HfFamily::kMixtral) {
    file.only("router_jitter_noise", 0, "a router without noise");
    return;
  }
  moe.ffn_hidden_size = file.integer("moe_intermediate_size");
  moe.router_pre_softmax = !file.boolean_or("norm_topk_prob", false);
  moe.layer_freq = read_layers(file, model.num_layers);
}

ModelConfig read_llama_like(HfMembers& file, HfFamily family) {
  const bool is_qwen3 = family == HfFamily::kQwen3 || family == HfFamily::kQwen3Moe;
  const bool is_mixtral = family == HfFamily::kMixtral;
  ModelConfig model;
  model.num_layers = file.integer("num_hidden_layers");
  model.hidden_size = file.integer("hidden_size");
  model.num_attention_heads = file.integer("num_attention_heads");
  const bool has_eight_groups = is_mistral_like(family) && !file.is_null("num_key_value_heads");
  model.num_query_groups = file.integer_or("num_key_value_heads", has_eight_groups ? 8 : model.num_attention_heads);
  model.kv_channels = file.integer_or("head_dim", family == HfFamily::kQwen3 ? 128 : 0);
  model.ffn_hidden_size = file.integer("intermediate_size");
  model.max_position_embeddings = file.integer("max_position_embeddings");
  model.norm_epsilon = file.positive_or("rms_norm_eps", is_mixtral ? 1e-5 : 1e-6);
  const HfRope rope = read_rope(file, model.max_position_embeddings, is_mixtral ? 1e6 : 1e4);
  model.rotary_base = rope.theta;
  model.set_rotary_scaling(rope.scaling);
  model.position_embedding_type = PositionEmbedding::kRope;
  model.normalization = Normalization::kRmsNorm;
  model.swiglu = true;
  file.only("hidden_act", "silu", "the MLP is SwiGLU");
  file.only("use_mrope", false, "a position is one number");
  model.qk_layernorm = is_qwen3;
  model.add_qkv_bias = family == HfFamily::kQwen2;
  model.add_bias_linear = false;
  if (family == HfFamily::kMistral) model.hf_model_type = HfModelType::kMistral;
  if (family != HfFamily::kLlama) read_windows(file, model, family);
  if (family == HfFamily::kLlama || is_qwen3) read_biases(file, model, family);
  if (is_mixtral || family == HfFamily::kQwen3Moe) read_experts(file, model, family);
  return model;
}

}  // namespace

ModelConfig parse_hf_config(std::string_view text, const std::string& subject, HfKeys* keys) {
  HfKeys none;
  const json value = parse_strict_json(text, subject);
  HfMembers file(value, subject);
  const std::string type = file.text("model_type");
  const auto* found = std::ranges::find(kHfFamilyNames, type);
  if (found == std::end(kHfFamilyNames))
    refuse_format(file.subject("model_type"), "gpt2, llama, mistral, qwen2, qwen3, mixtral or qwen3_moe",
                  printable(type), kHfNotBuilt);
  const auto family = static_cast<HfFamily>(found - std::begin(kHfFamilyNames));
  ModelConfig model = family == HfFamily::kGpt2 ? read_gpt2(file) : read_llama_like(file, family);
  model.vocab_size = file.integer("vocab_size");
  model.untie_embeddings_and_output_weights = !file.boolean_or("tie_word_embeddings", family == HfFamily::kGpt2);
  model.init_method_std = file.positive_or("initializer_range", model.init_method_std);
  model.seq_length = model.max_position_embeddings;
  file.only("quantization_config", nullptr, "quantized weights are not read");
  file.only("is_encoder_decoder", false, "the model has a decoder alone");
  file.only("pruned_heads", json::object(), "all heads are there");
  file.refuse_unknown(keys == nullptr ? &none : keys);
  try {
    resolve(model);
    validate(model);
  } catch (const Error& error) {
    throw Error(ExitCode::kFormat, fmt::format("{}: as flags: {}", subject, error.what()));
  }
  return model;
}

}  // namespace megalith
