// Runs of models with experts on thread ranks, and their compared results.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/train/moe/moe_families.h"

namespace megalith::test {

struct MoeResult {
  RunResult run;
  std::vector<std::vector<float>> sums;           // in the last step, by rank
  std::vector<std::vector<std::int32_t>> counts;  // in the last step, by rank: rows by layer and expert
  std::int64_t rows = 0;                          // per layer: the tokens of a step, times their choices
  test::Tensors biases;                           // over all ranks; NaN if two disagree
  std::vector<double> capacity_factors;           // capacity for rows at the end, by rank
  int graphs = 0;                                 // on rank 0
  std::int64_t replays = 0;
  std::int64_t exchanges = 0;  // on rank 0: calls that sent only the actual rows, which allgather never does
};

MoeResult train_experts(const Words& flags, const Layout& layout);
// Losses, norms, evaluations, and sums, counts and biases of experts. The memory of `run` was as planned, without
// hazards.
void expect_same_bits(const MoeResult& run, const MoeResult& plain);

// A case for each family.
class MoeTest : public testing::TestWithParam<int> {
 protected:
  static Words model() {
    return sizes_for({}) + moe_families()[static_cast<std::size_t>(GetParam())].flags +
           Words{"--lr-warmup-iters", "2", "--lr-decay-iters", "20"};
  }
};
inline std::string name_of_moe(const testing::TestParamInfo<int>& family) {
  return moe_families()[static_cast<std::size_t>(family.param)].name;
}

}  // namespace megalith::test
