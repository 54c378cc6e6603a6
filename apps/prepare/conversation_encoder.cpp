#include "apps/prepare/conversation_encoder.h"

#include <nlohmann/json.hpp>

#include "apps/config/program_options.h"
#include "core/base/error.h"
#include "core/base/text/text.h"
#include "core/checkpoint/strict_json.h"

namespace megalith {

namespace {

struct Message {
  std::string role;
  std::string content;
};

std::vector<Message> messages_of(std::string_view line) {
  const std::string subject = "conversation";
  const nlohmann::json value = parse_strict_json(line, subject);
  JsonObject object(value, subject);
  std::vector<Message> messages;
  for (const nlohmann::json& one : object.array("messages")) {
    JsonObject message(one, subject + ".messages");
    messages.push_back(
        {.role = message.text("role", kMaxJsonBytes), .content = message.text("content", kMaxJsonBytes)});
    message.finish();
  }
  object.finish();
  return messages;
}

// Text of a message ahead of its content.
std::string head_of(const Message& message, bool is_chatml) {
  return is_chatml ? "<|im_start|>" + message.role + "\n" : "";
}

}  // namespace

ConversationEncoder make_conversation_encoder(const Options& options) {
  const std::string& name = options.prepare.chat_template;
  if (name != "chatml" && name != "identity") {
    refuse_usage("--chat-template", {.expected = "chatml or identity",
                                     .got = name.empty() ? "none" : escaped_short(name),
                                     .remedy = "name one of them"});
  }
  return [is_chatml = name == "chatml"](const Tokenizer& tokenizer, std::string_view line) {
    EncodedConversation encoded;
    const auto add = [&](const std::string& text, bool is_trained) {
      tokenizer.encode(text, encoded.ids);
      encoded.trained.resize(encoded.ids.size(), is_trained ? 1 : 0);
    };
    for (const Message& message : messages_of(line)) {
      add(head_of(message, is_chatml), false);
      add(message.content + (is_chatml ? "<|im_end|>" : ""), message.role == "assistant");
      add(is_chatml ? "\n" : "", false);
    }
    return encoded;
  };
}

}  // namespace megalith
