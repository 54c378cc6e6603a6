// SentencePiece models (Kudo and Richardson 2018, arXiv:1808.06226), unigram or BPE, by the library of Debian's package
// libsentencepiece-dev. A build without the package has a SentencePieceModel whose construction fails.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tokenizer/bpe_files.h"

namespace megalith {

class SentencePieceModel {
 public:
  // Reads the model in `file`. The piece `eod_token` ends documents, or without one the model's end of sentence. Error
  // kFormat for a file that the library rejects, kUsage for a missing piece and in a build without the library.
  SentencePieceModel(const TokenizerFile& file, const std::string& eod_token);
  ~SentencePieceModel();

  std::int64_t vocab_size() const { return static_cast<std::int64_t>(texts_.size()); }
  std::int32_t eod() const { return eod_; }
  std::optional<std::int32_t> bos() const { return bos_; }
  const std::string& identity() const { return identity_; }

  // Appends the ids of SentencePieceProcessor::Encode. Spellings of control pieces such as </s> are plain text.
  void encode(std::string_view text, std::vector<std::int32_t>& ids, BorderIds& borders) const;
  // Appends the text of each piece, with the space that the model puts ahead of a text. Control pieces have no text.
  void decode(std::span<const std::int32_t> ids, std::string& text) const;

 private:
  struct Library;
  std::unique_ptr<const Library> library_;
  std::vector<std::string> texts_;  // by id
  std::int32_t eod_ = -1;
  std::optional<std::int32_t> bos_;
  std::string identity_;
};

}  // namespace megalith
