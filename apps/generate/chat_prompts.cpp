#include "apps/generate/chat_prompts.h"

#include <fmt/format.h>

#include "apps/generate/json_lines.h"
#include "core/base/error.h"
#include "core/chat/conversation.h"

namespace megalith {

namespace {

bool is_answer(const jinja::Value& message) {
  const jinja::Value* const role = message.as_dict().find("role");
  return role != nullptr && role->is_text() && role->as_text() == "assistant";
}

Prompt parse_chat_prompt(std::string_view line, const std::string& place, const ChatTemplate& chat) {
  Conversation conversation = parse_conversation(line, place);
  std::vector<jinja::Value> messages = conversation.messages.as_list().items;
  if (!messages.empty() && is_answer(messages.back())) messages.pop_back();
  if (messages.empty())
    refuse_format(place, "a message that is to be answered", "none", "add a message of the user, or remove the line");
  return {.text = chat.render(jinja::Value::list(std::move(messages)), conversation.tools, true), .place = place};
}

}  // namespace

ChatTemplate load_chat_template(const std::string& name, const std::string& tokenizer_folder) {
  try {
    return ChatTemplate::load(name.empty() ? tokenizer_folder : name, tokenizer_folder);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("--chat-template: {}", error.what()));
  }
}

jinja::Value message_of(const std::string& role, const std::string& content) {
  jinja::Dict message;
  message.set("role", jinja::Value::text(role));
  message.set("content", jinja::Value::text(content));
  return jinja::Value::dict(std::move(message));
}

std::string end_of_turn(const ChatTemplate& chat) {
  constexpr std::string_view kAnswer = "Answer4711", kSpace = " \t\r\n";
  const jinja::Value messages =
      jinja::Value::list({message_of("user", "Question"), message_of("assistant", std::string(kAnswer))});
  const std::string text = chat.render(messages, jinja::Value::none(), false);
  const std::size_t answer = text.rfind(kAnswer);
  if (answer == std::string::npos)
    refuse_format(chat.name(), "a template that writes the answers of the assistant", "none", "use another template");
  const std::size_t begin = text.find_first_not_of(kSpace, answer + kAnswer.size());
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_first_of(kSpace, begin) - begin);
}

std::vector<Prompt> read_chat_prompts(const std::string& path, const ChatTemplate& chat, const Tokenizer& tokenizer) {
  std::vector<Prompt> prompts;
  for_each_line(path, [&](std::string_view line, const std::string& place) {
    try {
      Prompt prompt = parse_chat_prompt(line, place, chat);
      prompt.tokens = encode_prompt(tokenizer, prompt.text);
      prompts.push_back(std::move(prompt));
    } catch (const Error& error) {
      const std::string_view message = error.what();
      throw Error(error.code(),
                  message.starts_with(place) ? std::string(message) : fmt::format("{}: {}", place, message));
    }
  });
  if (prompts.empty())
    refuse_format(path, "at least one conversation", "blank lines or none", "write one conversation a line");
  return prompts;
}

}  // namespace megalith
