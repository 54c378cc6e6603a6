#include <nlohmann/json.hpp>

#include "core/hf/hf_config.h"
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
  text["rope_theta"] = model.rotary_base;
  json rope = {{"rope_type", "default"}};
  if (model.use_rope_scaling) {
    const RopeScaling& scaling = model.rope_scaling;
    rope = {{"rope_type", "llama3"},
            {"factor", scaling.factor},
            {"low_freq_factor", scaling.low_freq_factor},
            {"high_freq_factor", scaling.high_freq_factor},
            {"original_max_position_embeddings", scaling.original_max_position_embeddings}};
    text["rope_scaling"] = rope;  // for transformers 4
  }
  rope["rope_theta"] = model.rotary_base;
  text["rope_parameters"] = rope;
  const bool is_mistral_like = family == HfFamily::kMistral || family == HfFamily::kMixtral;
  if (!is_mistral_like && family != HfFamily::kQwen2) text["attention_bias"] = model.has_qkv_bias();
  if (family == HfFamily::kLlama) text["mlp_bias"] = model.add_bias_linear;
  if (is_mistral_like) text["sliding_window"] = nullptr;
  if (!is_mistral_like && family != HfFamily::kLlama) text["use_sliding_window"] = false;
  if (model.moe.num_experts > 0) add_expert_keys(text, model, family);
}

}  // namespace

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

}  // namespace megalith
