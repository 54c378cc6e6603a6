// Each feature of the model acts: the reference without it is far from the model, the reference with it is close.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/support/device_cases.h"
#include "tests/unit/model/model_families.h"
#include "tests/unit/model/model_run.h"

namespace megalith {
namespace {

using reference::GptActivation;
using reference::GptArithmetic;
using reference::GptBatch;
using reference::GptConfig;
using reference::GptTensors;

struct World {
  GptConfig config;
  GptTensors weights;
  GptBatch batch;
};

void erase_tensors(World& w, const std::string& part) {
  std::erase_if(w.weights, [&](const auto& item) { return item.first.find(part) != std::string::npos; });
}

void scale_tensors(World& w, const std::string& part, double factor) {
  for (auto& [name, values] : w.weights) {
    if (name.find(part) == std::string::npos) continue;
    for (double& value : values) value *= factor;
  }
}

struct Ablation {
  std::string feature;
  std::string family;
  std::function<void(World&)> remove;
  DeviceType device = DeviceType::kCpu;
};

std::vector<Ablation> rope_features() {
  return {
      {"rope", "llama", [](World& w) { w.config.rotary_dim = 0; }},
      {"rotary_base", "llama", [](World& w) { w.config.rotary_base = 10000; }},
      {"rope_scaling", "llama31", [](World& w) { w.config.rope_scaling.factor = 1; }},
      {"rope_scaling_low_freq_factor", "llama31", [](World& w) { w.config.rope_scaling.low_freq_factor = 0.5; }},
      {"rope_scaling_high_freq_factor", "llama31", [](World& w) { w.config.rope_scaling.high_freq_factor = 8; }},
      {"rope_interpolation", "interpolated", [](World& w) { w.config.rope_scaling.factor = 1; }},
      {"yarn", "yarn", [](World& w) { w.config.rope_scaling.factor = 1; }},
      {"yarn_original_positions", "yarn", [](World& w) { w.config.rope_scaling.original_positions = 256; }},
      {"yarn_beta_fast", "yarn", [](World& w) { w.config.rope_scaling.beta_fast = 1.1; }},
      {"yarn_beta_slow", "yarn", [](World& w) { w.config.rope_scaling.beta_slow = 0.1; }},
      {"yarn_truncate", "yarn", [](World& w) { w.config.rope_scaling.truncate = false; }},
      {"yarn_mscale", "yarn", [](World& w) { w.config.rope_scaling.mscale = 1; }},
      {"yarn_mscale_all_dim", "yarn", [](World& w) { w.config.rope_scaling.mscale_all_dim = 0; }},
  };
}

std::vector<Ablation> features() {
  return {
      {"learned_positions", "gpt2", [](World& w) { erase_tensors(w, "position_embeddings"); }},
      {"layer_norm", "gpt2", [](World& w) { w.config.rms_norm = true; }},
      {"norm_bias", "gpt2", [](World& w) { scale_tensors(w, "layernorm.bias", 0); }},
      {"gelu_tanh", "gpt2", [](World& w) { w.config.activation = GptActivation::kGeluExact; }},
      {"qkv_bias", "gpt2", [](World& w) { erase_tensors(w, "linear_v.bias"); }},
      {"proj_bias", "gpt2", [](World& w) { erase_tensors(w, "linear_proj.bias"); }},
      {"fc1_bias", "gpt2", [](World& w) { erase_tensors(w, "linear_fc1.bias"); }},
      {"fc2_bias", "gpt2", [](World& w) { erase_tensors(w, "linear_fc2.bias"); }},
      {"norm_epsilon", "gpt2", [](World& w) { w.config.epsilon = 0.1; }},
      {"dropout", "gpt2_dropout", [](World& w) { w.batch.dropout.clear(); }},
      {"embedding_dropout", "gpt2_dropout",
       [](World& w) { w.batch.dropout[0] = std::vector(w.batch.dropout[0].size(), 1.0); }},
      {"attention_dropout_site", "gpt2_dropout", [](World& w) { std::swap(w.batch.dropout[1], w.batch.dropout[2]); }},
      {"layer_dropout_number", "gpt2_dropout", [](World& w) { std::swap(w.batch.dropout[1], w.batch.dropout[3]); }},
      {"rms_norm", "llama",
       [](World& w) {
         w.config.rms_norm = false;
         const GptTensors weights = w.weights;
         for (const auto& [name, values] : weights) {
           const std::size_t at = name.find("layernorm.weight");
           if (at != std::string::npos) w.weights[name.substr(0, at) + "layernorm.bias"].assign(values.size(), 0);
         }
       }},
      {"proj_bias_alone", "llama31", [](World& w) { erase_tensors(w, "linear_proj.bias"); }},
      {"swiglu_order", "llama",
       [](World& w) {
         for (int l = 0; l < 2; ++l) {
           const std::string mlp = "decoder.layers." + std::to_string(l) + ".mlp.";
           std::swap(w.weights.at(mlp + "linear_gate.weight"), w.weights.at(mlp + "linear_up.weight"));
         }
       }},
      {"grouped_queries", "llama",
       [](World& w) {  // the two groups change places
         auto& k = w.weights.at("decoder.layers.0.self_attention.linear_k.weight");
         std::rotate(k.begin(), k.begin() + static_cast<std::ptrdiff_t>(k.size() / 2), k.end());
       }},
      {"untied_output", "llama", [](World& w) { erase_tensors(w, "output_layer"); }},
      {"qkv_bias_alone", "qwen2", [](World& w) { erase_tensors(w, "linear_q.bias"); }},
      {"qk_norm", "qwen3_dropout", [](World& w) { erase_tensors(w, "q_layernorm"); }},
      {"k_norm_weight", "qwen3_dropout", [](World& w) { scale_tensors(w, "k_layernorm", 1.5); }},
      {"rotary_percent", "neox", [](World& w) { w.config.rotary_dim = w.config.head_dim; }},
      {"gelu_exact", "neox", [](World& w) { w.config.activation = GptActivation::kGeluTanh; }},
      {"layer_norm_of_heads", "nope", [](World& w) { scale_tensors(w, "q_layernorm.bias", 0); }},
      {"no_positions", "nope", [](World& w) { w.config.rotary_dim = w.config.head_dim; }},
      {"padding_outside_the_softmax", "nope", [](World& w) { w.config.vocab = w.config.padded_vocab; }},
  };
}

std::vector<Ablation> ablations() {
  std::vector<Ablation> all;
  for (const DeviceType device : test::devices()) {
    for (const std::vector<Ablation>& list : {features(), rope_features()}) {
      for (const Ablation& feature : list) {
        all.push_back(feature);
        all.back().device = device;
      }
    }
  }
  return all;
}

class GptFeature : public test::OnDevice<Ablation> {};

std::string name_of_ablation(const testing::TestParamInfo<Ablation>& info) {
  return info.param.feature + "_" + std::string(name_of(info.param.device));
}
void PrintTo(const Ablation& ablation, std::ostream* out) { *out << ablation.feature; }

INSTANTIATE_TEST_SUITE_P(Ablations, GptFeature, testing::ValuesIn(ablations()), name_of_ablation);

// Relative distance of the losses of microbatches.
double distance(const test::ModelResult& model, const World& w) {
  const std::vector<double> losses = run_gpt(GptArithmetic::kFp64, w.config, w.weights, w.batch).losses;
  std::vector<double> sums(model.losses.size());
  for (std::size_t t = 0; t < losses.size(); ++t) sums[t * sums.size() / losses.size()] += losses[t];
  double largest = 0;
  for (std::size_t m = 0; m < sums.size(); ++m)
    largest = std::max(largest, std::abs(model.losses[m] - sums[m]) / sums[m]);
  return largest;
}

TEST_P(GptFeature, Acts) {
  const test::ModelCase test{.config = test::family(GetParam().family), .device = device()};
  const test::ModelResult model = test::run_model(test);
  World world{test::reference_config(test.config), model.weights, test::reference_batch(test, model)};
  EXPECT_LT(distance(model, world), 5e-7);
  GetParam().remove(world);
  EXPECT_GT(distance(model, world), 1e-5);
}

class GptGradientsOfEveryTensor : public test::OnDevice<DeviceType> {};
INSTANTIATE_TEST_SUITE_P(Backends, GptGradientsOfEveryTensor, testing::ValuesIn(test::devices()),
                         test::name_of_device_case);

TEST_P(GptGradientsOfEveryTensor, ActAndThePaddingHasNone) {
  for (const test::ModelFamily& family : test::model_families()) {
    SCOPED_TRACE(family.name);
    const test::ModelResult model = test::run_model({.config = family.config, .device = device()});
    const ModelConfig& c = family.config;
    const auto hidden = static_cast<std::size_t>(c.hidden_size), first_padding = static_cast<std::size_t>(c.vocab_size);
    for (const auto& [name, gradient] : model.gradients) {
      double largest = 0;
      for (const double g : gradient) largest = std::max(largest, std::abs(g));
      // A bias of k shifts all scores of a query equally unless an op comes in between.
      const bool no_effect =
          c.rotary_dim() == 0 && name.ends_with(c.qk_layernorm ? "k_layernorm.bias" : "linear_k.bias");
      if (no_effect) {
        EXPECT_LT(largest, 1e-6) << name;
      } else {
        EXPECT_GT(largest, 1e-4) << name;
      }
      if (name != "embedding.word_embeddings.weight" && name != "output_layer.weight") continue;
      for (std::size_t i = first_padding * hidden; i < gradient.size(); ++i) ASSERT_EQ(gradient[i], 0) << name << i;
      EXPECT_GT(gradient.size(), first_padding * hidden);
    }
  }
}

}  // namespace
}  // namespace megalith
