// Prompts by a chat template, and the ends of answers.
#include "apps/generate/chat_prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/generate/continuation.h"
#include "tests/support/error_of.h"
#include "tests/support/test_folder.h"

namespace megalith {
namespace {

using testing::HasSubstr;

class ChatPrompts : public testing::Test {
 protected:
  std::vector<Prompt> read(const std::string& content, const std::string& name = "chatml") {
    write_bytes(folder_ / "c.jsonl", content);
    return read_chat_prompts(folder_ / "c.jsonl", load_chat_template(name, ""), {});
  }
  TestFolder folder_;
};

TEST_F(ChatPrompts, EndWhereTheAnswerBegins) {
  const std::string user = R"({"role":"user","content":"Hi"})", answer = R"({"role":"assistant","content":"Ho"})";
  const std::string want = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  const std::vector<Prompt> prompts =
      read("{\"messages\":[" + user + "," + answer + "]}\n\n{\"messages\":[" + user + "]}\n{\"messages\":[" + user +
           "," + answer + "," + user + "]}\n" + R"({"prompt":"Hi","completion":"Ho"})");
  ASSERT_EQ(prompts.size(), 4u);
  for (const std::size_t i : {0, 1, 3}) {
    EXPECT_EQ(prompts[i].text, want) << i;
    EXPECT_EQ(prompts[i].shown, "");
    EXPECT_EQ(prompts[i].tokens, encode_prompt({}, want));
  }
  EXPECT_EQ(prompts[2].text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n" + want);
}

TEST_F(ChatPrompts, RefuseInvalidLinesByTheirPlace) {
  const auto refusal = [&](const std::string& content) { return error_of(ExitCode::kFormat, [&] { read(content); }); };
  EXPECT_THAT(refusal("\n{\"messages\":[{\"role\":\"assistant\",\"content\":\"Ho\"}]}"),
              HasSubstr("c.jsonl:2: expected a message that is to be answered, got none"));
  EXPECT_THAT(refusal("{\"text\":1}"), HasSubstr("c.jsonl:1: "));
  EXPECT_THAT(refusal("{\"messages\":[{\"role\":\"user\",\"content\":[]}]}"), HasSubstr("c.jsonl:1: "));
  EXPECT_THAT(refusal(" \n"), HasSubstr("c.jsonl: expected at least one conversation"));
  EXPECT_THAT(error_of(ExitCode::kUsage, [&] { load_chat_template("", folder_.path()); }),
              HasSubstr("--chat-template: "));
}

TEST_F(ChatPrompts, EndOfTurnIsWhatFollowsAnAnswer) {
  EXPECT_EQ(end_of_turn(load_chat_template("chatml", "")), "<|im_end|>");
  EXPECT_EQ(end_of_turn(load_chat_template("llama3", "")), "<|eot_id|>");
  EXPECT_EQ(end_of_turn(load_chat_template("identity", "")), "");
  const auto of = [](const char* text) { return end_of_turn(ChatTemplate(jinja::Template("t", text), {})); };
  EXPECT_EQ(of("{% for m in messages %}[{{ m.content }} </s> <s>{% endfor %}"), "</s>");
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { of("nothing"); }), HasSubstr("writes the answers"));
}

// Text of byte tokens up to the stop text, however the tokens divide it.
TEST_F(ChatPrompts, ContinuationsEndAtTheStopText) {
  const auto run = [](const std::string& text, const std::string& stop) {
    const Tokenizer bytes;
    Continuation continuation(bytes, {.eod = bytes.eod(), .stop_text = stop});
    std::string got;
    for (const char c : text) {
      got += continuation.add(static_cast<unsigned char>(c));
      EXPECT_TRUE(text.starts_with(got));
      if (continuation.has_ended()) break;
    }
    return std::pair(got + continuation.flush(), continuation.has_ended());
  };
  using Result = std::pair<std::string, bool>;
  EXPECT_EQ(run("Hi<|im_end|>\nmore", "<|im_end|>"), (Result{"Hi", true}));
  EXPECT_EQ(run("a<|<|im_<|im_end|>", "<|im_end|>"), (Result{"a<|<|im_", true}));
  EXPECT_EQ(run("a<|im_end", "<|im_end|>"), (Result{"a<|im_end", false}));
  EXPECT_EQ(run("aaab", "aab"), (Result{"a", true}));
  EXPECT_EQ(run("x\xC3\xA9y", ""), (Result{"x\xC3\xA9y", false}));
  EXPECT_EQ(run("x\xC3", "y"), (Result{"x\xC3", false}));
  const Tokenizer bytes;
  Continuation continuation(bytes, {.eod = bytes.eod(), .stop_text = "<|"});
  EXPECT_EQ(continuation.add('a'), "a");
  EXPECT_EQ(continuation.add('<'), "");
  EXPECT_EQ(continuation.add(bytes.eod()), "<");
  EXPECT_TRUE(continuation.has_ended());
  EXPECT_EQ(continuation.tokens(), 3);
  EXPECT_EQ(continuation.add('b'), "");
}

}  // namespace
}  // namespace megalith
