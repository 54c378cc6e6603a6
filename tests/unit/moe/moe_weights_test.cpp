// Tests of a layer's expert weights: initialization, and gradients that tensor-parallel ranks sum.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "core/model/config.h"
#include "moe/moe_layer.h"
#include "tests/support/download.h"

namespace megalith {
namespace {

// Parameters of a layer with a gated shared expert.
struct LayerWeights {
  LayerWeights(RowExchange& rows, std::int64_t layers) {
    ModelConfig config{.num_layers = layers, .hidden_size = 64, .swiglu = true, .init_method_std = 0.5};
    config.add_bias_linear = false;
    config.moe = {.num_experts = 4,
                  .ffn_hidden_size = 16,
                  .router_topk = 2,
                  .shared_expert_intermediate_size = 32,
                  .shared_expert_gate = true};
    store.begin_unit("layer");
    const Norm norm(store, {.name = "norm", .size = config.hidden_size, .input_kind = SlotKind::kMlpNorm});
    segments = moe_factory()({.store = store, .rows = rows, .config = config, .norm = norm});
    for (const ParameterUnit& unit : store.units())
      all.insert(all.end(), unit.parameters.begin(), unit.parameters.end());
  }

  ParameterStore store;
  std::vector<NamedSegment> segments;
  std::vector<const Parameter*> all;
};

// Weights that add to the residual have a smaller standard deviation in deeper models, as in Megatron-LM.
TEST(MoeWeights, AreDrawnByWhatTheyAddTo) {
  constexpr std::int64_t kLayers = 8;
  RowExchange one_rank;
  MemoryPool pool(DeviceType::kCpu);
  Stream stream(DeviceType::kCpu, "compute");
  LayerWeights layer(one_rank, kLayers);
  layer.store.allocate(pool, DType::kFp32);
  layer.store.initialize(stream, 7);
  int outputs = 0;
  for (const Parameter* parameter : layer.all) {
    if (parameter->name() == "norm.weight") continue;
    const std::vector<float> weights = download(stream, parameter->weight);
    const bool is_output = parameter->name().ends_with("linear_fc2.weight");
    outputs += is_output ? 1 : 0;
    const double want = is_output ? 0.5 / std::sqrt(2.0 * kLayers) : 0.5;
    const double squares = std::inner_product(weights.begin(), weights.end(), weights.begin(), 0.0);
    const auto count = static_cast<double>(weights.size());
    EXPECT_NEAR(std::sqrt(squares / count), want, 4 * want / std::sqrt(2 * count)) << parameter->name();
  }
  EXPECT_EQ(outputs, 2);
}

class TwoRanks : public RowExchange {
 public:
  TensorSplit split() const override { return {.rank = 1, .ranks = 2, .sequence = true}; }
};

// Under sequence parallelism each rank has a part of the rows, so replicated weights have partial gradients.
TEST(MoeWeights, ThatTensorRanksHoldWholeHaveAPartOfTheirGradient) {
  TwoRanks rows;
  const LayerWeights layer(rows, 1);
  std::set<std::string> partial;
  for (const Parameter* parameter : layer.all) {
    if (parameter->parts.front().partial_gradient) partial.insert(parameter->name());
  }
  EXPECT_EQ(partial, (std::set<std::string>{"router.weight", "shared_experts.gate_weight"}));
}

}  // namespace
}  // namespace megalith
