// What a program says of names that are none of its flags: which flag was meant, which program has it, or that it is
// Megatron-LM's and not built here.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct UnknownFlag {
  std::string name;                                // without dashes in front, with dashes inside
  std::string shown;                               // as it was written
  std::string place = {};                          // "run.toml:3:1: " of a key; empty: the command line
  std::string nearest = {};                        // of the program's names, as it is written there
  std::optional<std::string_view> megatrons = {};  // the note on a flag of Megatron-LM
  std::string_view other = {};                     // the program that has it
  bool is_word = false;                            // an argument that belongs to no flag
};

// Of the words that no flag of a command line took: unknown flags, each once and without its values, and other words.
// `own` are the program's names without dashes in front.
std::vector<UnknownFlag> unknown_flags(const std::vector<std::string>& words, const std::vector<std::string>& own);
UnknownFlag unknown_key(const std::string& key, const std::string& place, const std::vector<std::string>& own);

// Fails with kUsage and one message for all of them, at least one; `remedy` is for those of which nothing is known.
[[noreturn]] void refuse_unknown(std::string_view program, const std::vector<UnknownFlag>& unknown,
                                 const std::string& remedy);

// For the name of a flag of Megatron-LM, without dashes in front: what stands in its place or why it is not needed,
// or an empty text where what it does is not built. nullopt: no such flag. Dashes and underscores are the same.
std::optional<std::string_view> note_on_megatron_flag(std::string_view name);

// Note on some flags of Megatron-LM, as note_on_megatron_flag() gives it.
struct MegatronNote {
  std::string_view note;
  std::string_view names;  // between blanks; one that ends in a dash stands for all that begin with it
};
std::span<const MegatronNote> megatron_notes();

}  // namespace megalith
