// Prompts of a file: what a line holds, what is refused, and the batches.
#include "apps/generate/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

#include "tests/support/error_of.h"
#include "tests/support/test_folder.h"

namespace megalith {
namespace {

using testing::HasSubstr;

class Prompts : public testing::Test {
 protected:
  std::vector<Prompt> read(const std::string& name, const std::string& content, const Tokenizer& tokenizer = {}) {
    write_bytes(folder_ / name, content);
    return read_prompts(folder_ / name, tokenizer);
  }
  std::string refusal(const std::string& name, const std::string& content, const Tokenizer& tokenizer = {}) {
    return error_of(ExitCode::kFormat, [&] { read(name, content, tokenizer); });
  }

  TestFolder folder_;
};

TEST_F(Prompts, AreTheLinesOfAText) {
  const std::vector<Prompt> prompts = read("prompts.txt", "It is\r\n\n {\"prompt\"\n \nlast");
  ASSERT_EQ(prompts.size(), 3u);
  EXPECT_EQ(prompts[0].text, "It is");
  EXPECT_EQ(prompts[0].tokens, (std::vector<std::int32_t>{'I', 't', ' ', 'i', 's'}));
  EXPECT_EQ(prompts[1].text, " {\"prompt\"");
  EXPECT_EQ(prompts[2].text, "last");
  EXPECT_THAT(prompts[2].place, testing::EndsWith("prompts.txt:5"));
}

TEST_F(Prompts, AreObjectsOfJsonLines) {
  const std::vector<Prompt> prompts =
      read("prompts.jsonl", "{\"id\":\"a\",\"prompt\":\"x\\ny\",\"more\":[1]}\n\n{\"prompt\":\"\",\"id\":-3}\n");
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0].text, "x\ny");
  EXPECT_EQ(prompts[0].id, "\"a\"");
  EXPECT_EQ(prompts[1].id, "-3");
  EXPECT_EQ(prompts[1].tokens, std::vector<std::int32_t>{Tokenizer().eod()});
}

TEST_F(Prompts, RefuseInvalidLinesByTheirPlace) {
  EXPECT_THAT(refusal("p.jsonl", "{\"prompt\":\"a\"}\n{\"text\":\"a\"}\n"),
              HasSubstr("p.jsonl:2: expected a text under 'prompt', got none"));
  EXPECT_THAT(refusal("p.jsonl", "{\"prompt\":3}"), HasSubstr("p.jsonl:1: expected a text under 'prompt', got number"));
  EXPECT_THAT(refusal("p.jsonl", "{\"prompt\":\"a\",\"id\":1.5}"),
              HasSubstr("p.jsonl:1: expected a text or an integer"));
  EXPECT_THAT(refusal("p.jsonl", "[]"), HasSubstr("p.jsonl:1: expected a JSON object, got array"));
  EXPECT_THAT(refusal("p.jsonl", "{\"prompt\":"), HasSubstr("p.jsonl:1: "));
  EXPECT_THAT(refusal("p.txt", " \n\n"), HasSubstr("p.txt: expected at least one prompt"));
  EXPECT_THAT(refusal("p.txt", "1 2\nwords\n", Tokenizer::null(9)), HasSubstr("p.txt:2: "));
}

TEST_F(Prompts, AreBatchedByLengthInTheOrderOfTheirFirst) {
  std::mt19937 random(3);
  for (const std::int64_t batch_size : {1, 2, 3, 100}) {
    std::vector<Prompt> prompts(50);
    for (Prompt& prompt : prompts) prompt.tokens.resize(1 + random() % 4);
    const auto batches = batches_of(prompts, batch_size);
    std::vector<std::size_t> all, firsts;
    std::multiset<std::size_t> partial;  // lengths of batches that are not full: one of each length at most
    for (const std::vector<std::size_t>& batch : batches) {
      EXPECT_LE(std::ssize(batch), batch_size);
      EXPECT_TRUE(std::ranges::is_sorted(batch));
      for (const std::size_t i : batch) EXPECT_EQ(prompts[i].length(), prompts[batch[0]].length());
      all.insert(all.end(), batch.begin(), batch.end());
      firsts.push_back(batch[0]);
      if (std::ssize(batch) < batch_size) partial.insert(prompts[batch[0]].tokens.size());
    }
    EXPECT_TRUE(std::ranges::is_sorted(firsts));
    EXPECT_EQ(std::set<std::size_t>(partial.begin(), partial.end()).size(), partial.size());
    std::ranges::sort(all);
    std::vector<std::size_t> want(prompts.size());
    std::iota(want.begin(), want.end(), 0);
    EXPECT_EQ(all, want);
  }
}

}  // namespace
}  // namespace megalith
