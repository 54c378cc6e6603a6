// Runs on packs of conversations and on masked samples: bits of every way to run a step, the loss's mean over trained
// tokens, and layouts against one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/data/pack_writer.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

constexpr std::int64_t kPackRows = 32;

struct DrawnConversation {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> trained;
};

std::vector<DrawnConversation> draw_conversations(int count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<DrawnConversation> all;
  for (int c = 0; c < count; ++c) {
    const std::size_t length = 2 + random() % 14;
    DrawnConversation conversation;
    for (std::size_t i = 0; i < length; ++i) {
      conversation.tokens.push_back(static_cast<std::int32_t>(random() % 256));
      conversation.trained.push_back(i > 0 && random() % 3 > 0 ? 1 : 0);
    }
    all.push_back(std::move(conversation));
  }
  return all;
}

// Writes conversations in order, as many a pack as fit.
void write_packs(const std::string& prefix, const std::vector<DrawnConversation>& conversations,
                 std::int64_t pad_multiple = 1) {
  PackWriter writer(prefix, {.seq_length = kPackRows, .pad_multiple = pad_multiple, .token_type = TokenType::kU16});
  std::int64_t rows = 0;
  for (const DrawnConversation& one : conversations) {
    const std::int64_t own = (std::ssize(one.tokens) + pad_multiple - 1) / pad_multiple * pad_multiple;
    if (rows + own > kPackRows) {
      writer.end_pack();
      rows = 0;
    }
    writer.add_document(one.tokens, one.trained);
    rows += own;
  }
  writer.end_pack();
  writer.commit();
}

class PackRuns : public testing::Test {
 protected:
  PackRuns() { write_packs(folder_ / "packs", draw_conversations(90, 3)); }
  RunResult run(const Words& flags, int ranks = 1) const {
    return train({.flags = packs(folder_ / "packs") + flags + Words{"--check-hazards"}, .ranks = ranks});
  }
  static Words packs(const std::string& prefix) {
    return llama_flags() + Words{"--mock-data=false", "--sft", "--data-path", prefix, "--split", "8,2"} +
           words("--seq-length 32 --train-iters 4 --num-layers 4");
  }
  TestFolder folder_;
};

TEST_F(PackRuns, HaveTheBitsOfEagerStepsInEveryWay) {
  const RunResult want = run(kEvaluations);
  EXPECT_EQ(want.validation_losses.size(), 2U);
  std::vector<Words> ways = recompute_modes();
  ways.push_back(kGraphs);
  ways.push_back(kGraphsOfAttentionAndMlp);
  ways.push_back(
      words("--fine-grained-activation-offloading --min-offload-bytes 0 --offload-modules core_attn mlp_norm"));
  ways.push_back(kGraphs +
                 words("--fine-grained-activation-offloading --min-offload-bytes 0 --offload-modules qkv_linear"));
  for (const Words& way : ways) {
    SCOPED_TRACE(testing::PrintToString(way));
    const RunResult got = run(kEvaluations + way);
    expect_same_run(got, want);
    EXPECT_EQ(got.hazards, 0);
    EXPECT_TRUE(got.memory_as_planned);
  }
}

TEST_F(PackRuns, HaveTheLossesOfOneRankInEveryLayout) {
  const RunResult want = run({});
  for (const auto& [flags, ranks] :
       {std::pair(words("--tensor-model-parallel-size 2"), 2),
        {words("--tensor-model-parallel-size 2 --sequence-parallel"), 2},
        {words("--micro-batch-size 1"), 2},
        {words("--micro-batch-size 1 --data-parallel-sharding-strategy optim_grads_params --overlap-grad-reduce"), 2},
        {words("--context-parallel-size 2 --cp-comm-type a2a"), 2},
        {words("--context-parallel-size 2"), 2},
        {words("--context-parallel-size 4"), 4},
        {words("--context-parallel-size 2 --cp-comm-type all_gather") + kGraphs, 2},
        {stages(2), 2},
        {stages(2) + schedule("interleaved"), 2},
        {stages(2) + schedule("zb-v") + kGraphs, 2}}) {
    SCOPED_TRACE(testing::PrintToString(flags));
    const RunResult got = run(flags, ranks);
    EXPECT_EQ(got.hazards, 0);
    expect_losses_near(got, want, 2e-6);
    expect_norms_near(got, want, 2e-5);
  }
}

