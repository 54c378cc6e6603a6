// Prompts that a chat template renders from conversations.
#pragma once

#include <string>
#include <vector>

#include "apps/generate/prompts.h"
#include "core/chat/chat_template.h"

namespace megalith {

// Template of --chat-template; empty: of the tokenizer's folder. Error kUsage if there is none.
ChatTemplate load_chat_template(const std::string& name, const std::string& tokenizer_folder);

// Message of a conversation: {"role": role, "content": content}.
jinja::Value message_of(const std::string& role, const std::string& content);

// Text that the template writes after an answer, up to white space: <|im_end|>. Empty if there is none.
std::string end_of_turn(const ChatTemplate& chat);

// Reads conversations in JSON lines. The last message is left out if the assistant wrote it. Errors: see read_prompts.
std::vector<Prompt> read_chat_prompts(const std::string& path, const ChatTemplate& chat, const Tokenizer& tokenizer);

}  // namespace megalith
