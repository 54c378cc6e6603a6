#include "moe/moe_layer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/model/config.h"
#include "moe/dispatch.h"
#include "moe/experts.h"
#include "moe/merge.h"

namespace megalith {

namespace {

RouterScore score_of(const MoeConfig& moe) {
  if (moe.router_score_function == MoeScoreFunction::kSigmoid) return RouterScore::kSigmoid;
  return moe.router_pre_softmax ? RouterScore::kSoftmax : RouterScore::kSoftmaxOfChosen;
}

DType dtype_of(const MoeConfig& moe) { return moe.router_dtype == MoeRouterDtype::kFp64 ? DType::kFp64 : DType::kFp32; }

std::int64_t combine_groups(const MoeConfig& moe, const MoeOptions& options) {
  return moe.combine_groups != 0 ? moe.combine_groups : options.experts.ranks;
}

std::unique_ptr<Segment> router(const MoeSite& site, const MoeOptions& options) {
  const MoeConfig& moe = site.config.moe;
  const auto coeff = [&moe](MoeBalancing over) { return static_cast<float>(moe.balancing_coeff(over)); };
  return std::make_unique<Router>(site.store,
                                  Router::Spec{.name = site.prefix + "router.",
                                               .hidden = site.config.hidden_size,
                                               .experts = moe.num_experts,
                                               .choices = moe.router_topk,
                                               .dtype = dtype_of(moe),
                                               .score = score_of(moe),
                                               .scaling_factor = static_cast<float>(moe.router_topk_scaling_factor),
                                               .num_groups = std::max<std::int64_t>(moe.router_num_groups, 1),
                                               .group_topk = std::max<std::int64_t>(moe.router_group_topk, 1),
                                               .init_std = static_cast<float>(site.config.init_method_std),
                                               .losses = {.aux_coeff = coeff(MoeBalancing::kMicrobatch),
                                                          .sequence_aux_coeff = coeff(MoeBalancing::kSequence),
                                                          .global_aux_coeff = coeff(MoeBalancing::kGlobal),
                                                          .z_coeff = static_cast<float>(moe.z_loss_coeff),
                                                          .sum_counts = options.sum_counts,
                                                          .sum_all_counts = options.sum_all_counts},
                                               .capacity_factor = moe.expert_capacity_factor,
                                               .drops_last = moe.token_drop_policy == MoeDropPolicy::kPosition,
                                               .expert_layer = moe_layers_before(site.config, site.layer),
                                               .expert_bias = moe.router_enable_expert_bias,
                                               .random_logits = moe.router_force_load_balancing,
                                               .split = site.rows.split(),
                                               .dispatcher = options.dispatcher,
                                               .combine_groups = combine_groups(moe, options)},
                                  site.norm);
}

std::shared_ptr<const SharedExpert> shared_expert(const MoeSite& site) {
  const std::int64_t ffn = site.config.moe.shared_expert_intermediate_size, hidden = site.config.hidden_size;
  if (ffn == 0) return nullptr;
  const std::string prefix = site.prefix + "shared_experts.";
  const auto linear = [&](LinearSpec spec) {
    spec.one_write = true;
    return std::make_unique<Linear>(site.store, spec, site.rows);
  };
  SharedExpert::Parts shared{.recompute = site.recompute_shared, .activation = activation_of(site.config)};
  LinearSpec fc1{.name = prefix + "linear_fc1",
                 .inputs = hidden,
                 .outputs = ffn,
                 .init_std = static_cast<float>(site.config.init_method_std),
                 .input_kind = SlotKind::kExpertFc1};
  if (shared.activation == Activation::kSwiglu) {
    fc1.outputs = 2 * ffn;
    fc1.parts = {{prefix + "linear_gate", ffn}, {prefix + "linear_up", ffn}};
  }
  shared.fc1 = linear(fc1);
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
  return std::make_shared<const SharedExpert>(std::move(shared), site.rows);
}

std::unique_ptr<Segment> experts(const MoeSite& site, const MoeOptions& options) {
  const MoeConfig& moe = site.config.moe;
  return std::make_unique<Experts>(
      site.store, Experts::Spec{.name = site.prefix + "experts.",
                                .hidden = site.config.hidden_size,
                                .ffn = moe.ffn_hidden_size,
                                .experts = moe.num_experts,
                                .split = options.experts,
                                .activation = activation_of(site.config),
                                .bias = site.config.add_bias_linear,
                                .fused = moe.use_transformer_engine_op_fuser,
                                .init_std = static_cast<float>(site.config.init_method_std),
                                .output_init_std = static_cast<float>(site.config.output_layer_init_std())});
}

// Segments around the experts.
struct Around {
  std::unique_ptr<Segment> router, dispatch, back, merge;  // `dispatch` and `back` are null without expert parallelism
};

Around around(const MoeSite& site, const MoeOptions& options) {
  const MoeConfig& moe = site.config.moe;
  Around segments{.router = router(site, options)};
  const std::shared_ptr<const SharedExpert> shared = shared_expert(site);
  const bool overlaps_shared = options.dispatcher != nullptr && options.shared_expert_overlap && shared;
  segments.merge = std::make_unique<Merge>(Merge::Spec{.dropout = site.dropout,
                                                       .returned = options.dispatcher != nullptr,
                                                       .experts = moe.num_experts,
                                                       .groups = combine_groups(moe, options),
                                                       .shared_ran = overlaps_shared},
                                           overlaps_shared ? nullptr : shared);
  if (options.dispatcher == nullptr) return segments;
  const DispatchSpec spec{.dispatcher = *options.dispatcher,
                          .label = fmt::format("layer {}'s experts", site.layer),
                          .experts = moe.num_experts,
                          .combine_groups = combine_groups(moe, options),
                          .expert_layer = moe_layers_before(site.config, site.layer),
                          .shared = overlaps_shared ? shared : nullptr};
  segments.dispatch = std::make_unique<Dispatch>(spec);
  segments.back = std::make_unique<Return>(spec);
  return segments;
}

void check(const MoeSite& site, const MoeOptions& options) {
  require(site.rows.split().ranks == 1 || site.rows.split().sequence,
          "experts under tensor parallelism require sequence parallelism");
  const int ranks = options.experts.ranks * options.experts.column_ranks;
  require(ranks == (options.dispatcher == nullptr ? 1 : options.dispatcher->ranks()),
          "the dispatcher's ranks must be the ranks of the expert split");
  require(combine_groups(site.config.moe, options) % options.experts.ranks == 0,
          "the expert-parallel size must divide the number of combine groups");
}

}  // namespace

MoeFactory moe_factory(const MoeOptions& options) {
  return [options](const MoeSite& site) {
    check(site, options);
    Around segments = around(site, options);
    site.store.begin_unit(fmt::format("layer {} experts", site.layer), UnitKind::kExperts);
    const int unit = static_cast<int>(site.store.units().size()) - 1;
    std::vector<NamedSegment> list;
    const auto add = [&list](const char* name, std::unique_ptr<Segment> segment, SegmentModule module) {
      if (segment) list.push_back({.name = name, .segment = std::move(segment), .module = module});
    };
    add("router", std::move(segments.router), SegmentModule::kMoeRouter);
    add("dispatch", std::move(segments.dispatch), SegmentModule::kMoeDispatch);
    add("experts", experts(site, options), SegmentModule::kMoe);
    list.back().first_unit = list.back().last_unit = unit;
    add("return", std::move(segments.back), SegmentModule::kMoe);
    add("merge", std::move(segments.merge), SegmentModule::kMoe);
    return list;
  };
}

}  // namespace megalith
