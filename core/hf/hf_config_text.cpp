#include <nlohmann/json.hpp>

#include <algorithm>

#include "core/base/error.h"
#include "core/hf/hf_config.h"
#include "core/hf/hf_rope.h"
#include "core/model/config.h"

namespace megalith {

namespace {

using nlohmann::json;

json common_keys(const ModelConfig& model, HfFamily family, const HfTokenIds& ids) {
  const std::string dtype = model.params_dtype == DType::kBf16 ? "bfloat16" : "float32";
  constexpr const char* kArchitectures[] = {"GPT2LMHeadModel",    "LlamaForCausalLM", "MistralForCausalLM",
                                            "Qwen2ForCausalLM",   "Qwen3ForCausalLM", "MixtralForCausalLM",
                                            "Qwen3MoeForCausalLM"};
  json text = {{"model_type", std::string(name_of(family))},
               {"vocab_size", model.vocab_size},
               {"tie_word_embeddings", !model.untie_embeddings_and_output_weights},
               {"initializer_range", model.init_method_std},
               {"bos_token_id", nullptr},
               {"eos_token_id", nullptr},
               {"dtype", dtype},
               {"torch_dtype", dtype},
               {"use_cache", true}};
  text["architectures"] = {kArchitectures[static_cast<std::size_t>(family)]};
  if (ids.bos) text["bos_token_id"] = *ids.bos;
  if (ids.eos) text["eos_token_id"] = *ids.eos;
  return text;
}

void add_gpt2_keys(json& text, const ModelConfig& model) {
  text["activation_function"] = model.activation_func == ActivationFunction::kGelu ? "gelu" : "gelu_new";
  text["n_layer"] = model.num_layers;
  text["n_embd"] = model.hidden_size;
  text["n_head"] = model.num_attention_heads;
  text["n_inner"] = model.ffn_hidden_size;
  text["n_positions"] = text["n_ctx"] = model.max_position_embeddings;
  text["layer_norm_epsilon"] = model.norm_epsilon;
  text["embd_pdrop"] = text["resid_pdrop"] = model.hidden_dropout;
  text["attn_pdrop"] = model.attention_dropout;
  text["scale_attn_weights"] = true;
}

void add_expert_keys(json& text, const ModelConfig& model, HfFamily family) {
  const MoeConfig& moe = model.moe;
  text["num_local_experts"] = moe.num_experts;
  text["num_experts_per_tok"] = moe.router_topk;
  text["router_aux_loss_coef"] = moe.balancing_coeff();
  text["output_router_logits"] = false;
  if (family == HfFamily::kMixtral) {
    text["intermediate_size"] = moe.ffn_hidden_size;
    text["router_jitter_noise"] = 0.0;
    return;
  }
  text["num_experts"] = moe.num_experts;  // for transformers 4
  text["moe_intermediate_size"] = moe.ffn_hidden_size;
  text["norm_topk_prob"] = !moe.router_pre_softmax;
  text["decoder_sparse_step"] = 1;
  text["mlp_only_layers"] = json::array();
  const std::vector<bool> has_experts = moe_layers(moe, model.num_layers);
  for (std::size_t i = 0; i < has_experts.size(); ++i) {
    if (!has_experts[i]) text["mlp_only_layers"].push_back(i);
  }
}

// Windows of a model.
struct Windows {
  explicit Windows(const ModelConfig& model) {
    for (const std::int64_t window : attention_windows(model)) {
      layers.push_back(window > 0);
      keys = std::max(keys, window);
    }
    first = std::ranges::find(layers, true) - layers.begin();
    in_all = std::ranges::find(layers, false) == layers.end();
  }

