// Byte-level byte pair encoding (Sennrich et al. 2016, arXiv:1508.07909; over bytes as in GPT-2). A word begins as its
// bytes. The neighboring pair with the lowest rank, leftmost first, is merged to one token until no pair is a merge.
// Ids equal those of the Hugging Face tokenizers and tiktoken libraries.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tokenizer/added_token_finder.h"
#include "core/tokenizer/nfc.h"
#include "core/tokenizer/word_cache.h"
#include "core/tokenizer/word_scanner.h"

namespace megalith {

constexpr std::int32_t kMaxTokenId = (1 << 22) - 1;  // limit of ids in a tokenizer's file
constexpr std::size_t kMaxTokenBytes = 1024;         // of one token
constexpr std::size_t kMaxAddedBytes = 8 << 20;      // of all added tokens
constexpr std::size_t kMaxMerges = std::size_t{1} << 22;
constexpr std::size_t kMaxTokenizerFileBytes = 64 << 20;

// Token that is matched in the text before the text is cut into words.
struct AddedToken {
  std::string text;
  std::int32_t id = -1;
  bool normalized = false;  // matched after normalization, in the text between other added tokens
};

// Content of a tokenizer's files, checked by their readers.
struct BpeVocabulary {
  struct Merge {
    std::int32_t left;
    std::int32_t right;
    std::int32_t merged;
    std::int32_t rank;  // lowest first; tiktoken's rank is that of the merged token, so several merges share it
  };
  std::string source;  // the file, for messages
  WordPattern pattern = WordPattern::kGpt2;
  bool nfc = false;                                          // text is first normalized to Unicode's form C
  bool prefix_space = false;                                 // a space is added to text that does not begin with one
  bool whole_words = false;                                  // a word that is a token becomes it, regardless of merges
  std::array<std::int32_t, 256> byte_ids{};                  // of the one-byte tokens
  std::vector<std::pair<std::string, std::int32_t>> tokens;  // bytes and id; ids may have gaps
  std::vector<std::int32_t> opaque;                          // ids in `tokens` without bytes of a word
  std::vector<Merge> merges;                                 // the last of equal pairs counts
  std::vector<AddedToken> added;
  std::int32_t eod = -1;
  std::optional<std::int32_t> bos = {};
};

// Numbers of ids ahead of given bytes of a text, found while the text is encoded.
class BorderIds {
 public:
  explicit BorderIds(std::span<const std::size_t> bytes) : bytes_(bytes), ids_(bytes.size()) {}  // rising bytes

  // None: the byte is within a word, or in a part of the text that is normalized to another text.
  std::optional<std::size_t> ids(std::size_t border) const { return ids_[border]; }

  // Notes that no token of the text crosses `byte`, which has `ids` ahead of it. Bytes of successive calls rise.
  void reach(std::size_t byte, std::size_t ids) {
    while (next_ < bytes_.size() && bytes_[next_] < byte) ++next_;
    while (next_ < bytes_.size() && bytes_[next_] == byte) ids_[next_++] = ids;
  }

 private:
  std::span<const std::size_t> bytes_;
  std::vector<std::optional<std::size_t>> ids_;
  std::size_t next_ = 0;
};

class BpeModel {
 public:
  // `vocabulary` is checked by its reader: ids are in range and all merges are known.
  explicit BpeModel(BpeVocabulary vocabulary);

  std::int64_t vocab_size() const { return vocab_size_; }
  std::int32_t eod() const { return eod_; }
  std::optional<std::int32_t> bos() const { return bos_; }
  const std::string& identity() const { return identity_; }

  void encode(std::string_view text, std::vector<std::int32_t>& ids, WordCache& cache, BorderIds& borders) const;
  void decode(std::span<const std::int32_t> ids, std::string& text) const;

 private:
  struct Pair {
    std::uint64_t key;  // left << 32 | right; all ones: an empty slot
    std::int32_t rank;
    std::int32_t merged;
  };

  struct WholeWord {
    std::uint32_t hash;  // a part of the word's hash, so that few other words are compared
    std::int32_t id;     // -1: an empty slot
  };

  struct LongWord;

  // Ids and borders of a text while a part of it is encoded.
  struct Encoding {
    std::vector<std::int32_t>& ids;
    WordCache& cache;
    BorderIds& borders;
  };

  // `begin`: byte of the part in the text; none if the part is normalized to another one.
  void encode_normalized(std::string_view part, std::size_t begin, const Encoding& to) const;
  void encode_words(std::string_view part, std::optional<std::size_t> begin, const Encoding& to) const;
  void encode_cached(std::string_view word, const WordCache::Key& key, WordCache::Entry& entry,
                     std::vector<std::int32_t>& ids) const;
  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) const;
  void merge_short(std::string_view word, std::vector<std::int32_t>& ids) const;
  void merge_long(std::string_view word, std::vector<std::int32_t>& ids) const;

  void build_pairs(const std::vector<BpeVocabulary::Merge>& merges);
  void build_words(BpeVocabulary& vocabulary);
  void build_texts(const BpeVocabulary& vocabulary);
  std::size_t bytes_of(std::int32_t id) const;
  std::string_view text_of(std::int32_t id) const;
  std::optional<std::int32_t> find_word(std::string_view word) const;
  const Pair* find_pair(std::int32_t left, std::int32_t right) const;

  WordScanner scanner_;
  std::optional<NfcNormalizer> nfc_;
  bool prefix_space_;
  std::array<std::int32_t, 256> byte_ids_;
  std::vector<Pair> pairs_;  // open addressing, at most half full
  unsigned pairs_shift_ = 0;
  std::vector<WholeWord> whole_words_;  // open addressing, at most half full; empty: all words are merged
  AddedTokenFinder added_;
  AddedTokenFinder added_normalized_;
  std::vector<std::uint32_t> text_begin_;  // per id, one more at the end
  std::string texts_;
  std::int64_t vocab_size_ = 0;
  std::int32_t eod_;
  std::optional<std::int32_t> bos_;
  std::string identity_;
};

}  // namespace megalith
