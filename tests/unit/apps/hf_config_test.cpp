// config.json of transformers: what it says, what is refused.
#include "core/hf/hf_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/config.h"
#include "tests/unit/apps/flags_support.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace megalith {
namespace {

using nlohmann::json;

std::string golden_text(const std::string& family) {
  return test::read_file(MEGALITH_SOURCE_DIR "/tests/hf/golden/" + family + "/config.json");
}
ModelConfig golden_model(const std::string& family) { return parse_hf_config(golden_text(family), "config.json"); }

std::string with(const std::string& family, const std::string& key, const json& value) {
  json text = json::parse(golden_text(family));
  text[key] = value;
  return text.dump();
}
std::string without(const std::string& family, const std::string& key) {
  json text = json::parse(golden_text(family));
  text.erase(key);
  return text.dump();
}

void expect_same(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.num_layers, b.num_layers);
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.ffn_hidden_size, b.ffn_hidden_size);
  EXPECT_EQ(a.num_attention_heads, b.num_attention_heads);
  EXPECT_EQ(a.num_query_groups, b.num_query_groups);
  EXPECT_EQ(a.kv_channels, b.kv_channels);
  EXPECT_EQ(a.max_position_embeddings, b.max_position_embeddings);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.padded_vocab_size, b.padded_vocab_size);
  EXPECT_EQ(a.position_embedding_type, b.position_embedding_type);
  EXPECT_EQ(a.rotary_base, b.rotary_base);
  EXPECT_EQ(a.rotary_scaling(), b.rotary_scaling());
  EXPECT_EQ(a.normalization, b.normalization);
  EXPECT_EQ(a.norm_epsilon, b.norm_epsilon);
  EXPECT_EQ(a.qk_layernorm, b.qk_layernorm);
  EXPECT_EQ(a.swiglu, b.swiglu);
  EXPECT_EQ(a.activation_func, b.activation_func);
  EXPECT_EQ(a.add_bias_linear, b.add_bias_linear);
  EXPECT_EQ(a.has_qkv_bias(), b.has_qkv_bias());
  EXPECT_EQ(a.has_attn_proj_bias(), b.has_attn_proj_bias());
  EXPECT_EQ(a.hf_model_type, b.hf_model_type);
  EXPECT_EQ(attention_windows(a), attention_windows(b));
  EXPECT_EQ(a.untie_embeddings_and_output_weights, b.untie_embeddings_and_output_weights);
}

TEST(HfConfig, ReadsGpt2) {
  const ModelConfig model = golden_model("gpt2");
  EXPECT_EQ(model.num_layers, 2);
  EXPECT_EQ(model.hidden_size, 32);
  EXPECT_EQ(model.num_attention_heads, 4);
  EXPECT_EQ(model.num_query_groups, 4);
  EXPECT_EQ(model.kv_channels, 8);
  EXPECT_EQ(model.ffn_hidden_size, 16);
  EXPECT_EQ(model.vocab_size, 40);
  EXPECT_EQ(model.seq_length, 16);
  EXPECT_EQ(model.max_position_embeddings, 16);
  EXPECT_EQ(model.normalization, Normalization::kLayerNorm);
  EXPECT_EQ(model.activation_func, ActivationFunction::kGeluTanh);
  EXPECT_TRUE(model.add_bias_linear);
  EXPECT_FALSE(model.untie_embeddings_and_output_weights);
  EXPECT_EQ(hf_family(model), HfFamily::kGpt2);
}

// As the files of 2019 have it, with what they leave out.
TEST(HfConfig, ReadsThePublishedGpt2) {
  const ModelConfig model = parse_hf_config(
      R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
          "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
          "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
          "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
          "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
          "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257})",
      "config.json");
  EXPECT_EQ(model.ffn_hidden_size, 3072);
  EXPECT_EQ(model.padded_vocab_size, 50304);
  EXPECT_FALSE(model.untie_embeddings_and_output_weights);
  EXPECT_EQ(count_parameters(model).total - count_parameters(model).padding, 124'439'808);
}

