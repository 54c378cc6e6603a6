// Command line parsed into values of flags by CLI11.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/flags/binding.h"
#include "core/flags/values.h"

namespace megalith {

// Syntax of a flag.
struct FlagSyntax {
  std::string_view name;  // without leading dashes; "help" is also -h
  std::string_view synonym = {};
  const Binding* binding = nullptr;
  bool positional = false;  // an argument without a flag
  bool adds = false;        // each use adds to the list; otherwise the last use counts
  bool is_whole = false;    // one use gives the whole list; otherwise each use adds an item

  bool is_named(std::string_view other) const { return name == other || (!synonym.empty() && synonym == other); }
};

struct CommandLine {
  std::vector<RawValue> values;      // in the order of the flags
  std::vector<std::string> unknown;  // words that belong to no flag
  std::vector<std::string> missing;  // flags without their value, as written
};

// Fails with kUsage for words that CLI11 rejects; the remedy points to --help of `program`.
CommandLine read_command_line(std::string_view program, const std::vector<FlagSyntax>& flags,
                              const std::vector<std::string>& arguments);

}  // namespace megalith
