// Conversion of conversations in JSON lines to token ids and marks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config/options.h"
#include "core/tokenizer/tokenizer.h"

namespace megalith {

struct EncodedConversation {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> trained;  // of each id: 1 if the assistant wrote it
};

// Encodes the conversation in a JSON line. Error kFormat for an invalid line. Thread-safe with a tokenizer per thread.
using ConversationEncoder = std::function<EncodedConversation(const Tokenizer& tokenizer, std::string_view line)>;

// Encoder with the template of --chat-template. Error kUsage for an unknown template.
ConversationEncoder make_conversation_encoder(const Options& options);

}  // namespace megalith
