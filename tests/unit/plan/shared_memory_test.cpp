// Ranks that read each other's memory have equal arena layouts, whatever each computes.
#include <gtest/gtest.h>

#include <utility>

#include "apps/planning/plan_steps.h"
#include "parallel/mesh/mesh_sizes.h"
#include "tests/unit/plan/plan_support.h"

namespace megalith::test {
namespace {

class SharedMemory : public testing::TestWithParam<std::pair<const char*, Words>> {};

TEST_P(SharedMemory, IsLaidOutIdentically) {
  constexpr int kRanks = 4;
  for (const Words& device : {Words{"--device", "cpu"}, Words{"--device", "cuda", "--bf16"}}) {
    const Options options = complete(plan_flags() + device + GetParam().second, kRanks);
    const RunConfig config = run_config(options, kRanks);
    const auto layout = [&](int rank) {
      const StepPlans plans = plan_steps(options, config, rank);
      return std::pair(digest_of(plans.train), digest_of(plans.evaluate));
    };
    for (const Axis axis : {Axis::kTp, Axis::kCp, Axis::kEp}) {
      for (const int rank : group_of(config.mesh, 0, {axis})) EXPECT_EQ(layout(rank), layout(0)) << rank;
    }
  }
}

const Words kSharedExperts = {"--num-experts",
                              "4",
                              "--moe-router-topk",
                              "2",
                              "--moe-ffn-hidden-size",
                              "32",
                              "--swiglu",
                              "--disable-bias-linear",
                              "--ffn-hidden-size",
                              "64",
                              "--expert-model-parallel-size",
                              "4"};

INSTANTIATE_TEST_SUITE_P(
    Layouts, SharedMemory,
    testing::Values(std::pair("Ring", Words{"--context-parallel-size", "4"}),
                    std::pair("Gathered", Words{"--context-parallel-size", "4", "--cp-comm-type", "all_gather"}),
                    std::pair("Overlapped", Words{"--tensor-model-parallel-size", "2", "--sequence-parallel",
                                                  "--tp-comm-overlap", "--context-parallel-size", "2"}),
                    std::pair("Experts", kSharedExperts),
                    std::pair("RingOfExperts", kSharedExperts + Words{"--context-parallel-size", "2"}),
                    std::pair("SequencesOfExperts",
                              kSharedExperts + Words{"--tensor-model-parallel-size", "2", "--sequence-parallel"})),
    [](const auto& layout) { return std::string(layout.param.first); });

}  // namespace
}  // namespace megalith::test
