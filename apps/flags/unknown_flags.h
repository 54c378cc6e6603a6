// Messages about unknown flags: the nearest flag, the program that has the flag, or a note that the flag is
// Megatron-LM's.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct UnknownFlag {
  std::string name;                                // without leading dashes, with dashes inside
  std::string shown;                               // as written
  std::string place = {};                          // "run.toml:3:1: " of a key; empty: the command line
  std::string nearest = {};                        // nearest name of the program
  std::optional<std::string_view> megatrons = {};  // note on a flag of Megatron-LM
  std::string_view other = {};                     // program that has the flag
  bool is_word = false;                            // argument without a flag
};

// Unknown words of a command line: each unknown flag once and without its values, and other words. `own`: names of the
// program without leading dashes.
std::vector<UnknownFlag> unknown_flags(const std::vector<std::string>& words, const std::vector<std::string>& own);
UnknownFlag unknown_key(const std::string& key, const std::string& place, const std::vector<std::string>& own);

// Fails with kUsage and one message for all of them, at least one. `remedy` applies to names without a better remedy.
[[noreturn]] void refuse_unknown(std::string_view program, const std::vector<UnknownFlag>& unknown,
                                 const std::string& remedy);

// Note on a flag of Megatron-LM, without leading dashes: its replacement or why it is not needed; empty if its feature
// is not implemented; nullopt if no such flag exists. Dashes and underscores are equivalent.
std::optional<std::string_view> note_on_megatron_flag(std::string_view name);

// Note on some flags of Megatron-LM, as note_on_megatron_flag() gives it.
struct MegatronNote {
  std::string_view note;
  std::string_view names;  // between blanks; one that ends in a dash stands for all that begin with it
};
std::span<const MegatronNote> megatron_notes();

}  // namespace megalith
