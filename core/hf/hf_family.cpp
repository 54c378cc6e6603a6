
#include <algorithm>

#include "core/base/error.h"
#include "core/hf/hf_config.h"
#include "core/model/config.h"

namespace megalith {

namespace {

// What a model has that a family lacks, by its flags.
class Others {
 public:
  void add(bool is_other, const std::string& what) {
    if (is_other) list_ += (list_.empty() ? "" : ", ") + what;
  }
  // Where there is any.
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

HfFamily gpt2(const ModelConfig& model) {
  Others others;
  others.add(model.normalization != Normalization::kLayerNorm, "--normalization RMSNorm");
  others.add(model.swiglu, "--swiglu");
  others.add(!model.add_bias_linear, "--disable-bias-linear");
  others.add(model.qk_layernorm, "--qk-layernorm");
  others.add(model.num_query_groups != model.num_attention_heads, "--num-query-groups");
  others.add(model.kv_channels * model.num_attention_heads != model.hidden_size, "--kv-channels");
  others.refuse_for("with learned positions a GPT-2", false);
  return HfFamily::kGpt2;
}

// How experts are chosen and weighed; what only training has is not looked at.
void add_routers(const ModelConfig& model, Others& others) {
  const MoeConfig& moe = model.moe;
  others.add(moe.router_score_function != MoeScoreFunction::kSoftmax, "--moe-router-score-function sigmoid");
  others.add(moe.router_enable_expert_bias, "--moe-router-enable-expert-bias");
  others.add(moe.router_topk_scaling_factor != 1, "--moe-router-topk-scaling-factor");
  others.add(moe.router_num_groups != 0, "--moe-router-num-groups");
  others.add(moe.shared_expert_intermediate_size != 0, "--moe-shared-expert-intermediate-size");
  if (model.qk_layernorm) return;
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
  others.add(!model.swiglu, "no --swiglu");
  const bool attention_bias = model.has_qkv_bias() && model.has_attn_proj_bias();
  if (is_mistral) {
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
  others.refuse_for("without learned positions a Llama, Qwen2 or Qwen3", false);
  if (model.qk_layernorm) return HfFamily::kQwen3;
  return model.has_qkv_bias() && !attention_bias ? HfFamily::kQwen2 : HfFamily::kLlama;
}

}  // namespace megalith
