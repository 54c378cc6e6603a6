// Values as a command line or a TOML file gives them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/flags/binding.h"

namespace megalith {

enum class RawType { kArgument, kBoolean, kInteger, kReal, kText, kArray };

// Value and name as written; a key of a file may have underscores instead of dashes.
struct RawValue {
  std::string name;
  RawType type = RawType::kArgument;
  std::vector<std::string> items;
  std::string file;  // empty: the command line
  std::uint32_t line = 0;
  std::uint32_t column = 0;
};

// Prefix of messages: "run.toml:3:1: " for a file, "--" for the command line.
std::string prefix_of(const RawValue& value);

// Value as messages show it.
std::string shown(const RawValue& value);

// Sets the field. False, with the field unchanged, if the value is invalid or has another type.
bool set_value(const Binding& binding, const RawValue& value);

// Values in the order of their lines. Fails with kFileIo or kUsage: over 1 MiB, nested deeper than 32, not TOML.
std::vector<RawValue> read_config_file(const std::string& path);
std::vector<RawValue> read_config_text(std::string_view text, const std::string& file);

}  // namespace megalith
