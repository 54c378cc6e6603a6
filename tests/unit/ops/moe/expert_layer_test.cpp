#include "tests/support/expert_layer.h"

#include <gtest/gtest.h>

namespace megalith::test {
namespace {

// One of Qwen3-30B-A3B's layers has 28.8 KB a token: X in its compact form (4 KB), H (24 KB), and five tables of K
// numbers. At most 2.7 times as much is used while it runs.
TEST(ExpertLayerMemory, KeepsTheInputAndTheHiddenRows) {
  constexpr std::int64_t kTokens = 32768, kChoices = 8;
  const LayerMemory memory =
      memory_of({.tokens = kTokens, .hidden = 2048, .ffn = 768, .experts = 128, .choices = kChoices});
  constexpr std::int64_t kKept = kTokens * 2 * (2048 + kChoices * 2 * 768) + kTokens * kChoices * 5 * 4;
  EXPECT_NEAR(static_cast<double>(memory.kept), static_cast<double>(kKept), 1024.0);  // and the offsets
  EXPECT_LE(static_cast<double>(memory.peak), 2.7 * static_cast<double>(memory.kept));
}

}  // namespace
}  // namespace megalith::test
