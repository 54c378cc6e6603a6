// Problems of the words of a command line or file, which one message reports: unknown flags with the nearest flag, the
// program that has the flag or the feature of Megatron-LM, and values that a flag does not accept.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/flags/megatron_flags.h"
#include "core/base/error.h"

namespace megalith {

struct FlagProblem {
  std::string name;                       // without leading dashes, with dashes inside
  std::string shown;                      // as written
  std::string place = {};                 // "run.toml:3:1: " of a key; empty: the command line
  std::string nearest = {};               // nearest name of the program
  const MegatronRow* megatron = nullptr;  // row of a flag or of a value of Megatron-LM
  std::string_view other = {};            // program that has the flag
  bool is_word = false;                   // argument without a flag
  Refusal value = {};                     // problem of the value of a flag that exists; empty: the flag is unknown

  bool is_value() const { return !value.expected.empty(); }
};

// True for a flag; a negative number is a value.
bool is_flag(const std::string& word);

// Unknown words of a command line: each unknown flag once and without its values, and other words. `own`: names of the
// program without leading dashes.
std::vector<FlagProblem> unknown_flags(const std::vector<std::string>& words, const std::vector<std::string>& own);
FlagProblem unknown_key(const std::string& key, const std::string& place, const std::vector<std::string>& own);

// Fails with kUsage and one message for all of them, at least one. `remedy` applies to names without a better remedy.
[[noreturn]] void refuse_problems(std::string_view program, const std::vector<FlagProblem>& problems,
                                  const std::string& remedy);

}  // namespace megalith
