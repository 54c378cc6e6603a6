#include "core/model/moe_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "core/base/error.h"
#include "core/model/config.h"
#include "core/model/layer_pattern.h"

namespace megalith {

namespace {

// Limits of the router's ops (moe/ops/router.h, route_rows.h).
constexpr std::int64_t kMostExperts = 1024, kMostChoices = 16, kMaxGroups = 32;
constexpr std::int64_t kMostFfn = std::int64_t{1} << 22, kMostRows = std::int64_t{1} << 26;

void refuse(const std::string& flags, const std::string& expected, const std::string& got, const std::string& remedy) {
  refuse_usage(flags, {.expected = expected, .got = got, .remedy = remedy});
}

void check_range(const char* flag, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return;
  refuse(flag, fmt::format("an integer from {} to {}", low, high), fmt::format("{}", value),
         value < low ? "raise it" : "lower it");
}

void check_layers(const ModelConfig& config) {
  const std::vector<bool> layers = moe_layers(config.moe, config.num_layers);
  const bool fits = static_cast<std::int64_t>(layers.size()) == config.num_layers;
  if (!fits || std::ranges::find(layers, true) == layers.end()) {
    refuse("--moe-layer-freq and --num-layers",
           fmt::format("a number above 0, or a list of 0 and 1, {} in all, with a 1 in it", config.num_layers),
           layers.empty() ? fmt::format("--moe-layer-freq {}", config.moe.layer_freq)
                          : fmt::format("--moe-layer-freq {}, a list of {}", config.moe.layer_freq, layers.size()),
           "such as --moe-layer-freq 1, or '[0]+[1]*26' for 27 layers");
  }
}

void check_expert_sizes(const ModelConfig& config) {
  const MoeConfig& moe = config.moe;
  check_range("--num-experts", moe.num_experts, 1, kMostExperts);
  check_range("--moe-ffn-hidden-size", moe.ffn_hidden_size, 1, kMostFfn);
  check_range("--num-experts x --moe-ffn-hidden-size", moe.num_experts * moe.ffn_hidden_size, 1, kMostRows);
  check_range("--moe-shared-expert-intermediate-size", moe.shared_expert_intermediate_size, 0, kMostFfn);
  if (moe.router_topk < 1 || moe.router_topk > std::min(moe.num_experts, kMostChoices)) {
    refuse("--moe-router-topk and --num-experts",
           fmt::format("a --moe-router-topk from 1 to {}", std::min(moe.num_experts, kMostChoices)),
           fmt::format("--moe-router-topk {} and --num-experts {}", moe.router_topk, moe.num_experts),
           "change --moe-router-topk: a token's experts are distinct");
  }
  if (config.add_bias_linear && moe.shared_expert_intermediate_size > 0) {
    refuse("--moe-shared-expert-intermediate-size", "--disable-bias-linear with a shared expert",
           "biases in the linear layers", "add --disable-bias-linear");
  }
  check_layers(config);
}

void check_groups(const MoeConfig& moe) {
  const std::int64_t groups = moe.router_num_groups, open = moe.router_group_topk;
  if (groups == 0 && open == 0) return;
  if (groups == 0 || open == 0) {
    refuse("--moe-router-num-groups and --moe-router-group-topk", "both of them, or none",
           groups == 0 ? "--moe-router-group-topk alone" : "--moe-router-num-groups alone", "give both");
  }
  const bool fits = groups <= kMaxGroups && moe.num_experts % groups == 0 && open <= groups &&
                    moe.router_topk % open == 0 && moe.router_topk / open <= moe.num_experts / groups;
  if (fits) return;
  refuse(
      "--moe-router-num-groups and --moe-router-group-topk",
      fmt::format("at most {} groups that divide --num-experts, and open ones, at most all, that divide "
                  "--moe-router-topk and have experts for it",
                  kMaxGroups),
      fmt::format("{} groups, {} open ones, {} experts and {} choices", groups, open, moe.num_experts, moe.router_topk),
      "such as 8 groups, 4 of them open, of 256 experts for 8 choices");
}

void check_router(const MoeConfig& moe) {
  const bool sigmoid = moe.router_score_function == MoeScoreFunction::kSigmoid;
  if (sigmoid && moe.router_pre_softmax)
    refuse("--moe-router-score-function and --moe-router-pre-softmax", "one of them", "sigmoid and a softmax",
           "remove --moe-router-pre-softmax");
  if (moe.router_enable_expert_bias && !sigmoid)
    refuse("--moe-router-enable-expert-bias and --moe-router-score-function", "a bias only with sigmoid",
           "--moe-router-score-function softmax", "use --moe-router-score-function sigmoid");
  if (!moe.router_enable_expert_bias && moe.router_bias_update_rate != MoeConfig().router_bias_update_rate)
    refuse("--moe-router-bias-update-rate and --moe-router-enable-expert-bias",
           "--moe-router-bias-update-rate only with --moe-router-enable-expert-bias",
           "--moe-router-bias-update-rate alone", "use --moe-router-enable-expert-bias, or remove the rate");
  if (moe.router_force_load_balancing && moe.router_dtype == MoeRouterDtype::kFp64)
    refuse("--moe-router-force-load-balancing and --moe-router-dtype", "random logits only in fp32", "fp64",
           "remove --moe-router-dtype fp64");
  check_groups(moe);
}

void check_balancing(const MoeConfig& moe) {
  const std::vector<std::string>& types = moe.router_load_balancing_type;
  if (!moe.aux_loss_coeff.empty() && moe.aux_loss_coeff.size() != types.size()) {
    refuse("--moe-aux-loss-coeff and --moe-router-load-balancing-type", "a coefficient for each type",
           fmt::format("{} and {}", moe.aux_loss_coeff.size(), types.size()), "give as many");
  }
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (std::find(types.begin() + static_cast<std::ptrdiff_t>(i) + 1, types.end(), types[i]) != types.end())
      refuse("--moe-router-load-balancing-type", "each type once", fmt::format("{} twice", types[i]), "keep one");
    if (types[i] == "none" && !moe.aux_loss_coeff.empty() && moe.aux_loss_coeff[i] != 0)
      refuse("--moe-aux-loss-coeff and --moe-router-load-balancing-type", "coefficient 0 for none",
             fmt::format("{}", moe.aux_loss_coeff[i]), "name the loss, such as aux_loss");
  }
}

}  // namespace

