// Conversion of conversations in JSON lines to token ids and marks.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "apps/config/options.h"
#include "core/chat/chat_tokens.h"
#include "core/tokenizer/tokenizer.h"

namespace megalith {

// Encodes the conversation in a JSON line. Error kFormat with `place`, FILE:LINE, for a line that does not fit.
// Thread-safe with a tokenizer per thread.
using ConversationEncoder =
    std::function<ChatTokens(const Tokenizer& tokenizer, std::string_view line, const std::string& place)>;

// Returns an encoder with the template of --chat-template. Error kUsage for an unknown template, or for none without a
// folder of the tokenizer; kFileIo and kFormat for the template's file.
ConversationEncoder make_conversation_encoder(const Options& options);

}  // namespace megalith
