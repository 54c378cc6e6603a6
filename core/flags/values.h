// Values as they were written, on a command line or in TOML.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/flags/binding.h"

namespace megalith {

enum class RawType { kArgument, kBoolean, kInteger, kReal, kText, kArray };

// A value as it was written. `name` is as written too: a key of a file may have underscores for dashes.
struct RawValue {
  std::string name;
  RawType type = RawType::kArgument;
  std::vector<std::string> items;
  std::string file;  // empty: the command line
  std::uint32_t line = 0;
  std::uint32_t column = 0;
};

// "run.toml:3:1: " and so on for a message; "--" for the command line.
std::string prefix_of(const RawValue& value);

// As messages show it.
std::string shown(const RawValue& value);

// False, with the field unchanged, where the value has another type or is not valid.
bool set_value(const Binding& binding, const RawValue& value);

// Values in the order of the lines. Fails with kFileIo or kUsage: over 1 MiB, nested deeper than 32, not TOML.
std::vector<RawValue> read_config_file(const std::string& path);
std::vector<RawValue> read_config_text(std::string_view text, const std::string& file);

}  // namespace megalith
