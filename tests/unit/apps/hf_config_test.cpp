// config.json and the index of transformers: what they say, what is refused.
#include "apps/hf_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/hf_files.h"
#include "core/base/error.h"
#include "tests/unit/apps/flags_support.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace megalith {
namespace {

using nlohmann::json;

std::string golden_text(const std::string& family) {
  return test::read_file(MEGALITH_SOURCE_DIR "/tests/hf/golden/" + family + "/config.json");
}
ModelConfig golden(const std::string& family) { return parse_hf_config(golden_text(family), "config.json"); }

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
  EXPECT_EQ(a.normalization, b.normalization);
  EXPECT_EQ(a.norm_epsilon, b.norm_epsilon);
  EXPECT_EQ(a.qk_layernorm, b.qk_layernorm);
  EXPECT_EQ(a.swiglu, b.swiglu);
  EXPECT_EQ(a.activation_func, b.activation_func);
  EXPECT_EQ(a.add_bias_linear, b.add_bias_linear);
  EXPECT_EQ(a.add_qkv_bias, b.add_qkv_bias);
  EXPECT_EQ(a.untie_embeddings_and_output_weights, b.untie_embeddings_and_output_weights);
}

TEST(HfConfig, ReadsGpt2) {
  const ModelConfig model = golden("gpt2");
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
  EXPECT_EQ(num_parameters(model) - count_parameters(model).padding, 124'439'808);
}

TEST(HfConfig, ReadsLlamaAndQwen) {
  const ModelConfig llama = golden("llama"), qwen2 = golden("qwen2"), qwen3 = golden("qwen3");
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
  expect_same(parse_hf_config(with("qwen2", "use_mrope", false), "config.json"), golden("qwen2"));
  EXPECT_ERROR(ExitCode::kFormat, "config.json: use_mrope: expected false",
               parse_hf_config(with("qwen2", "use_mrope", true), "config.json"));
  json text = json::parse(golden_text("gpt2"));
  text.update({{"n_special", 0}, {"predict_special_tokens", true}, {"output_past", true}});
  expect_same(parse_hf_config(text.dump(), "config.json"), golden("gpt2"));
}

TEST(HfConfig, WhatIsWrittenReadsBack) {
  std::vector<ModelConfig> models = {golden("gpt2"), golden("llama"), golden("qwen2"), golden("qwen3")};
  models.push_back(models[0]);
  models.back().untie_embeddings_and_output_weights = true;
  models.back().activation_func = ActivationFunction::kGelu;
  models.push_back(models[1]);
  models.back().add_bias_linear = true;
  models.back().untie_embeddings_and_output_weights = false;
  for (const ModelConfig& model : models) {
    const std::string text = hf_config_text(model, 3);
    SCOPED_TRACE(text);
    expect_same(parse_hf_config(text, "config.json"), model);
    const json written = json::parse(text);
    EXPECT_EQ(written.at("eos_token_id"), 3);
    EXPECT_EQ(written.at("dtype"), written.at("torch_dtype"));
    if (hf_family(model) == HfFamily::kGpt2) continue;
    EXPECT_EQ(written.at("rope_theta"), written.at("rope_parameters").at("rope_theta"));
  }
  ModelConfig model = models[0];
  model.params_dtype = DType::kBf16;
  EXPECT_EQ(json::parse(hf_config_text(model, std::nullopt)).at("dtype"), "bfloat16");
  EXPECT_TRUE(json::parse(hf_config_text(model, std::nullopt)).at("eos_token_id").is_null());
}

