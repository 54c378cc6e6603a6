// Readers of the files of byte-level BPE tokenizers. Unknown content is an Error kFormat with the file and the line or
// JSON key. Regular expressions in files are recognized but never executed (word_scanner.h). Limits: JSON of 32 levels
// and 2^22 values, tokens of 1024 bytes, added tokens of 8 MiB in all, ids below 2^22, 2^22 merges.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/tokenizer/bpe_model.h"

namespace megalith {

struct TokenizerFile {
  std::string name;  // its path, for messages
  std::string text;
};

// Reads vocab.json, an object of tokens and ids, and merges.txt, one pair a line, both in GPT-2's byte spelling.
// Added tokens such as <|endoftext|> are plain text in input, as in Megatron.
BpeVocabulary parse_gpt2_files(const TokenizerFile& vocab_file, const TokenizerFile& merge_file);

// Reads tokenizer.json of the Hugging Face tokenizers library, with a model of type BPE over bytes. Supported are
// pre-tokenizer ByteLevel, or Split at a known pattern and ByteLevel; normalizer none or NFC; added tokens without
// lstrip, rstrip and single_word. Ids equal those of encode(text, add_special_tokens=False).
BpeVocabulary parse_hugging_face_file(const TokenizerFile& file);

// Reads tiktoken's ranks: lines of a base64 token and its rank, which is its id. Special tokens are "NAME" or
// "NAME=ID"; the default id is the highest id plus 1, and the default list is <|endoftext|>. They match in text, as in
// encode(text, allowed_special="all"). Error kUsage for a bad special token.
BpeVocabulary parse_tiktoken_file(const TokenizerFile& file, WordPattern pattern,
                                  const std::vector<std::string>& special_tokens);

// Special tokens of tokenizer_config.json, which is in the folder of tokenizer.json; empty: not set.
struct SpecialTokens {
  std::string source;  // the file
  std::string eos, bos;
};
SpecialTokens parse_tokenizer_config(const TokenizerFile& file);

// Returns the id that ends documents: that of `name`. If `name` is empty, the first existing of <|endoftext|>,
// <|end_of_text|>, </s> and `named.eos` counts. Error kUsage if none exists.
std::int32_t find_eod(const BpeVocabulary& vocabulary, const std::string& name, const SpecialTokens& named = {});
std::optional<std::int32_t> find_bos(const BpeVocabulary& vocabulary, const SpecialTokens& named);

}  // namespace megalith
