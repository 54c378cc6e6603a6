#include "apps/flags/flags_moe.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/base/error.h"

namespace megalith {

// clang-format off
void add_moe(std::vector<Flag>& t, MoeConfig& m) {
  using enum FlagGroup;
  using enum OnLoad;
  constexpr auto kShaped = static_cast<unsigned>(App::kTrain) | static_cast<unsigned>(App::kPlan);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr std::int64_t kMaxFfn = 1 << 22;
  t.insert(t.end(), {
    {"num-experts", kMoe, kShaped, "N", integer(&m.num_experts, {0, 1024}), "experts in each layer of them, whose rows are routed; 0: no such layers", "", kTensors},
    {"moe-layer-freq", kMoe, kShaped, "TEXT", text(&m.layer_freq), "which layers have experts in place of the MLP: N for layers 0, N, 2N and so on, or a 0 or 1 for each layer, such as '[0]*3+[1]*26'", "", kTensors},
    {"moe-ffn-hidden-size", kMoe, kShaped, "N", integer(&m.ffn_hidden_size, {0, kMaxFfn}), "width of an expert; 0: derived", "ffn-hidden-size", kTensors},
    {"moe-router-topk", kMoe, kShaped, "N", integer(&m.router_topk, {1, 16}), "experts that a token chooses", ""},
    {"moe-router-score-function", kMoe, kShaped, "NAME", choice(&m.router_score_function, {"softmax", "sigmoid"}), "from the router's logits to the experts' weights; sigmoids of several choices are divided by their sum", ""},
    {"moe-router-pre-softmax", kMoe, kShaped, "", toggle(&m.router_pre_softmax), "softmax over all experts, before the choice, instead of over the chosen ones", ""},
    {"moe-router-topk-scaling-factor", kMoe, kShaped, "X", real(&m.router_topk_scaling_factor, {0, kInfinity, true}), "factor of the weights", ""},
    {"moe-router-num-groups", kMoe, kShaped, "N", integer(&m.router_num_groups, {0, 1024}), "groups of neighbouring experts; 0: none", ""},
    {"moe-router-group-topk", kMoe, kShaped, "N", integer(&m.router_group_topk, {0, 1024}), "groups from which a token may choose its experts, those of the best topk / group-topk experts", ""},
    {"moe-router-dtype", kMoe, kShaped, "NAME", choice(&m.router_dtype, {"fp32"}), "of logits, scores and weights", "", kFree},
    {"moe-router-load-balancing-type", kMoe, kShaped, "NAME...", list(&m.router_load_balancing_type, {"aux_loss", "seq_aux_loss", "global_aux_loss", "none"}), "losses that spread tokens over experts: over a microbatch, over each sequence of it, over the step's microbatches so far", "aux_loss", kNoted},
    {"moe-aux-loss-coeff", kMoe, kShaped, "X...", reals(&m.aux_loss_coeff, {0, kInfinity}, 0, 4), "their coefficients, one for each type", "0", kNoted},
    {"moe-z-loss-coeff", kMoe, kShaped, "X", real(&m.z_loss_coeff, {0, kInfinity}), "coefficient of the loss on large logits", "", kNoted},
    {"moe-router-enable-expert-bias", kMoe, kShaped, "", toggle(&m.router_enable_expert_bias), "with sigmoid: choose experts by score plus a bias, which rises after each step in which an expert had too few rows: balance without a loss", "", kTensors},
    {"moe-router-bias-update-rate", kMoe, kShaped, "X", real(&m.router_bias_update_rate, {0, kInfinity}), "of the bias above", "", kNoted},
    {"moe-router-force-load-balancing", kMoe, kShaped, "", toggle(&m.router_force_load_balancing), "random logits, for benchmarks: the model learns nothing of its routing", "", kNoted},
    {"moe-expert-capacity-factor", kMoe, kShaped, "X", real(&m.expert_capacity_factor, {0, kInfinity}), "rows of an expert over the mean, at most, on each rank in each microbatch; a token goes without an expert that has them all; 0: no row is dropped", ""},
    {"moe-token-drop-policy", kMoe, kShaped, "NAME", choice(&m.token_drop_policy, {"probs", "position"}), "with a capacity: what gets no row, the lowest weights or the last tokens", ""},
    {"moe-pad-expert-input-to-capacity", kMoe, kShaped, "", toggle(&m.pad_expert_input_to_capacity), "with a capacity: taken, but no row is padded, as no result would be another", "", kFree},
    {"moe-shared-expert-intermediate-size", kMoe, kShaped, "N", integer(&m.shared_expert_intermediate_size, {0, kMaxFfn}), "width of an MLP beside the experts that every token passes; 0: none", "", kTensors},
    {"moe-shared-expert-gate", kMoe, kShaped, "", toggle(&m.shared_expert_gate), "scale its output by the sigmoid of a linear gate", "", kTensors},
    {"moe-combine-groups", kMoe, kShaped, "N", integer(&m.combine_groups, {0, 1024}), "groups of neighbouring experts in which a token's rows are added up, each sum rounded, before the groups' sums are; a multiple of --expert-model-parallel-size that divides the experts. At one number the same bits with any such size; 0: that size, which sends least", "expert-model-parallel-size", kNoted},
    {"moe-grouped-gemm", kMoe, kShaped, "", toggle(&m.grouped_gemm), "all experts' products in one kernel, which is also what is done without it", "", kFree},
    {"use-transformer-engine-op-fuser", kMoe, kShaped, "", toggle(&m.use_transformer_engine_op_fuser), "with --moe-grouped-gemm: the experts' activation, and its gradient, within these kernels; the same bits", "", kFree},
  });
}
// clang-format on

namespace {

void check_graph_modules(const Options& options) {
  const std::vector<std::string>& modules = options.train.cuda_graph_modules;
  const auto has = [&](const char* module) { return std::ranges::find(modules, module) != modules.end(); };
  const auto refuse = [](const char* other, const std::string& expected, const char* got, const std::string& remedy) {
    refuse_usage(fmt::format("--cuda-graph-modules and {}", other),
                 {.expected = expected, .got = got, .remedy = remedy});
  };
  for (const char* module : {"moe_router", "moe_preprocess", "moe"}) {
    if (has(module) && options.moe().num_experts == 0)
      refuse("--num-experts", fmt::format("{} only with --num-experts", module), module, "leave it out");
  }
  for (const std::string& module : modules) {
    const char* const whole = has("layer") && module != "layer"          ? "layer"
                              : has("moe") && module.starts_with("moe_") ? "moe"
                                                                         : nullptr;
    if (whole != nullptr)
      refuse(whole, fmt::format("{} without {}, which its graphs hold", whole, module), "both",
             fmt::format("leave out {} or {}", module, whole));
  }
  if (has("moe_preprocess") && !has("moe_router"))
    refuse("moe_preprocess", "moe_preprocess only with moe_router", "moe_preprocess alone", "add moe_router");
  const std::vector<std::string>& recomputed = options.train.recompute_modules;
  if (has("moe_router") && std::ranges::find(recomputed, "moe") != recomputed.end())
    refuse("--recompute-modules", "moe where whole layers of experts are recomputed", "moe_router",
           "use --cuda-graph-modules moe");
  if (has("mlp") && !has_mlp(options.model, false))
    refuse("--moe-layer-freq", "mlp only where a layer has an MLP", "experts in all layers", "use moe in its place");
}

// Without experts no flag of theirs may be given: it would be ignored.
void check_unused(const ParallelOptions& parallel) {
  const ParallelOptions none;
  for (const auto& [is_set, flag] :
       {std::pair{parallel.expert_model_parallel_size != 1, "--expert-model-parallel-size"},
        {parallel.expert_tensor_parallel_size != 1, "--expert-tensor-parallel-size"},
        {parallel.moe_token_dispatcher_type != none.moe_token_dispatcher_type, "--moe-token-dispatcher-type"},
        {parallel.moe_expert_rank_capacity_factor != none.moe_expert_rank_capacity_factor,
         "--moe-expert-rank-capacity-factor"},
        {parallel.moe_shared_expert_overlap, "--moe-shared-expert-overlap"}}) {
    if (!is_set) continue;
    refuse_usage(fmt::format("{} and --num-experts", flag),
                 {.expected = fmt::format("{} only with --num-experts", flag),
                  .got = fmt::format("{} alone", flag),
                  .remedy = fmt::format("use --num-experts, or remove {}", flag)});
  }
}

void check_expert_parallel(const Options& options) {
  const MoeConfig& moe = options.moe();
  const ParallelOptions& parallel = options.parallel;
  if (moe.num_experts == 0) return check_unused(parallel);
  const std::int64_t ep = parallel.expert_model_parallel_size, etp = parallel.expert_tensor_parallel_size;
  const auto check_divides = [](const char* flag, std::int64_t ranks, const char* whole_flag, std::int64_t whole) {
    if (whole % ranks == 0) return;
    std::vector<std::int64_t> fitting;
    for (std::int64_t size = 1; size <= std::min(ranks, whole); ++size)
      if (whole % size == 0 && ranks % size == 0) fitting.push_back(size);  // the ranks may be no multiple of others
    refuse_usage(fmt::format("{} and {}", flag, whole_flag),
                 {.expected = "a size that divides the other",
                  .got = fmt::format("{} {} and {} {}", flag, ranks, whole_flag, whole),
                  .remedy = fmt::format("use {} {}", flag, fmt::join(fitting, " or "))});
  };
  check_divides("--expert-model-parallel-size", ep, "--num-experts", moe.num_experts);
  check_divides("--expert-tensor-parallel-size", etp, "--moe-ffn-hidden-size", moe.ffn_hidden_size);
  if (moe.combine_groups % ep != 0)
    refuse_usage(
        "--moe-combine-groups and --expert-model-parallel-size",
        {.expected = "groups of which each rank has as many",
         .got = fmt::format("--moe-combine-groups {} and --expert-model-parallel-size {}", moe.combine_groups, ep),
         .remedy = fmt::format("use --moe-combine-groups {}", ep)});
  if (parallel.moe_shared_expert_overlap && moe.shared_expert_intermediate_size == 0)
    refuse_usage("--moe-shared-expert-overlap and --moe-shared-expert-intermediate-size",
                 {.expected = "--moe-shared-expert-overlap only with --moe-shared-expert-intermediate-size",
                  .got = "--moe-shared-expert-overlap alone",
                  .remedy = "give the shared expert's width, or remove --moe-shared-expert-overlap"});
}

}  // namespace

void check_moe(const Options& options) {
  const MoeConfig& moe = options.moe();
  const ParallelOptions& parallel = options.parallel;
  check_expert_parallel(options);
  const std::vector<std::string>& recomputed = options.train.recompute_modules;
  for (const char* module : {"moe", "moe_act", "shared_experts"}) {
    const bool is_used =
        moe.num_experts > 0 && (module != std::string("shared_experts") || moe.shared_expert_intermediate_size > 0);
    if (is_used || std::ranges::find(recomputed, module) == recomputed.end()) continue;
    const std::string needs =
        module == std::string("shared_experts") ? "--moe-shared-expert-intermediate-size" : "--num-experts";
    refuse_usage("--recompute-modules and " + needs,
                 {.expected = std::string(module) + " only with " + needs, .got = module, .remedy = "leave it out"});
  }
  check_graph_modules(options);
  if (moe.num_experts == 0) return;
  for (const auto& [module, of_experts] : {std::pair{"mlp", "moe"}, std::pair{"mlp_act", "moe_act"}}) {
    const bool is_act = module == std::string("mlp_act");
    if (std::ranges::find(recomputed, module) == recomputed.end() || has_mlp(options.model, is_act)) continue;
    refuse_usage("--recompute-modules and --moe-layer-freq",
                 {.expected = fmt::format("{} only where a layer has an MLP", module),
                  .got = "experts in all layers",
                  .remedy = fmt::format("use {} in its place", of_experts)});
  }
  if (parallel.tensor_model_parallel_size > 1 && !parallel.sequence_parallel) {
    refuse_usage("--num-experts and --tensor-model-parallel-size",
                 {.expected = "--sequence-parallel with experts and tensor parallelism",
                  .got = "--tensor-model-parallel-size without it",
                  .remedy = "add --sequence-parallel: each rank then has experts run on its own rows"});
  }
  const std::int64_t shared = moe.shared_expert_intermediate_size, ranks = parallel.tensor_model_parallel_size;
  if (shared % ranks != 0) {
    refuse_usage(
        "--moe-shared-expert-intermediate-size and --tensor-model-parallel-size",
        {.expected = "a width that divides by the ranks",
         .got = fmt::format("{} and {}", shared, ranks),
         .remedy = fmt::format("such as --moe-shared-expert-intermediate-size {}", (shared / ranks + 1) * ranks)});
  }
}

}  // namespace megalith
