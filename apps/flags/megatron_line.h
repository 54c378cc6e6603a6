// Command line in which flags that only Megatron-LM has are replaced by words of this project.
#pragma once

#include <string>
#include <vector>

#include "apps/flags/flags_table.h"
#include "apps/flags/unknown_flags.h"

namespace megalith {

struct MegatronLine {
  std::vector<std::string> words;     // without flags that are taken; other spellings are replaced
  std::vector<std::string> taken;     // "--num-workers 6": flags that ask for what is done here, each once
  bool is_megatrons = false;          // true with a flag that only Megatron-LM has
  std::vector<FlagProblem> problems;  // wrong values of such flags
};

MegatronLine read_megatron_line(App app, const FlagTable& table, const std::vector<std::string>& arguments);

// What a run prints about its command line.
struct MegatronNotes {
  bool is_megatrons = false;
  std::vector<std::string> taken;   // flags that ask for what is done here
  std::vector<std::string> idle;    // flags without effect in this run
  std::vector<std::string> unused;  // flags of train on the command line of a plan
};

// Rejects a flag that asks for what is done here only with another flag, which Megatron-LM rejects too.
void check_taken(const MegatronNotes& notes, const Options& options);

// Lines about flags without effect and, for a line of Megatron-LM, about its other defaults of flags that are not
// given.
std::vector<std::string> notices_of(const MegatronNotes& notes, const Options& options);

}  // namespace megalith
