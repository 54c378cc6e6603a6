// Ids and labels of conversations, also against Hugging Face transformers (tests/golden/chat).
#include "core/chat/chat_tokens.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/tokenizer/bpe_files.h"
#include "tests/unit/chat/chat_files.h"

namespace megalith {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

Tokenizer tokenizer_named(const std::string& name) {
  return make_tokenizer(
      {.type = "HuggingFaceTokenizer", .tokenizer_model = kTests + "golden/tokenizer/" + name + ".json"});
}

template <class Number>
std::vector<Number> numbers_of(const jinja::Value& list) {
  std::vector<Number> numbers;
  for (const jinja::Value& item : list.as_list().items) numbers.push_back(static_cast<Number>(item.as_integer()));
  return numbers;
}

BpeVocabulary with_eod(BpeVocabulary vocabulary) {
  vocabulary.eod = find_eod(vocabulary, "");
  return vocabulary;
}

// Text of the trained tokens.
std::string trained_text(const Tokenizer& tokenizer, const ChatTokens& tokens) {
  Ids ids;
  for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
    if (tokens.trained[i] != 0) ids.push_back(tokens.ids[i]);
  }
  return tokenizer.decode(ids);
}

TEST(ChatTokens, IdsAndLabelsAreTheLibrarys) {
  for (const jinja::Value& entry : golden_list("tokens")) {
    const std::vector<jinja::Value>& fields = entry.as_list().items;
    const std::string name = fmt::format("{} {} {}", fields[0].as_text(), fields[1].as_text(), fields[2].as_text());
    const Tokenizer tokenizer = tokenizer_named(fields[0].as_text());
    const ChatTemplate chat = chat_template(read_bytes(kTests + "chat/templates/" + fields[1].as_text()));
    const jinja::Value& messages = *golden().find("tokenized")->as_dict().find(fields[2].as_text());
    const ChatTokens tokens = encode_conversation(tokenizer, chat, {.messages = messages, .trained = {}});
    EXPECT_EQ(tokens.ids, numbers_of<std::int32_t>(fields[3])) << name;
    EXPECT_EQ(tokens.trained, numbers_of<std::uint8_t>(fields[4])) << name;
  }
}

TEST(ChatTokens, BytesHaveTheLabelsOfTheirRanges) {
  const Tokenizer bytes;
  const ChatTokens tokens = encode_labelled(bytes, {.text = "abcdef", .trained = {{1, 3}, {4, 6}}}, {});
  EXPECT_EQ(tokens.ids, (Ids{'a', 'b', 'c', 'd', 'e', 'f'}));
  EXPECT_EQ(tokens.trained, (std::vector<std::uint8_t>{0, 1, 1, 0, 1, 1}));
}

// At each border of each text: a token belongs to where its first byte is.
TEST(ChatTokens, TokensOverBordersBelongToTheirFirstByte) {
  for (const char* name : {"gpt2", "llama3", "qwen2"}) {
    const Tokenizer tokenizer = tokenizer_named(name);
    for (const std::string text :
         {"It is a truth universally acknowledged", "a\n\n\nb  c", "x<|endoftext|>y", "123 1234567"}) {
      for (std::size_t begin = 0; begin <= text.size(); ++begin) {
        const ChatTokens tokens = encode_labelled(tokenizer, {.text = text, .trained = {{begin, text.size()}}}, {});
        std::size_t at = 0;
        for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
          const std::string spelled = tokenizer.decode(std::span(&tokens.ids[i], 1));
          EXPECT_EQ(tokens.trained[i], at >= begin ? 1 : 0) << name << " " << text << " " << begin;
          at += tokens.ids[i] == tokenizer.eod() ? std::string("<|endoftext|>").size() : spelled.size();
        }
        EXPECT_EQ(at, text.size());
      }
    }
  }
}

TEST(ChatTokens, ASpaceInFrontMovesBorders) {
  Json json = Json::parse(read_bytes(kTests + "golden/tokenizer/gpt2.json"));
  json["pre_tokenizer"]["add_prefix_space"] = true;
  const Tokenizer gpt2(with_eod(parse_hugging_face_file({.name = "f", .text = json.dump()})));
  const ChatTokens tokens = encode_labelled(gpt2, {.text = "It is a truth", .trained = {{3, 5}}}, {});
  EXPECT_EQ(gpt2.decode(tokens.ids), " It is a truth");
  EXPECT_EQ(trained_text(gpt2, tokens), "");  // " is" begins at the space
  EXPECT_EQ(trained_text(gpt2, encode_labelled(gpt2, {.text = "It is a truth", .trained = {{2, 5}}}, {})), " is");
}

TEST(ChatTokens, NormalizedTextKeepsItsBorders) {
  const Tokenizer qwen = tokenizer_named("qwen2");
  const std::string text = "A\u030a \n\ne\u0301a\u030a\n\n x";
  const ChatTokens tokens = encode_labelled(qwen, {.text = text, .trained = {{5, text.size() - 2}}}, {});
  EXPECT_THAT(trained_text(qwen, tokens), AllOf(HasSubstr("\u00e9"), HasSubstr("\u00e5"), Not(HasSubstr("\u00c5"))));
  // A border between a letter and its mark, within a token.
  EXPECT_THAT(error_of(ExitCode::kFormat,
                       [&] {
                         encode_labelled(qwen, {.text = "e\u0301", .trained = {{1, 3}}}, {});
                       }),
              HasSubstr("conversation: expected text that its tokens spell"));
}

TEST(ChatTokens, BosIsTheTemplatesAlone) {
  const Tokenizer qwen = tokenizer_named("qwen2");
  Ids bos;
  qwen.encode("<|im_start|>", bos);
  ASSERT_EQ(bos.size(), 1u);
  const Conversation conversation = parse_conversation(R"({"prompt": "a", "completion": "b"})", "f:1");
  const auto count = [&](const std::string& text) {
    const ChatTokens tokens =
        encode_conversation(qwen, chat_template(text, R"({"bos_token": "<|im_start|>"})"), conversation);
    EXPECT_EQ(tokens.ids.size(), tokens.trained.size());
    return std::ranges::count(tokens.ids, bos[0]);
  };
  EXPECT_EQ(count("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"), 1);
  EXPECT_EQ(count("{% for m in messages %}{{ m.content }}{% endfor %}"), 0);
}

TEST(ChatTokens, TheEndOfTurnIsTrained) {
  const Tokenizer qwen = tokenizer_named("qwen2");
  const ChatTemplate chat = chat_template(
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + eos_token + '\\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
      R"({"eos_token": "<|endoftext|>"})");
  const ChatTokens tokens =
      encode_conversation(qwen, chat, parse_conversation(R"({"prompt": "Hi", "completion": "\n Yes"})", "f:1"));
  EXPECT_EQ(trained_text(qwen, tokens), " Yes\n");  // "\n\n" begins in the prompt; <|endoftext|> decodes to nothing
  const auto last_eod = std::find(tokens.ids.rbegin(), tokens.ids.rend(), qwen.eod()) - tokens.ids.rbegin();
  EXPECT_EQ(tokens.trained[tokens.ids.size() - 1 - static_cast<std::size_t>(last_eod)], 1);
  const auto first_eod = std::ranges::find(tokens.ids, qwen.eod()) - tokens.ids.begin();
  EXPECT_EQ(tokens.trained[static_cast<std::size_t>(first_eod)], 0);
}

}  // namespace
}  // namespace megalith