TEST(HfConfig, ReadsLlamaAndQwen) {
  const ModelConfig llama = golden_model("llama"), qwen2 = golden_model("qwen2"), qwen3 = golden_model("qwen3");
  for (const ModelConfig& model : {llama, qwen2, qwen3}) {
    EXPECT_EQ(model.num_query_groups, 2);
    EXPECT_EQ(model.normalization, Normalization::kRmsNorm);
    EXPECT_EQ(model.position_embedding_type, PositionEmbedding::kRope);
    EXPECT_TRUE(model.swiglu);
    EXPECT_FALSE(model.add_bias_linear);
  }
  EXPECT_EQ(llama.rotary_base, 500000.0);
  EXPECT_EQ(llama.norm_epsilon, 1e-5);
  EXPECT_TRUE(llama.untie_embeddings_and_output_weights);
  EXPECT_FALSE(llama.add_qkv_bias || llama.qk_layernorm);
  EXPECT_TRUE(qwen2.add_qkv_bias && !qwen2.qk_layernorm && !qwen2.untie_embeddings_and_output_weights);
  EXPECT_TRUE(qwen3.qk_layernorm && !qwen3.add_qkv_bias);
  EXPECT_EQ(qwen3.kv_channels, 16);
  EXPECT_EQ(hf_family(llama), HfFamily::kLlama);
  EXPECT_EQ(hf_family(qwen2), HfFamily::kQwen2);
  EXPECT_EQ(hf_family(qwen3), HfFamily::kQwen3);
  ModelConfig biased = qwen2;  // all biases make a Llama with attention_bias and mlp_bias
  biased.add_bias_linear = true;
  EXPECT_EQ(hf_family(biased), HfFamily::kLlama);
}

TEST(HfConfig, ReadsTheScaledRopeAndTheAttentionBiasOfALlama) {
  const ModelConfig model = golden_model("llama31");
  EXPECT_TRUE(model.use_rope_scaling);
  EXPECT_EQ(model.rope_scaling, (RopeScaling{.kind = RopeScalingKind::kLlama3,
                                             .factor = 4,
                                             .low_freq_factor = 1,
                                             .high_freq_factor = 8,
                                             .original_max_position_embeddings = 512}));
  EXPECT_EQ(model.rotary_base, 500000.0);
  EXPECT_TRUE(model.add_qkv_bias && model.add_attn_proj_bias && !model.add_bias_linear);
  EXPECT_EQ(hf_family(model), HfFamily::kLlama);
  EXPECT_FALSE(golden_model("llama").use_rope_scaling);
}

