// Tensor and sequence parallelism of whole runs on thread ranks: the model, dropout and gradient norm of one rank.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "tests/unit/train/training_support.h"

namespace megalith {
namespace {

using test::RunResult;
using test::operator+;
using Words = std::vector<std::string>;

const Words kOneStep = {"--train-iters", "1"};

struct Family {
  std::string name;
  Words flags;
};
// LayerNorm, biases, GELU, learned positions, tied table; RMSNorm, SwiGLU, RoPE, norms of q and k, two heads of keys
// and values; one such head, tied and with biases of q, k and v.
const std::vector<Family> kFamilies = {{"gpt2", {}},
                                       {"llama", test::llama_flags()},
                                       {"qwen2",
                                        {"--swiglu", "--normalization", "RMSNorm", "--position-embedding-type", "rope",
                                         "--disable-bias-linear", "--add-qkv-bias", "--group-query-attention"}}};

struct TensorLayout {
  int tensor = 1;
  bool sequence = false;
  int data = 1;
  int ranks() const { return tensor * data; }
  Words flags() const {
    Words words = {"--tensor-model-parallel-size", std::to_string(tensor)};
    return sequence ? words + Words{"--sequence-parallel"} : words;
  }
};
const std::vector<TensorLayout> kTensorLayouts = {{2, false}, {2, true}, {4, false}, {4, true}, {2, true, 2}};

class TensorParallel : public testing::TestWithParam<std::tuple<Family, TensorLayout>> {
 protected:
  const Words& family() const { return std::get<0>(GetParam()).flags; }
  const TensorLayout& layout() const { return std::get<1>(GetParam()); }
  RunResult one(const Words& flags) const { return test::train({.flags = family() + flags}); }
  RunResult many(const Words& flags) const {
    return test::train({.flags = family() + flags + layout().flags(), .ranks = layout().ranks()});
  }
};

std::string name_of_case(const testing::TestParamInfo<std::tuple<Family, TensorLayout>>& info) {
  const auto& [family, layout] = info.param;
  return family.name + "_tp" + std::to_string(layout.tensor) + (layout.sequence ? "_sp" : "") +
         (layout.data > 1 ? "_dp" + std::to_string(layout.data) : "");
}
INSTANTIATE_TEST_SUITE_P(Layouts, TensorParallel,
                         testing::Combine(testing::ValuesIn(kFamilies), testing::ValuesIn(kTensorLayouts)),
                         name_of_case);

TEST_P(TensorParallel, LossesAndNormsOfTwentyStepsAreThoseOfOneRank) {
  const Words flags = test::kDropout + Words{"--train-iters", "20", "--lr-warmup-iters", "2"};
  const RunResult want = one(flags), got = many(flags);
  ASSERT_EQ(want.loss_values.size(), 20u);
  test::expect_losses_near(got, want);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_NEAR(std::strtod(got.grad_norms[i].c_str(), nullptr) / std::strtod(want.grad_norms[i].c_str(), nullptr), 1,
                1e-4)
        << "step " << i + 1;
  }
  EXPECT_EQ(want.tensor_calls, 0);
  EXPECT_GT(got.tensor_calls, 20 * 4);
  EXPECT_TRUE(got.copies_agree);
}

TEST_P(TensorParallel, GradientsOfOneStepAreThoseOfOneRank) {
  const Words flags = test::kDropout + kOneStep;
  const RunResult want = one(flags), got = many(flags);
  ASSERT_EQ(want.gradients.size(), got.gradients.size());
  for (const auto& [name, values] : want.gradients) {
    const std::vector<float>& mine = got.gradients.at(name);
    ASSERT_EQ(mine.size(), values.size()) << name;
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(static_cast<double>(mine[i]) - values[i], 2);
      norm += std::pow(static_cast<double>(values[i]), 2);
    }
    EXPECT_GT(norm, 0) << name;
    // Without RoPE a bias of the keys changes no attention: its gradient is what rounding leaves of 0.
    const bool is_zero = family().empty() && name.ends_with("linear_k.bias");
    EXPECT_LE(std::sqrt(difference), is_zero ? 1e-9 : 5e-6 * std::sqrt(norm)) << name;
  }
  EXPECT_TRUE(got.copies_agree);
}

