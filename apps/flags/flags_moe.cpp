#include "apps/flags/flags_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/config/memory_options.h"
#include "apps/config/parallel_options.h"
#include "apps/flags/flags_table.h"
#include "core/base/error.h"

namespace megalith {

void add_moe(FlagTable& t, MoeConfig& m) {
  using enum FlagGroup;
  using enum OnLoad;
  constexpr std::int64_t kMaxFfn = 1 << 22;
  Section moe(t, kMoe, kShaped);
  moe.add("num-experts", "N", integer(&m.num_experts, {0, 1024}),
          "experts in each layer of them, whose rows are routed; 0: no such layers",
          {.on_load = kTensors, .example = "8 --swiglu --disable-bias-linear"});
  moe.add("moe-layer-freq", "TEXT", text(&m.layer_freq),
          "which layers have experts in place of the MLP: N for layers 0, N, 2N and so on, or a 0 or 1 for each layer, "
          "such as '[0]*3+[1]*26'",
          {.on_load = kTensors, .example = "[0]+[1]"});
  moe.add("moe-ffn-hidden-size", "N", integer(&m.ffn_hidden_size, {0, kMaxFfn}), "width of an expert; 0: derived",
          {.shown = "ffn-hidden-size", .on_load = kTensors, .example = "48"});
  moe.add("moe-router-topk", "N", integer(&m.router_topk, {1, 16}), "experts that a token chooses", {.example = "3"});
  moe.add("moe-router-score-function", "NAME", choice(&m.router_score_function, {"softmax", "sigmoid"}),
          "from the router's logits to the experts' weights; sigmoids of several choices are divided by their sum",
          {.example = "sigmoid"});
  moe.add("moe-router-pre-softmax", "", toggle(&m.router_pre_softmax),
          "softmax over all experts, before the choice, instead of over the chosen ones");
  moe.add("moe-router-topk-scaling-factor", "X", real(&m.router_topk_scaling_factor, {0, kInfinity, true}),
          "factor of the weights", {.example = "2.5"});
  moe.add("moe-router-num-groups", "N", integer(&m.router_num_groups, {0, 1024}),
          "groups of neighbouring experts; 0: none", {.example = "2 --moe-router-group-topk 1"});
  moe.add("moe-router-group-topk", "N", integer(&m.router_group_topk, {0, 1024}),
          "groups from which a token may choose its experts, those of the best topk / group-topk experts",
          {.example = "1 --moe-router-num-groups 2"});
  moe.add("moe-router-dtype", "NAME", choice(&m.router_dtype, {"fp32"}), "of logits, scores and weights",
          {.on_load = kFree});
  moe.add("moe-router-load-balancing-type", "NAME...",
          list(&m.router_load_balancing_type, {"aux_loss", "seq_aux_loss", "global_aux_loss", "none"}),
          "losses that spread tokens over experts: over a microbatch, over each sequence of it, over the step's "
          "microbatches so far",
          {.shown = "aux_loss", .on_load = kNoted, .example = "seq_aux_loss none"});
  moe.add("moe-aux-loss-coeff", "X...", reals(&m.aux_loss_coeff, {0, kInfinity}, 0, 4),
          "their coefficients, one for each type",
          {.shown = "0", .on_load = kNoted, .example = "0 0.01 --moe-router-load-balancing-type none seq_aux_loss"});
  moe.add("moe-z-loss-coeff", "X", real(&m.z_loss_coeff, {0, kInfinity}), "coefficient of the loss on large logits",
          {.on_load = kNoted, .example = "0.001"});
  moe.add("moe-router-enable-expert-bias", "", toggle(&m.router_enable_expert_bias),
          "with sigmoid: choose experts by score plus a bias, which rises after each step in which an expert had too "
          "few rows: balance without a loss",
          {.on_load = kTensors, .example = "--moe-router-score-function sigmoid"});
  moe.add("moe-router-bias-update-rate", "X", real(&m.router_bias_update_rate, {0, kInfinity}), "of the bias above",
          {.on_load = kNoted, .example = "0.01 --moe-router-enable-expert-bias --moe-router-score-function sigmoid"});
  moe.add("moe-router-force-load-balancing", "", toggle(&m.router_force_load_balancing),
          "random logits, for benchmarks: the model learns nothing of its routing", {.on_load = kNoted});
  moe.add("moe-expert-capacity-factor", "X", real(&m.expert_capacity_factor, {0, kInfinity}),
          "rows of an expert over the mean, at most, on each rank in each microbatch; a token goes without an expert "
          "that has them all; 0: no row is dropped",
          {.example = "1.25"});
  moe.add("moe-token-drop-policy", "NAME", choice(&m.token_drop_policy, {"probs", "position"}),
          "with a capacity: what gets no row, the lowest weights or the last tokens",
          {.example = "position --moe-expert-capacity-factor 1.25"});
  moe.add("moe-pad-expert-input-to-capacity", "", toggle(&m.pad_expert_input_to_capacity),
          "with a capacity: taken, but no row is padded, as no result would be another",
          {.on_load = kFree, .example = "--moe-expert-capacity-factor 1.25"});
  moe.add("moe-shared-expert-intermediate-size", "N", integer(&m.shared_expert_intermediate_size, {0, kMaxFfn}),
          "width of an MLP beside the experts that every token passes; 0: none",
          {.on_load = kTensors, .example = "24"});
  moe.add("moe-shared-expert-gate", "", toggle(&m.shared_expert_gate),
          "scale its output by the sigmoid of a linear gate",
          {.on_load = kTensors, .example = "--moe-shared-expert-intermediate-size 24"});
  moe.add("moe-combine-groups", "N", integer(&m.combine_groups, {0, 1024}),
          "groups of neighbouring experts in which a token's rows are added up, each sum rounded, before the groups' "
          "sums are; a multiple of --expert-model-parallel-size that divides the experts. At one number the same bits "
          "with any such size; 0: that size, which sends least",
          {.shown = "expert-model-parallel-size", .on_load = kNoted, .example = "2"});
  moe.add("moe-grouped-gemm", "", toggle(&m.grouped_gemm),
          "all experts' products in one kernel, which is also what is done without it", {.on_load = kFree});
  moe.add("use-transformer-engine-op-fuser", "", toggle(&m.use_transformer_engine_op_fuser),
          "with --moe-grouped-gemm: the experts' activation, and its gradient, within these kernels; the same bits",
          {.on_load = kFree, .example = "--moe-grouped-gemm"});
}

namespace {

void check_graph_modules(const Options& options) {
  const std::vector<std::string>& modules = options.memory.cuda_graph_modules;
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
  const std::vector<std::string>& recomputed = options.memory.recompute_modules;
  if (has("moe_router") && std::ranges::find(recomputed, "moe") != recomputed.end())
    refuse("--recompute-modules", "moe where whole layers of experts are recomputed", "moe_router",
           "use --cuda-graph-modules moe");
  if (has("mlp") && !has_mlp(options.model, false))
    refuse("--moe-layer-freq", "mlp only where a layer has an MLP", "experts in all layers", "use moe in its place");
}

void check_expert_parallel(const Options& options) {
  const MoeConfig& moe = options.moe();
  const ParallelOptions& parallel = options.parallel;
  if (moe.num_experts == 0) return;
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
}

}  // namespace

void check_moe(const Options& options) {
  const MoeConfig& moe = options.moe();
  const ParallelOptions& parallel = options.parallel;
  check_expert_parallel(options);
  const std::vector<std::string>& recomputed = options.memory.recompute_modules;
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
