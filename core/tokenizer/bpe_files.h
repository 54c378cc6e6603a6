// Readers of the files that byte-level BPE tokenizers come in. Each refuses what it does not know: Error kFormat that
// names the file, and the line or the JSON key. No regular expression of a file
// is executed: the known ones are recognised, see word_scanner.h. Limits: JSON of 32 levels and 2^22
// values, tokens of 1024 bytes, added tokens of 8 MiB in all, ids below 2^22, 2^22 merges.
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

// vocab.json, an object of token and id, and merges.txt, a pair a line, both in GPT-2's spelling of bytes. Added tokens
// such as <|endoftext|> are not looked for in the text: there they are text, as in Megatron.
BpeVocabulary parse_gpt2_files(const TokenizerFile& vocab_file, const TokenizerFile& merge_file);

// tokenizer.json of the Hugging Face tokenizers library, with a model of type BPE over bytes: pre-tokenizer ByteLevel,
// or a Split at a known pattern and then ByteLevel; normalizer none or NFC; added tokens without lstrip, rstrip and
// single_word. Gives what encode(text, add_special_tokens=False) does; a post-processor's tokens are not added.
BpeVocabulary parse_hugging_face_file(const TokenizerFile& file);

// tiktoken's ranks: lines of a token in base64 and its rank, which is its id. Special tokens are "NAME" or "NAME=ID",
// one without an id gets the one after the last; none at all stands for <|endoftext|>. They are looked for in the text,
// as encode(text, allowed_special="all") does. Error kUsage for a bad special token.
BpeVocabulary parse_tiktoken_file(const TokenizerFile& file, WordPattern pattern,
                                  const std::vector<std::string>& special_tokens);

// What tokenizer_config.json, a file in the folder of tokenizer.json, says of special tokens; empty: nothing.
struct SpecialTokens {
  std::string source;  // the file
  std::string eos, bos;
};
SpecialTokens parse_tokenizer_config(const TokenizerFile& file);

// The id that ends documents: of `name`, or if it is empty of <|endoftext|>, <|end_of_text|> or </s>, the first there
// is, or else of `named.eos`. Error kUsage if there is none.
std::int32_t find_eod(const BpeVocabulary& vocabulary, const std::string& name, const SpecialTokens& named = {});
std::optional<std::int32_t> find_bos(const BpeVocabulary& vocabulary, const SpecialTokens& named);

}  // namespace megalith
