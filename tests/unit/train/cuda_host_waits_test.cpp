// No call that a training step enqueues waits for the GPU. The calls are counted by an interposed CUDA
// (tests/support/host_waits/host_waits.h), for any caller. Some cases plant a wait, which must be counted.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/device/copy.h"
#include "tests/support/host_waits/count_waits.h"
#include "tests/support/op_test.h"
#include "tests/unit/train/training_support.h"

namespace megalith::test {
namespace {

using Plant = std::function<void(Rank&)>;

Words model() {
  return llama_flags() +
         words("--device cuda --bf16 --hidden-size 128 --seq-length 64 --num-attention-heads 2 --num-query-groups 1");
}

Words experts() {
  return model() +
         words(
             "--num-experts 8 --moe-layer-freq [0]+[1]*3 --moe-ffn-hidden-size 64 --moe-router-score-function "
             "sigmoid --moe-router-enable-expert-bias --moe-aux-loss-coeff 0.01 --moe-z-loss-coeff 0.01 "
             "--moe-shared-expert-intermediate-size 64 --num-layers 4");
}

// `plant` is called at the start of each microbatch of the counted step.
CountedStep count_waits_of(const Words& flags, const Plant& plant = nullptr) {
  CountedStep counted;
  bool counting = false;
  const auto customize = [&](Rank& rank) {
    if (!plant) return;
    rank.runner.hooks(0).add(HookPoint::kPreForward, [&](const HookContext&) {
      if (counting) plant(rank);
    });
  };
  const auto finish = [&](Trainer& trainer, int) { counted = count_waits(trainer, counting); };
  train({.flags = flags, .customize = customize, .finish = finish});
  return counted;
}

class CudaHostWaits : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = missing(DeviceType::kCuda); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_F(CudaHostWaits, AStepHasNone) {
  const Words graphs{"--cuda-graph-impl", "local", "--cuda-graph-modules"};
  const Words fused{"--moe-grouped-gemm", "--use-transformer-engine-op-fuser"};
  const Words recompute{"--recompute-granularity", "selective", "--recompute-modules", "moe_act", "layernorm"};
  for (const Words& flags :
       {model(), model() + Words{"--loss-chunk-size", "32"}, model() + graphs + Words{"layer"}, experts(),
        experts() + fused, experts() + recompute, experts() + fused + graphs + Words{"layer"},
        experts() + graphs + Words{"attn", "moe_router", "moe_preprocess"},
        experts() + fused + graphs + Words{"attn", "moe"}, model() + offload({"core_attn", "act"}),
        experts() + offload({"expert_fc1", "moe_act"}),
        experts() + graphs + Words{"attn", "moe_router", "moe_preprocess"} +
            offload({"attn_norm", "expert_fc1", "moe_act"})}) {
    SCOPED_TRACE(testing::PrintToString(flags));
    const CountedStep counted = count_waits_of(flags);
    EXPECT_EQ(counted.waits.of_runtime, 0) << counted.waits.first;
    EXPECT_EQ(counted.waits.of_driver, 0) << counted.waits.first;
    EXPECT_EQ(counted.waits.questions, 0);
    EXPECT_EQ(counted.waits.unseen, 0);
    const auto has = [&](const char* flag) { return std::find(flags.begin(), flags.end(), flag) != flags.end(); };
    EXPECT_EQ(counted.replays > 0, has("--cuda-graph-impl"));
    EXPECT_EQ(counted.offloads > 0, has("--offload-modules"));
  }
}

TEST_F(CudaHostWaits, APlantedOneIsSeen) {
  std::vector<float> pageable(1);
  const std::vector<std::pair<const char*, Plant>> plants = {
      {"cudaStreamSynchronize", [](Rank& rank) { rank.streams.compute.synchronize(); }},
      {"cudaEventSynchronize",
       [](Rank& rank) {
         Event event("planted");
         rank.streams.compute.record(event);
         rank.streams.compute.synchronize_host(event);
       }},
      {"cudaMemcpyAsync",
       [&](Rank& rank) { copy_to_host(rank.streams.compute, pageable.data(), rank.step.sums.data, sizeof(float)); }}};
  for (const auto& [name, plant] : plants) {
    const CountedStep counted = count_waits_of(experts(), plant);
    EXPECT_GT(counted.microbatches, 0);
    EXPECT_EQ(counted.waits.of_runtime, counted.microbatches) << name;
    EXPECT_STREQ(counted.waits.first, name);
    EXPECT_GE(counted.waits.of_driver, counted.microbatches) << name;  // calls made by the runtime
  }
}

}  // namespace
}  // namespace megalith::test
