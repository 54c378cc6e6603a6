// Text of the tokens that follow a prompt.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "core/base/text/utf8.h"
#include "core/tokenizer/tokenizer.h"

namespace megalith {

// What ends a text, and what precedes each of its tokens.
struct TextRules {
  std::int32_t eod = 0;
  std::string stop_text = {};  // ends the text, of which it is no part; empty: none
  std::string separator = {};  // ahead of each token's text
};

class Continuation {
 public:
  Continuation(const Tokenizer& tokenizer, TextRules rules) : tokenizer_(tokenizer), rules_(std::move(rules)) {}

  bool has_ended() const { return has_ended_; }
  std::int64_t tokens() const { return tokens_; }  // with those that ended the text

  // Adds a token, unless the text has ended. Returns what it adds to the text: complete characters, without those that
  // may begin the stop text.
  std::string add(std::int32_t token);
  // Returns what is held back at the end.
  std::string flush() { return std::exchange(held_, {}) + stream_.flush(); }

 private:
  const Tokenizer& tokenizer_;
  TextRules rules_;
  Utf8Stream stream_;
  std::string held_;
  std::int64_t tokens_ = 0;
  bool has_ended_ = false;
};

}  // namespace megalith
