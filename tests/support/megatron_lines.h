// Command lines of Megatron-LM: real ones in tests/golden/megatron_lines, and the flags of the table.
#pragma once

#include <algorithm>
#include <array>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/test_folder.h"

namespace megalith::test {

inline constexpr std::array<std::string_view, 9> kMegatronLines = {"gpt3_175b",     "llama3_8b_fp8",   "llama31_8b",
                                                                   "qwen3_8b",      "mixtral_8x7b",    "qwen3_30b_a3b",
                                                                   "mixtral_8x22b", "qwen3_235b_a22b", "deepseek_v3"};

inline std::string megatron_file(std::string_view name) {
  return read_bytes(MEGALITH_SOURCE_DIR "/tests/golden/megatron_lines/" + std::string(name) + ".txt");
}

struct RealLine {
  int world = 0;
  std::vector<std::string> also;   // flags that Megatron-LM requires in addition
  std::vector<std::string> words;  // PATH stands for each path, name or key
};

inline RealLine real_line(std::string_view name) {
  RealLine line;
  std::istringstream text(megatron_file(name));
  std::string row, word;
  text >> word >> line.world;
  while (std::getline(text, row)) {
    std::istringstream words(row);
    const bool is_also = row.starts_with("also ");
    if (is_also) words >> word;
    while (words >> word) (is_also ? line.also : line.words).push_back(word);
  }
  return line;
}

// Words of a run, with data and tokenizer of this machine. Megatron-LM rejects mock data with a path; the path stays.
inline std::vector<std::string> runnable(const RealLine& line) {
  const std::string folder = MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/";
  std::vector<std::string> words = line.words;
  const bool is_sentence_piece = std::ranges::find(words, "Llama2Tokenizer") != words.end();
  const std::string model = folder + (is_sentence_piece ? "bpe.model" : "qwen2.json");
  const std::array<std::pair<std::string_view, std::string>, 3> files = {
      {{"--tokenizer-model", model}, {"--vocab-file", folder + "vocab.json"}, {"--merge-file", folder + "merges.txt"}}};
  if (std::ranges::find(words, "--data-path") != words.end()) std::erase(words, "--mock-data");
  words.insert(words.end(), line.also.begin(), line.also.end());
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    for (const auto& [flag, file] : files)
      if (words[i] == flag) words[i + 1] = file;
  }
  return words;
}

}  // namespace megalith::test