TEST_P(TensorParallel, InitialWeightsAreTheSlicesOfOneRank) {
  const auto initial = [&](const Words& flags, int ranks) {
    test::Tensors weights;
    std::mutex mutex;
    test::train({.flags = family() + kOneStep + flags, .ranks = ranks, .prepare = [&](Trainer& trainer, int) {
                   const std::lock_guard lock(mutex);
                   EXPECT_TRUE(test::put_slices(trainer.rank(), &Parameter::weight, weights));
                 }});
    return weights;
  };
  const test::Tensors want = initial({}, 1), got = initial(layout().flags(), layout().ranks());
  EXPECT_FALSE(want.empty());
  EXPECT_TRUE(want == got);
}

TEST_P(TensorParallel, RunsRepeatAndAreFreeOfHazards) {
  const Words flags =
      test::kDropout +
      Words{"--train-iters",     "2", "--check-hazards",      "--eval-interval", "1", "--eval-iters", "1",
            "--ddp-bucket-size", "1", "--overlap-grad-reduce"};
  const RunResult first = many(flags), second = many(flags);
  test::expect_same_run(first, second);
  EXPECT_EQ(first.hazards, 0);
  EXPECT_EQ(first.code, ExitCode::kOk);
  EXPECT_EQ(first.arena_touched, first.arena_planned);
  EXPECT_EQ(first.pool_peak, first.planned_total);
}

class TensorParallelRecompute : public testing::TestWithParam<Words> {};
INSTANTIATE_TEST_SUITE_P(All, TensorParallelRecompute, testing::ValuesIn(test::recompute_modes()));

TEST_P(TensorParallelRecompute, ChangesNoBitAndSavesMemory) {
  for (const Family& family : {kFamilies[0], kFamilies[1]}) {
    for (const TensorLayout& layout : {TensorLayout{2, false}, TensorLayout{2, true}}) {
      const Words flags = family.flags + layout.flags() + test::kDropout + Words{"--train-iters", "2"};
      const RunResult plain = test::train({.flags = flags, .ranks = 2});
      const RunResult recomputed = test::train({.flags = flags + GetParam(), .ranks = 2});
      test::expect_same_run(plain, recomputed);
      EXPECT_LT(recomputed.arena_planned, plain.arena_planned) << family.name;
    }
  }
}

// On the CPU: a row of a GEMM does not depend on the others, and sums are taken in the order of a communicator's.
TEST(TensorParallelRuns, OverlapChangesNoBit) {
  for (const int ranks : {2, 4}) {
    for (const Family& family : kFamilies) {
      for (const Words& more :
           {Words{}, Words{"--bf16"}, Words{"--recompute-granularity", "full"}, Words{"--loss-chunk-size", "3"}}) {
        SCOPED_TRACE(family.name + testing::PrintToString(more));
        const Words flags = family.flags + TensorLayout{ranks, true}.flags() + test::kDropout + more +
                            Words{"--train-iters", "2", "--eval-interval", "2", "--eval-iters", "1"};
        const RunResult plain = test::train({.flags = flags, .ranks = ranks});
        const RunResult overlapped =
            test::train({.flags = flags + Words{"--tp-comm-overlap", "--check-hazards"}, .ranks = ranks});
        test::expect_same_run(plain, overlapped);
        EXPECT_TRUE(plain.gradients == overlapped.gradients);
        EXPECT_TRUE(overlapped.memory_as_planned);
        EXPECT_EQ(overlapped.hazards, 0);
        if (ranks > 2) {
          EXPECT_GT(overlapped.tensor_calls, plain.tensor_calls + 100);
        }
      }
    }
  }
}

TEST(TensorParallelRuns, SequenceParallelismKeepsLess) {
  const Words flags = {"--tensor-model-parallel-size", "2", "--train-iters", "1"};
  const RunResult whole = test::train({.flags = flags, .ranks = 2});
  const RunResult split = test::train({.flags = flags + Words{"--sequence-parallel"}, .ranks = 2});
  EXPECT_LT(split.arena_planned, whole.arena_planned);
}

