// Results of build_gpt: segments, units, logical names, initial weights.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/model/gpt.h"
#include "tests/support/download.h"
#include "tests/support/matchers.h"
#include "tests/unit/model/model_families.h"

namespace megalith {
namespace {

using testing::IsSupersetOf;

std::vector<std::string> names_of_segments(const GptModel& gpt) {
  std::vector<std::string> names;
  for (const NamedSegment& segment : gpt.segments) names.push_back(segment.name);
  return names;
}

struct Logical {
  Shape shape;
  bool decay = false;
  std::vector<float> values;
};

std::map<std::string, Logical> logical_tensors(const GptModel& gpt, std::uint64_t seed) {
  MemoryPool pool(DeviceType::kCpu);
  Stream stream(DeviceType::kCpu, "test");
  gpt.parameters->allocate(pool, gpt.config->params_dtype);
  gpt.parameters->initialize(stream, seed);
  std::map<std::string, Logical> tensors;
  for (const ParameterUnit& unit : gpt.parameters->units()) {
    for (const Parameter* parameter : unit.parameters) {
      for (std::size_t i = 0; i < parameter->parts.size(); ++i) {
        const Tensor part = parameter->part_of(parameter->weight, i);
        const bool added =
            tensors.try_emplace(parameter->parts[i].name, Logical{part.shape, parameter->decay, download(stream, part)})
                .second;
        EXPECT_TRUE(added) << parameter->parts[i].name << " twice";
        EXPECT_EQ(part.shape, parameter->parts[i].global_shape);
      }
    }
  }
  return tensors;
}

std::vector<std::string> keys(const std::map<std::string, Logical>& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

GptModel build(const ModelConfig& config, const RecomputeLayers& recompute = {}) {
  return build_gpt(config, recompute);
}

double deviation(const std::vector<float>& values) {
  double square = 0;
  for (const float value : values) square += static_cast<double>(value) * value;
  return std::sqrt(square / static_cast<double>(values.size()));
}

TEST(BuildGpt, ListsEmbeddingLayersAndHead) {
  const GptModel gpt = build(test::family("gpt2"));
  EXPECT_THAT(names_of_segments(gpt),
              ElementsAre("embedding", "layer 0 attention", "layer 0 mlp", "layer 1 attention", "layer 1 mlp", "head"));
  std::vector<std::string> units;
  for (const ParameterUnit& unit : gpt.parameters->units()) units.push_back(unit.name);
  EXPECT_THAT(units, ElementsAre("embedding", "layer 0", "layer 1", "head"));
  EXPECT_EQ(gpt.segments[2].first_unit, 1);
  EXPECT_EQ(gpt.segments[2].last_unit, 1);
  EXPECT_EQ(gpt.segments[5].first_unit, 3);
}

TEST(BuildGpt, RecomputedRangesAreOneSegment) {
  ModelConfig config = test::family("gpt2");
  config.num_layers = 4;
  const GptModel gpt = build(
      config, {.ranges = {{.first = 0, .count = 1}, {.first = 2, .count = 2}}, .mlps = {{.first = 0, .count = 4}}});
  EXPECT_THAT(names_of_segments(gpt),
              ElementsAre("embedding", "layer 0", "layer 1 attention", "layer 1 mlp", "layers 2 to 3", "head"));
  EXPECT_EQ(gpt.segments[4].first_unit, 3);
  EXPECT_EQ(gpt.segments[4].last_unit, 4);
  std::vector<std::int64_t> layers;
  for (const NamedSegment& segment : gpt.segments) layers.push_back(segment.layer);
  EXPECT_THAT(layers, ElementsAre(-1, 0, 1, 1, 2, -1));
}

TEST(BuildGpt, Gpt2HasMegatronsTensors) {
  const auto tensors = logical_tensors(build(test::family("gpt2")), 1);
  const std::string l = "decoder.layers.1.";
  EXPECT_THAT(keys(tensors),
              IsSupersetOf(
                  {std::string("embedding.word_embeddings.weight"), std::string("embedding.position_embeddings.weight"),
                   l + "input_layernorm.weight", l + "input_layernorm.bias", l + "self_attention.linear_q.bias",
                   l + "self_attention.linear_k.weight", l + "self_attention.linear_v.weight",
                   l + "self_attention.linear_proj.bias", l + "pre_mlp_layernorm.weight", l + "mlp.linear_fc1.weight",
                   l + "mlp.linear_fc2.bias", std::string("decoder.final_layernorm.bias")}));
  EXPECT_EQ(tensors.size(), 2u + 2 * 16 + 2);
  EXPECT_EQ(tensors.at("embedding.word_embeddings.weight").shape, (Shape{64, 32}));
  EXPECT_FALSE(tensors.contains("output_layer.weight"));
}

TEST(BuildGpt, QwenAndLlamaHaveTheirs) {
  const auto llama = logical_tensors(build(test::family("llama")), 1);
  EXPECT_EQ(llama.size(), 1u + 2 * 9 + 2);
  EXPECT_EQ(llama.at("decoder.layers.0.self_attention.linear_k.weight").shape, (Shape{24, 48}));
  EXPECT_EQ(llama.at("decoder.layers.0.mlp.linear_up.weight").shape, (Shape{40, 48}));
  EXPECT_TRUE(llama.contains("output_layer.weight"));
  const auto qwen2 = logical_tensors(build(test::family("qwen2")), 1);
  EXPECT_EQ(qwen2.size(), 1u + 2 * 12 + 1);
  EXPECT_TRUE(qwen2.contains("decoder.layers.0.self_attention.linear_v.bias"));
  EXPECT_FALSE(qwen2.contains("decoder.layers.0.self_attention.linear_proj.bias"));
  const auto llama31 = logical_tensors(build(test::family("llama31")), 1);  // only attention's biases
  EXPECT_EQ(llama31.size(), llama.size() + 2 * 4);
  EXPECT_TRUE(llama31.contains("decoder.layers.0.self_attention.linear_v.bias"));
  EXPECT_EQ(llama31.at("decoder.layers.1.self_attention.linear_proj.bias").shape, (Shape{48}));
  const auto qwen3 = logical_tensors(build(test::family("qwen3_dropout")), 1);
  EXPECT_EQ(qwen3.at("decoder.layers.0.self_attention.q_layernorm.weight").shape, (Shape{16}));
  EXPECT_EQ(qwen3.at("decoder.layers.0.self_attention.linear_q.weight").shape, (Shape{64, 40}));
}

TEST(BuildGpt, HasAsManyElementsAsTheFormulaSays) {
  for (const test::ModelFamily& family : test::model_families()) {
    const GptModel gpt = build(family.config);
    EXPECT_EQ(gpt.parameters->numel(), count_parameters(family.config).total) << family.name;
  }
}

TEST(BuildGpt, WeightDecayIsForMatricesAlone) {
  for (const test::ModelFamily& family : test::model_families()) {
    for (const auto& [name, tensor] : logical_tensors(build(family.config), 1))
      EXPECT_EQ(tensor.decay, tensor.shape.rank() == 2) << family.name << ' ' << name;
  }
}

TEST(BuildGpt, InitialDeviationsAreMegatrons) {
  ModelConfig config = test::family("llama");
  config.init_method_std = 0.03;
  for (const auto& [name, tensor] : logical_tensors(build(config), 1)) {
    if (tensor.shape.rank() == 1) {
      EXPECT_EQ(tensor.values, std::vector<float>(tensor.values.size(), 1.0f)) << name;
      continue;
    }
    const bool scaled = name.ends_with("linear_proj.weight") || name.ends_with("linear_fc2.weight");
    const double want = scaled ? 0.03 / std::sqrt(2.0 * 2) : 0.03;
    // Five standard deviations of the estimate.
    EXPECT_NEAR(deviation(tensor.values), want, want * 5 / std::sqrt(2.0 * static_cast<double>(tensor.values.size())))
        << name;
  }
  for (const auto& [name, tensor] : logical_tensors(build(test::family("gpt2")), 1)) {
    if (tensor.shape.rank() == 2) continue;
    EXPECT_EQ(tensor.values, std::vector<float>(tensor.values.size(), name.ends_with(".bias") ? 0.0f : 1.0f)) << name;
  }
}

TEST(BuildGpt, InitialWeightsDoNotDependOnRecomputeOrOtherLayers) {
  const ModelConfig config = test::family("qwen3_dropout");
  const auto plain = logical_tensors(build(config), 5);
  const auto recomputed = logical_tensors(build(config, {.ranges = {{.first = 0, .count = 2}}}), 5);
  ModelConfig deeper = config;
  deeper.num_layers = 3;
  const auto deep = logical_tensors(build(deeper), 5);
  ASSERT_EQ(keys(plain), keys(recomputed));
  for (const auto& [name, tensor] : plain) {
    EXPECT_EQ(tensor.values, recomputed.at(name).values) << name;
    const bool scaled_by_depth = name.ends_with("linear_proj.weight") || name.ends_with("linear_fc2.weight");
    EXPECT_EQ(tensor.values == deep.at(name).values, !scaled_by_depth) << name;
  }
  EXPECT_NE(plain.at("decoder.layers.0.mlp.linear_up.weight").values,
            plain.at("decoder.layers.1.mlp.linear_up.weight").values);
}

TEST(BuildGpt, SplitsItsLinearsAmongTheRanksOfTheExchange) {
  struct SecondOfTwo : RowExchange {
    TensorSplit split() const override { return {.rank = 1, .ranks = 2}; }
  } rows;
  ModelConfig config = test::family("llama");
  config.num_layers = 1;
  const GptModel gpt = build_gpt(config, {}, {.rows = &rows});
  std::vector<std::string> outputs, inputs;
  for (const ParameterUnit& unit : gpt.parameters->units()) {
    for (const Parameter* parameter : unit.parameters) {
      const LogicalTensor& part = parameter->parts[0];
      if (part.global_row > 0) outputs.push_back(part.name);
      if (part.global_column > 0) inputs.push_back(part.name);
    }
  }
  EXPECT_THAT(outputs,
              ElementsAre("embedding.word_embeddings.weight", "decoder.layers.0.self_attention.linear_q.weight",
                          "decoder.layers.0.mlp.linear_gate.weight", "output_layer.weight"));
  EXPECT_THAT(inputs, ElementsAre("decoder.layers.0.self_attention.linear_proj.weight",
                                  "decoder.layers.0.mlp.linear_fc2.weight"));
}

}  // namespace
}  // namespace megalith
