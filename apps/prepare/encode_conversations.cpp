#include "apps/prepare/encode_conversations.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "apps/prepare/encode_inputs.h"
#include "core/base/error.h"

namespace megalith {

namespace {

void add_conversation(const ChatTokens& conversation, std::int64_t max_tokens, EncodedChunk& chunk) {
  const std::size_t size = conversation.ids.size();
  require(conversation.trained.size() == size && std::in_range<std::int32_t>(size), "prepare: a mark per token");
  const std::size_t kept = max_tokens > 0 ? std::min(size, static_cast<std::size_t>(max_tokens)) : size;
  const std::span<const std::uint8_t> marks = std::span(conversation.trained).first(kept);
  // No row predicts the first token.
  if (kept < 2 || std::ranges::all_of(marks.subspan(1), [](std::uint8_t mark) { return mark == 0; })) {
    ++chunk.untrained;
    return;
  }
  const std::size_t at = chunk.words.size();
  chunk.words.resize(at + size);
  for (std::size_t i = 0; i < size; ++i)
    chunk.words[at + i] = marked_token(conversation.ids[i], conversation.trained[i] != 0);
  chunk.lengths.push_back(static_cast<std::int32_t>(size));
}

void encode_lines(const DocumentChunk& chunk, const EncodeRequest& request, const Tokenizer& tokenizer,
                  EncodedChunk& encoded) {
  for (const DocumentChunk::Document& line : chunk.documents) {
    const std::string place = chunk.place_of(line);
    try {
      if (line.is_too_long) refuse_format(place, "a line of at most 64 MiB", "a longer one", "remove it or divide it");
      add_conversation(request.encoder(tokenizer, chunk.text_of(line), place), request.max_tokens, encoded);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kFormat) throw;
      encoded.errors.push_back(error);
    }
    encoded.text_bytes += static_cast<std::int64_t>(line.bytes);
  }
}

}  // namespace

EncodeCounts encode_conversations(const EncodeRequest& request, ConversationSpool& spool, BadLines& bad) {
  EncodeCounts counts;
  encode_inputs({.inputs = request.inputs,
                 .documents = {},
                 .tokenizer = request.tokenizer,
                 .threads = request.threads,
                 .encode = [&](const DocumentChunk& chunk, const Tokenizer& tokenizer,
                               EncodedChunk& encoded) { encode_lines(chunk, request, tokenizer, encoded); },
                 .store =
                     [&](const EncodedChunk& chunk) {
                       if (!chunk.lengths.empty()) spool.add(chunk.words, chunk.lengths);
                       counts.text_bytes += chunk.text_bytes;
                       counts.untrained += chunk.untrained;
                     }},
                bad);
  return counts;
}

}  // namespace megalith
