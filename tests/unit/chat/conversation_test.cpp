// Conversations of JSON lines.
#include "core/chat/conversation.h"

#include "tests/unit/chat/chat_files.h"

namespace megalith {
namespace {

std::string json_of(const jinja::Value& value) { return jinja::to_json(value, {}); }

std::string messages_of(const std::string& line) { return json_of(parse_conversation(line, "f:1").messages); }

std::string refused(const std::string& line) {
  return error_of(ExitCode::kFormat, [&] { parse_conversation(line, "f:7"); });
}

TEST(Conversation, Messages) {
  const Conversation parsed = parse_conversation(
      R"({"id": 3, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "name": "x"},
          {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
          {"role": "tool", "content": [{"type": "text", "text": "c"}]},
          {"role": "assistant", "content": "d", "weight": 0}],
          "tools": [{"type": "function"}]})",
      "f:1");
  EXPECT_EQ(json_of(parsed.messages),
            R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "name": "x"}, )"
            R"({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}, )"
            R"({"role": "tool", "content": [{"type": "text", "text": "c"}]}, )"
            R"({"role": "assistant", "content": "d", "weight": 0}])");
  EXPECT_EQ(json_of(parsed.tools), R"([{"type": "function"}])");
  EXPECT_EQ(parsed.trained, (std::vector<bool>{false, true, true, false, false}));
}

TEST(Conversation, NullMembersAreDroppedExceptContent) {
  EXPECT_EQ(
      messages_of(R"({"prompt": "x", "messages": [{"role": "user", "content": "a", "tool_calls": null, "name": null,
      "weight": null}, {"role": "assistant", "content": null, "tool_calls": []}],
      "conversations": null, "tools": null})"),
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": []}])");
}

TEST(Conversation, ReasoningHasEachName) {
  EXPECT_EQ(messages_of(R"({"messages": [{"role": "assistant", "content": "a", "reasoning": "r"}]})"),
            R"([{"thinking": "r", "role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"}])");
  EXPECT_EQ(messages_of(
                R"({"messages": [{"role": "assistant", "content": "a", "reasoning_content": "r", "thinking": "t"}]})"),
            R"([{"thinking": "t", "role": "assistant", "content": "a", "reasoning_content": "r"}])");
}

TEST(Conversation, ShareGpt) {
  const Conversation parsed = parse_conversation(
      R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "weight": 1},
          {"from": "observation", "value": "c"}, {"role": "assistant", "content": "d"}], "system": "S",
          "tools": "[{\"name\": \"f\"}]"})",
      "f:1");
  EXPECT_EQ(json_of(parsed.messages),
            R"([{"role": "system", "content": "S"}, {"role": "user", "content": "a"}, )"
            R"({"role": "assistant", "content": "b", "weight": 1}, {"role": "tool", "content": "c"}, )"
            R"({"role": "assistant", "content": "d"}])");
  EXPECT_EQ(json_of(parsed.tools), R"([{"name": "f"}])");
  EXPECT_EQ(parsed.trained, (std::vector<bool>{false, false, true, false, true}));
  EXPECT_EQ(messages_of(R"({"conversations": [{"from": "user", "value": "a"}], "system": "", "tools": ""})"),
            R"([{"role": "user", "content": "a"}])");
}

TEST(Conversation, PromptAndCompletion) {
  const Conversation texts = parse_conversation(R"({"prompt": "a", "completion": "b"})", "f:1");
  EXPECT_EQ(json_of(texts.messages), R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])");
  EXPECT_EQ(texts.trained, (std::vector<bool>{false, true}));
  const Conversation lists = parse_conversation(
      R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
          {"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]})",
      "f:1");
  EXPECT_EQ(lists.trained, (std::vector<bool>{false, false, false, true}));
}

TEST(Conversation, LastAnswerAlone) {
  Conversation parsed = parse_conversation(
      R"({"messages": [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"},
          {"role": "assistant", "content": "c", "weight": 0}, {"role": "user", "content": "d"}]})",
      "f:1");
  train_last_answer(parsed);
  EXPECT_EQ(parsed.trained, (std::vector<bool>{false, true}));
  EXPECT_EQ(json_of(parsed.messages),
            R"([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}])");
  Conversation none = parse_conversation(R"({"messages": [{"role": "user", "content": "a"}]})", "f:1");
  train_last_answer(none);
  EXPECT_EQ(none.trained, std::vector<bool>{false});
}

TEST(Conversation, BadLinesAreRejectedWithTheirPlace) {
  EXPECT_EQ(refused("[]"), "f:7: expected an object, got a list; correct or remove the line");
  EXPECT_EQ(
      refused(R"({"text": "a"})"),
      "f:7: expected 'messages', 'conversations', or 'prompt' and 'completion', got none of them; correct or remove "
      "the line");
  EXPECT_EQ(
      refused(R"({"messages": [{"role": "user", "content": 1}]})"),
      "f:7: messages[0]: content: expected a text or a list of parts, got an integer; correct or remove the line");
  EXPECT_THAT(refused(R"({"messages": [], "conversations": []})"), HasSubstr("got both"));
  EXPECT_THAT(refused(R"({"messages": []})"), HasSubstr("expected at least one message, got none"));
  EXPECT_THAT(refused(R"({"messages": {}})"), HasSubstr("messages: expected a list of messages, got an object"));
  EXPECT_THAT(refused(R"({"messages": ["a"]})"), HasSubstr("messages[0]: expected an object, got the text 'a'"));
  EXPECT_THAT(refused(R"({"messages": [{"content": "a"}]})"), HasSubstr("role: expected a text, got none"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "", "content": "a"}]})"),
              HasSubstr("role: expected a text, got the text ''"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "user"}]})"),
              HasSubstr("content: expected a text or a list of parts, got none"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "user", "content": null}]})"), HasSubstr("got null"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "user", "content": [1]}]})"),
              HasSubstr("content: part: expected an object"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "assistant", "content": "a", "tool_calls": {}}]})"),
              HasSubstr("tool_calls: expected a list, got an object"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]})"),
              HasSubstr("weight: expected 0 or 1, got a number"));
  EXPECT_THAT(
      refused(R"({"conversations": [{"from": "function_call", "value": "a"}]})"),
      HasSubstr(
          "conversations[0]: from: expected system, human, gpt, tool or a synonym, got the text 'function_call'"));
  EXPECT_THAT(refused(R"({"conversations": [{"from": "human", "value": []}]})"),
              HasSubstr("value: expected a text, got a list"));
  EXPECT_THAT(refused(R"({"conversations": [{"from": "human", "value": "a"}], "system": true})"),
              HasSubstr("system: expected a text, got a boolean"));
  EXPECT_THAT(refused(R"({"prompt": "a"})"), HasSubstr("none of them"));
  EXPECT_THAT(refused(R"({"prompt": "a", "completion": []})"), HasSubstr("got the text 'a' and a list"));
  EXPECT_THAT(refused(R"({"prompt": "a", "completion": "b", "tools": 1.5})"),
              HasSubstr("tools: expected a list of objects"));
  EXPECT_THAT(refused(R"({"prompt": "a", "completion": "b", "tools": "{"})"),
              HasSubstr("f:7: tools: expected UTF-8 JSON"));
  EXPECT_THAT(refused(R"({"prompt": "a", "completion": "b", "tools": [1]})"), HasSubstr("tools: expected an object"));
  EXPECT_THAT(refused("{"), HasSubstr("f:7: expected UTF-8 JSON, got something else at byte 2"));
}

}  // namespace
}  // namespace megalith