double MoeConfig::balancing_coeff(MoeBalancing over) const {
  constexpr std::array kTypes{"aux_loss", "seq_aux_loss", "global_aux_loss"};
  for (std::size_t i = 0; i < aux_loss_coeff.size(); ++i) {
    if (router_load_balancing_type[i] == kTypes[static_cast<std::size_t>(over)]) return aux_loss_coeff[i];
  }
  return 0;
}

double MoeConfig::balancing_coeff() const {
  return balancing_coeff(MoeBalancing::kMicrobatch) + balancing_coeff(MoeBalancing::kSequence) +
         balancing_coeff(MoeBalancing::kGlobal);
}

std::vector<bool> moe_layers(const MoeConfig& moe, std::int64_t num_layers) {
  if (moe.num_experts == 0) return std::vector<bool>(static_cast<std::size_t>(num_layers));
  if (is_layer_pattern(moe.layer_freq)) return parse_layer_pattern(moe.layer_freq);
  const auto every = parse_layer_frequency(moe.layer_freq);
  if (!every) return {};
  std::vector<bool> layers(static_cast<std::size_t>(num_layers));
  for (std::size_t layer = 0; layer < layers.size(); layer += *every) layers[layer] = true;
  return layers;
}

bool has_mlp(const ModelConfig& config, bool shared) {
  const std::vector<bool> has_experts = moe_layers(config.moe, config.num_layers);
  return config.moe.num_experts == 0 || std::ranges::find(has_experts, false) != has_experts.end() ||
         (shared && config.moe.shared_expert_intermediate_size > 0);
}

std::int64_t moe_layers_before(const ModelConfig& config, std::int64_t layers) {
  const std::vector<bool> has_experts = moe_layers(config.moe, config.num_layers);
  return std::count(has_experts.begin(), has_experts.begin() + layers, true);
}

void resolve_moe(ModelConfig& config) {
  MoeConfig& moe = config.moe;
  if (moe.num_experts == 0) return;
  if (moe.ffn_hidden_size == 0) moe.ffn_hidden_size = config.ffn_hidden_size;
  if (moe.router_load_balancing_type.empty()) moe.router_load_balancing_type = {"aux_loss"};
}

void validate_moe(const ModelConfig& config) {
  const MoeConfig& moe = config.moe;
  if (moe.num_experts == 0) return;
  check_expert_sizes(config);
  check_router(moe);
  check_balancing(moe);
  if (moe.combine_groups != 0 && moe.num_experts % moe.combine_groups != 0)
    refuse("--moe-combine-groups and --num-experts", "a number of groups that divides the experts",
           fmt::format("--moe-combine-groups {} and --num-experts {}", moe.combine_groups, moe.num_experts),
           "leave it out: it is --expert-model-parallel-size then");
}

}  // namespace megalith
