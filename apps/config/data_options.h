// Datasets and their tokenizer.
#pragma once

#include <string>
#include <vector>

#include "core/data/document_masks.h"

namespace megalith {

// In the order of tokenizer_types().
enum class TokenizerType { kByte, kNull, kGpt2Bpe, kHuggingFace, kTikTokenizer, kLlama2, kGptSentencePiece };

struct DataOptions {
  std::vector<std::string> data_path;  // PREFIX, or WEIGHT PREFIX pairs as in Megatron-LM
  std::string split = "969,30,1";      // train, validation, test
  std::string data_args_path;          // file with the words of data_path; empty: none
  // Data of one split each, instead of data_path with `split`.
  std::vector<std::string> train_data_path, valid_data_path, test_data_path;
  bool sft = false;  // the data are packs of conversations, whose losses count by their masks
  bool mock_data = false;
  DocumentMasks masks;                        // without EOD, which the tokenizer gives
  std::int64_t max_documents_per_sample = 0;  // 0: counted in the data
  TokenizerType tokenizer_type = TokenizerType::kByte;
  std::string vocab_file;  // this and the next five: see TokenizerOptions of core/tokenizer/tokenizer.h
  std::string merge_file;
  std::string tokenizer_model;
  std::string tiktoken_pattern;
  std::vector<std::string> tiktoken_special_tokens;
  std::string eod_token;
};

}  // namespace megalith
