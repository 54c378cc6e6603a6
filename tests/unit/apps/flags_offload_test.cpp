// What --offload-modules takes and refuses.
#include <gtest/gtest.h>

#include "apps/config/offload_options.h"
#include "tests/support/matchers.h"
#include "tests/support/words.h"
#include "tests/unit/apps/flags_support.h"

namespace megalith::test {
namespace {

TEST(Flags, OffloadNamesWhatItCanMove) {
  const auto outcome = [](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--fine-grained-activation-offloading"};
    words.insert(words.end(), more.begin(), more.end());
    return train_outcome(words);
  };
  const std::string kinds = "attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm, fc1, act or fc2";
  EXPECT_EQ(outcome({"--offload-modules", "moe_act"}), "exit 2: --offload-modules: expected a kind of these layers: " +
                                                           kinds + ", got moe_act; choose one of them");
  EXPECT_EQ(outcome({"--offload-modules", "core_attn", "fused_group_mlp"}),
            "exit 2: --offload-modules: expected a kind of these layers: " + kinds +
                ", got expert_fc1 in fused_group_mlp; choose one of them");
  EXPECT_EQ(outcome({"--offload-modules", "layer_input"}),
            "exit 2: --offload-modules: expected a kind of these layers: " + kinds +
                ", got layer_input; add --recompute-granularity full, which keeps layer_input, or remove it");
  EXPECT_EQ(outcome({"--recompute-granularity", "selective", "--offload-modules", "attn_proj"}),
            "exit 2: --offload-modules and --recompute-modules: expected a kind that is kept: attn_norm, qkv_linear, "
            "core_attn, mlp_norm, fc1, act or fc2, got attn_proj, which is recomputed: nothing is kept; remove it from "
            "one of the two flags");
  EXPECT_EQ(outcome({"--recompute-granularity", "full", "--offload-modules", "core_attn"}),
            "exit 2: --offload-modules and --recompute-granularity full: expected a kind that is kept: layer_input, "
            "got core_attn, which is recomputed: nothing is kept; remove it from one of the two flags");
  for (const char* word : {"gdp_qkv", "other", "core_attn:", "core_attn:1-", "core_attn:x", ":1", "auto:1"})
    EXPECT_THAT(outcome({"--offload-modules", word}), HasSubstr("write layers after a colon")) << word;
  for (const char* word : {"core_attn:2", "core_attn:1-0", "core_attn:0-2"})
    EXPECT_THAT(outcome({"--offload-modules", word}), HasSubstr("expected layers from 0 to 1")) << word;
  for (const char* word : {"core_attn:0", "core_attn:0-1", "act"})
    EXPECT_EQ(
        train_options({"--fine-grained-activation-offloading", "--offload-modules", word}).offload.offload_modules,
        std::vector<std::string>{word});
  EXPECT_THAT(outcome({"--offload-modules", "auto", "act"}), HasSubstr("expected auto alone"));
  EXPECT_THAT(outcome({"--offload-modules", "auto"}), HasSubstr("add --rates FILE"));
  EXPECT_THAT(outcome({}), HasSubstr("--offload-modules: expected kinds to offload"));
  EXPECT_THAT(outcome({"--offload-modules", "act", "--min-offload-bytes", "1", "--min-offloaded-tensor-size", "1"}),
              HasSubstr("expected one of them"));
  EXPECT_THAT(train_outcome({"--offload-mb-per-layer", "3"}), HasSubstr("only with --fine-grained-activation"));
  EXPECT_THAT(train_outcome({"--rates", "x"}), HasSubstr("--rates only with --fine-grained-activation-offloading"));
}

TEST(Flags, OffloadOfExpertsGoesWithRecomputationOfOtherSlots) {
  const std::vector<std::string> experts = words(
      "--num-experts 4 --swiglu --ffn-hidden-size 16 --disable-bias-linear "
      "--fine-grained-activation-offloading");
  const auto outcome = [&](std::vector<std::string> more) {
    more.insert(more.begin(), experts.begin(), experts.end());
    return train_outcome(more);
  };
  EXPECT_EQ(outcome({"--offload-modules", "fused_group_mlp"}), "valid");
  EXPECT_EQ(outcome({"--offload-modules", "moe_act", "--recompute-granularity", "selective", "--recompute-modules",
                     "moe_act"}),
            "valid");
  // The group moves what is kept.
  EXPECT_EQ(outcome({"--offload-modules", "fused_group_mlp", "--recompute-granularity", "selective",
                     "--recompute-modules", "moe_act"}),
            "valid");
  EXPECT_THAT(outcome({"--offload-modules", "expert_fc2", "--recompute-granularity", "selective", "--recompute-modules",
                       "moe_act"}),
              HasSubstr("got expert_fc2, which is recomputed"));
  EXPECT_THAT(outcome({"--offload-modules", "fused_group_mlp", "--recompute-granularity", "selective",
                       "--recompute-modules", "moe"}),
              HasSubstr("got expert_fc1 in fused_group_mlp, which is recomputed"));
  EXPECT_THAT(outcome({"--offload-modules", "fc1"}), HasSubstr("a kind of these layers"));
}

}  // namespace
}  // namespace megalith::test
