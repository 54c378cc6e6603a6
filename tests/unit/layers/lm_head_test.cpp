// --loss-chunk-size: the head that never holds the logits of all tokens has the results of the plain one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/layers/lm_head.h"
#include "tests/support/op_test.h"
#include "tests/support/segment_harness.h"

namespace megalith::test {
namespace {

constexpr std::int64_t kSequences = 3, kLength = 40, kTokens = kSequences * kLength, kHidden = 16, kVocab = 1000,
                       kPadded = 1024;

SegmentCase head(DType dtype, std::int64_t chunk) {
  return {.build =
              [=](ParameterStore& store) {
                Parameter& words = store.add({.parts = {{.name = "words"}}, .shape = {kPadded, kHidden}});
                static RowExchange one_rank;
                return std::make_unique<LmHead>(
                    LmHead::Spec{.vocab_size = kVocab, .loss_chunk_size = chunk},
                    Norm(store, {.name = "norm", .kind = NormKind::kRmsNorm, .size = kHidden}), words, one_rank);
              },
          .dtype = dtype,
          .inputs = {{kTokens, kHidden}, {kTokens, kHidden}},
          .gradients = 0,
          .sequences = kSequences,
          .seq_length = kLength,
          .vocab = kVocab,
          .weight_std = 0.3f,
          .microbatches = 2};
}

class ChunkedHead : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, ChunkedHead, testing::Values(DType::kFp32, DType::kBf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// On the CPU a row of a product depends on its row alone. The weight gradient sums over tokens, so chunks have extra
// roundings.
TEST_P(ChunkedHead, HasTheLossAndDataGradientOfThePlainOne) {
  const SegmentResult plain = run_segment(head(GetParam(), 0), RunMode::kEager);
  for (const std::int64_t chunk : {1, 7, 40, 119, 120, 121}) {
    SCOPED_TRACE(chunk);
    const SegmentResult chunked = run_segment(head(GetParam(), chunk), RunMode::kEager);
    EXPECT_EQ(chunked.loss, plain.loss);
    EXPECT_EQ(chunked.input_gradients, plain.input_gradients);
    ASSERT_EQ(chunked.names, (std::vector<std::string>{"words", "norm.weight"}));
    EXPECT_EQ(chunked.main_gradients[1], plain.main_gradients[1]);
    // The terms are the same: gradients of the logits, at most loss_scale, times the norm's outputs, at most the root
    // of H times its weights.
    double largest = 0, difference = 0, weight = 0;
    for (const float w : plain.weights[1]) weight = std::max(weight, std::abs(static_cast<double>(w)));
    const double terms = 2 * kTokens, magnitude = terms * 0.125 * std::sqrt(static_cast<double>(kHidden)) * weight;
    const std::int64_t length = 2 * (kTokens + (kTokens + chunk - 1) / chunk);
    for (std::size_t i = 0; i < plain.main_gradients[0].size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(plain.main_gradients[0][i])));
      difference = std::max(difference, std::abs(static_cast<double>(plain.main_gradients[0][i]) -
                                                 static_cast<double>(chunked.main_gradients[0][i])));
    }
    EXPECT_LE(difference, 2 * tolerance(DType::kFp32, length) * magnitude);
    EXPECT_GT(largest, 100 * difference);
    if (chunk >= kTokens) {
      EXPECT_EQ(chunked.main_gradients, plain.main_gradients);
    }
  }
}

TEST_P(ChunkedHead, HoldsNoMoreLogitsThanAChunks) {
  const auto bytes = [](std::int64_t tokens, std::int64_t width) {
    return static_cast<std::size_t>(tokens * width) * size_of(GetParam());
  };
  constexpr std::int64_t kChunk = 8;
  for (const Mode mode : {Mode::kTrain, Mode::kEval}) {
    SegmentCase plain = head(GetParam(), 0), chunked = head(GetParam(), kChunk);
    plain.mode = chunked.mode = mode;
    const std::size_t whole = run_segment(plain, RunMode::kEager).arena_bytes;
    const SegmentResult result = run_segment(chunked, RunMode::kEager);
    EXPECT_GE(whole, bytes(kTokens, kPadded));
    EXPECT_LT(result.arena_bytes, whole - bytes(kTokens - 2 * kChunk, kPadded) + 3 * bytes(kTokens, kHidden));
    EXPECT_LT(result.arena_bytes, bytes(kTokens, kPadded));
  }
}

TEST_P(ChunkedHead, EvaluatesAndReplays) {
  SegmentCase plain = head(GetParam(), 0), chunked = head(GetParam(), 11);
  expect_same_bits(run_segment(chunked, RunMode::kEager), run_segment(chunked, RunMode::kReplay));
  plain.mode = chunked.mode = Mode::kEval;
  EXPECT_EQ(run_segment(chunked, RunMode::kEager).loss, run_segment(plain, RunMode::kEager).loss);
}

}  // namespace
}  // namespace megalith::test
