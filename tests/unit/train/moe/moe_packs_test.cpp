// Experts on packs of conversations: padding has no rows and no losses of routers, in every way to run a step.
#include <gtest/gtest.h>

#include <random>

#include "core/data/pack_writer.h"
#include "tests/unit/train/moe/moe_families.h"

namespace megalith::test {
namespace {

// Packs of 32 rows whose conversations of 3 tokens are padded to 4 rows, or not.
void write_expert_packs(const std::string& prefix, std::int64_t pad_multiple) {
  PackWriter writer(prefix, {.seq_length = 32, .pad_multiple = pad_multiple, .token_type = TokenType::kU16});
  std::mt19937_64 random(3);
  for (int pack = 0; pack < 40; ++pack) {
    for (int c = 0; c < 8; ++c) {
      std::vector<std::int32_t> tokens;
      for (int i = 0; i < 3; ++i) tokens.push_back(static_cast<std::int32_t>(random() % 256));
      writer.add_document(tokens, std::vector<std::uint8_t>{0, 1, 1});
    }
    writer.end_pack();
  }
  writer.commit();
}

class MoePacks : public testing::Test {
 protected:
  MoePacks() {
    write_expert_packs(folder_ / "padded", 4);
    write_expert_packs(folder_ / "tight", 1);
  }
  RunResult run(const Family& family, const std::string& name, const Words& more, int ranks = 1) const {
    return train({.flags = family.flags + Words{"--mock-data=false", "--sft", "--data-path", folder_ / name} +
                           words("--split 1 --seq-length 32 --num-layers 4 --train-iters 3 --check-hazards") + more,
                  .ranks = ranks});
  }
  TestFolder folder_;
};

TEST_F(MoePacks, PaddingHasNoEffect) {
  for (const Family& family : moe_families()) {
    SCOPED_TRACE(family.name);
    const RunResult tight = run(family, "tight", {}), padded = run(family, "padded", {});
    expect_losses_near(padded, tight, 2e-6);
    expect_norms_near(padded, tight, 2e-5);
    for (std::size_t i = 0; i < tight.balancing_losses.size(); ++i) {
      EXPECT_NEAR(padded.balancing_losses[i], tight.balancing_losses[i], 2e-5);
      EXPECT_NEAR(padded.z_losses[i], tight.z_losses[i], 1e-4);
    }
    EXPECT_EQ(padded.hazards, 0);
  }
}

TEST_F(MoePacks, HaveTheBitsOfEagerStepsAndTheLossesOfOneRank) {
  for (const Family& family : moe_families()) {
    SCOPED_TRACE(family.name);
    const RunResult want = run(family, "padded", {});
    for (const Words& way : {kGraphs, words("--recompute-granularity full"),
                             words("--fine-grained-activation-offloading --min-offload-bytes 0 --offload-modules "
                                   "expert_fc1 moe_act")}) {
      SCOPED_TRACE(testing::PrintToString(way));
      expect_same_run(run(family, "padded", way), want);
    }
    for (const auto& [flags, ranks] :
         {std::pair(words("--expert-model-parallel-size 2"), 2),
          {words("--expert-model-parallel-size 2 --overlap-moe-expert-parallel-comm") + kGraphs, 2},
          {words("--tensor-model-parallel-size 2 --sequence-parallel"), 2},
          {words("--context-parallel-size 2"), 2},
          {stages(2) + schedule("interleaved"), 2}}) {
      SCOPED_TRACE(testing::PrintToString(flags));
      const RunResult got = run(family, "padded", flags, ranks);
      EXPECT_EQ(got.hazards, 0);
      expect_losses_near(got, want, 5e-6);
    }
  }
}

}  // namespace
}  // namespace megalith::test
