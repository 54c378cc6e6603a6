// The reference GPT itself. Every element of every gradient is compared with central differences in fp64. Coarser
// arithmetics are compared with fp64, and dropout factors with known Philox numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "tests/reference/dropout_mask.h"
#include "tests/reference/gpt.h"
#include "tests/support/central_difference.h"

namespace megalith {
namespace {

using reference::GptActivation;
using reference::GptArithmetic;
using reference::GptBatch;
using reference::GptConfig;
using reference::GptResult;
using reference::GptTensors;

struct Features {
  bool learned_positions = false, qk_norm = false, all_biases = false, qkv_biases = false, tied = false,
       dropout = false;
};

struct Example {
  GptConfig config;
  GptTensors weights;
  GptBatch batch;
};

Example make_example(GptConfig c, const Features& with) {
  Example e;
  c.layers = 2;
  c.hidden = 6;
  c.heads = 4;
  c.groups = 2;
  c.head_dim = 4;
  c.ffn = 5;
  c.vocab = 7;
  c.padded_vocab = 8;
  e.config = c;
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  const auto draw = [&](const std::string& name, std::size_t count, double mean = 0) {
    for (std::size_t i = 0; i < count; ++i) e.weights[name].push_back(mean + 0.5 * normal(random));
  };
  const auto linear = [&](const std::string& name, std::size_t outputs, std::size_t inputs, bool bias) {
    draw(name + ".weight", outputs * inputs);
    if (bias) draw(name + ".bias", outputs);
  };
  const auto norm = [&](const std::string& name, std::size_t width) {
    draw(name + ".weight", width, 1);
    if (!c.rms_norm) draw(name + ".bias", width);
  };
  draw("embedding.word_embeddings.weight", c.padded_vocab * c.hidden);
  e.batch.sequences = 2;
  e.batch.length = 3;
  if (with.learned_positions) draw("embedding.position_embeddings.weight", 4 * c.hidden);
  for (std::size_t l = 0; l < c.layers; ++l) {
    const std::string layer = "decoder.layers." + std::to_string(l) + ".", self = layer + "self_attention.";
    norm(layer + "input_layernorm", c.hidden);
    linear(self + "linear_q", c.heads * c.head_dim, c.hidden, with.all_biases || with.qkv_biases);
    linear(self + "linear_k", c.groups * c.head_dim, c.hidden, with.all_biases || with.qkv_biases);
    linear(self + "linear_v", c.groups * c.head_dim, c.hidden, with.all_biases || with.qkv_biases);
    linear(self + "linear_proj", c.hidden, c.heads * c.head_dim, with.all_biases);
    if (with.qk_norm) norm(self + "q_layernorm", c.head_dim);
    if (with.qk_norm) norm(self + "k_layernorm", c.head_dim);
    norm(layer + "pre_mlp_layernorm", c.hidden);
    const bool gated = c.activation == GptActivation::kSwiglu;
    linear(layer + (gated ? "mlp.linear_gate" : "mlp.linear_fc1"), c.ffn, c.hidden, with.all_biases);
    if (gated) linear(layer + "mlp.linear_up", c.ffn, c.hidden, with.all_biases);
    linear(layer + "mlp.linear_fc2", c.hidden, c.ffn, with.all_biases);
  }
  norm("decoder.final_layernorm", c.hidden);
  if (!with.tied) draw("output_layer.weight", c.padded_vocab * c.hidden);
  e.batch.tokens = {3, 0, 6, 3, 5, 1};
  e.batch.labels = {0, 6, 2, 5, 1, 4};
  e.batch.loss_scale = 0.25;
  if (!with.dropout) return e;
  for (int site = 0; site < 5; ++site) {
    e.batch.dropout.push_back(reference::dropout_mask(
        {.p = 0.25f, .seed = 1, .layer = site, .sequences = 2, .length = 3, .columns = c.hidden}));
  }
  return e;
}

void expect_all_gradients(const Example& e) {
  const GptResult result = run_gpt(GptArithmetic::kFp64, e.config, e.weights, e.batch);
  ASSERT_EQ(result.gradients.size(), e.weights.size());
  for (const auto& [name, values] : e.weights) {
    SCOPED_TRACE(name);
    GptTensors weights = e.weights;
    test::expect_gradient(
        [&, &key = name](const std::vector<double>& x) {
          weights[key] = x;
          const auto losses = run_gpt(GptArithmetic::kFp64, e.config, weights, e.batch).losses;
          return e.batch.loss_scale * std::accumulate(losses.begin(), losses.end(), 0.0);
        },
        values, result.gradients.at(name), 1e-6);
  }
}

TEST(GptReference, Gpt2GradientsAreThoseOfTheLoss) {
  expect_all_gradients(
      make_example({}, {.learned_positions = true, .all_biases = true, .tied = true, .dropout = true}));
}

TEST(GptReference, LlamaGradientsAreThoseOfTheLoss) {
  expect_all_gradients(make_example({.rotary_dim = 4, .rms_norm = true, .activation = GptActivation::kSwiglu}, {}));
}

TEST(GptReference, QwenGradientsAreThoseOfTheLoss) {
  expect_all_gradients(
      make_example({.rotary_dim = 2, .rotary_base = 100, .rms_norm = true, .activation = GptActivation::kSwiglu},
                   {.qk_norm = true, .qkv_biases = true, .tied = true, .dropout = true}));
}

TEST(GptReference, ExactGeluAndLayerNormOfHeadsAreDifferentiatedToo) {
  expect_all_gradients(make_example({.activation = GptActivation::kGeluExact}, {.qk_norm = true, .all_biases = true}));
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

TEST(GptReference, EachArithmeticIsCoarserThanTheOneBefore) {
  const Example e = make_example({.rotary_dim = 4, .rms_norm = true, .activation = GptActivation::kSwiglu}, {});
  const GptResult truth = run_gpt(GptArithmetic::kFp64, e.config, e.weights, e.batch);
  const double fp32 =
      largest_difference(run_gpt(GptArithmetic::kFp32, e.config, e.weights, e.batch).losses, truth.losses);
  const double bf16 =
      largest_difference(run_gpt(GptArithmetic::kBf16Storage, e.config, e.weights, e.batch).losses, truth.losses);
  EXPECT_GT(fp32, 1e-9);
  EXPECT_LT(fp32, 1e-5);
  EXPECT_GT(bf16, 100 * fp32);
  EXPECT_LT(bf16, 0.1);
}

TEST(GptReference, ThePaddingOfTheVocabularyHasNoPartInTheLoss) {
  Example e = make_example({}, {.all_biases = true});
  const GptResult before = run_gpt(GptArithmetic::kFp64, e.config, e.weights, e.batch);
  for (std::size_t j = 0; j < e.config.hidden; ++j) {
    EXPECT_EQ(before.gradients.at("output_layer.weight")[7 * e.config.hidden + j], 0);
    e.weights.at("output_layer.weight")[7 * e.config.hidden + j] = 100;
  }
  EXPECT_EQ(run_gpt(GptArithmetic::kFp64, e.config, e.weights, e.batch).losses, before.losses);
}

TEST(GptReference, AMissingTensorIsNamed) {
  Example e = make_example({}, {.all_biases = true});
  e.weights.erase("decoder.layers.1.mlp.linear_fc2.weight");
  EXPECT_THROW(run_gpt(GptArithmetic::kFp64, e.config, e.weights, e.batch), std::runtime_error);
}

// The known-answer vectors that come with the authors' Random123 library, philox4x32 10.
TEST(DropoutMask, ItsPhiloxIsTheAuthors) {
  EXPECT_EQ(reference::philox_10_rounds({0, 0, 0, 0}, 0, 0),
            (reference::Words4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(reference::philox_10_rounds({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (reference::Words4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(DropoutMask, DropsTheGivenShareAndKeepsTheMean) {
  const std::vector<double> mask =
      reference::dropout_mask({.p = 0.25f, .seed = 9, .sequences = 20, .length = 25, .columns = 40});
  ASSERT_EQ(mask.size(), 20000u);
  const double mean = std::accumulate(mask.begin(), mask.end(), 0.0) / 20000;
  EXPECT_NEAR(mean, 1, 5 * std::sqrt(1.0 / 3 / 20000));  // the variance of a factor is p / (1 - p)
  for (const double factor : mask) EXPECT_TRUE(factor == 0 || factor == 1 / 0.75) << factor;
}

}  // namespace
}  // namespace megalith