TEST(HfConfig, RefusesWhatAModelCannotSay) {
  const auto expect = [](const std::string& text, const std::string& message) {
    EXPECT_ERROR(ExitCode::kFormat, message, parse_hf_config(text, "config.json"));
  };
  expect(with("gpt2", "model_type", "mixtral"),
         "config.json: model_type: expected gpt2, llama, qwen2 or qwen3, got 'mixtral'");
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
  expect(with("llama", "mlp_bias", true), "config.json: attention_bias and mlp_bias: expected both or neither");
  expect(with("llama", "rms_norm_eps", "x"), "config.json: rms_norm_eps: expected a finite number above 0, got 'x'");
  expect(with("llama", "rms_norm_eps", 0), "config.json: rms_norm_eps: expected a finite number above 0, got 0");
  expect(with("llama", "rms_norm_eps", -1e-6),
         "config.json: rms_norm_eps: expected a finite number above 0, got -1e-06");
  expect(with("llama", "rope_parameters", {{"rope_type", "llama3"}, {"rope_theta", 1e4}}),
         "config.json: rope_parameters: rope_type: expected \"default\": scaled RoPE is not built, got 'llama3'");
  expect(with("llama", "rope_scaling", {{"type", "linear"}, {"factor", 2}}),
         "config.json: rope_scaling: type: expected \"default\": scaled RoPE is not built, got 'linear'");
  expect(with("llama", "rope_theta", 1e4), "config.json: rope_theta: expected the value that rope_parameters has");
  expect(with("qwen2", "use_sliding_window", true), "config.json: use_sliding_window: expected false");
  expect(with("qwen2", "layer_types", {"full_attention", "sliding_attention"}),
         "config.json: layer_types: expected full_attention in all layers, got 'sliding_attention'");
  expect(with("qwen3", "attention_bias", true), "config.json: attention_bias: expected false");
  expect(with("qwen3", "quantization_config", {{"bits", 4}}), "config.json: quantization_config: expected null");
  expect(with("qwen3", "logit_scale", 2), "config.json: expected known keys only, got 'logit_scale'; remove those");
  expect(with("qwen3", "bos_token_id eos_token_id", 2), "got 'bos_token_id eos_token_id'; remove those");
  json many = json::parse(golden_text("qwen3"));
  for (int i = 0; i < 13; ++i) many["x" + std::to_string(10 + i)] = i;
  expect(many.dump(), "'x20', 'x21'; remove those");  // the first 12
  expect(with("qwen3", "tie_word_embeddings", "no"), "config.json: tie_word_embeddings: expected true or false");
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
  ModelConfig model = golden("gpt2");
  model.swiglu = true;
  model.qk_layernorm = true;
  EXPECT_ERROR(ExitCode::kUsage,
               "--to hf: expected with learned positions a GPT-2, got --swiglu, --qk-layernorm; transformers has",
               hf_family(model));
  model = golden("llama");
  model.normalization = Normalization::kLayerNorm;
  model.rotary_percent = 0.5;
  EXPECT_ERROR(ExitCode::kUsage, "got --rotary-percent, --normalization LayerNorm", hf_family(model));
  model = golden("qwen3");
  model.add_qkv_bias = true;
  EXPECT_ERROR(ExitCode::kUsage, "got --qk-layernorm with biases", hf_family(model));
}

TEST(HfIndex, ReadsAndWrites) {
  const std::map<std::string, std::string> files = {{"a.weight", "model-00001-of-00002.safetensors"},
                                                    {"b.weight", "model-00002-of-00002.safetensors"}};
  EXPECT_EQ(parse_hf_index(hf_index_text(files, 24), "index"), files);
  EXPECT_EQ(json::parse(hf_index_text(files, 24)).at("metadata").at("total_size"), 24);
  EXPECT_EQ(parse_hf_index(R"({"weight_map": {"a": "b.safetensors"}})", "index").at("a"), "b.safetensors");
}

TEST(HfIndex, RefusesHostileText) {
  const auto expect = [](const std::string& text, const std::string& message) {
    EXPECT_ERROR(ExitCode::kFormat, message, parse_hf_index(text, "index"));
  };
  const auto file = [](const json& name) { return json{{"weight_map", {{"a", name}}}}.dump(); };
  const std::string place = "index: weight_map: 'a': expected the name of a .safetensors file beside the index, got ";
  expect(file("../secret.safetensors"), place + "'../secret.safetensors'");
  expect(file("/etc/x.safetensors"), place);
  expect(file(".safetensors"), place);
  expect(file(".hidden.safetensors"), place);
  expect(file("pytorch_model.bin"), place + "'pytorch_model.bin'");
  expect(file(""), place);
  expect(file(3), "index: weight_map: 'a': expected a text, got 3");
  expect(file(std::string(300, 'x')), "index: weight_map: 'a': expected a text of at most 255 bytes");
  expect("{}", "index: expected key weight_map, got none");
  expect(R"({"weight_map": []})", "index: weight_map: expected an object, got array");
  expect(R"({"weight_map": {}})", "index: weight_map: expected 1 to 1000000 tensors, got 0");
  expect(R"({"weight_map": {"": "a.safetensors"}})", "index: weight_map: expected names of 1 to 1024 bytes");
  expect(R"({"weight_map": {"a": "b.safetensors"}, "more": 1})", "index: expected known keys only, got 'more'");
  expect(R"({"metadata": {"total_size": -1}, "weight_map": {"a": "b.safetensors"}})", "index: total_size: expected");
  expect(R"({"metadata": {"total_size": "x"}, "weight_map": {"a": "b.safetensors"}})",
         "index: total_size: expected a number of bytes, got string");
  expect(R"({"metadata": 3, "weight_map": {"a": "b.safetensors"}})", "index: metadata: expected an object");
  expect(json{{"weight_map", {{std::string(1025, 'x'), "a.safetensors"}}}}.dump(),
         "index: weight_map: expected names of 1 to 1024 bytes");
  json many = json::object();
  for (int i = 0; i < 10'000; ++i) many["a" + std::to_string(i)] = std::to_string(i) + ".safetensors";
  EXPECT_EQ(parse_hf_index(json{{"weight_map", many}}.dump(), "index").size(), 10'000u);
  many["b"] = "b.safetensors";
  expect(json{{"weight_map", many}}.dump(), "index: weight_map: expected at most 10000 files, got 10001");
}

}  // namespace
}  // namespace megalith
