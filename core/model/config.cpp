#include "core/model/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "core/base/error.h"
#include "core/model/layer_pattern.h"
#include "core/ops/attention/attention.h"

namespace megalith {

namespace {

// Bounds that keep every product of sizes below 2^63, far beyond any model.
constexpr std::int64_t kMaxLayers = 10'000;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
constexpr std::int64_t kMaxFfn = std::int64_t{1} << 22;
constexpr std::int64_t kMaxLength = std::int64_t{1} << 28;
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 24;
constexpr std::int64_t kMaxHeads = std::int64_t{1} << 16;

struct Bounds {
  std::int64_t low;
  std::int64_t high;
};

void check_range(const char* flag, std::int64_t value, Bounds bounds) {
  if (value >= bounds.low && value <= bounds.high) return;
  refuse_usage(flag, {.expected = fmt::format("an integer from {} to {}", bounds.low, bounds.high),
                      .got = fmt::format("{}", value),
                      .remedy = value < bounds.low ? "raise it" : "lower it"});
}

void check_sizes(const ModelConfig& config) {
  check_range("--num-layers", config.num_layers, {1, kMaxLayers});
  check_range("--hidden-size", config.hidden_size, {1, kMaxWidth});
  check_range("--num-attention-heads", config.num_attention_heads, {1, kMaxHeads});
  if (config.kv_channels == 0) {  // resolve() found no head dim
    refuse_usage(
        "--hidden-size and --num-attention-heads",
        {.expected = "a hidden size that is a multiple of the heads, or --kv-channels",
         .got = fmt::format("--hidden-size {} and --num-attention-heads {}", config.hidden_size,
                            config.num_attention_heads),
         .remedy = fmt::format("such as --hidden-size {}",
                               (config.hidden_size / config.num_attention_heads + 1) * config.num_attention_heads)});
  }
  check_range("--kv-channels, or --hidden-size / --num-attention-heads", config.kv_channels, {1, kMaxHeadDim});
  if (config.swiglu && config.ffn_hidden_size == 0) {  // resolve() rounded it down
    refuse_usage("--hidden-size and --swiglu",
                 {.expected = "a hidden size of at least 24, whose 8/3 round down to a multiple of 64",
                  .got = fmt::format("--hidden-size {}", config.hidden_size),
                  .remedy = "raise it, or give --ffn-hidden-size"});
  }
  check_range("--ffn-hidden-size", config.ffn_hidden_size, {1, kMaxFfn});
  check_range("--num-query-groups", config.num_query_groups, {1, config.num_attention_heads});
  if (config.num_attention_heads % config.num_query_groups != 0) {
    refuse_usage("--num-query-groups and --num-attention-heads",
                 {.expected = "groups that divide the heads",
                  .got = fmt::format("--num-query-groups {} and --num-attention-heads {}", config.num_query_groups,
                                     config.num_attention_heads),
                  .remedy = "each group serves the same number of heads"});
  }
  check_range("--num-attention-heads x --kv-channels", config.num_attention_heads * config.kv_channels, {1, kMaxWidth});
  check_range("--seq-length", config.seq_length, {1, kMaxLength});
  check_range("--max-position-embeddings", config.max_position_embeddings, {1, kMaxLength});
  if (config.max_position_embeddings < config.seq_length) {
    refuse_usage("--max-position-embeddings and --seq-length",
                 {.expected = "--max-position-embeddings >= --seq-length",
                  .got = fmt::format("--max-position-embeddings {} and --seq-length {}", config.max_position_embeddings,
                                     config.seq_length),
                  .remedy = "leave --max-position-embeddings out: it is then --seq-length"});
  }
  check_range("--vocab-size", config.vocab_size, {0, kMaxVocab});
  check_range("--make-vocab-size-divisible-by", config.make_vocab_size_divisible_by, {1, kMaxVocab});
}

void check_windows(const ModelConfig& config) {
  if (config.window_size.empty()) return;
  const std::int64_t left = config.window_size.front(), right = config.window_size.back();
  check_range("LEFT of --window-size", left, {-1, kMaxLength});
  if (config.window_size.size() != 2 || right != 0) {
    refuse_usage("--window-size", {.expected = "LEFT 0: a causal query sees no keys to its right",
                                   .got = fmt::format("{}", fmt::join(config.window_size, " ")),
                                   .remedy = fmt::format("use --window-size {} 0", left)});
  }
  if (std::ssize(attention_windows(config)) == config.num_layers) return;
  const std::size_t listed = parse_layer_pattern(config.window_attn_skip_freq).size();
  refuse_usage("--window-attn-skip-freq and --num-layers",
               {.expected = fmt::format("a number above 0, or a list of 0 and 1, {} in all", config.num_layers),
                .got = fmt::format("--window-attn-skip-freq {}{}", config.window_attn_skip_freq,
                                   listed == 0 ? "" : fmt::format(", a list of {}", listed)),
                .remedy = "such as --window-attn-skip-freq 6, or '([1]*5+[0])*4' for 24 layers"});
}

constexpr const char* kUsual = "leave it out for the usual value";

void check_value(const char* flag, double value, bool valid, const char* expected) {
  if (!valid) refuse_usage(flag, {.expected = expected, .got = fmt::format("{}", value), .remedy = kUsual});
}

bool is_finite_above(double value, double bound) { return value > bound && !std::isinf(value); }

void check_rope_scaling(const RopeScaling& scaling) {
  check_value("--rope-scaling-factor", scaling.factor, scaling.factor >= 1.0 && !std::isinf(scaling.factor),
              "a finite value of at least 1");
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  if (!(low > 0.0) || !is_finite_above(high, low)) {
    refuse_usage("--rope-scaling-low-freq-factor and --rope-scaling-high-freq-factor",
                 {.expected = "finite values above 0, the low one below the high one",
                  .got = fmt::format("{} and {}", low, high),
                  .remedy = kUsual});
  }
  check_range("--rope-scaling-original-max-position-embeddings", scaling.original_max_position_embeddings,
              {1, kMaxLength});
}

void check_yarn(const ModelConfig& config) {
  const RopeScaling& yarn = config.yarn;
  check_value("--rotary-scaling-factor", yarn.factor, yarn.factor >= 1.0 && !std::isinf(yarn.factor),
              "a finite value of at least 1");
  check_range("--original-max-position-embeddings", yarn.original_max_position_embeddings, {1, kMaxLength});
  if (!(yarn.beta_slow > 0.0) || !(yarn.beta_fast >= yarn.beta_slow) || std::isinf(yarn.beta_fast)) {
    refuse_usage("--beta-fast and --beta-slow", {.expected = "finite values above 0, --beta-fast >= --beta-slow",
                                                 .got = fmt::format("{} and {}", yarn.beta_fast, yarn.beta_slow),
                                                 .remedy = kUsual});
  }
  for (const auto& [flag, value] : {std::pair{"--mscale", yarn.mscale},
                                    {"--mscale-all-dim", yarn.mscale_all_dim},
                                    {"--rope-scaling-attention-factor", yarn.attention_factor}})
    check_value(flag, value, value >= 0.0 && !std::isinf(value), "a finite value of at least 0");
  if (config.rope_type == RopeType::kYarn && config.rotary_base <= 1.0) {
    refuse_usage("--rotary-base with --rope-type yarn",
                 {.expected = "a value above 1", .got = fmt::format("{}", config.rotary_base), .remedy = kUsual});
  }
}

void check_numbers(const ModelConfig& config) {
  const double percent = config.rotary_percent, epsilon = config.norm_epsilon, dropout = config.hidden_dropout;
  check_value("--rotary-base", config.rotary_base, is_finite_above(config.rotary_base, 0.0), "a finite value above 0");
  check_value("--rotary-percent", percent, percent > 0.0 && percent <= 1.0, "a value above 0 and at most 1");
  check_rope_scaling(config.rope_scaling);
  check_yarn(config);
  const double interpolation = config.rotary_seq_len_interpolation_factor;
  check_value("--rotary-seq-len-interpolation-factor", interpolation,
              interpolation >= 1.0 && !std::isinf(interpolation), "a finite value of at least 1");
  const std::int64_t rotary_dim = config.rotary_dim();
  if (config.position_embedding_type == PositionEmbedding::kRope && (rotary_dim < 2 || rotary_dim % 2 != 0)) {
    refuse_usage("--rotary-percent and --kv-channels",
                 {.expected = "an even number of at least 2 rotated elements per head",
                  .got = fmt::format("{} of {}", rotary_dim, config.kv_channels),
                  .remedy = "RoPE turns pairs: change one of the two"});
  }
  check_value("--norm-epsilon", epsilon, epsilon > 0.0 && epsilon < 1.0, "a value above 0 and below 1");
  check_value("--hidden-dropout", dropout, dropout >= 0.0 && dropout < 1.0, "a value of at least 0 and less than 1");
  if (config.attention_dropout != 0.0) {
    refuse_usage("--attention-dropout", {.expected = "0, other values are not built yet",
                                         .got = fmt::format("{}", config.attention_dropout),
                                         .remedy = "leave it out; --hidden-dropout is there"});
  }
  check_value("--init-method-std", config.init_method_std, is_finite_above(config.init_method_std, 0.0),
              "a finite value above 0");
  if (config.swiglu && config.activation_func != ActivationFunction::kGeluTanh) {
    refuse_usage("--swiglu and --activation-func",
                 {.expected = "one of them", .got = "both", .remedy = "SwiGLU brings its own activation (SiLU)"});
  }
  if (config.squared_relu && (config.swiglu || config.activation_func != ActivationFunction::kGeluTanh)) {
    refuse_usage(config.swiglu ? "--squared-relu and --swiglu" : "--squared-relu and --activation-func",
                 {.expected = "one of them", .got = "both", .remedy = "remove --squared-relu, or the other one"});
  }
  if (config.params_dtype != DType::kFp32 && config.params_dtype != DType::kBf16) {
    refuse_usage("params_dtype", {.expected = "fp32 or bf16",
                                  .got = std::string(name_of(config.params_dtype)),
                                  .remedy = "give --bf16 or leave it out"});
  }
}

std::int64_t norm_parameters(const ModelConfig& config, std::int64_t width) {
  return config.normalization == Normalization::kLayerNorm ? 2 * width : width;
}

// Returns the elements of one layer's attention matrices, without biases.
std::int64_t attention_weights(const ModelConfig& config) {
  const std::int64_t q_width = config.num_attention_heads * config.kv_channels;
  const std::int64_t kv_width = config.num_query_groups * config.kv_channels;
  return config.hidden_size * (q_width + 2 * kv_width) + q_width * config.hidden_size;
}

std::int64_t mlp_weights(const ModelConfig& config) {
  return (config.swiglu ? 3 : 2) * config.hidden_size * config.ffn_hidden_size;
}

// Returns the elements of an expert layer's matrices that one token uses.
std::int64_t active_expert_weights(const ModelConfig& config) {
  const MoeConfig& moe = config.moe;
  return (config.swiglu ? 3 : 2) * config.hidden_size *
             (moe.router_topk * moe.ffn_hidden_size + moe.shared_expert_intermediate_size) +
         (moe.shared_expert_gate ? config.hidden_size : 0);
}

std::int64_t router_weights(const ModelConfig& config) { return config.moe.num_experts * config.hidden_size; }

std::int64_t count_moe_layers(const ModelConfig& config) {
  return std::ranges::count(moe_layers(config.moe, config.num_layers), true);
}

}  // namespace

double ModelConfig::output_layer_init_std() const {
  return init_method_std / std::sqrt(2.0 * static_cast<double>(num_layers));
}

std::int64_t ModelConfig::rotary_dim() const {
  if (position_embedding_type != PositionEmbedding::kRope) return 0;
  return static_cast<std::int64_t>(static_cast<double>(kv_channels) * rotary_percent);
}

RopeScaling ModelConfig::rotary_scaling() const {
  if (rope_type == RopeType::kYarn) return yarn;
  if (use_rope_scaling) return rope_scaling;
  if (rotary_seq_len_interpolation_factor == 1) return {};
  return {.kind = RopeScalingKind::kLinear, .factor = rotary_seq_len_interpolation_factor};
}

void ModelConfig::set_rotary_scaling(const RopeScaling& scaling) {
  use_rope_scaling = scaling.kind == RopeScalingKind::kLlama3;
  rope_type = scaling.kind == RopeScalingKind::kYarn ? RopeType::kYarn : RopeType::kRope;
  rotary_seq_len_interpolation_factor = scaling.kind == RopeScalingKind::kLinear ? scaling.factor : 1;
  if (use_rope_scaling) rope_scaling = scaling;
  if (rope_type == RopeType::kYarn) yarn = scaling;
}

void resolve(ModelConfig& config) {
  if (config.ffn_hidden_size == 0) {
    config.ffn_hidden_size = config.swiglu ? 8 * config.hidden_size / 192 * 64 : 4 * config.hidden_size;
  }
  if (config.num_query_groups == 0)
    config.num_query_groups = config.group_query_attention ? 1 : config.num_attention_heads;
  const bool divides = config.num_attention_heads > 0 && config.hidden_size % config.num_attention_heads == 0;
  if (config.kv_channels == 0 && divides) config.kv_channels = config.hidden_size / config.num_attention_heads;
  if (config.max_position_embeddings == 0) config.max_position_embeddings = config.seq_length;
  resolve_moe(config);
  const std::int64_t multiple = config.make_vocab_size_divisible_by;
  if (multiple > 0) config.padded_vocab_size = (config.vocab_size + multiple - 1) / multiple * multiple;
}

std::vector<std::int64_t> attention_windows(const ModelConfig& config) {
  const auto layers = static_cast<std::size_t>(config.num_layers);
  if (config.window_size.empty()) return std::vector<std::int64_t>(layers);
  const std::int64_t window = config.window_size.front() + 1;
  const std::string& skips = config.window_attn_skip_freq;
  std::vector<std::int64_t> windows(layers, window);
  if (is_layer_pattern(skips)) {
    windows.clear();
    for (const bool has_window : parse_layer_pattern(skips)) windows.push_back(has_window ? window : 0);
  } else if (!skips.empty()) {
    const auto every = parse_layer_frequency(skips);
    if (!every) return {};
    for (std::size_t layer = *every; layer <= layers; layer += *every) windows[layer - 1] = 0;
  }
  return windows;
}

bool has_reached_window(const ModelConfig& config) {
  return std::ranges::any_of(attention_windows(config),
                             [&config](std::int64_t window) { return window > 0 && window < config.seq_length; });
}

void validate(const ModelConfig& config) {
  check_sizes(config);
  check_windows(config);
  check_numbers(config);
  validate_moe(config);
}

ParameterCount count_parameters(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t qkv_width = (config.num_attention_heads + 2 * config.num_query_groups) * config.kv_channels;
  const std::int64_t fc1_width = (config.swiglu ? 2 : 1) * config.ffn_hidden_size;
  const bool learned_positions = config.position_embedding_type == PositionEmbedding::kLearnedAbsolute;

  std::int64_t attention = attention_weights(config);
  if (config.has_qkv_bias()) attention += qkv_width;
  if (config.has_attn_proj_bias()) attention += hidden;
  if (config.qk_layernorm) attention += 2 * norm_parameters(config, config.kv_channels);
  std::int64_t mlp = mlp_weights(config);
  if (config.add_bias_linear) mlp += fc1_width + hidden;

  const std::int64_t tables = config.untie_embeddings_and_output_weights ? 2 : 1;
  ParameterCount count;
  count.embedding = config.padded_vocab_size * hidden;
  if (learned_positions) count.embedding += config.max_position_embeddings * hidden;
  count.attention = config.num_layers * attention;
  const std::int64_t moe = count_moe_layers(config);
  count.mlp = (config.num_layers - moe) * mlp;
  if (moe > 0) {
    const std::int64_t others = config.moe.num_experts - config.moe.router_topk;
    const std::int64_t ffn = config.moe.ffn_hidden_size;
    const std::int64_t biases = config.add_bias_linear ? (config.swiglu ? 2 : 1) * ffn + hidden : 0;
    const std::int64_t one = (config.swiglu ? 3 : 2) * hidden * ffn + biases;
    count.router = moe * router_weights(config);
    count.active_experts = moe * (active_expert_weights(config) + config.moe.router_topk * biases);
    count.experts = count.active_experts + moe * others * one;
    count.routed_experts = moe * config.moe.num_experts * one;
  }
  count.norm = (2 * config.num_layers + 1) * norm_parameters(config, hidden);
  count.output = (tables - 1) * config.padded_vocab_size * hidden;
  count.padding = tables * (config.padded_vocab_size - config.vocab_size) * hidden;
  count.total =
      count.embedding + count.attention + count.mlp + count.router + count.experts + count.norm + count.output;
  return count;
}

double flops_per_token(const ModelConfig& config) {
  const auto layers = static_cast<double>(config.num_layers);
  const std::int64_t moe = count_moe_layers(config);
  const std::int64_t feed_forward = (config.num_layers - moe) * mlp_weights(config) +
                                    (moe > 0 ? moe * (router_weights(config) + active_expert_weights(config)) : 0);
  const double weights = layers * static_cast<double>(attention_weights(config)) + static_cast<double>(feed_forward) +
                         static_cast<double>(config.padded_vocab_size * config.hidden_size);
  const auto attention_width = static_cast<double>(config.num_attention_heads * config.kv_channels);
  double keys = 0;  // of an average query, over all layers
  for (const std::int64_t window : attention_windows(config)) {
    const double half = static_cast<double>(config.seq_length) / 2;
    keys += window > 0 ? std::min(half, static_cast<double>(window)) : half;
  }
  return 6.0 * weights + 12.0 * keys * attention_width;
}

}  // namespace megalith