  std::int64_t keys = 0;     // that a query sees, its own included; 0: no layer has a window
  std::vector<bool> layers;  // with a window
  std::int64_t first = 0;    // first layer with a window
  bool in_all = false;
};

// Transformers before 4.53 does not know layer_types: layers from max_window_layers on have a window.
void add_window_keys(json& text, const ModelConfig& model, HfFamily family) {
  const Windows windows(model);
  if (family == HfFamily::kMistral || family == HfFamily::kMixtral) {
    text["sliding_window"] = windows.keys > 0 ? json(windows.keys) : json(nullptr);
    return;
  }
  text["use_sliding_window"] = windows.keys > 0;
  if (windows.keys == 0) return;
  text["sliding_window"] = windows.keys;
  text["max_window_layers"] = windows.first;
  text["layer_types"] = json::array();
  for (const bool has_window : windows.layers)
    text["layer_types"].push_back(has_window ? "sliding_attention" : "full_attention");
}

void add_llama_keys(json& text, const ModelConfig& model, HfFamily family) {
  text["num_hidden_layers"] = model.num_layers;
  text["hidden_size"] = model.hidden_size;
  text["num_attention_heads"] = model.num_attention_heads;
  text["num_key_value_heads"] = model.num_query_groups;
  text["head_dim"] = model.kv_channels;
  text["intermediate_size"] = model.ffn_hidden_size;
  text["max_position_embeddings"] = model.max_position_embeddings;
  text["rms_norm_eps"] = model.norm_epsilon;
  text["hidden_act"] = "silu";
  text["attention_dropout"] = model.attention_dropout;
  add_rope_keys(text, {.theta = model.rotary_base, .scaling = model.rotary_scaling()});
  const bool is_mistral_like = family == HfFamily::kMistral || family == HfFamily::kMixtral;
  if (!is_mistral_like && family != HfFamily::kQwen2) text["attention_bias"] = model.has_qkv_bias();
  if (family == HfFamily::kLlama) text["mlp_bias"] = model.add_bias_linear;
  if (family != HfFamily::kLlama) add_window_keys(text, model, family);
  if (model.moe.num_experts > 0) add_expert_keys(text, model, family);
}

}  // namespace

std::string hf_generation_config_text(const HfTokenIds& ids) {
  json text = {{"_from_model_config", true}};
  if (ids.bos) text["bos_token_id"] = *ids.bos;
  if (ids.eos) text["eos_token_id"] = *ids.eos;
  return text.dump(2) + "\n";
}

std::string hf_config_text(const ModelConfig& model, const HfTokenIds& ids) {
  const HfFamily family = hf_family(model);
  json text = common_keys(model, family, ids);
  if (family == HfFamily::kGpt2) {
    add_gpt2_keys(text, model);
  } else {
    add_llama_keys(text, model, family);
  }
  return text.dump(2) + "\n";
}

namespace {

// List of a model's features that a family does not support, by flag.
class Others {
 public:
  void add(bool is_other, const std::string& what) {
    if (is_other) list_ += (list_.empty() ? "" : ", ") + what;
  }
  // Fails if the list is not empty.
  void refuse_for(const std::string& family, bool is_mistral) const {
    if (list_.empty()) return;
    if (is_mistral) {
      refuse_usage("--hf-model-type mistral",
                   {.expected = family, .got = list_, .remedy = "leave --hf-model-type out"});
    }
    refuse_usage("--to hf", {.expected = family,
                             .got = list_,
                             .remedy = "transformers has no such model among GPT-2, Llama, Mistral, Qwen2, Qwen3, "
                                       "Mixtral and Qwen3-MoE"});
  }

