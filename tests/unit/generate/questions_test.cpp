// Questions of a file, and the rules of lm-evaluation-harness by which they become sequences and scores.
#include "apps/generate/questions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/error_of.h"
#include "tests/support/test_folder.h"

namespace megalith {
namespace {

using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

class Questions : public testing::Test {
 protected:
  std::vector<Question> read(const std::string& content) {
    write_bytes(folder_ / "q.jsonl", content);
    return read_questions(folder_ / "q.jsonl");
  }
  std::string refusal(const std::string& content) {
    return error_of(ExitCode::kFormat, [&] { read(content); });
  }
  TestFolder folder_;
};

Ids ids_of(const std::string& text) { return {text.begin(), text.end()}; }

TEST_F(Questions, HaveOneOfEachKey) {
  const std::vector<Question> questions = read(
      "{\"context\":\"a\",\"choices\":[\"b\",\"c\"],\"gold\":1,\"id\":7}\n\n"
      "{\"question\":\"a\",\"choices\":[\"b\",\"c\",\"d\"],\"answer\":\"C\"}\n"
      "{\"query\":\"\",\"choices\":[\"b\"],\"answer\":0,\"other\":null}\n");
  ASSERT_EQ(questions.size(), 3u);
  EXPECT_EQ(questions[0].gold, 1u);
  EXPECT_EQ(questions[0].id, "7");
  EXPECT_EQ(questions[1].gold, 2u);
  EXPECT_EQ(questions[1].choices, (std::vector<std::string>{"b", "c", "d"}));
  EXPECT_EQ(questions[2].context, "");
  EXPECT_THAT(questions[2].place, testing::EndsWith("q.jsonl:4"));
}

TEST_F(Questions, RefuseInvalidLinesByTheirPlace) {
  EXPECT_THAT(refusal("{\"choices\":[\"b\"],\"gold\":0}"),
              HasSubstr("q.jsonl:1: expected one of the keys context, question or query, got none"));
  EXPECT_THAT(refusal("\n{\"query\":\"\",\"context\":\"\",\"choices\":[\"b\"],\"gold\":0}"),
              HasSubstr("q.jsonl:2: expected one of the keys context, question or query, got 'context' and 'query'"));
  EXPECT_THAT(refusal("{\"query\":1,\"choices\":[\"b\"],\"gold\":0}"), HasSubstr("expected a text under 'query'"));
  EXPECT_THAT(refusal("{\"query\":\"\",\"choices\":[],\"gold\":0}"), HasSubstr("a list of texts under 'choices'"));
  EXPECT_THAT(refusal("{\"query\":\"\",\"choices\":[\"a\",\"\"],\"gold\":0}"),
              HasSubstr("q.jsonl:1: choices[1]: expected a text that is not empty, got an empty text"));
  EXPECT_THAT(refusal("{\"query\":\"\",\"choices\":[\"a\",2],\"gold\":0}"), HasSubstr("choices[1]"));
  for (const char* gold : {"2", "-1", "\"C\"", "\"a\"", "\"AB\"", "1.0", "null", "[0]"})
    EXPECT_THAT(refusal(std::string("{\"query\":\"\",\"choices\":[\"a\",\"b\"],\"gold\":") + gold + "}"),
                HasSubstr("q.jsonl:1: expected under 'gold' an index from 0 to 1 or a letter from A"));
  EXPECT_THAT(refusal("{\"query\":\"\",\"choices\":[\"a\"]}"), HasSubstr("one of the keys gold or answer, got none"));
  EXPECT_THAT(refusal("\n"), HasSubstr("q.jsonl: expected at least one question"));
}

TEST_F(Questions, WhiteSpaceThatEndsTheContextIsOfTheContinuation) {
  const Tokenizer bytes;
  for (const auto& [context, size] : {std::pair<std::string, std::int64_t>{"ab", 2},
                                      {"ab  ", 2},
                                      {"a b\n\t", 3},
                                      {"ab\xC2\xA0", 2},
                                      {"ab\xE3\x80\x80 ", 2},
                                      {"ab\x1C", 2},
                                      {"ab\xFF", 3},
                                      {"ab\xE2\x80\x8B", 5}}) {  // U+200B is no white space to Python
    const ScoredSequence sequence = encode_pair(bytes, {.context = context, .choices = {"cd", "e"}}, 1, {});
    EXPECT_EQ(sequence.context, size) << context;
    Ids want;
    bytes.encode(context + " e", want);
    EXPECT_EQ(sequence.tokens, want);
  }
  const ScoredSequence bare = encode_pair(bytes, {.context = "ab", .choices = {"cd"}}, 0, {.delimiter = ""});
  EXPECT_EQ(bare.tokens, ids_of("abcd"));
}

TEST_F(Questions, EodStandsForAnEmptyContext) {
  const Tokenizer bytes;
  for (const std::string context : {"", "  "}) {
    const ScoredSequence sequence = encode_pair(bytes, {.context = context, .choices = {"a"}}, 0, {});
    Ids want = ids_of(context + " a");
    want.insert(want.begin(), bytes.eod());
    EXPECT_EQ(sequence.tokens, want);
    EXPECT_EQ(sequence.context, 1);
  }
}

TEST_F(Questions, TokensOfTheContinuationFollowThoseOfTheContextAlone) {
  const Tokenizer bpe = make_tokenizer(
      {.type = "HuggingFaceTokenizer", .tokenizer_model = MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/llama3.json"});
  for (const std::string context : {"It is a truth", "It is a tru", "the ", "1 2 3\n"}) {
    for (const char* delimiter : {" ", ""}) {
      Ids of_context, joined;
      bpe.encode(context.substr(0, context.find_last_not_of(" \n") + 1), of_context);
      bpe.encode(context + delimiter + "th of", joined);
      const ScoredSequence sequence =
          encode_pair(bpe, {.context = context, .choices = {"th of"}}, 0, {.delimiter = delimiter});
      EXPECT_EQ(sequence.tokens, joined);
      EXPECT_EQ(sequence.context, std::ssize(of_context));
    }
  }
}

TEST_F(Questions, LongContextsAreCutAtTheirStart) {
  const Question question{.context = "abcdef", .choices = {"gh"}, .place = "q.jsonl:3"};
  const auto encode = [&](std::int64_t positions) {
    return encode_pair({}, question, 0, {.delimiter = "", .max_positions = positions});
  };
  EXPECT_EQ(encode(7).tokens, ids_of("abcdefgh"));
  EXPECT_EQ(encode(7).cut, 0);
  EXPECT_EQ(encode(4).tokens, ids_of("defgh"));
  EXPECT_EQ(encode(4).context, 3);
  EXPECT_EQ(encode(4).cut, 3);
  EXPECT_EQ(encode(2).tokens, ids_of("fgh"));
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { encode(1); }), HasSubstr("q.jsonl:3: choices[0]: expected at most 1"));
}

TEST_F(Questions, ScoresTakeTheFirstOfEqualChoices) {
  const Question question{.context = "", .choices = {"abcd", "ab", "abc", "a"}};
  const QuestionScore score = score_question(question, {-4, -2, -2, -1.5});
  EXPECT_EQ(score.best, 3u);
  EXPECT_EQ(score.best_norm, 2u);
  EXPECT_EQ(score_question(question, {-8, -4, -6, -2}).best_norm, 0u);
  EXPECT_EQ(score_question(question, {-2, -2, -3, -2}).best, 0u);
  // Bytes count, not characters.
  EXPECT_EQ(score_question({.context = "", .choices = {"\xC3\xA9", "e"}}, {-3, -2}).best_norm, 0u);
}

TEST_F(Questions, TheStandardErrorIsThatOfAMean) {
  const Accuracy accuracy = accuracy_of(3, 10);
  EXPECT_DOUBLE_EQ(accuracy.mean, 0.3);
  // From its definition: the deviation of the ten values over sqrt(10).
  const double variance = (3 * 0.7 * 0.7 + 7 * 0.3 * 0.3) / 9;
  ASSERT_TRUE(accuracy.standard_error);
  EXPECT_NEAR(*accuracy.standard_error, std::sqrt(variance / 10), 1e-15);
  EXPECT_FALSE(accuracy_of(1, 1).standard_error);
  EXPECT_EQ(accuracy_of(4, 4).standard_error, 0.0);
}

}  // namespace
}  // namespace megalith
