// config.json of Mixtral and Qwen3-MoE: what it says, what is refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/hf/hf_config.h"
#include "core/model/config.h"
#include "tests/unit/apps/flags_support.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace megalith {
namespace {

using nlohmann::json;

json golden_json(const std::string& family) {
  return json::parse(test::read_file(MEGALITH_SOURCE_DIR "/tests/hf/golden/" + family + "/config.json"));
}
ModelConfig parse(const json& text) { return parse_hf_config(text.dump(), "config.json"); }
json with_value(const std::string& family, const std::string& key, const json& value) {
  json text = golden_json(family);
  text[key] = value;
  return text;
}
json without_key(const std::string& family, const std::string& key) {
  json text = golden_json(family);
  text.erase(key);
  return text;
}

// As Mixtral 8x7B was published.
TEST(HfConfigMoe, ReadsThePublishedMixtral) {
  const json text = json::parse(
      R"({"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
          "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
          "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
          "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
          "output_router_logits": false, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
          "router_aux_loss_coef": 0.02, "sliding_window": null, "tie_word_embeddings": false,
          "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0", "use_cache": true, "vocab_size": 32000})");
  const ModelConfig model = parse(text);
  EXPECT_EQ(hf_family(model), HfFamily::kMixtral);
  EXPECT_EQ(count_parameters(model).total, 46'702'792'704);
  EXPECT_EQ(model.moe.router_topk, 2);
  EXPECT_FALSE(model.moe.router_pre_softmax);
  EXPECT_EQ(model.moe.balancing_coeff(), 0.02);
  json least = text;
  for (const char* key : {"num_key_value_heads", "rms_norm_eps", "rope_theta", "sliding_window"}) least.erase(key);
  const ModelConfig usual = parse(least);  // Mixtral's own
  EXPECT_EQ(usual.num_query_groups, 8);
  EXPECT_EQ(usual.norm_epsilon, 1e-5);
  EXPECT_EQ(usual.rotary_base, 1e6);
}

// As Qwen3-30B-A3B was published.
TEST(HfConfigMoe, ReadsThePublishedQwen3) {
  const ModelConfig model = parse(json::parse(
      R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
          "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
          "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
          "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
          "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
          "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
          "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
          "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
          "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
          "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})"));
  EXPECT_EQ(hf_family(model), HfFamily::kQwen3Moe);
  EXPECT_EQ(count_parameters(model).total, 30'532'122'624);
  EXPECT_EQ(model.moe.router_topk, 8);
  EXPECT_FALSE(model.moe.router_pre_softmax);
  EXPECT_EQ(model.moe.layer_freq, "1");
}

TEST(HfConfigMoe, ReadsWhichLayersHaveExperts) {
  const auto layers = [](const json& dense, int step) {
    json text = with_value("qwen3_moe", "mlp_only_layers", dense);
    text["decoder_sparse_step"] = step;
    text["num_hidden_layers"] = 6;
    return parse(text).moe.layer_freq;
  };
  EXPECT_EQ(layers(json::array(), 1), "1");
  EXPECT_EQ(layers(nullptr, 1), "1");
  EXPECT_EQ(layers({0, 1, 5}, 1), "[0]*2+[1]*3+[0]");
  EXPECT_EQ(layers(json::array(), 3), "[0]*2+[1]+[0]*2+[1]");  // the last of each three
  EXPECT_EQ(layers({2, 4}, 3), "[0]*5+[1]");
  EXPECT_EQ(parse(without_key("qwen3_moe", "mlp_only_layers")).moe.layer_freq, "1");
}

TEST(HfConfigMoe, ReadsBothNamesAndTheUsualValues) {
  json text = with_value("qwen3_moe", "num_experts", 4);  // in addition to num_local_experts
  EXPECT_EQ(parse(text).moe.num_experts, 4);
  text.erase("num_local_experts");
  for (const char* key : {"norm_topk_prob", "head_dim", "router_aux_loss_coef"}) text.erase(key);
  const ModelConfig model = parse(text);
  EXPECT_EQ(model.moe.num_experts, 4);
  EXPECT_TRUE(model.moe.router_pre_softmax);
  EXPECT_EQ(model.kv_channels, 8);  // not Qwen3's 128
  EXPECT_EQ(model.moe.balancing_coeff(), 0);
  EXPECT_FALSE(parse(with_value("qwen3_moe", "norm_topk_prob", true)).moe.router_pre_softmax);
}

ModelConfig in_bf16(ModelConfig model) {
  model.params_dtype = DType::kBf16;
  return model;
}

TEST(HfConfigMoe, WhatIsWrittenReadsBack) {
  std::vector<ModelConfig> models = {parse(golden_json("mixtral")), parse(golden_json("qwen3_moe"))};
  models.push_back(parse(with_value("qwen3_moe", "norm_topk_prob", true)));
  models.push_back(parse(with_value("qwen3_moe", "attention_bias", true)));
  models.push_back(parse(with_value("mixtral", "router_aux_loss_coef", 0)));
  models.push_back(parse(with_value("mixtral", "num_experts_per_tok", 1)));
  for (const ModelConfig& model : models) {
    const std::string text = hf_config_text(model, {.eos = 3});
    SCOPED_TRACE(text);
    const ModelConfig back = parse_hf_config(text, "config.json");
    EXPECT_EQ(hf_config_text(back, {.eos = 3}), text);
    EXPECT_EQ(hf_family(back), hf_family(model));
    EXPECT_EQ(back.ffn_hidden_size, model.ffn_hidden_size);
    EXPECT_EQ(back.has_qkv_bias(), model.has_qkv_bias());
    EXPECT_EQ(back.moe.num_experts, model.moe.num_experts);
    EXPECT_EQ(back.moe.router_topk, model.moe.router_topk);
    EXPECT_EQ(back.moe.ffn_hidden_size, model.moe.ffn_hidden_size);
    EXPECT_EQ(back.moe.layer_freq, model.moe.layer_freq);
    EXPECT_EQ(back.moe.router_pre_softmax, model.moe.router_pre_softmax);
    EXPECT_EQ(back.moe.aux_loss_coeff, model.moe.aux_loss_coeff);
  }
  // Whatever transformers itself has in its file.
  for (const std::string family : {"mixtral", "qwen3_moe"}) {
    const json theirs = golden_json(family), written = json::parse(hf_config_text(in_bf16(parse(theirs)), {.eos = 0}));
    for (const auto& [key, value] : theirs.items()) {
      if (value.is_null() || key == "bos_token_id" || key == "transformers_version") continue;
      ASSERT_TRUE(written.contains(key)) << key;
      EXPECT_EQ(written[key], value) << key;
    }
  }
  EXPECT_EQ(json::parse(hf_config_text(models[1], {.eos = 0})).at("num_experts"), 4);
  EXPECT_TRUE(json::parse(hf_config_text(models[0], {.eos = 0})).at("sliding_window").is_null());
}

TEST(HfConfigMoe, RefusesWhatAModelCannotSay) {
  const auto expect = [](const json& text, const std::string& message) {
    EXPECT_ERROR(ExitCode::kFormat, message, parse(text));
  };
  expect(with_value("mixtral", "router_jitter_noise", 0.1),
         "config.json: router_jitter_noise: expected 0: a router without noise, got 0.1; such a model cannot be");
  expect(with_value("qwen3_moe", "output_router_logits", true),
         "config.json: output_router_logits: expected false, got true; set it to false, the model's logits are the "
         "same; training has --moe-aux-loss-coeff");
  expect(with_value("qwen3_moe", "use_sliding_window", true), "config.json: use_sliding_window: expected false");
  expect(with_value("qwen3_moe", "num_experts", 8),
         "config.json: num_local_experts: expected the value that num_experts has, got 4 and 8");
  expect(without_key("mixtral", "num_local_experts"), "config.json: expected key num_local_experts, got none");
  expect(without_key("mixtral", "num_experts_per_tok"), "config.json: expected key num_experts_per_tok, got none");
  expect(without_key("qwen3_moe", "moe_intermediate_size"),
         "config.json: expected key moe_intermediate_size, got none");
  expect(with_value("mixtral", "num_experts_per_tok", 5),
         "config.json: as flags: --moe-router-topk and --num-experts: expected a --moe-router-topk from 1 to 4");
  expect(with_value("mixtral", "router_aux_loss_coef", -1),
         "config.json: router_aux_loss_coef: expected a finite number of at least 0, got -1");
  expect(with_value("qwen3_moe", "mlp_only_layers", 0), "config.json: mlp_only_layers: expected an array");
  expect(with_value("qwen3_moe", "mlp_only_layers", {2}),
         "config.json: mlp_only_layers: expected an integer from 0 to 1, got 2");
  expect(with_value("qwen3_moe", "mlp_only_layers", {0, 1}),
         "config.json: as flags: --moe-layer-freq and --num-layers");
  expect(with_value("qwen3_moe", "decoder_sparse_step", 3), "config.json: as flags: --moe-layer-freq and --num-layers");
  expect(with_value("qwen3_moe", "decoder_sparse_step", 0),
         "config.json: decoder_sparse_step: expected an integer from 1");
  expect(with_value("qwen3_moe", "num_hidden_layers", 268435456), "config.json: as flags: --num-layers");
  for (const char* key : {"n_group", "routed_scaling_factor", "scoring_func", "shared_expert_intermediate_size"})
    expect(with_value("qwen3_moe", key, 2), "config.json: expected known keys only, got '" + std::string(key) + "'");
  // Nor do keys of experts mean anything to a dense model.
  expect(with_value("qwen3", "num_experts", 2), "config.json: expected known keys only, got 'num_experts'");
}

TEST(HfConfigMoe, NamesTheFlagsThatNoFamilyHas) {
  const auto expect = [](const ModelConfig& model, const std::string& got) {
    EXPECT_ERROR(ExitCode::kUsage,
                 "--to hf: expected with experts a Mixtral or Qwen3-MoE, got " + got + "; transformers has no such",
                 hf_family(model));
  };
  const ModelConfig mixtral = parse(golden_json("mixtral"));
  ModelConfig model = mixtral;  // as DeepSeek-V3 routes
  model.moe.router_score_function = MoeScoreFunction::kSigmoid;
  model.moe.router_enable_expert_bias = true;
  model.moe.router_topk_scaling_factor = 2.5;
  model.moe.router_num_groups = model.moe.router_group_topk = 2;
  model.moe.shared_expert_intermediate_size = 16;
  model.qk_layernorm = true;
  expect(model,
         "--moe-router-score-function sigmoid, --moe-router-enable-expert-bias, --moe-router-topk-scaling-factor, "
         "--moe-router-num-groups, --moe-shared-expert-intermediate-size");
  model = mixtral;
  model.moe.router_pre_softmax = true;
  model.moe.layer_freq = "[0]+[1]";
  model.add_qkv_bias = true;
  expect(model,
         "--moe-router-pre-softmax without --qk-layernorm, --moe-layer-freq without --qk-layernorm, biases without "
         "--qk-layernorm");
  model = mixtral;
  model.moe.layer_freq = "[1]*2";
  EXPECT_EQ(hf_family(model), HfFamily::kMixtral);
  model.position_embedding_type = PositionEmbedding::kLearnedAbsolute;
  expect(model, "--position-embedding-type learned_absolute");
  model = mixtral;
  model.hf_model_type = HfModelType::kMistral;
  EXPECT_ERROR(ExitCode::kUsage, "--hf-model-type mistral: expected a Mistral, got --num-experts; leave",
               hf_family(model));
}

}  // namespace
}  // namespace megalith
