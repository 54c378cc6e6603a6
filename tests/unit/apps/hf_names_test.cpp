// Which tensor of transformers is which of ours.
#include "core/hf/hf_names.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <numeric>
#include <set>

#include "core/model/config.h"
#include "core/model/gpt.h"
#include "moe/moe_layer.h"

namespace megalith {
namespace {

using Values = std::vector<std::uint16_t>;

constexpr std::array kNamedFamilies = {HfFamily::kGpt2,  HfFamily::kLlama,   HfFamily::kMistral, HfFamily::kQwen2,
                                       HfFamily::kQwen3, HfFamily::kMixtral, HfFamily::kQwen3Moe};

ModelConfig model_of(HfFamily family) {
  ModelConfig model{.num_layers = 2,
                    .hidden_size = 12,
                    .ffn_hidden_size = 20,
                    .num_attention_heads = 4,
                    .seq_length = 9,
                    .vocab_size = 21,
                    .make_vocab_size_divisible_by = 8};
  if (family != HfFamily::kGpt2) {
    model.num_query_groups = 2;
    model.kv_channels = 5;
    model.position_embedding_type = PositionEmbedding::kRope;
    model.normalization = Normalization::kRmsNorm;
    model.swiglu = true;
    model.add_bias_linear = false;
    model.untie_embeddings_and_output_weights = true;
  }
  model.add_qkv_bias = family == HfFamily::kQwen2;
  model.qk_layernorm = family == HfFamily::kQwen3 || family == HfFamily::kQwen3Moe;
  if (family == HfFamily::kMixtral) model.moe = {.num_experts = 3};
  if (family == HfFamily::kQwen3Moe) model.moe = {.num_experts = 3, .layer_freq = "[0]+[1]", .ffn_hidden_size = 7};
  if (family == HfFamily::kMistral) model.hf_model_type = HfModelType::kMistral;
  resolve(model);
  return model;
}

// Name and shape of every parameter of the model itself.
std::map<std::string, std::string> parameters_of(const ModelConfig& model) {
  std::map<std::string, std::string> shapes;
  const GptModel gpt = build_gpt(model, {}, {.moe = moe_factory()});
  for (const ParameterUnit& unit : gpt.parameters->units()) {
    for (const Parameter* parameter : unit.parameters) {
      for (const LogicalTensor& part : parameter->parts) shapes[part.name] = to_string(part.global_shape);
    }
  }
  return shapes;
}

TEST(HfNames, CoverEveryParameterOnce) {
  std::vector<ModelConfig> models;
  for (const HfFamily family : kNamedFamilies) models.push_back(model_of(family));
  models.push_back(models[0]);
  models.back().untie_embeddings_and_output_weights = true;
  models.push_back(models[1]);
  models.back().add_bias_linear = true;
  models.push_back(models[1]);  // attention_bias alone
  models.back().add_qkv_bias = models.back().add_attn_proj_bias = true;
  for (const ModelConfig& model : models) {
    for (const HfFusion fusion : {HfFusion{}, HfFusion{.qkv = true}, HfFusion{.gate_up = true},
                                  HfFusion{.experts = true}, HfFusion{true, true, true}}) {
      std::map<std::string, std::string> shapes;
      std::map<std::string, std::int64_t> rows_left;
      std::set<std::string> names;
      for (const HfTensor& tensor : hf_tensors(model, fusion)) {
        EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
        std::int64_t rows = 0;
        for (const HfPart& part : tensor.parts) {
          EXPECT_EQ(part.first, rows) << part.name;
          rows += part.rows;
          shapes.emplace(part.name, to_string(part.whole));
          std::int64_t& left = rows_left.try_emplace(part.name, part.whole[0]).first->second;
          EXPECT_EQ(part.begin, part.whole[0] - left) << part.name;
          left -= part.shape[0];
          EXPECT_TRUE(part.rows == part.shape[0] || part.shape[0] == model.padded_vocab_size) << part.name;
        }
        EXPECT_EQ(tensor.rows(), rows) << tensor.name;
      }
      EXPECT_EQ(shapes, parameters_of(model)) << name_of(hf_family(model));
      for (const auto& [name, left] : rows_left) EXPECT_EQ(left, 0) << name;
    }
  }
}

TEST(HfNames, AreThoseOfTransformers) {
  std::map<std::string, HfTensor> gpt2, qwen2;
  for (HfTensor& tensor : hf_tensors(model_of(HfFamily::kGpt2))) gpt2[tensor.name] = tensor;
  for (HfTensor& tensor : hf_tensors(model_of(HfFamily::kQwen2))) qwen2[tensor.name] = tensor;
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(gpt2.at("transformer.wte.weight").shape, (Shape{21, 12}));
  EXPECT_EQ(gpt2.at("transformer.wpe.weight").shape, (Shape{9, 12}));
  EXPECT_EQ(gpt2.at("transformer.h.1.attn.c_attn.weight").shape, (Shape{12, 36}));
  EXPECT_EQ(gpt2.at("transformer.h.1.attn.c_attn.bias").shape, (Shape{36}));
  EXPECT_EQ(gpt2.at("transformer.h.1.mlp.c_fc.weight").shape, (Shape{12, 20}));
  EXPECT_EQ(gpt2.at("transformer.h.1.mlp.c_proj.weight").shape, (Shape{20, 12}));
  EXPECT_TRUE(gpt2.at("transformer.h.1.mlp.c_proj.weight").transposed);
  EXPECT_FALSE(gpt2.contains("lm_head.weight"));
  EXPECT_EQ(qwen2.at("model.layers.1.self_attn.k_proj.weight").shape, (Shape{10, 12}));
  EXPECT_EQ(qwen2.at("model.layers.1.self_attn.k_proj.bias").shape, (Shape{10}));
  EXPECT_EQ(qwen2.at("model.layers.1.self_attn.o_proj.weight").shape, (Shape{12, 20}));
  EXPECT_FALSE(qwen2.contains("model.layers.1.self_attn.o_proj.bias"));
  EXPECT_EQ(qwen2.at("model.layers.1.mlp.down_proj.weight").shape, (Shape{12, 20}));
  EXPECT_EQ(qwen2.at("lm_head.weight").shape, (Shape{21, 12}));
}

// What save_pretrained of transformers 5 writes, and with save_original_format=False.
TEST(HfNames, ExpertsSeparatelyAndTogether) {
  using Shapes = std::map<std::string, std::vector<std::int64_t>>;
  const auto shapes = [](HfFamily family, bool together) {
    const std::string layer = "model.layers.1.";
    Shapes all;
    for (const HfTensor& tensor : hf_tensors(model_of(family), {.experts = together})) {
      const std::string name = tensor.name.starts_with(layer) ? tensor.name.substr(layer.size()) : "";
      if (name.starts_with("mlp.") || name.starts_with("block_sparse_moe.")) all[name] = tensor.shape;
    }
    return all;
  };
  Shapes mixtral{{"block_sparse_moe.gate.weight", {3, 12}}}, qwen3{{"mlp.gate.weight", {3, 12}}};
  for (const std::string e : {"0", "1", "2"}) {
    for (const char* name : {".w1.weight", ".w3.weight"}) mixtral["block_sparse_moe.experts." + e + name] = {20, 12};
    mixtral["block_sparse_moe.experts." + e + ".w2.weight"] = {12, 20};
    for (const char* name : {".gate_proj.weight", ".up_proj.weight"}) qwen3["mlp.experts." + e + name] = {7, 12};
    qwen3["mlp.experts." + e + ".down_proj.weight"] = {12, 7};
  }
  EXPECT_EQ(shapes(HfFamily::kMixtral, false), mixtral);
  EXPECT_EQ(shapes(HfFamily::kQwen3Moe, false), qwen3);
  for (const auto& [family, ffn] : {std::pair(HfFamily::kMixtral, 20), std::pair(HfFamily::kQwen3Moe, 7)}) {
    EXPECT_EQ(shapes(family, true), (Shapes{{"mlp.gate.weight", {3, 12}},
                                            {"mlp.experts.gate_up_proj", {3, 2 * ffn, 12}},
                                            {"mlp.experts.down_proj", {3, 12, ffn}}}));
  }
  std::map<std::string, HfTensor> together;
  for (HfTensor& tensor : hf_tensors(model_of(HfFamily::kMixtral), {.experts = true})) together[tensor.name] = tensor;
  const HfPart& up = together.at("model.layers.1.mlp.experts.gate_up_proj").parts[3];  // of expert 1
  EXPECT_EQ(up.name, "decoder.layers.1.mlp.experts.linear_up.weight");
  EXPECT_EQ(up.first, 60);  // behind two gates and an up
  EXPECT_EQ(up.begin, 20);
  EXPECT_EQ(up.whole, (Shape{60, 12}));
}

TEST(HfNames, PrefixesAndBuffers) {
  EXPECT_EQ(with_hf_prefix(HfFamily::kGpt2, "wte.weight"), "transformer.wte.weight");
  EXPECT_EQ(with_hf_prefix(HfFamily::kGpt2, "transformer.wte.weight"), "transformer.wte.weight");
  EXPECT_EQ(with_hf_prefix(HfFamily::kLlama, "norm.weight"), "model.norm.weight");
  EXPECT_EQ(with_hf_prefix(HfFamily::kQwen3, "lm_head.weight"), "lm_head.weight");
  EXPECT_TRUE(is_hf_buffer(HfFamily::kGpt2, "transformer.h.3.attn.bias"));
  EXPECT_TRUE(is_hf_buffer(HfFamily::kGpt2, "transformer.h.3.attn.masked_bias"));
  EXPECT_FALSE(is_hf_buffer(HfFamily::kGpt2, "transformer.h.3.attn.c_attn.bias"));
  EXPECT_TRUE(is_hf_buffer(HfFamily::kLlama, "model.layers.3.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(is_hf_buffer(HfFamily::kLlama, "model.layers.3.self_attn.q_proj.bias"));
}

// Two inputs, three parts of 1, 2 and 1 outputs; element 10 o + i is output o of input i.
TEST(HfNames, FusedAndTransposed) {
  const HfTensor tensor{.name = "c_attn",
                        .shape = {2, 4},
                        .transposed = true,
                        .parts = {{.name = "q", .shape = {1, 2}, .rows = 1, .first = 0},
                                  {.name = "k", .shape = {2, 2}, .rows = 2, .first = 1},
                                  {.name = "v", .shape = {1, 2}, .rows = 1, .first = 3}}};
  const Values theirs = {0, 10, 20, 30, 1, 11, 21, 31};
  Values k(4, 99), back(8, 99);
  take_hf_part(tensor, 1, 2, std::as_bytes(std::span(theirs)), std::as_writable_bytes(std::span(k)));
  EXPECT_EQ(k, (Values{10, 11, 20, 21}));
  for (std::size_t i = 0; i < 3; ++i) {
    Values part(static_cast<std::size_t>(tensor.parts[i].shape.numel()));
    take_hf_part(tensor, i, 2, std::as_bytes(std::span(theirs)), std::as_writable_bytes(std::span(part)));
    put_hf_part(tensor, i, 2, std::as_bytes(std::span(part)), std::as_writable_bytes(std::span(back)));
  }
  EXPECT_EQ(back, theirs);
}

TEST(HfNames, PaddingIsZerosAndIsLeftOut) {
  const HfTensor table{
      .name = "wte", .shape = {3, 2}, .parts = {{.name = "words", .shape = {4, 2}, .rows = 3, .first = 0}}};
  const Values theirs = {1, 2, 3, 4, 5, 6};
  Values ours(8, 99), back(6);
  take_hf_part(table, 0, 2, std::as_bytes(std::span(theirs)), std::as_writable_bytes(std::span(ours)));
  EXPECT_EQ(ours, (Values{1, 2, 3, 4, 5, 6, 0, 0}));
  ours[6] = ours[7] = 77;
  put_hf_part(table, 0, 2, std::as_bytes(std::span(ours)), std::as_writable_bytes(std::span(back)));
  EXPECT_EQ(back, theirs);
}

// Every tensor of every family, both element sizes: out and in again gives the same bytes.
TEST(HfNames, OutAndInAgain) {
  for (const HfFamily family : kNamedFamilies) {
    for (const HfTensor& tensor : hf_tensors(model_of(family), {.qkv = true, .gate_up = true, .experts = true})) {
      for (const std::size_t item : {std::size_t{2}, std::size_t{4}}) {
        std::vector<std::byte> theirs(static_cast<std::size_t>(tensor.rows() * tensor.columns()) * item);
        for (std::size_t i = 0; i < theirs.size(); ++i) theirs[i] = static_cast<std::byte>(i * 37 + i / 251);
        std::vector<std::byte> back(theirs.size());
        for (std::size_t i = 0; i < tensor.parts.size(); ++i) {
          std::vector<std::byte> ours(static_cast<std::size_t>(tensor.parts[i].shape.numel()) * item);
          take_hf_part(tensor, i, item, theirs, ours);
          put_hf_part(tensor, i, item, ours, back);
        }
        EXPECT_EQ(back, theirs) << tensor.name;
      }
    }
  }
}

}  // namespace
}  // namespace megalith
