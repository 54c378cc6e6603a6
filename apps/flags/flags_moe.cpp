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
  constexpr std::string_view kGiveFactor = "give a factor, such as --moe-expert-capacity-factor 1.25";
  Section(t, kMoe, kShaped)
      .add("num-experts", "N", integer(&m.num_experts, {0, 1024}),
           "number of experts in each MoE layer; 0: no MoE layers",
           {.on_load = kTensors, .example = "8 --swiglu --disable-bias-linear"});
  Section moe(t, kMoe, kShaped, {.needs = {{"num-experts"}}});
  moe.add("moe-layer-freq", "TEXT", text(&m.layer_freq),
          "layers with experts instead of the MLP: N for layers 0, N, 2N, ..., or a 0 or 1 for each layer, such as "
          "'[0]*3+[1]*26'",
          {.on_load = kTensors, .example = "[0]+[1]"});
  moe.add("moe-ffn-hidden-size", "N", integer(&m.ffn_hidden_size, {0, kMaxFfn}),
          "MLP hidden size of an expert; 0: derived",
          {.shown = "ffn-hidden-size", .on_load = kTensors, .example = "48"});
  moe.add("moe-router-topk", "N", integer(&m.router_topk, {1, 16}), "number of experts per token", {.example = "3"});
  moe.add("moe-router-score-function", "NAME", choice(&m.router_score_function, {"softmax", "sigmoid"}),
          "score function of the router; sigmoid scores of several choices are divided by their sum",
          {.example = "sigmoid"});
  moe.add("moe-router-pre-softmax", "", toggle(&m.router_pre_softmax),
          "softmax over all experts ahead of the top-k, instead of over the chosen experts");
  moe.add("moe-router-topk-scaling-factor", "X", real(&m.router_topk_scaling_factor, {0, kInfinity, true}),
          "scaling factor of the routing weights", {.example = "2.5"});
  moe.add("moe-router-num-groups", "N", integer(&m.router_num_groups, {0, 1024}),
          "groups of adjacent experts for group-limited routing; 0: none", {.example = "2 --moe-router-group-topk 1"});
  moe.add("moe-router-group-topk", "N", integer(&m.router_group_topk, {0, 1024}),
          "number of groups that a token chooses experts from, by the sum of their best topk / group-topk experts",
          {.example = "1 --moe-router-num-groups 2"});
  moe.add("moe-router-dtype", "NAME", choice(&m.router_dtype, {"fp32", "fp64"}),
          "dtype of the arithmetic of router logits, scores and weights", {.on_load = kNoted, .example = "fp64"});
  moe.add("moe-router-load-balancing-type", "NAME...",
          list(&m.router_load_balancing_type, {"aux_loss", "seq_aux_loss", "global_aux_loss", "none"}),
          "load-balancing losses. aux_loss: over a microbatch. seq_aux_loss: over each sequence. global_aux_loss: over "
          "the step's microbatches so far",
          {.shown = "aux_loss", .on_load = kNoted, .example = "seq_aux_loss none"});
  moe.add("moe-aux-loss-coeff", "X...", reals(&m.aux_loss_coeff, {0, kInfinity}, 0, 4),
          "coefficients of the load-balancing losses, one for each type",
          {.shown = "0", .on_load = kNoted, .example = "0 0.01 --moe-router-load-balancing-type none seq_aux_loss"});
  moe.add("moe-z-loss-coeff", "X", real(&m.z_loss_coeff, {0, kInfinity}),
          "coefficient of the router z-loss, which penalizes large logits", {.on_load = kNoted, .example = "0.001"});
  moe.add("moe-router-enable-expert-bias", "", toggle(&m.router_enable_expert_bias),
          "with sigmoid: bias of each expert in the choice of experts, which balances the load without a loss. The "
          "bias rises after each step in which its expert had too few rows",
          {.on_load = kTensors, .example = "--moe-router-score-function sigmoid"});
  moe.add("moe-router-bias-update-rate", "X", real(&m.router_bias_update_rate, {0, kInfinity}),
          "update rate of the bias",
          {.on_load = kNoted, .example = "0.01 --moe-router-enable-expert-bias --moe-router-score-function sigmoid"});
  moe.add("moe-router-force-load-balancing", "", toggle(&m.router_force_load_balancing),
          "random router logits, for benchmarks; the routing is not trained", {.on_load = kNoted});
  moe.add("moe-expert-capacity-factor", "X", real(&m.expert_capacity_factor, {0, kInfinity}),
          "maximum rows of an expert over the mean, on each rank in each microbatch. A token skips an expert that is "
          "full. 0: no row is dropped",
          {.example = "1.25"});
  moe.add("moe-token-drop-policy", "NAME", choice(&m.token_drop_policy, {"probs", "position"}),
          "with a capacity: choices that are dropped; probs: the lowest weights, position: the last tokens",
          {.needs = {{.flag = "moe-expert-capacity-factor",
                      .remedy = kGiveFactor,
                      .got = "--moe-token-drop-policy alone, where no row is ever dropped"}},
           .example = "position"});
  moe.add("moe-pad-expert-input-to-capacity", "", toggle(&m.pad_expert_input_to_capacity),
          "with a capacity: accepted for compatibility, no effect",
          {.on_load = kFree,
           .needs = {{.flag = "moe-expert-capacity-factor",
                      .remedy = kGiveFactor,
                      .got = "--moe-pad-expert-input-to-capacity alone, where no row is ever dropped"}}});
  moe.add("moe-shared-expert-intermediate-size", "N", integer(&m.shared_expert_intermediate_size, {0, kMaxFfn}),
          "MLP hidden size of the shared expert, which every token passes; 0: none",
          {.on_load = kTensors, .example = "24"});
  moe.add("moe-shared-expert-gate", "", toggle(&m.shared_expert_gate), "sigmoid gate on the shared expert's output",
          {.on_load = kTensors,
           .needs = {{.flag = "moe-shared-expert-intermediate-size", .remedy = "set the shared expert's size"}}});
  moe.add("moe-combine-groups", "N", integer(&m.combine_groups, {0, 1024}),
          "number of combine groups: adjacent experts whose rows of a token are summed and rounded ahead of the sum "
          "over groups. The number is a multiple of --expert-model-parallel-size and divides --num-experts. At one "
          "number, results are bit-identical for any such size. 0: that size, which sends the least",
          {.shown = "expert-model-parallel-size", .on_load = kNoted, .example = "2"});
  moe.add("moe-grouped-gemm", "", toggle(&m.grouped_gemm),
          "one grouped GEMM for all experts; accepted for compatibility, always active", {.on_load = kFree});
  moe.add("use-transformer-engine-op-fuser", "", toggle(&m.use_transformer_engine_op_fuser),
          "with --moe-grouped-gemm: activation and its gradient fused into the grouped GEMM, with the same bits",
          {.on_load = kFree, .needs = {{"moe-grouped-gemm"}}});
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
      refuse("--num-experts", fmt::format("{} only with --num-experts", module), module, "remove it");
  }
  for (const std::string& module : modules) {
    const char* const whole = has("layer") && module != "layer"          ? "layer"
                              : has("moe") && module.starts_with("moe_") ? "moe"
                                                                         : nullptr;
    if (whole != nullptr)
      refuse(whole, fmt::format("{} without {}, which its graphs hold", whole, module), "both",
             fmt::format("remove {} or {}", module, whole));
  }
  if (has("moe_preprocess") && !has("moe_router"))
    refuse("moe_preprocess", "moe_preprocess only with moe_router", "moe_preprocess alone", "add moe_router");
  const std::vector<std::string>& recomputed = options.memory.recompute_modules;
  if (has("moe_router") && std::ranges::find(recomputed, "moe") != recomputed.end())
    refuse("--recompute-modules", "moe if full MoE layers are recomputed", "moe_router",
           "use --cuda-graph-modules moe");
  if (has("mlp") && !has_mlp(options.model, false))
    refuse("--moe-layer-freq", "mlp only if a layer has an MLP", "experts in all layers", "use moe instead");
}