 private:
  std::string list_;
};

constexpr const char* kSomeWindows = "--window-attn-skip-freq";

HfFamily gpt2(const ModelConfig& model) {
  Others others;
  others.add(model.normalization != Normalization::kLayerNorm, "--normalization RMSNorm");
  others.add(model.swiglu, "--swiglu");
  others.add(model.squared_relu, "--squared-relu");
  others.add(model.apply_layernorm_1p, "--apply-layernorm-1p");
  others.add(!model.add_bias_linear, "--disable-bias-linear");
  others.add(model.qk_layernorm, "--qk-layernorm");
  others.add(model.num_query_groups != model.num_attention_heads, "--num-query-groups");
  others.add(model.kv_channels * model.num_attention_heads != model.hidden_size, "--kv-channels");
  others.add(Windows(model).keys > 0, "--window-size");
  others.refuse_for("with learned positions a GPT-2", false);
  return HfFamily::kGpt2;
}

// Adds unsupported settings of the router; settings that affect only training are ignored.
void add_routers(const ModelConfig& model, Others& others) {
  const MoeConfig& moe = model.moe;
  others.add(moe.router_score_function != MoeScoreFunction::kSoftmax, "--moe-router-score-function sigmoid");
  others.add(moe.router_enable_expert_bias, "--moe-router-enable-expert-bias");
  others.add(moe.router_topk_scaling_factor != 1, "--moe-router-topk-scaling-factor");
  others.add(moe.router_num_groups != 0, "--moe-router-num-groups");
  others.add(moe.shared_expert_intermediate_size != 0, "--moe-shared-expert-intermediate-size");
  const Windows windows(model);
  others.add(windows.keys > 0 && model.qk_layernorm, "--window-size with --qk-layernorm");
  if (model.qk_layernorm) return;
  others.add(windows.keys > 0 && !windows.in_all, kSomeWindows);
  const std::vector<bool> layers = moe_layers(moe, model.num_layers);
  others.add(moe.router_pre_softmax, "--moe-router-pre-softmax without --qk-layernorm");
  others.add(std::ranges::find(layers, false) != layers.end(), "--moe-layer-freq without --qk-layernorm");
  others.add(model.has_qkv_bias() || model.has_attn_proj_bias(), "biases without --qk-layernorm");
}

}  // namespace

std::string_view name_of(HfFamily family) { return kHfFamilyNames[static_cast<std::size_t>(family)]; }

HfFamily hf_family(const ModelConfig& model) {
  const bool is_mistral = model.hf_model_type == HfModelType::kMistral, has_experts = model.moe.num_experts > 0;
  const bool has_learned_positions = model.position_embedding_type == PositionEmbedding::kLearnedAbsolute;
  if (has_learned_positions && !is_mistral && !has_experts) return gpt2(model);
  Others others;
  others.add(has_learned_positions, "--position-embedding-type learned_absolute");
  others.add(model.position_embedding_type == PositionEmbedding::kNone, "--position-embedding-type none");
  others.add(model.rotary_percent != 1.0, "--rotary-percent");
  others.add(model.normalization != Normalization::kRmsNorm, "--normalization LayerNorm");
  others.add(model.apply_layernorm_1p, "--apply-layernorm-1p");
  others.add(!model.swiglu, "no --swiglu");
  const bool attention_bias = model.has_qkv_bias() && model.has_attn_proj_bias();
  const bool is_qwen2 = model.has_qkv_bias() && !attention_bias;
  const Windows windows(model);
  const bool has_window = windows.keys > 0;
  if (is_mistral) {
    others.add(has_window && !windows.in_all, kSomeWindows);
    others.add(has_experts, "--num-experts");
    others.add(model.qk_layernorm, "--qk-layernorm");
    others.add(model.has_qkv_bias() || model.has_attn_proj_bias(), "biases");
    others.refuse_for("a Mistral", true);
    return HfFamily::kMistral;
  }
  others.add(model.qk_layernorm && model.add_bias_linear, "--qk-layernorm with biases of the MLP");
  others.add(model.qk_layernorm && model.has_qkv_bias() && !attention_bias, "--qk-layernorm with --add-qkv-bias alone");
  others.add(model.has_attn_proj_bias() && !attention_bias, "--add-attn-proj-bias without --add-qkv-bias");
  if (has_experts) {
    add_routers(model, others);
    others.refuse_for("with experts a Mixtral or Qwen3-MoE", false);
    return model.qk_layernorm ? HfFamily::kQwen3Moe : HfFamily::kMixtral;
  }
  if (has_window && !model.qk_layernorm && !is_qwen2) {  // a Llama with windows is a Mistral
    others.add(attention_bias, "--window-size with biases of the projection");
    others.add(!windows.in_all, "--window-attn-skip-freq with neither --qk-layernorm nor --add-qkv-bias");
  }
  others.refuse_for("without learned positions a Llama, Qwen2 or Qwen3", false);
  if (model.qk_layernorm) return HfFamily::kQwen3;
  if (is_qwen2) return HfFamily::kQwen2;
  return has_window ? HfFamily::kMistral : HfFamily::kLlama;
}

}  // namespace megalith
