// Data sets and their tokenizer.
#pragma once

#include <string>
#include <vector>

namespace megalith {

enum class TokenizerType { kByte, kNull, kGpt2Bpe, kHuggingFace, kTikTokenizer };  // as tokenizer_types() has them

struct DataOptions {
  std::vector<std::string> data_path;  // PREFIX, or WEIGHT PREFIX pairs as Megatron
  std::string split = "969,30,1";      // train, validation, test
  bool mock_data = false;
  TokenizerType tokenizer_type = TokenizerType::kByte;
  std::string vocab_file;  // this and the next five: as TokenizerOptions of core/tokenizer/tokenizer.h
  std::string merge_file;
  std::string tokenizer_model;
  std::string tiktoken_pattern;
  std::vector<std::string> tiktoken_special_tokens;
  std::string eod_token;
};

}  // namespace megalith
