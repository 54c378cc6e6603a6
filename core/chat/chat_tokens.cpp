#include "core/chat/chat_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/tokenizer/nfc.h"

namespace megalith {

namespace {

// Cuts a text at the borders of ranges. Pieces alternate: not trained, trained, not trained, ...
std::vector<std::string_view> pieces_of(const LabelledText& labelled) {
  const std::string_view text = labelled.text;
  std::vector<std::string_view> pieces;
  std::size_t at = 0;
  for (const jinja::Range& range : labelled.trained) {
    pieces.push_back(text.substr(at, range.begin - at));
    pieces.push_back(text.substr(range.begin, range.end - range.begin));
    at = range.end;
  }
  pieces.push_back(text.substr(at));
  return pieces;
}

// Encodes each piece alone; none unless the ids are those of the joined text.
std::optional<std::vector<std::uint8_t>> labels_of_pieces(const Tokenizer& tokenizer, const LabelledText& text,
                                                          const std::vector<std::int32_t>& ids) {
  std::vector<std::int32_t> joined;
  std::vector<std::uint8_t> trained;
  bool is_trained = false;
  for (const std::string_view piece : pieces_of(text)) {
    tokenizer.encode(piece, joined);
    trained.resize(joined.size(), is_trained ? 1 : 0);
    is_trained = !is_trained;
  }
  if (joined != ids) return std::nullopt;
  return trained;
}

// Spelling of the end of a document, which the tokenizer decodes to nothing: the known text that encodes to it alone.
std::string text_of_eod(const Tokenizer& tokenizer, const SpecialTexts& special) {
  std::vector<std::string> candidates = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
  for (const auto& [name, value] : special.members) {
    if (value.is_text()) candidates.push_back(value.as_text());
  }
  for (const std::string& candidate : candidates) {
    std::vector<std::int32_t> ids;
    tokenizer.encode(candidate, ids);
    if (ids.size() == 1 && ids[0] == tokenizer.eod()) return candidate;
  }
  return "";
}

// First byte of each token in the text that the tokens spell, and the end of that text.
std::vector<std::size_t> begins_of(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids,
                                   const SpecialTexts& special, std::string& spelled) {
  std::vector<std::size_t> begins;
  std::optional<std::string> eod;
  for (const std::int32_t id : ids) {
    begins.push_back(spelled.size());
    if (id == tokenizer.eod()) {
      if (!eod) eod = text_of_eod(tokenizer, special);
      spelled += *eod;
    } else {
      spelled += tokenizer.decode(std::span(&id, 1));
    }
  }
  return begins;
}

// Bytes of a text in what its tokens spell: tokenizers may normalize text, or put a space before it.
class Spelling {
 public:
  Spelling(std::string_view text, std::string_view spelled) : text_(text) {
    if (text == spelled) {
      kind_ = Kind::kSame;
    } else if (spelled.size() == text.size() + 1 && spelled[0] == ' ' && spelled.substr(1) == text) {
      kind_ = Kind::kSpace;
    } else if (normalize(whole_, text); whole_ == spelled) {
      kind_ = Kind::kNormalized;
    }
  }

  // None if the byte lies within characters that are normalized to one, or the spelling is another text.
  std::optional<std::size_t> byte_of(std::size_t byte) const {
    if (kind_ == Kind::kSame) return byte;
    if (kind_ == Kind::kSpace) return byte + 1;
    std::string before;
    normalize(before, text_.substr(0, byte));
    if (kind_ == Kind::kOther || !whole_.starts_with(before)) return std::nullopt;
    return before.size();
  }

 private:
  enum class Kind { kSame, kSpace, kNormalized, kOther };
  static void normalize(std::string& out, std::string_view text) {
    static const NfcNormalizer kNormalizer;
    kNormalizer.append(out, text);
  }

  std::string_view text_;
  std::string whole_;  // normalized
  Kind kind_ = Kind::kOther;
};

std::vector<std::uint8_t> labels_of_bytes(const Tokenizer& tokenizer, const LabelledText& text,
                                          const std::vector<std::int32_t>& ids, const SpecialTexts& special) {
  std::string spelled;
  const std::vector<std::size_t> begins = begins_of(tokenizer, ids, special, spelled);
  const Spelling spelling(text.text, spelled);
  std::vector<std::uint8_t> trained(ids.size(), 0);
  for (const jinja::Range& range : text.trained) {
    const std::optional<std::size_t> begin = spelling.byte_of(range.begin), end = spelling.byte_of(range.end);
    if (!begin || !end) {
      refuse_format("conversation", "text that its tokens spell, so that the answer's tokens are known",
                    fmt::format("another text from the tokenizer {}", tokenizer.identity()),
                    "remove characters that the tokenizer changes, or remove the conversation");
    }
    const auto first = std::ranges::lower_bound(begins, *begin) - begins.begin();
    const auto last = std::ranges::lower_bound(begins, *end) - begins.begin();
    std::fill(trained.begin() + first, trained.begin() + last, std::uint8_t{1});
  }
  return trained;
}

// Labels from the ids ahead of each range's begin and end; none if a token may cross one of them.
std::optional<std::vector<std::uint8_t>> labels_of_borders(const BorderIds& borders, std::size_t ranges,
                                                           std::size_t num_ids) {
  std::vector<std::uint8_t> trained(num_ids, 0);
  for (std::size_t i = 0; i < ranges; ++i) {
    const std::optional<std::size_t> begin = borders.ids(2 * i), end = borders.ids(2 * i + 1);
    if (!begin || !end) return std::nullopt;
    std::fill(trained.begin() + static_cast<std::ptrdiff_t>(*begin),
              trained.begin() + static_cast<std::ptrdiff_t>(*end), std::uint8_t{1});
  }
  return trained;
}

}  // namespace

ChatTokens encode_labelled(const Tokenizer& tokenizer, const LabelledText& text, const SpecialTexts& special) {
  std::vector<std::size_t> bytes;
  for (const jinja::Range& range : text.trained) bytes.insert(bytes.end(), {range.begin, range.end});
  BorderIds borders(bytes);
  ChatTokens tokens;
  tokenizer.encode(text.text, tokens.ids, borders);
  if (auto labels = labels_of_borders(borders, text.trained.size(), tokens.ids.size())) {
    tokens.trained = *std::move(labels);
  } else if (auto of_pieces = labels_of_pieces(tokenizer, text, tokens.ids)) {
    tokens.trained = *std::move(of_pieces);
  } else {
    tokens.trained = labels_of_bytes(tokenizer, text, tokens.ids, special);
  }
  return tokens;
}

ChatTokens encode_conversation(const Tokenizer& tokenizer, const ChatTemplate& chat, const Conversation& conversation) {
  const LabelledText text = chat.render_labelled(conversation.messages, conversation.tools, conversation.trained);
  return encode_labelled(tokenizer, text, chat.special());
}

}  // namespace megalith
