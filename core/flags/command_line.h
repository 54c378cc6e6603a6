// A command line as values of flags: by CLI11, and what it leaves open.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/flags/binding.h"
#include "core/flags/values.h"

namespace megalith {

// How a flag is written.
struct FlagSyntax {
  std::string_view name;  // without dashes in front; "help" is -h too
  std::string_view synonym = {};
  const Binding* binding = nullptr;
  bool positional = false;  // an argument without a flag
  bool adds = false;        // a list to which each use of the flag adds; of others the last one counts
  bool is_whole = false;    // a list that one use gives whole; of others each use adds an item

  bool is_named(std::string_view other) const { return name == other || (!synonym.empty() && synonym == other); }
};

struct CommandLine {
  std::vector<RawValue> values;      // in the order of the flags
  std::vector<std::string> unknown;  // words that no flag took
};

// Error kUsage for a flag that lacks its value; its remedy is --help of `program`.
CommandLine read_command_line(std::string_view program, const std::vector<FlagSyntax>& flags,
                              const std::vector<std::string>& arguments);

}  // namespace megalith