TEST(TensorParallelRuns, TheLossInChunksIsThatOfTheWhole) {
  for (const TensorLayout& layout : {TensorLayout{2, false}, TensorLayout{2, true}}) {
    for (const Family& family : {kFamilies[0], kFamilies[1]}) {
      const Words flags = family.flags + layout.flags() + test::kEvaluations;
      const RunResult plain = test::train({.flags = flags, .ranks = 2});
      const RunResult chunked =
          test::train({.flags = flags + Words{"--loss-chunk-size", "5", "--check-hazards"}, .ranks = 2});
      EXPECT_EQ(chunked.losses[0], plain.losses[0]);
      test::expect_losses_near(chunked, plain);
      EXPECT_GT(chunked.tensor_calls, plain.tensor_calls);
      EXPECT_EQ(chunked.hazards, 0);
    }
  }
}

// 257 words and a multiple of 100: 300 rows on one rank, 400 on two, of which the last 100 are nobody's.
TEST(TensorParallelRuns, PaddingOfTheVocabularyDependsOnTheRanksAndChangesNothing) {
  const Words flags = {"--make-vocab-size-divisible-by", "100"};
  const RunResult one = test::train({.flags = flags});
  const RunResult two = test::train({.flags = flags + TensorLayout{2, true}.flags(), .ranks = 2});
  test::expect_losses_near(two, one);
  EXPECT_EQ(two.weights.at("embedding.word_embeddings.weight").size(), 300u * 32);
  EXPECT_TRUE(two.copies_agree);
}

TEST(TensorParallelRuns, InBf16) {
  for (const TensorLayout& layout : {TensorLayout{2, false}, TensorLayout{2, true}}) {
    const Words flags = test::llama_flags() + test::kDropout + Words{"--bf16"};
    const RunResult one = test::train({.flags = flags});
    const RunResult two =
        test::train({.flags = flags + layout.flags() + Words{"--main-grads-dtype", "bf16"}, .ranks = 2});
    test::expect_losses_near(two, one, 1e-3);
    EXPECT_TRUE(two.copies_agree);
  }
}

TEST(TensorParallelRuns, ResumeGivesTheBitsOfTheUnbrokenRun) {
  const TestFolder scratch;
  const Words flags = test::llama_flags() + test::kDropout + TensorLayout{4, true}.flags() + Words{"--bf16"};
  const RunResult unbroken = test::train({.flags = flags, .ranks = 4});
  const RunResult first =
      test::train({.flags = flags + Words{"--exit-interval", "3", "--save", scratch.path("c")}, .ranks = 4});
  const RunResult second = test::train({.flags = flags + Words{"--load", scratch.path("c")}, .ranks = 4});
  EXPECT_EQ(first.losses + second.losses, unbroken.losses);
  EXPECT_EQ(first.grad_norms + second.grad_norms, unbroken.grad_norms);
  EXPECT_TRUE(second.weights == unbroken.weights);
}

TEST(TensorParallelRuns, CheckpointsGoFromAnyLayoutToAnyOther) {
  const TestFolder scratch;
  const Words flags = {"--make-vocab-size-divisible-by", "100"};
  const std::vector<TensorLayout> layouts = {{1}, {2, true}, {4, false}, {2, true, 2}};
  const RunResult unbroken = test::train({.flags = flags});
  for (std::size_t from = 0; from < layouts.size(); ++from) {
    const std::string folder = scratch.path(std::to_string(from));
    const RunResult saved =
        test::train({.flags = flags + layouts[from].flags() + Words{"--exit-interval", "3", "--save", folder},
                     .ranks = layouts[from].ranks()});
    for (const TensorLayout& to : layouts) {
      test::Tensors loaded;
      std::mutex mutex;
      const RunResult rest = test::train({.flags = flags + to.flags() + Words{"--load", folder},
                                          .ranks = to.ranks(),
                                          .prepare = [&](Trainer& trainer, int) {
                                            const std::lock_guard lock(mutex);
                                            test::put_slices(trainer.rank(), &Parameter::weight, loaded);
                                          }});
      EXPECT_TRUE(loaded == saved.weights);
      ASSERT_EQ(rest.loss_values.size(), 3u);
      for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(rest.loss_values[i] / unbroken.loss_values[i + 3], 1, 1e-5);
    }
  }
}

}  // namespace
}  // namespace megalith
