// Token ids of a conversation, and which of them are trained.
#pragma once

#include <cstdint>
#include <vector>

#include "core/chat/chat_template.h"
#include "core/chat/conversation.h"
#include "core/tokenizer/tokenizer.h"

namespace megalith {

struct ChatTokens {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> trained;  // per id: 1 if the model learns to predict it
};

// Encodes the text of a conversation; added tokens of the tokenizer, such as <|im_end|>, are found in it, also in
// contents. No BOS or EOD is added, since the template writes what the model expects. Error kFormat of the template.
ChatTokens encode_conversation(const Tokenizer& tokenizer, const ChatTemplate& chat, const Conversation& conversation);

// Encodes the text as a whole. A token is trained if its first byte is in a range. Error kFormat if the tokens do not
// spell the text, so that their bytes are unknown, and a range does not end between two of them.
ChatTokens encode_labelled(const Tokenizer& tokenizer, const LabelledText& text, const SpecialTexts& special);

}  // namespace megalith
