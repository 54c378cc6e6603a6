// A whole model with experts: one graph holds a microbatch, forward and backward, and replays it with other tokens,
// which are routed otherwise. Nothing of it waits for the host, or was known when it was captured.
#include <gtest/gtest.h>

#include "moe/moe_layer.h"
#include "tests/support/device_cases.h"
#include "tests/thread_ranks/thread_communicator.h"
#include "tests/unit/model/model_run.h"

namespace megalith {
namespace {

using test::ModelCase;
using test::ModelResult;
using test::run_model;

struct MoeModelCase {
  std::string name;
  DType dtype;
  DeviceType device;
  friend void PrintTo(const MoeModelCase& c, std::ostream* out) { *out << c.name; }
};

std::vector<MoeModelCase> model_cases() {
  std::vector<MoeModelCase> all;
  for (const DeviceType device : test::devices()) {
    for (const DType dtype : {DType::kFp32, DType::kBf16})
      all.push_back({std::string(name_of(dtype)) + "_" + std::string(name_of(device)), dtype, device});
  }
  return all;
}

// The first layer dense. On the GPU sizes that the fast kernels take.
ModelConfig model_config(const MoeModelCase& c) {
  const bool large = c.device == DeviceType::kCuda;
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
                     .params_dtype = c.dtype};
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

// A graph of each microbatch, captured on other tokens, has the bits of the eager run.
ModelResult expect_replays_with_other_tokens(ModelCase c, const ModelResult& eager) {
  c.replay = c.replay_whole = true;
  const ModelResult replayed = run_model(c);
  EXPECT_EQ(replayed.graphs, c.microbatches);
  EXPECT_EQ(replayed.replays, 2 * c.microbatches);
  EXPECT_EQ(replayed.tokens, eager.tokens);
  test::expect_same_bits(replayed, eager);
  return replayed;
}

class MoeModel : public test::OnDevice<MoeModelCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, MoeModel, testing::ValuesIn(model_cases()), [](const auto& c) { return c.param.name; });

TEST_P(MoeModel, OneGraphReplaysAMicrobatchWithOtherTokens) {
  for (const bool fused : {false, true}) {
    ModelCase c{.config = model_config(GetParam()), .factories = {.moe = moe_factory()}, .device = device()};
    c.config.moe.grouped_gemm = c.config.moe.use_transformer_engine_op_fuser = fused;
    expect_replays_with_other_tokens(c, run_model(c));
  }
}

// How the rows of a rank travel.
struct RankRows {
  RankRows(Stream& compute, Communicator& group)
      : stream(compute.device(), "rows of experts", compute.instruments()), dispatcher(group, stream, {}) {}
  Stream stream;
  Dispatcher dispatcher;
};

// Each rank has its own tokens, and experts of all layers, in more groups of the combine than two ranks need.
TEST(MoeModelOfRanks, OneGraphReplaysAMicrobatchWithOtherTokens) {
  for (const int ranks : {2, 4}) {
    ThreadWorld(ranks, std::chrono::seconds(60)).run([&](Communicator& group) {
      std::vector<std::unique_ptr<RankRows>> rows;  // of the plan and of the run, for each of the two below
      ModelCase c{.config = model_config({.dtype = DType::kBf16, .device = DeviceType::kCpu}),
                  .seed = 1 + static_cast<std::uint64_t>(group.rank())};
      c.config.moe.num_experts = 8;
      c.config.moe.combine_groups = 4;
      c.factories_on = [&](Stream& compute) {
        rows.push_back(std::make_unique<RankRows>(compute, group));
        return GptFactories{.moe = moe_factory({.experts = {.rank = group.rank(), .ranks = ranks},
                                                .dispatcher = &rows.back()->dispatcher,
                                                .shared_expert_overlap = true})};
      };
      const ModelResult eager = run_model(c);
      const CommunicatorStats of_eager = group.stats();
      const ModelResult replayed = expect_replays_with_other_tokens(c, eager);
      // Two layers, rows travel four times in each.
      EXPECT_EQ(of_eager.messages, 8 * c.microbatches);
      EXPECT_EQ(group.stats().messages, of_eager.messages + 8 * replayed.replays);
    });
  }
}

}  // namespace
}  // namespace megalith
