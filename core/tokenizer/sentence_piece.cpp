#include "core/tokenizer/sentence_piece.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <xxhash.h>

#include <charconv>
#include <limits>

#include "core/base/error.h"
#include "core/tokenizer/bpe_spelling.h"

namespace megalith {

namespace {

constexpr std::string_view kSpace = "\u2581";  // stands for a space in pieces

using Processor = sentencepiece::SentencePieceProcessor;

// Returns the text of a piece; a byte piece is spelled <0x0A>.
std::string text_of_piece(const Processor& processor, int id) {
  if (processor.IsControl(id)) return {};
  if (processor.IsUnknown(id)) return processor.DecodeIds({id});
  const std::string& text = processor.IdToPiece(id);
  if (processor.IsByte(id)) {
    unsigned byte = 0;
    if (text.size() == 6) std::from_chars(text.data() + 3, text.data() + 5, byte, 16);
    return std::string(1, static_cast<char>(byte));
  }
  const std::string_view piece = text;
  std::string spelled;
  for (std::size_t at = 0; at < piece.size();) {
    const bool is_space = piece.substr(at).starts_with(kSpace);
    spelled += is_space ? ' ' : piece[at];
    at += is_space ? kSpace.size() : 1;
  }
  return spelled;
}

std::int32_t find_end(const Processor& processor, const TokenizerFile& file, const std::string& name) {
  if (name.empty() && processor.eos_id() >= 0) return processor.eos_id();
  const int id = name.empty() ? -1 : processor.PieceToId(name);
  if (id >= 0 && !processor.IsUnknown(id)) return id;
  refuse_usage("--eod-token", {.expected = "a piece of " + file.name,
                               .got = name.empty() ? "none, and the model has no end of sentence" : quoted_bytes(name),
                               .remedy = "name the piece that ends documents"});
}

}  // namespace

struct SentencePieceModel::Library {
  Processor processor;
};

SentencePieceModel::SentencePieceModel(const TokenizerFile& file, const std::string& eod_token) {
  auto library = std::make_unique<Library>();
  Processor& processor = library->processor;
  const sentencepiece::util::Status status = processor.LoadFromSerializedProto(file.text);
  const int pieces = status.ok() ? processor.GetPieceSize() : 0;
  if (pieces == 0 || pieces > kMaxTokenId + 1) {
    refuse_tokenizer_file(file.name, fmt::format("a SentencePiece model of 1 to {} pieces", kMaxTokenId + 1),
                          status.ok() ? std::to_string(pieces) : "other content", "give the .model file of spm_train");
  }
  for (int id = 0; id < pieces; ++id) texts_.push_back(text_of_piece(processor, id));
  eod_ = find_end(processor, file, eod_token);
  if (processor.bos_id() >= 0) bos_ = processor.bos_id();
  identity_ = fmt::format("sentencepiece-{}-{:016x}", pieces,
                          XXH3_64bits_withSeed(file.text.data(), file.text.size(), static_cast<XXH64_hash_t>(eod_)));
  library_ = std::move(library);
}

SentencePieceModel::~SentencePieceModel() = default;

void SentencePieceModel::encode(std::string_view text, std::vector<std::int32_t>& ids, BorderIds& borders) const {
  if (text.size() > std::numeric_limits<std::int32_t>::max()) {
    refuse_format("text", fmt::format("documents of at most {} bytes", std::numeric_limits<std::int32_t>::max()),
                  fmt::format("one of {}", text.size()), "split the document");
  }
  sentencepiece::ImmutableSentencePieceText pieces;
  const sentencepiece::util::Status status =
      library_->processor.Encode({text.data(), text.size()}, pieces.mutable_proto());
  if (!status.ok()) {
    refuse_format("text", "text that SentencePiece encodes", status.ToString(), "remove the document");
  }
  for (std::size_t i = 0; i < pieces.pieces_size(); ++i) {
    const auto piece = pieces.pieces(static_cast<int>(i));
    borders.reach(piece.begin(), ids.size());
    ids.push_back(static_cast<std::int32_t>(piece.id()));
  }
  borders.reach(text.size(), ids.size());
}

void SentencePieceModel::decode(std::span<const std::int32_t> ids, std::string& text) const {
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < vocab_size() && id != eod_) text += texts_[static_cast<std::size_t>(id)];
  }
}

}  // namespace megalith
