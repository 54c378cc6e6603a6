#include "tests/unit/moe/model_of_ranks.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/model/config.h"
#include "moe/moe_layer.h"
#include "parallel/comm/memory_sharing.h"
#include "tests/distributed/way_of_rows.h"

namespace megalith::test {

namespace {

// Dispatcher of a rank, with its stream.
struct RankRows {
  RankRows(Stream& compute, Communicator& group, MoeTokenDispatcher way)
      : stream(compute.device(), "rows of experts", compute.instruments()),
        dispatcher(group, stream, {.way = way, .capacity_factor = 8}) {}
  Stream stream;
  Dispatcher dispatcher;
};

}  // namespace

ModelConfig moe_model_config(DType dtype, DeviceType device) {
  const bool large = device == DeviceType::kCuda;
  ModelConfig config{.num_layers = 3,
                     .hidden_size = large ? 128 : 16,
                     .ffn_hidden_size = large ? 128 : 24,
                     .num_attention_heads = 2,
                     .seq_length = large ? 64 : 8,
                     .vocab_size = 37,
                     .position_embedding_type = PositionEmbedding::kRope,
                     .normalization = Normalization::kRmsNorm,
                     .swiglu = true,
                     .add_bias_linear = false,
                     .hidden_dropout = 0.1,
                     .params_dtype = dtype};
  config.moe = {.num_experts = 6,
                .layer_freq = "[0,1,1]",
                .router_topk = 2,
                .router_load_balancing_type = {"aux_loss"},
                .aux_loss_coeff = {0.1},
                .shared_expert_intermediate_size = large ? 64 : 12};
  resolve(config);
  validate(config);
  return config;
}

ModelResult expect_replays_with_other_tokens(ModelCase c, const ModelResult& eager) {
  c.replay = c.replay_whole = true;
  const ModelResult replayed = run_model(c);
  EXPECT_EQ(replayed.graphs, c.microbatches);
  EXPECT_EQ(replayed.replays, 2 * c.microbatches);
  EXPECT_EQ(replayed.tokens, eager.tokens);
  expect_same_bits(replayed, eager);
  return replayed;
}

void expect_ranks_replay_with_other_tokens(Communicator& group, DeviceType device, MoeTokenDispatcher way) {
  std::vector<std::unique_ptr<RankRows>> rows;  // for the plan and the run of each model below
  ModelCase c{.config = moe_model_config(DType::kBf16, device),
              .device = device,
              .seed = 1 + static_cast<std::uint64_t>(group.rank())};
  c.config.moe.num_experts = 8;
  c.config.moe.combine_groups = 4;  // more than two ranks require
  c.factories_on = [&](Stream& compute) {
    rows.push_back(std::make_unique<RankRows>(compute, group, way));
    return GptFactories{.moe = moe_factory({.experts = {.rank = group.rank(), .ranks = group.size()},
                                            .dispatcher = &rows.back()->dispatcher,
                                            .shared_expert_overlap = true})};
  };
  if (way == MoeTokenDispatcher::kFlex) c.shares_memory = group.memory_sharing();
  const auto went = [&] {
    EXPECT_TRUE(went_by(way, device, group.stats()));
    return way == MoeTokenDispatcher::kFlex ? group.stats().pulled : group.stats().messages;
  };
  group.rehearse_captures(true);
  const ModelResult eager = run_model(c);
  group.rehearse_captures(false);
  const std::int64_t eagerly = went(), of_microbatch = 8;  // four exchanges in each of two layers
  EXPECT_EQ(eagerly, of_microbatch * c.microbatches);
  const ModelResult replayed = expect_replays_with_other_tokens(c, eager);
  const int steps_before = device == DeviceType::kCuda ? 1 : 0;  // eager steps in which libraries initialize
  EXPECT_EQ(went(), (1 + steps_before) * eagerly + of_microbatch * replayed.replays);
}

}  // namespace megalith::test