TEST_F(PackRuns, DropoutDoesNotDependOnTheRanks) {
  const RunResult want = run(kDropout);
  for (const int ranks : {2, 4}) {
    const RunResult got = run(kDropout, ranks);
    expect_losses_near(got, want, 2e-6);
    expect_norms_near(got, want, 2e-5);
  }
}

// By token, the loss is one mean, whatever shares a microbatch; otherwise microbatches with few tokens weigh more.
TEST_F(PackRuns, TheLossByTokenDoesNotDependOnMicrobatches) {
  const RunResult by_two = run({}), by_four = run(words("--micro-batch-size 4"));
  expect_losses_near(by_four, by_two, 2e-6);
  expect_norms_near(by_four, by_two, 2e-5);
  const Words by_microbatch = {"--calculate-per-token-loss=false"};
  const RunResult two = run(by_microbatch), four = run(by_microbatch + words("--micro-batch-size 4"));
  EXPECT_GT(std::abs(number_of_hex(two.grad_norms[0]) / number_of_hex(four.grad_norms[0]) - 1), 1e-3);
  EXPECT_EQ(two.losses[0], by_two.losses[0]);  // the same tokens with the same weights of the model
}

// Padding changes rows, not results: neither that in documents, nor a longer sample.
TEST_F(PackRuns, PaddingHasNoEffect) {
  const std::vector<DrawnConversation> conversations = draw_conversations(24, 5);
  // Eight conversations of 4 rows in a pack, padded or not.
  std::vector<DrawnConversation> four = conversations;
  for (DrawnConversation& one : four) {
    one.tokens.resize(3, 7);
    one.trained.resize(3, 1);
  }
  const TestFolder folder;
  PackWriter tight(folder / "tight", {.seq_length = kPackRows, .pad_multiple = 1}),
      padded(folder / "padded", {.seq_length = kPackRows, .pad_multiple = 4});
  for (std::size_t c = 0; c < four.size(); ++c) {
    for (PackWriter* writer : {&tight, &padded}) {
      writer->add_document(four[c].tokens, four[c].trained);
      if (c % 8 == 7) writer->end_pack();
    }
  }
  tight.commit();
  padded.commit();
  const auto run_on = [&](const std::string& name, const Words& more) {
    return train({.flags = packs(folder / name) + words("--split 1 --global-batch-size 2 --train-iters 2") + more});
  };
  const RunResult want = run_on("tight", {});
  expect_losses_near(run_on("padded", {}), want, 1e-6);
  expect_losses_near(run_on("tight", words("--seq-length 48")), want, 1e-6);
}

TEST_F(PackRuns, ResumeWithTheirBits) {
  const TestFolder saved;
  const RunResult want = run(kEvaluations);
  const Words save = {"--save", saved / "checkpoints", "--load", saved / "checkpoints", "--exit-interval", "2"};
  EXPECT_EQ(run(kEvaluations + save).code, ExitCode::kStoppedOnRequest);
  const RunResult rest = run(kEvaluations + save);
  ASSERT_EQ(rest.losses.size(), 2U);
  EXPECT_EQ(rest.losses[0], want.losses[2]);
  EXPECT_EQ(rest.losses[1], want.losses[3]);
  EXPECT_EQ(rest.validation_losses.back(), want.validation_losses.back());
}

