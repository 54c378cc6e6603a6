// Log-likelihoods of continuations: those of an independent fp64 model, whatever the pack.
#include "apps/generate/scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "apps/config/memory_options.h"
#include "apps/flags/flags.h"
#include "apps/generate/evaluate.h"
#include "tests/support/device_cases.h"
#include "tests/support/error_of.h"
#include "tests/support/test_folder.h"
#include "tests/support/words.h"
#include "tests/thread_ranks/thread_communicator.h"
#include "tests/unit/model/model_run.h"

namespace megalith {
namespace {

class ScorerTest : public test::OnDevice<DeviceType> {
 protected:
  // A model of byte tokens.
  Options options(const std::string& more = "--swiglu --normalization RMSNorm --position-embedding-type rope") const {
    Options options = parse_flags(App::kPlan, test::words("--num-layers 2 --hidden-size 64 --num-attention-heads 4 "
                                                          "--seq-length 64 " +
                                                          more))
                          .options;
    options.model.vocab_size = Tokenizer().vocab_size();
    resolve(options.model);
    options.device = device();
    return options;
  }

  static std::vector<ScoredSequence> draw(const std::vector<std::int64_t>& lengths, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<ScoredSequence> sequences;
    for (const std::int64_t length : lengths) {
      ScoredSequence& sequence = sequences.emplace_back();
      for (std::int64_t i = 0; i < length; ++i) sequence.tokens.push_back(static_cast<std::int32_t>(random() % 257));
      sequence.context = 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(length - 1));
    }
    return sequences;
  }

