#include "moe/moe_layer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "moe/experts.h"
#include "moe/merge.h"

namespace megalith {

namespace {

RouterScore score_of(const MoeConfig& moe) {
  if (moe.router_score_function == MoeScoreFunction::kSigmoid) return RouterScore::kSigmoid;
  return moe.router_pre_softmax ? RouterScore::kSoftmax : RouterScore::kSoftmaxOfChosen;
}

std::unique_ptr<Segment> router(const MoeSite& site, const MoeOptions& options) {
  const MoeConfig& moe = site.config.moe;
  const auto coeff = [&moe](MoeBalancing over) { return static_cast<float>(moe.balancing_coeff(over)); };
  return std::make_unique<Router>(site.store,
                                  Router::Spec{.name = site.prefix + "router.",
                                               .hidden = site.config.hidden_size,
                                               .experts = moe.num_experts,
                                               .choices = moe.router_topk,
                                               .score = score_of(moe),
                                               .scaling_factor = static_cast<float>(moe.router_topk_scaling_factor),
                                               .num_groups = std::max<std::int64_t>(moe.router_num_groups, 1),
                                               .group_topk = std::max<std::int64_t>(moe.router_group_topk, 1),
                                               .init_std = static_cast<float>(site.config.init_method_std),
                                               .aux_coeff = coeff(MoeBalancing::kMicrobatch),
                                               .sequence_aux_coeff = coeff(MoeBalancing::kSequence),
                                               .global_aux_coeff = coeff(MoeBalancing::kGlobal),
                                               .z_coeff = static_cast<float>(moe.z_loss_coeff),
                                               .capacity_factor = moe.expert_capacity_factor,
                                               .drops_last = moe.token_drop_policy == MoeDropPolicy::kPosition,
                                               .expert_layer = moe_layers_before(site.config, site.layer),
                                               .expert_bias = moe.router_enable_expert_bias,
                                               .random_logits = moe.router_force_load_balancing,
                                               .split = site.rows.split(),
                                               .sum_counts = options.sum_counts,
                                               .sum_all_counts = options.sum_all_counts},
                                  site.norm);
}

std::unique_ptr<Segment> merge(const MoeSite& site) {
  const std::int64_t ffn = site.config.moe.shared_expert_intermediate_size, hidden = site.config.hidden_size;
  if (ffn == 0) return std::make_unique<Merge>(site.dropout, Merge::Shared{}, site.rows);
  const std::string prefix = site.prefix + "shared_experts.";
  const auto linear = [&](LinearSpec spec) {
    spec.one_write = true;
    return std::make_unique<Linear>(site.store, spec, site.rows);
  };
  Merge::Shared shared{.recompute = site.recompute_shared};
  shared.fc1 = linear({.name = prefix + "linear_fc1",
                       .inputs = hidden,
                       .outputs = 2 * ffn,
                       .init_std = static_cast<float>(site.config.init_method_std),
                       .input_kind = SlotKind::kExpertFc1,
                       .parts = {{prefix + "linear_gate", ffn}, {prefix + "linear_up", ffn}}});
  shared.fc2 = linear({.name = prefix + "linear_fc2",
                       .inputs = ffn,
                       .outputs = hidden,
                       .init_std = static_cast<float>(site.config.output_layer_init_std()),
                       .input_kind = SlotKind::kFc2,
                       .splits_inputs = true});
  if (site.config.moe.shared_expert_gate) {
    shared.gate = &site.store.add({.parts = {site.rows.split().shared_between_linears(prefix + "gate_weight")},
                                   .shape = {1, hidden},
                                   .init_std = static_cast<float>(site.config.init_method_std)});
  }
  return std::make_unique<Merge>(site.dropout, std::move(shared), site.rows);
}

std::unique_ptr<Segment> experts(const MoeSite& site, const MoeOptions& options) {
  const MoeConfig& moe = site.config.moe;
  return std::make_unique<Experts>(
      site.store, Experts::Spec{.name = site.prefix + "experts.",
                                .hidden = site.config.hidden_size,
                                .ffn = moe.ffn_hidden_size,
                                .experts = moe.num_experts,
                                .split = options.experts,
                                .fused = moe.use_transformer_engine_op_fuser,
                                .init_std = static_cast<float>(site.config.init_method_std),
                                .output_init_std = static_cast<float>(site.config.output_layer_init_std())});
}

}  // namespace

MoeFactory moe_factory(const MoeOptions& options) {
  return [options](const MoeSite& site) {
    require(site.rows.split().ranks == 1 || site.rows.split().sequence,
            "experts under tensor parallelism need sequence parallelism");
    std::vector<NamedSegment> list(3);
    list[0] = {.name = "router", .segment = router(site, options), .module = SegmentModule::kMoeRouter};
    list[2] = {.name = "merge", .segment = merge(site), .module = SegmentModule::kMoe};
    site.store.begin_unit(fmt::format("layer {} experts", site.layer), UnitKind::kExperts);
    const int unit = static_cast<int>(site.store.units().size()) - 1;
    list[1] = {.name = "experts",
               .segment = experts(site, options),
               .first_unit = unit,
               .last_unit = unit,
               .module = SegmentModule::kMoe};
    return list;
  };
}

}  // namespace megalith