// Evaluations of all validation packs, and of test packs at the end: means over trained tokens, which every batch size
// and number of ranks gives.
TEST_F(PackRuns, EvaluateEachValidationPackOnceAndTestPacksAtTheEnd) {
  const Words flags =
      words("--split 6,2,2 --full-validation --eval-interval 2 --eval-iters 1 --train-iters 2 --lr 1e-30");
  const auto log_of = [&](const Words& more, int ranks) {
    testing::internal::CaptureStdout();
    const RunResult result = run(flags + more, ranks);
    EXPECT_EQ(result.validation_losses.size(), 1U);
    const std::string log = testing::internal::GetCapturedStdout();
    EXPECT_NE(log.find("step 2  test loss"), std::string::npos) << log;
    return std::pair(number_of_hex(result.validation_losses[0]), log);
  };
  const double want = log_of({}, 1).first;
  EXPECT_NEAR(log_of(words("--micro-batch-size 1 --global-batch-size 4"), 1).first, want, 1e-5);
  EXPECT_NEAR(log_of(words("--micro-batch-size 1 --global-batch-size 2"), 2).first, want, 1e-5);
  // The packs of both splits are others, so their losses differ.
  const RunResult first =
      run(words("--split 8,2 --full-validation --eval-interval 2 --eval-iters 1 --train-iters 2 --lr 1e-30"));
  EXPECT_GT(std::abs(number_of_hex(first.validation_losses[0]) - want), 1e-6);
}

// Masks of Megatron-LM on mock tokens: 0 is the most frequent one.
TEST(MaskedRuns, HaveTheBitsOfEagerStepsAndTheLossesOfOneRank) {
  const Words data = llama_flags() + words("--tokenizer-type null --vocab-size 1 --seq-length 32 --train-iters 3");
  for (const Words& masks :
       {words("--reset-position-ids"), words("--reset-attention-mask"), words("--eod-mask-loss"),
        words("--reset-position-ids --reset-attention-mask --eod-mask-loss --calculate-per-token-loss"),
        words("--dataloader-inter-document-masking")}) {
    SCOPED_TRACE(testing::PrintToString(masks));
    const auto run = [&](const Words& more, int ranks = 1) {
      return train({.flags = data + masks + more + Words{"--check-hazards"}, .ranks = ranks});
    };
    const RunResult want = run({}), plain = train({.flags = data});
    EXPECT_NE(want.losses[1], plain.losses[1]);
    expect_same_run(run(kGraphs), want);
    for (const char* communication : {"a2a", "p2p"}) {
      const RunResult split = run({"--context-parallel-size", "2", "--cp-comm-type", communication}, 2);
      EXPECT_EQ(split.hazards, 0);
      expect_losses_near(split, want, 2e-6);
    }
  }
}

// EOD tokens within the index's one document: 20 documents in one sample, where the index alone would plan 8.
TEST(MaskedRuns, CountDocumentsThatEodTokensEnd) {
  const TestFolder folder;
  {
    IndexedDatasetWriter writer(folder / "d", TokenType::kU16, {});
    std::vector<std::int32_t> tokens(32 * 12, 0);
    std::fill_n(tokens.begin() + 32 * 7, 19, 1);
    writer.add_document(tokens);
    writer.commit();
  }
  const Words flags = llama_flags() + Words{"--mock-data=false", "--data-path", folder / "d", "--split", "1"} +
                      words(
                          "--tokenizer-type null --vocab-size 1 --seq-length 32 --train-iters 5 --eval-iters 0 "
                          "--reset-attention-mask");
  const RunResult want = train({.flags = flags + words("--max-documents-per-sample 24"), .ranks = 1});
  EXPECT_EQ(want.losses.size(), 5U);
  expect_same_run(train({.flags = flags, .ranks = 1}), want);
  EXPECT_THROW(train({.flags = flags + words("--max-documents-per-sample 8"), .ranks = 1}), Error);
}

// Tensor-parallel ranks move the same buffers, though one of them alone adds the learned positions.
TEST(MaskedRuns, LearnedPositionsOfDocumentsCanBeOffloadedOnTensorRanks) {
  const Words flags = words("--dataloader-inter-document-masking --tensor-model-parallel-size 2 --sequence-parallel");
  const Words moving = offload({"auto"}) + Words{"--rates", MEGALITH_SOURCE_DIR "/configs/rates/h200.toml"};
  const RunResult got = train({.flags = flags + moving, .ranks = 2}), want = train({.flags = flags, .ranks = 2});
  expect_same_run(got, want);
  EXPECT_TRUE(got.memory_as_planned);
  EXPECT_GT(got.ranks[1].offload.offloads, 0);
}

}  // namespace
}  // namespace megalith::test