// As Llama 3.1 8B was published.
TEST(HfConfig, ReadsThePublishedLlama31) {
  const ModelConfig model = parse_hf_config(
      R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
          "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096,
          "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
          "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
          "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
          "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
          "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256})",
      "config.json");
  EXPECT_TRUE(model.use_rope_scaling);
  EXPECT_EQ(model.rope_scaling, ModelConfig{}.rope_scaling);  // Megatron's defaults are this model's
  EXPECT_EQ(model.rotary_base, 500000.0);
  EXPECT_EQ(count_parameters(model).total, 8'030'261'248);
}

TEST(HfConfig, TakesTheScalingFromEitherObject) {
  const json scaling = json::parse(golden_text("llama31")).at("rope_parameters");
  json old = json::parse(without("llama31", "rope_parameters"));
  old["rope_scaling"] = scaling;
  expect_same(parse_hf_config(old.dump(), "config.json"), golden_model("llama31"));
  old["rope_scaling"]["type"] = old["rope_scaling"]["rope_type"];
  old["rope_scaling"].erase("rope_type");
  expect_same(parse_hf_config(old.dump(), "config.json"), golden_model("llama31"));
  expect_same(parse_hf_config(with("llama31", "rope_scaling", scaling), "config.json"), golden_model("llama31"));
  old["rope_scaling"].erase("original_max_position_embeddings");
  EXPECT_EQ(parse_hf_config(old.dump(), "config.json").rope_scaling.original_max_position_embeddings, 1024);
  json other = scaling;
  other["factor"] = 5;
  EXPECT_ERROR(ExitCode::kFormat,
               "config.json: rope_parameters: expected the rope_type and factors that rope_scaling has, got others",
               parse_hf_config(with("llama31", "rope_scaling", other), "config.json"));
  EXPECT_ERROR(ExitCode::kFormat, "config.json: rope_parameters: expected the rope_type and factors",
               parse_hf_config(with("llama31", "rope_scaling", {{"rope_type", "default"}}), "config.json"));
}

TEST(HfConfig, ReadsAMistral) {
  const ModelConfig mistral = golden_model("mistral");
  EXPECT_EQ(hf_family(mistral), HfFamily::kMistral);
  EXPECT_FALSE(mistral.add_bias_linear || mistral.has_qkv_bias() || mistral.qk_layernorm);
  EXPECT_TRUE(mistral.window_size.empty());
  json groups = json::parse(without("mistral", "num_key_value_heads"));  // Mistral's own default
  groups["num_attention_heads"] = 16;
  EXPECT_EQ(parse_hf_config(groups.dump(), "config.json").num_query_groups, 8);
  groups["num_key_value_heads"] = nullptr;
  EXPECT_EQ(parse_hf_config(groups.dump(), "config.json").num_query_groups, 16);
}

TEST(HfConfig, ReadsBiasesNextToQkNorm) {
  const ModelConfig model = parse_hf_config(with("qwen3", "attention_bias", true), "config.json");
  EXPECT_TRUE(model.qk_layernorm && model.add_qkv_bias && model.add_attn_proj_bias && !model.add_bias_linear);
  EXPECT_EQ(hf_family(model), HfFamily::kQwen3);
}

TEST(HfConfig, KnowsBothNamesOfGelusTanhForm) {
  for (const char* name : {"gelu_new", "gelu_pytorch_tanh"}) {
    const ModelConfig model = parse_hf_config(with("gpt2", "activation_function", name), "config.json");
    EXPECT_EQ(model.activation_func, ActivationFunction::kGeluTanh) << name;
  }
  EXPECT_EQ(parse_hf_config(with("gpt2", "activation_function", "gelu"), "config.json").activation_func,
            ActivationFunction::kGelu);
}

TEST(HfConfig, TakesRopeThetaFromBothObjectsIfTheyAgree) {
  const auto text = [](double theta) {
    return with("llama", "rope_scaling", {{"rope_type", "default"}, {"rope_theta", theta}});
  };
  EXPECT_EQ(parse_hf_config(text(5e5), "config.json").rotary_base, 5e5);
  EXPECT_ERROR(ExitCode::kFormat,
               "config.json: rope_parameters: rope_theta: expected the value that rope_scaling has, got 500000 and "
               "10000",
               parse_hf_config(text(1e4), "config.json"));
}

TEST(HfConfig, ReadsTheKeysOfTransformers4) {
  json text = json::parse(without("llama", "rope_parameters"));
  for (const char* key : {"dtype", "head_dim", "num_key_value_heads", "attention_bias", "mlp_bias"}) text.erase(key);
  text.update({{"rope_theta", 250000}, {"rope_scaling", nullptr}, {"torch_dtype", "bfloat16"}, {"_name_or_path", "x"}});
  const ModelConfig model = parse_hf_config(text.dump(), "config.json");
  EXPECT_EQ(model.rotary_base, 250000.0);
  EXPECT_EQ(model.num_query_groups, 4);
  EXPECT_EQ(model.kv_channels, 8);
  text.erase("rope_theta");
  EXPECT_EQ(parse_hf_config(text.dump(), "config.json").rotary_base, 10000.0);
}

// Keys of published files that transformers does not read: of Qwen2.5, and of gpt2-medium and gpt2-xl.
TEST(HfConfig, ReadsThePublishedKeysWithoutMeaning) {
  expect_same(parse_hf_config(with("qwen2", "use_mrope", false), "config.json"), golden_model("qwen2"));
  EXPECT_ERROR(ExitCode::kFormat, "config.json: use_mrope: expected false",
               parse_hf_config(with("qwen2", "use_mrope", true), "config.json"));
  json text = json::parse(golden_text("gpt2"));
  text.update({{"n_special", 0}, {"predict_special_tokens", true}, {"output_past", true}});
  expect_same(parse_hf_config(text.dump(), "config.json"), golden_model("gpt2"));
}

TEST(HfConfig, WhatIsWrittenReadsBack) {
  std::vector<ModelConfig> models = {
      golden_model("gpt2"),       golden_model("llama"),        golden_model("qwen2"),
      golden_model("qwen3"),      golden_model("llama31"),      golden_model("mistral"),
      golden_model("llama_yarn"), golden_model("llama_linear"), golden_model("qwen3_yarn")};
  models.push_back(models[0]);
  models.back().untie_embeddings_and_output_weights = true;
  models.back().activation_func = ActivationFunction::kGelu;
  models.push_back(models[1]);
  models.back().add_bias_linear = true;
  models.back().untie_embeddings_and_output_weights = false;
  models.push_back(models[3]);
  models.back().add_qkv_bias = models.back().add_attn_proj_bias = true;
  for (const ModelConfig& model : models) {
    const std::string text = hf_config_text(model, {.eos = 3});
    SCOPED_TRACE(text);
    expect_same(parse_hf_config(text, "config.json"), model);
    const json written = json::parse(text);
    EXPECT_EQ(written.at("eos_token_id"), 3);
    EXPECT_EQ(written.at("dtype"), written.at("torch_dtype"));
    if (hf_family(model) == HfFamily::kGpt2) continue;
    EXPECT_EQ(written.at("rope_theta"), written.at("rope_parameters").at("rope_theta"));
  }
  const json llama31 = json::parse(hf_config_text(models[4], {.eos = 3}));
  EXPECT_EQ(llama31.at("rope_parameters"), json::parse(golden_text("llama31")).at("rope_parameters"));
  EXPECT_EQ(llama31.at("rope_scaling").at("factor"), 4.0);  // all that transformers 4 reads
  EXPECT_TRUE(llama31.at("attention_bias") && !llama31.at("mlp_bias"));
  const json mistral = json::parse(hf_config_text(models[5], {.eos = 3}));
  EXPECT_EQ(mistral.at("model_type"), "mistral");
  EXPECT_EQ(mistral.at("architectures"), json::array({"MistralForCausalLM"}));
  EXPECT_TRUE(mistral.at("sliding_window").is_null());  // where it lacks transformers takes a window
  ModelConfig model = models[0];
  model.params_dtype = DType::kBf16;
  EXPECT_EQ(json::parse(hf_config_text(model, {})).at("dtype"), "bfloat16");
  EXPECT_TRUE(json::parse(hf_config_text(model, {})).at("eos_token_id").is_null());
}

TEST(HfConfig, RefusesWhatAModelCannotSay) {
  const auto expect = [](const std::string& text, const std::string& message) {
    EXPECT_ERROR(ExitCode::kFormat, message, parse_hf_config(text, "config.json"));
  };
  expect(with("gpt2", "model_type", "deepseek_v3"),
         "config.json: model_type: expected gpt2, llama, mistral, qwen2, qwen3, mixtral or qwen3_moe, got "
         "'deepseek_v3'");
  expect(without("gpt2", "n_layer"), "config.json: expected key n_layer, got none");
  expect(with("gpt2", "n_layer", nullptr), "config.json: expected key n_layer, got none");
  expect(with("gpt2", "n_layer", 0), "config.json: n_layer: expected an integer from 1 to 268435456, got 0");
  expect(with("gpt2", "n_layer", 2.5), "config.json: n_layer: expected an integer from 1 to 268435456, got 2.5");
  expect(with("gpt2", "n_layer", 10'001), "config.json: as flags: --num-layers: expected an integer from 1 to 10000");
  expect(with("gpt2", "n_head", 5), "config.json: as flags: --hidden-size and --num-attention-heads");
  expect(with("gpt2", "activation_function", "relu"),
         "config.json: activation_function: expected gelu_new, gelu_pytorch_tanh or gelu, got 'relu'");
  expect(with("gpt2", "scale_attn_by_inverse_layer_idx", true),
         "config.json: scale_attn_by_inverse_layer_idx: expected");
  expect(with("llama", "hidden_act", "gelu"),
         "config.json: hidden_act: expected \"silu\": the MLP is SwiGLU, got 'gelu'");
  expect(with("llama", "mlp_bias", true),
         "config.json: mlp_bias: expected false: biases of the MLP alone are not built, got true");
  expect(with("llama", "rms_norm_eps", "x"), "config.json: rms_norm_eps: expected a finite number above 0, got 'x'");
  expect(with("llama", "rms_norm_eps", 0), "config.json: rms_norm_eps: expected a finite number above 0, got 0");
  expect(with("llama", "rms_norm_eps", -1e-6),
         "config.json: rms_norm_eps: expected a finite number above 0, got -1e-06");
  expect(with("llama", "rope_parameters", {{"rope_type", "llama3"}, {"rope_theta", 1e4}}),
         "config.json: rope_parameters: expected key factor, got none");
  for (const char* type : {"dynamic", "longrope"})
    expect(with("llama", "rope_scaling", {{"type", type}, {"factor", 2}}),
           std::string("config.json: rope_scaling: type: expected default, linear, yarn or llama3: RoPE scaled in "
                       "another way is not built, got '") +
               type + "'");
  json scaled = json::parse(golden_text("llama31"));
  scaled["rope_parameters"]["beta_fast"] = 32;
  expect(scaled.dump(), "config.json: rope_parameters: expected known keys only, got 'beta_fast'");
  scaled["rope_parameters"].erase("beta_fast");
  scaled["rope_parameters"]["low_freq_factor"] = 8;
  expect(scaled.dump(), "config.json: as flags: --rope-scaling-low-freq-factor and --rope-scaling-high-freq-factor");
  scaled["rope_parameters"]["factor"] = 0.5;
  expect(scaled.dump(), "config.json: as flags: --rope-scaling-factor: expected a finite value of at least 1, got 0.5");
  expect(with("llama", "rope_theta", 1e4), "config.json: rope_theta: expected the value that rope_parameters has");
  expect(with("qwen3", "quantization_config", {{"bits", 4}}), "config.json: quantization_config: expected null");
  expect(with("qwen3", "logit_scale", 2),
         "config.json: expected known keys only, got 'logit_scale'; a key that changes neither weights nor arithmetic "
         "may be named by --ignore-config-keys");
  expect(with("qwen3", "bos_token_id eos_token_id", 2), "got 'bos_token_id eos_token_id'; a key that");
  json many = json::parse(golden_text("qwen3"));
  for (int i = 0; i < 13; ++i) many["x" + std::to_string(10 + i)] = i;
  expect(many.dump(), "'x20', 'x21'; a key that");  // the first 12
  expect(with("qwen3", "tie_word_embeddings", "no"), "config.json: tie_word_embeddings: expected true or false");
}

TEST(HfConfig, KeysThatCannotChangeArithmeticAreListed) {
  json text = json::parse(golden_text("qwen3"));
  text["unsloth_version"] = "2025.1";
  text["temperature"] = 0.6;
  text["logit_scale"] = nullptr;
  HfKeys keys;
  expect_same(parse_hf_config(text.dump(), "config.json", &keys), golden_model("qwen3"));
  EXPECT_EQ(keys.passed_over, (std::vector<std::string>{"'logit_scale'", "'temperature'", "'unsloth_version'"}));
  text["logit_scale"] = 2;
  HfKeys others{.ignored = {"another"}};
  const std::string place = "--ignore-config-keys: expected keys that config.json has and convert does not know, got ";
  EXPECT_ERROR(ExitCode::kUsage, place + "'another', which config.json does not have; leave it out",
               parse_hf_config(text.dump(), "config.json", &others));
  others.ignored = {"hidden_size"};
  EXPECT_ERROR(ExitCode::kUsage, place + "'hidden_size', which says what the model is; leave it out",
               parse_hf_config(text.dump(), "config.json", &others));
  others.ignored = {"logit_scale"};
  expect_same(parse_hf_config(text.dump(), "config.json", &others), golden_model("qwen3"));
  EXPECT_EQ(others.passed_over, keys.passed_over);
}

TEST(HfConfig, RefusesHostileText) {
  const auto expect = [](const std::string& text, const std::string& message) {
    EXPECT_ERROR(ExitCode::kFormat, message, parse_hf_config(text, "config.json"));
  };
  expect("", "config.json: expected UTF-8 JSON");
  expect("[]", "config.json: expected an object");
  expect("{", "config.json: expected UTF-8 JSON");
  expect(R"({"model_type": "gpt2", "model_type": "llama"})", "config.json: expected each name once");
  expect(R"({"model_type": 3})", "config.json: model_type: expected a text, got 3");
  expect(R"({"model_type": "gpt2\nx"})", "got 'gpt2\\x0ax'");
  expect(R"({"model_type": "gpt2", "n_layer": 1e999})", "config.json: expected UTF-8 JSON");
  expect(std::string(40, '['), "config.json: expected at most 32 levels");
  expect(with("llama", "rms_norm_eps", 1.0), "config.json: as flags: --norm-epsilon");
  expect(with("llama", "num_attention_heads", 268435456), "config.json: as flags: --num-attention-heads");
}

TEST(HfConfig, NamesTheFlagsThatNoFamilyHas) {
  ModelConfig model = golden_model("gpt2");
  model.swiglu = true;
  model.qk_layernorm = true;
  EXPECT_ERROR(ExitCode::kUsage,
               "--to hf: expected with learned positions a GPT-2, got --swiglu, --qk-layernorm; transformers has",
               hf_family(model));
  model = golden_model("llama");
  model.normalization = Normalization::kLayerNorm;
  model.rotary_percent = 0.5;
  EXPECT_ERROR(ExitCode::kUsage, "got --rotary-percent, --normalization LayerNorm", hf_family(model));
  model = golden_model("llama");
  model.apply_layernorm_1p = true;  // 1 + weight would be rounded
  EXPECT_ERROR(ExitCode::kUsage, "got --apply-layernorm-1p;", hf_family(model));
  model = golden_model("gpt2");
  model.squared_relu = model.apply_layernorm_1p = true;
  EXPECT_ERROR(ExitCode::kUsage, "got --squared-relu, --apply-layernorm-1p;", hf_family(model));
  model = golden_model("qwen3");
  model.add_qkv_bias = true;
  EXPECT_ERROR(ExitCode::kUsage, "got --qk-layernorm with --add-qkv-bias alone;", hf_family(model));
  model.add_bias_linear = true;
  EXPECT_ERROR(ExitCode::kUsage, "got --qk-layernorm with biases of the MLP;", hf_family(model));
  model = golden_model("llama");
  model.add_attn_proj_bias = true;
  EXPECT_ERROR(ExitCode::kUsage, "got --add-attn-proj-bias without --add-qkv-bias;", hf_family(model));
  model = golden_model("mistral");
  model.add_qkv_bias = model.qk_layernorm = true;
  EXPECT_ERROR(ExitCode::kUsage,
               "--hf-model-type mistral: expected a Mistral, got --qk-layernorm, biases; leave --hf-model-type out",
               hf_family(model));
}

}  // namespace
}  // namespace megalith