void check_expert_parallel(const Options& options) {
  const MoeConfig& moe = options.moe();
  const ParallelOptions& parallel = options.parallel;
  if (moe.num_experts == 0) return;
  const std::int64_t ep = parallel.expert_model_parallel_size, etp = parallel.expert_tensor_parallel_size;
  const auto check_divides = [](const FlagNumber& ranks, const FlagNumber& whole) {
    if (whole.value % ranks.value == 0) return;
    std::vector<std::int64_t> fitting;
    for (std::int64_t size = 1; size <= std::min(ranks.value, whole.value); ++size)
      if (whole.value % size == 0 && ranks.value % size == 0)
        fitting.push_back(size);  // keeps the number of ranks valid
    refuse_numbers(ranks, whole, "a parallel size that divides the other value",
                   fmt::format("use {} {}", ranks.flag, fmt::join(fitting, " or ")));
  };
  check_divides({"--expert-model-parallel-size", ep}, {"--num-experts", moe.num_experts});
  check_divides({"--expert-tensor-parallel-size", etp}, {"--moe-ffn-hidden-size", moe.ffn_hidden_size});
  if (moe.combine_groups % ep != 0)
    refuse_numbers({"--moe-combine-groups", moe.combine_groups}, {"--expert-model-parallel-size", ep},
                   "a multiple of --expert-model-parallel-size", fmt::format("use --moe-combine-groups {}", ep));
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
                 {.expected = std::string(module) + " only with " + needs, .got = module, .remedy = "remove it"});
  }
  check_graph_modules(options);
  if (moe.num_experts == 0) return;
  for (const auto& [module, of_experts] : {std::pair{"mlp", "moe"}, std::pair{"mlp_act", "moe_act"}}) {
    const bool is_act = module == std::string("mlp_act");
    if (std::ranges::find(recomputed, module) == recomputed.end() || has_mlp(options.model, is_act)) continue;
    refuse_usage("--recompute-modules and --moe-layer-freq",
                 {.expected = fmt::format("{} only if a layer has an MLP", module),
                  .got = "experts in all layers",
                  .remedy = fmt::format("use {} instead", of_experts)});
  }
  if (parallel.tensor_model_parallel_size > 1 && !parallel.sequence_parallel) {
    refuse_usage("--num-experts and --tensor-model-parallel-size",
                 {.expected = "--sequence-parallel with experts and tensor parallelism",
                  .got = "--tensor-model-parallel-size without it",
                  .remedy = "add --sequence-parallel, with which each rank routes only its own rows"});
  }
  const std::int64_t shared = moe.shared_expert_intermediate_size, ranks = parallel.tensor_model_parallel_size;
  if (shared % ranks != 0) {
    refuse_usage("--moe-shared-expert-intermediate-size and --tensor-model-parallel-size",
                 {.expected = "a size that is a multiple of the tensor-parallel size",
                  .got = fmt::format("{} and {}", shared, ranks),
                  .remedy = fmt::format("use --moe-shared-expert-intermediate-size {}", (shared / ranks + 1) * ranks)});
  }
}

}  // namespace megalith
