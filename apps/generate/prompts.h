// Prompts of a file, and their batches. A batch has prompts of equal length, because the KV cache has one start for all
// of its sequences.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tokenizer/tokenizer.h"

namespace megalith {

struct Prompt {
  std::string text;
  std::string shown;  // printed ahead of the continuation
  std::string id;     // JSON; empty: none
  std::string place;  // FILE:LINE
  std::vector<std::int32_t> tokens = {};

  std::int64_t length() const { return std::ssize(tokens); }
};

// Tokens of a prompt. EOD stands for an empty one, as it precedes the first word of a document.
std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& text,
                                        std::span<const std::int32_t> begin = {});

// Reads a file of --prompt-file: a text per line or, if the file is so named, JSON lines. Blank lines are skipped.
// Error kFormat with FILE:LINE for an invalid line, and for a file without prompts.
std::vector<Prompt> read_prompts(const std::string& path, const Tokenizer& tokenizer);

// Divides prompts into batches of at most `batch_size` indices, in the order of each batch's first prompt.
std::vector<std::vector<std::size_t>> batches_of(const std::vector<Prompt>& prompts, std::int64_t batch_size);

}  // namespace megalith
