// Builds without Debian's libsentencepiece-dev: see sentence_piece.h.
#include "core/base/error.h"
#include "core/tokenizer/sentence_piece.h"

namespace megalith {

struct SentencePieceModel::Library {};

SentencePieceModel::SentencePieceModel(const TokenizerFile& file, const std::string& /*eod_token*/) {
  refuse_usage(file.name, {.expected = "a tokenizer that this build has",
                           .got = "a SentencePiece model, and no libsentencepiece-dev at build time",
                           .remedy = "install libsentencepiece-dev, configure and build again"});
}

SentencePieceModel::~SentencePieceModel() = default;

void SentencePieceModel::encode(std::string_view /*text*/, std::vector<std::int32_t>& /*ids*/,
                                BorderIds& /*borders*/) const {}

void SentencePieceModel::decode(std::span<const std::int32_t> /*ids*/, std::string& /*text*/) const {}

}  // namespace megalith