  static std::vector<const ScoredSequence*> pointers(const std::vector<ScoredSequence>& sequences) {
    std::vector<const ScoredSequence*> pack;
    for (const ScoredSequence& sequence : sequences) pack.push_back(&sequence);
    return pack;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, ScorerTest, testing::ValuesIn(test::devices()), test::name_of_device_case);

double reference_score(const Options& options, const reference::GptTensors& weights, const ScoredSequence& sequence) {
  reference::GptBatch batch{.length = static_cast<std::size_t>(sequence.rows())};
  batch.tokens.assign(sequence.tokens.begin(), sequence.tokens.end() - 1);
  batch.labels.assign(sequence.tokens.begin() + 1, sequence.tokens.end());
  const reference::GptResult result =
      reference::run_gpt(reference::GptArithmetic::kFp64, test::reference_config(options.model), weights, batch);
  double sum = 0;
  for (std::int64_t i = sequence.context - 1; i < sequence.rows(); ++i)
    sum -= result.losses[static_cast<std::size_t>(i)];
  return sum;
}

TEST_P(ScorerTest, SumsAreThoseOfTheReference) {
  for (const char* more : {"--swiglu --normalization RMSNorm --position-embedding-type rope --num-query-groups 2 "
                           "--group-query-attention --untie-embeddings-and-output-weights",
                           "--position-embedding-type learned_absolute"}) {
    SCOPED_TRACE(more);
    const Options wanted = options(more);
    Scorer scorer(wanted, device(), {.rows = 150, .documents = 6});
    const reference::GptTensors weights = test::draw_weights(scorer.compute(), scorer.parameters(), 3);
    const std::vector<ScoredSequence> sequences = draw({40, 2, 64, 7, 30}, 5);
    const std::vector<double> got = scorer.score(pointers(sequences));
    ASSERT_EQ(got.size(), sequences.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double want = reference_score(wanted, weights, sequences[i]);
      EXPECT_NEAR(got[i], want, 2e-5 * std::abs(want)) << i;
      EXPECT_LT(want, -1);
    }
  }
}

// Equal bits on the CPU, for packs of any size and shape; the experts of these rows drop none.
TEST_P(ScorerTest, SumsDoNotDependOnThePack) {
  if (device() == DeviceType::kCuda) GTEST_SKIP() << "other shapes have other kernels";
  for (const std::string more :
       {"--swiglu --position-embedding-type rope", "--bf16 --swiglu --position-embedding-type rope",
        "--bf16 --swiglu --num-experts 4 --moe-expert-capacity-factor 0.5 --disable-bias-linear"}) {
    SCOPED_TRACE(more);
    const Options wanted = options(more);
    const std::vector<ScoredSequence> sequences = draw({9, 64, 2, 31, 17, 64, 5}, 9);
    std::vector<double> alone;
    for (const ScoredSequence& sequence : sequences) {
      Scorer scorer(wanted, device(), {.rows = sequence.rows(), .documents = 1});
      static_cast<void>(test::draw_weights(scorer.compute(), scorer.parameters(), 3));
      const ScoredSequence* const pack[] = {&sequence};
      alone.push_back(scorer.score(pack)[0]);
    }
    Scorer scorer(wanted, device(), {.rows = 300, .documents = 9});
    static_cast<void>(test::draw_weights(scorer.compute(), scorer.parameters(), 3));
    EXPECT_EQ(scorer.score(pointers(sequences)), alone);
    std::vector<const ScoredSequence*> few = {&sequences[3], &sequences[0]};
    EXPECT_EQ(scorer.score(few), (std::vector<double>{alone[3], alone[0]}));
    EXPECT_EQ(scorer.score(pointers(sequences)), alone);
  }
}

TEST_P(ScorerTest, RanksThatShardTheWeightsScoreAsOne) {
  if (device() == DeviceType::kCuda) GTEST_SKIP() << "ranks are threads, which share a GPU";
  const Options wanted = options("--bf16 --swiglu --position-embedding-type rope");
  const std::vector<ScoredSequence> sequences = draw({9, 20, 2}, 9);
  const Scorer::Sizes sizes{.rows = 64, .documents = 3};
  Scorer one(wanted, device(), sizes);
  one.parameters().initialize(one.compute(), 11);
  const std::vector<double> want = one.score(pointers(sequences));
  ThreadWorld(2).run([&](Communicator& group) {
    Scorer scorer(wanted, device(), sizes, &group);
    const AbortOnUnwind abort(group);
    scorer.parameters().initialize(scorer.compute(), 11);
    for (int call = 0; call < 2; ++call) EXPECT_EQ(scorer.score(pointers(sequences)), want);
  });
  EXPECT_EQ(one.score(pointers(sequences)), want);
  Options deep = wanted;
  deep.model.num_layers = 32;
  EXPECT_LT(Scorer::bytes(deep, sizes, 4).weights, Scorer::bytes(deep, sizes, 1).weights / 2);
}

// A file written here, whose accuracies the reference decides.
TEST_P(ScorerTest, AccuraciesAreThoseOfTheReference) {
  const TestFolder folder;
  std::mt19937 random(4);
  const auto text = [&](std::size_t bytes) {
    std::string made(bytes, ' ');
    for (char& c : made) c = static_cast<char>('a' + random() % 26);
    return made;
  };
  std::string lines;
  constexpr std::size_t kQuestions = 12, kChoices = 4;
  for (std::size_t q = 0; q < kQuestions; ++q) {
    lines += R"({"query": ")" + text(random() % 20) + (q % 3 == 0 ? "  " : "") + R"(", "choices": [)";
    for (std::size_t c = 0; c < kChoices; ++c) lines += (c == 0 ? "\"" : ", \"") + text(1 + random() % 9) + "\"";
    lines += "], \"gold\": " + std::to_string(random() % kChoices) + "}\n";
  }
  write_bytes(folder / "q.jsonl", lines);
  const std::vector<Question> questions = read_questions(folder / "q.jsonl");
  ASSERT_EQ(questions.size(), kQuestions);
  const Options wanted = options();
  for (const std::int64_t batch_tokens : {1, 40, 10000}) {
    const Evaluation evaluation = plan_evaluation(questions, {}, {}, batch_tokens);
    Scorer scorer(wanted, device(), evaluation.sizes);
    const reference::GptTensors weights = test::draw_weights(scorer.compute(), scorer.parameters(), 3);
    const std::vector<QuestionScore> scores = run_evaluation(scorer, evaluation, questions);
    std::int64_t right = 0, want_right = 0, right_norm = 0, want_right_norm = 0;
    for (std::size_t q = 0; q < kQuestions; ++q) {
      std::vector<double> want, want_norm;
      for (std::size_t c = 0; c < kChoices; ++c) {
        want.push_back(reference_score(wanted, weights, evaluation.sequences[q * kChoices + c]));
        want_norm.push_back(want.back() / static_cast<double>(questions[q].choices[c].size()));
        EXPECT_NEAR(scores[q].log_likelihoods[c], want.back(), 2e-5 * std::abs(want.back()));
      }
      const auto is_gold = [&](const std::vector<double>& values) {
        return std::ranges::max_element(values) - values.begin() == static_cast<std::ptrdiff_t>(questions[q].gold);
      };
      want_right += is_gold(want) ? 1 : 0;
      want_right_norm += is_gold(want_norm) ? 1 : 0;
      right += scores[q].best == questions[q].gold ? 1 : 0;
      right_norm += scores[q].best_norm == questions[q].gold ? 1 : 0;
    }
    EXPECT_EQ(right, want_right);
    EXPECT_EQ(right_norm, want_right_norm);
    EXPECT_GT(right, 0);
    EXPECT_LT(right, static_cast<std::int64_t>(kQuestions));
  }
}

TEST_P(ScorerTest, RefusesWhatExceedsAPass) {
  const Options wanted = options();
  Scorer scorer(wanted, device(), {.rows = 20, .documents = 2});
  scorer.parameters().initialize(scorer.compute(), 11);
  EXPECT_THROW(scorer.score(pointers(draw({12, 12}, 1))), Error);
  EXPECT_THROW(scorer.score(pointers(draw({3, 3, 3}, 1))), Error);
  std::vector<ScoredSequence> empty = draw({3}, 1);
  empty[0].context = 3;
  EXPECT_THROW(scorer.score(pointers(empty)), Error);
}

}  // namespace
}  // namespace megalith
