// Parameter counts are those of the published models; small shapes are counted by hand.
#include "core/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/base/error.h"
#include "tests/support/error_of.h"

namespace megalith {
namespace {

ModelConfig small_config() {
  ModelConfig config{.num_layers = 2, .hidden_size = 8, .num_attention_heads = 2, .seq_length = 16, .vocab_size = 10};
  resolve(config);
  return config;
}

TEST(ModelConfig, ResolvesWhatWasLeftOut) {
  const ModelConfig config = small_config();
  EXPECT_EQ(config.ffn_hidden_size, 32);
  EXPECT_EQ(config.num_query_groups, 2);
  EXPECT_EQ(config.kv_channels, 4);
  EXPECT_EQ(config.max_position_embeddings, 16);
  EXPECT_EQ(config.padded_vocab_size, 128);
  EXPECT_DOUBLE_EQ(config.output_layer_init_std(), 0.01);  // 0.02 / sqrt(4)
}

TEST(ModelConfig, ResolvesAgainAfterTheVocabularyIsKnown) {
  ModelConfig config = small_config();
  config.vocab_size = 257;
  resolve(config);
  EXPECT_EQ(config.padded_vocab_size, 384);
}

TEST(ModelConfig, SwigluWidthIsTwoThirdsRoundedDownTo64) {
  for (const auto& [hidden, ffn] : {std::pair<std::int64_t, std::int64_t>{256, 640}, {1024, 2688}, {4096, 10880}}) {
    ModelConfig config{.num_layers = 1, .hidden_size = hidden, .num_attention_heads = 1, .seq_length = 1};
    config.swiglu = true;
    resolve(config);
    EXPECT_EQ(config.ffn_hidden_size, ffn) << hidden;
  }
}

TEST(ModelConfig, GroupQueryAttentionAloneIsOneGroup) {
  ModelConfig config{.num_layers = 1, .hidden_size = 8, .num_attention_heads = 4, .group_query_attention = true};
  resolve(config);
  EXPECT_EQ(config.num_query_groups, 1);
}

TEST(ModelConfig, RotaryDimIsTheRotatedShareOfAHead) {
  ModelConfig config = small_config();
  EXPECT_EQ(config.rotary_dim(), 0);
  config.position_embedding_type = PositionEmbedding::kRope;
  EXPECT_EQ(config.rotary_dim(), 4);
  config.rotary_percent = 0.5;
  EXPECT_EQ(config.rotary_dim(), 2);
}

TEST(ModelConfig, CountsASmallModelByHand) {
  const ParameterCount count = count_parameters(small_config());
  EXPECT_EQ(count.embedding, 128 * 8 + 16 * 8);
  EXPECT_EQ(count.attention, 2 * (8 * 24 + 24 + 8 * 8 + 8));
  EXPECT_EQ(count.mlp, 2 * (8 * 32 + 32 + 32 * 8 + 8));
  EXPECT_EQ(count.norm, 5 * 16);
  EXPECT_EQ(count.output, 0);
  EXPECT_EQ(count.padding, 118 * 8);
  EXPECT_EQ(count.total, 1152 + 576 + 1104 + 80);
}

ModelConfig published_moe(ModelConfig config) {
  config.swiglu = true;
  config.add_bias_linear = false;
  config.normalization = Normalization::kRmsNorm;
  config.position_embedding_type = PositionEmbedding::kRope;
  config.untie_embeddings_and_output_weights = true;
  config.seq_length = 4096;
  resolve(config);
  validate(config);
  return config;
}

TEST(ModelConfig, CountsPublishedModelsWithExperts) {
  ModelConfig mixtral{.num_layers = 32, .hidden_size = 4096, .ffn_hidden_size = 14336, .num_attention_heads = 32};
  mixtral.num_query_groups = 8;
  mixtral.vocab_size = 32000;
  mixtral.moe = {.num_experts = 8, .router_topk = 2};
  const ParameterCount of_mixtral = count_parameters(published_moe(mixtral));
  EXPECT_EQ(of_mixtral.total, 46'702'792'704);
  EXPECT_EQ(of_mixtral.active(), 12'879'925'248);
  EXPECT_EQ(of_mixtral.mlp, 0);

  ModelConfig qwen{.num_layers = 48, .hidden_size = 2048, .ffn_hidden_size = 6144, .num_attention_heads = 32};
  qwen.num_query_groups = 4;
  qwen.kv_channels = 128;
  qwen.vocab_size = 151'936;
  qwen.qk_layernorm = true;
  qwen.moe = {.num_experts = 128, .ffn_hidden_size = 768, .router_topk = 8};
  EXPECT_EQ(count_parameters(published_moe(qwen)).total, 30'532'122'624);
  EXPECT_EQ(count_parameters(published_moe(qwen)).active(), 3'353'032'704);
  EXPECT_EQ(count_parameters(published_moe(qwen)).router, 48 * 128 * 2048);
}

TEST(ModelConfig, CountsExpertsOfOtherKindsByHand) {
  ModelConfig config{.num_layers = 2, .hidden_size = 32, .ffn_hidden_size = 16, .num_attention_heads = 2};
  config.vocab_size = 128;
  config.seq_length = 8;
  config.squared_relu = true;
  config.moe = {.num_experts = 4, .layer_freq = "[0]+[1]", .router_topk = 1};
  resolve(config);
  validate(config);
  const std::int64_t weights = 2 * 32 * 16, biases = 16 + 32;
  const ParameterCount count = count_parameters(config);
  EXPECT_EQ(count.mlp, weights + biases);
  EXPECT_EQ(count.experts, 4 * (weights + biases));
  EXPECT_EQ(count.routed_experts, 4 * (weights + biases));
  EXPECT_EQ(count.active_experts, weights + biases);
  const double biased = flops_per_token(config);
  config.add_bias_linear = false;
  EXPECT_EQ(flops_per_token(config), biased);
  EXPECT_EQ(count_parameters(config).experts, 4 * weights);
  config.squared_relu = false;
  config.swiglu = true;
  EXPECT_EQ(flops_per_token(config) - biased, 6.0 * 2 * 32 * 16);  // a third matrix in each of two layers
}

TEST(ModelConfig, CountsALayerOfExpertsByHand) {
  ModelConfig config{.num_layers = 3, .hidden_size = 32, .ffn_hidden_size = 64, .num_attention_heads = 2};
  config.vocab_size = 128;
  config.moe = {.num_experts = 4, .layer_freq = "[0]+[1]*2", .ffn_hidden_size = 16, .router_topk = 1};
  config.moe.router_pre_softmax = true;
  config.moe.shared_expert_intermediate_size = 24;
  config = published_moe(config);
  const ParameterCount count = count_parameters(config);
  EXPECT_EQ(count.mlp, 3 * 32 * 64);
  EXPECT_EQ(count.router, 2 * 4 * 32);
  EXPECT_EQ(count.experts, 2 * 3 * 32 * (4 * 16 + 24));
  EXPECT_EQ(count.active_experts, 2 * 3 * 32 * (16 + 24));
  const double matrices = 3 * 4 * 32 * 32 + 3 * 32 * 64 + 2 * 4 * 32 + 2 * 3 * 32 * (16 + 24) + 128 * 32;
  EXPECT_DOUBLE_EQ(flops_per_token(config), 6 * matrices + 6.0 * 3 * 4096 * 32);
}

TEST(ModelConfig, ReadsWhichLayersHaveExperts) {
  using Layers = std::vector<bool>;
  const auto read = [](const std::string& text, std::int64_t layers) {
    return moe_layers({.num_experts = 2, .layer_freq = text}, layers);
  };
  EXPECT_EQ(read("1", 3), (Layers{true, true, true}));
  EXPECT_EQ(read("2", 5), (Layers{true, false, true, false, true}));
  EXPECT_EQ(read("[0,1,1]", 3), (Layers{false, true, true}));
  EXPECT_EQ(read("[0]*2 + [1]*1", 3), (Layers{false, false, true}));
  EXPECT_EQ(read("([0]+[1]*2)*2", 6), (Layers{false, true, true, false, true, true}));
  for (const char* wrong : {"", "0", "-1", "2x", "[", "[]", "[2]", "[1]*", "[1]+", "([1]", "[1])", "[1]*99999", "1,1",
                            "((((((((((([1])))))))))))", "[1]*10000*10000"})
    EXPECT_EQ(read(wrong, 3), Layers{}) << wrong;
  EXPECT_EQ(moe_layers({}, 2), (Layers{false, false}));
}

TEST(ModelConfig, CountsQueryGroupsNormsAndUntiedOutputByHand) {
  ModelConfig config{.num_layers = 1, .hidden_size = 8, .ffn_hidden_size = 12, .num_attention_heads = 4};
  config.num_query_groups = 2;
  config.kv_channels = 6;  // heads x channels differs from hidden
  config.seq_length = 16;
  config.vocab_size = 128;
  config.position_embedding_type = PositionEmbedding::kRope;
  config.normalization = Normalization::kRmsNorm;
  config.qk_layernorm = config.swiglu = config.add_qkv_bias = config.untie_embeddings_and_output_weights = true;
  config.add_bias_linear = false;
  resolve(config);
  const ParameterCount count = count_parameters(config);
  EXPECT_EQ(count.attention, 8 * 24 + 2 * 8 * 12 + (24 + 12 + 12) + 24 * 8 + 2 * 6);
  EXPECT_EQ(count.mlp, 3 * 8 * 12);
  EXPECT_EQ(count.norm, 3 * 8);
  EXPECT_EQ(count.embedding, 1024);
  EXPECT_EQ(count.output, 1024);
}

TEST(ModelConfig, CountsTheBiasesOfAttentionAlone) {
  ModelConfig config = small_config();
  config.add_bias_linear = false;
  const ParameterCount without = count_parameters(config);
  config.add_attn_proj_bias = true;
  EXPECT_EQ(count_parameters(config).total - without.total, 2 * 8);
  config.add_qkv_bias = true;
  EXPECT_EQ(count_parameters(config).attention - without.attention, 2 * (24 + 8));
  EXPECT_EQ(count_parameters(config).mlp, without.mlp);
}

TEST(ModelConfig, FlopsPerTokenByHand) {
  const ModelConfig config = small_config();
  const double matrices = 2 * (8 * 24 + 8 * 8 + 8 * 32 * 2) + 128 * 8;
  EXPECT_DOUBLE_EQ(flops_per_token(config), 6 * matrices + 6 * 2 * 16 * 8);
}

TEST(ModelConfig, ReadsWhichLayersHaveWindows) {
  using Windows = std::vector<std::int64_t>;
  const auto read = [](const std::string& skips, std::int64_t layers, std::int64_t left = 6) {
    ModelConfig config{.num_layers = layers};
    config.window_size = {left, 0};
    config.window_attn_skip_freq = skips;
    return attention_windows(config);
  };
  EXPECT_EQ(read("", 3), (Windows{7, 7, 7}));
  EXPECT_EQ(read("", 2, 0), (Windows{1, 1}));  // its own key
  EXPECT_EQ(read("", 2, -1), (Windows{0, 0}));
  EXPECT_EQ(read("2", 5), (Windows{7, 0, 7, 0, 7}));  // layer_number % N != 0, counted from 1
  EXPECT_EQ(read("3", 6), (Windows{7, 7, 0, 7, 7, 0}));
  EXPECT_EQ(read("1", 2), (Windows{0, 0}));
  EXPECT_EQ(read("9", 2), (Windows{7, 7}));
  EXPECT_EQ(read("([1]*2+[0])*2", 6), (Windows{7, 7, 0, 7, 7, 0}));
  EXPECT_EQ(read("[0,1]", 3), (Windows{0, 7}));
  for (const char* wrong : {"0", "-1", "2x", "[2]", "[1]*", "1,1"}) EXPECT_EQ(read(wrong, 3), Windows{}) << wrong;
  ModelConfig none{.num_layers = 2};
  none.window_attn_skip_freq = "x";
  EXPECT_EQ(attention_windows(none), (Windows{0, 0}));
}

TEST(ModelConfig, FlopsOfWindowsByHand) {
  ModelConfig config = small_config();  // 2 layers, 16 tokens, width 8
  const double full = flops_per_token(config);
  config.window_size = {4, 0};
  EXPECT_DOUBLE_EQ(full - flops_per_token(config), 12 * 8 * 2 * (8 - 5));
  config.window_attn_skip_freq = "2";
  EXPECT_DOUBLE_EQ(full - flops_per_token(config), 12 * 8 * (8 - 5));
  EXPECT_TRUE(has_reached_window(config));
  config.window_size = {15, 0};
  EXPECT_DOUBLE_EQ(flops_per_token(config), full);
  EXPECT_FALSE(has_reached_window(config));
}

std::string message_of(const std::function<void(ModelConfig&)>& change) {
  ModelConfig config = small_config();
  change(config);
  return result_of(ExitCode::kUsage, [&] {
    validate(config);
    return std::string("valid");
  });
}

TEST(ModelConfig, RefusesScalingsOfRope) {
  EXPECT_EQ(message_of([](ModelConfig& c) { c.rope_scaling.factor = 0.5; }),
            "--rope-scaling-factor: expected a finite value of at least 1, got 0.5; leave it out for the usual value");
  EXPECT_EQ(message_of([](ModelConfig& c) { c.rope_scaling.high_freq_factor = 1; }),
            "--rope-scaling-low-freq-factor and --rope-scaling-high-freq-factor: expected finite values above 0, the "
            "low one below the high one, got 1 and 1; leave it out for the usual value");
  EXPECT_EQ(
      message_of([](ModelConfig& c) { c.rope_scaling.original_max_position_embeddings = 0; }),
      "--rope-scaling-original-max-position-embeddings: expected an integer from 1 to 268435456, got 0; raise it");
  EXPECT_EQ(
      message_of([](ModelConfig& c) { c.rotary_seq_len_interpolation_factor = 0.5; }),
      "--rotary-seq-len-interpolation-factor: expected a finite value of at least 1, got 0.5; leave it out for the "
      "usual value");
  EXPECT_EQ(message_of([](ModelConfig& c) { c.yarn.factor = std::nan(""); }),
            "--rotary-scaling-factor: expected a finite value of at least 1, got nan; leave it out for the usual "
            "value");
  EXPECT_EQ(message_of([](ModelConfig& c) { c.yarn.original_max_position_embeddings = 0; }),
            "--original-max-position-embeddings: expected an integer from 1 to 268435456, got 0; raise it");
  EXPECT_EQ(message_of([](ModelConfig& c) { c.yarn.beta_fast = 0.5; }),
            "--beta-fast and --beta-slow: expected finite values above 0, --beta-fast >= --beta-slow, got 0.5 and 1; "
            "leave it out for the usual value");
  EXPECT_EQ(message_of([](ModelConfig& c) { c.yarn.mscale = -1; }),
            "--mscale: expected a finite value of at least 0, got -1; leave it out for the usual value");
  EXPECT_EQ(message_of([](ModelConfig& c) { c.yarn.mscale_all_dim = -1; }),
            "--mscale-all-dim: expected a finite value of at least 0, got -1; leave it out for the usual value");
  EXPECT_EQ(message_of([](ModelConfig& c) { c.yarn.attention_factor = -1; }),
            "--rope-scaling-attention-factor: expected a finite value of at least 0, got -1; leave it out for the "
            "usual value");
  EXPECT_EQ(message_of([](ModelConfig& c) {
              c.rope_type = RopeType::kYarn;
              c.rotary_base = 1;
            }),
            "--rotary-base with --rope-type yarn: expected a value above 1, got 1; leave it out for the usual value");
}

TEST(ModelConfig, AcceptsASmallModelWithAnUnknownVocabulary) {
  EXPECT_EQ(message_of([](ModelConfig& c) { c.vocab_size = 0; }), "valid");
}

TEST(ModelConfig, RefusesNamingFlagsAndValidValues) {
  EXPECT_EQ(message_of([](ModelConfig& c) { c.num_layers = 0; }),
            "--num-layers: expected an integer from 1 to 10000, got 0; raise it");
  EXPECT_EQ(message_of([](ModelConfig& c) {
              c.num_attention_heads = 3;
              c.kv_channels = 0;
            }),
            "--hidden-size and --num-attention-heads: expected a hidden size that is a multiple of the heads, or "
            "--kv-channels, got --hidden-size 8 and --num-attention-heads 3; such as --hidden-size 9");
  EXPECT_EQ(message_of([](ModelConfig& c) {
              c.num_attention_heads = 6;
              c.num_query_groups = 4;
            }),
            "--num-query-groups and --num-attention-heads: expected groups that divide the heads, got "
            "--num-query-groups 4 and --num-attention-heads 6; each group serves the same number of heads");
  EXPECT_EQ(message_of([](ModelConfig& c) { c.max_position_embeddings = 8; }),
            "--max-position-embeddings and --seq-length: expected --max-position-embeddings >= --seq-length, got "
            "--max-position-embeddings 8 and --seq-length 16; leave --max-position-embeddings out: it is then "
            "--seq-length");
  EXPECT_EQ(message_of([](ModelConfig& c) { c.attention_dropout = 0.1; }),
            "--attention-dropout: expected 0, other values are not built yet, got 0.1; leave it out; "
            "--hidden-dropout is there");
  EXPECT_EQ(
      message_of([](ModelConfig& c) { c.hidden_dropout = 1.0; }),
      "--hidden-dropout: expected a value of at least 0 and less than 1, got 1; leave it out for the usual value");
  EXPECT_EQ(message_of([](ModelConfig& c) { c.norm_epsilon = std::nan(""); }),
            "--norm-epsilon: expected a value above 0 and below 1, got nan; leave it out for the usual value");
  EXPECT_EQ(message_of([](ModelConfig& c) {
              c.position_embedding_type = PositionEmbedding::kRope;
              c.rotary_percent = 0.75;
            }),
            "--rotary-percent and --kv-channels: expected an even number of at least 2 rotated elements per head, got "
            "3 of 4; RoPE turns pairs: change one of the two");
  EXPECT_EQ(message_of([](ModelConfig& c) {
              c.window_size = {3, 1};
            }),
            "--window-size: expected LEFT 0: a causal query sees no keys to its right, got 3 1; use --window-size 3 0");
  EXPECT_EQ(message_of([](ModelConfig& c) {
              c.window_size = {3, 0};
              c.window_attn_skip_freq = "[1]*3";
            }),
            "--window-attn-skip-freq and --num-layers: expected a number above 0, or a list of 0 and 1, 2 in all, got "
            "--window-attn-skip-freq [1]*3, a list of 3; such as --window-attn-skip-freq 6, or '([1]*5+[0])*4' for 24 "
            "layers");
  EXPECT_EQ(message_of([](ModelConfig& c) {
              c.swiglu = true;
              c.activation_func = ActivationFunction::kGelu;
            }),
            "--swiglu and --activation-func: expected one of them, got both; SwiGLU brings its own activation (SiLU)");
}

TEST(ModelConfig, RefusesUnsupportedActivations) {
  EXPECT_EQ(message_of([](ModelConfig& c) { c.swiglu = c.squared_relu = true; }),
            "--squared-relu and --swiglu: expected one of them, got both; remove --squared-relu, or the other one");
  EXPECT_EQ(
      message_of([](ModelConfig& c) {
        c.squared_relu = true;
        c.activation_func = ActivationFunction::kGelu;
      }),
      "--squared-relu and --activation-func: expected one of them, got both; remove --squared-relu, or the other one");
  EXPECT_EQ(message_of([](ModelConfig& c) {
              c.moe = {.num_experts = 4, .ffn_hidden_size = 8, .shared_expert_intermediate_size = 8};
              resolve(c);
            }),
            "--moe-shared-expert-intermediate-size: expected --disable-bias-linear with a shared expert, got biases in "
            "the linear layers; add --disable-bias-linear");
}

}  // namespace
}  // namespace megalith
