// First pass of prepare --sft: the conversations of all inputs, encoded on several threads, in order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/prepare/conversation_encoder.h"
#include "apps/prepare/conversation_spool.h"
#include "core/data/document_reader.h"

namespace megalith {

struct EncodeRequest {
  std::vector<std::string> inputs;  // JSON lines
  ConversationEncoder encoder;
  const Tokenizer& tokenizer;   // copied for each thread
  std::int64_t max_tokens = 0;  // of a conversation that count; 0: all
  std::size_t threads = 1;
};

struct EncodeCounts {
  std::int64_t text_bytes = 0;  // of all lines
  std::int64_t untrained = 0;   // conversations without a trained token among max_tokens, which are skipped
};

// Adds the conversations to `spool`. The result does not depend on the number of threads. Memory holds a few MiB per
// thread and the longest line. Invalid lines are Errors kFormat with FILE:LINE, counted by `bad`.
EncodeCounts encode_conversations(const EncodeRequest& request, ConversationSpool& spool, BadLines& bad);

}  // namespace megalith
