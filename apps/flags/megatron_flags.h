// Flags that only Megatron-LM has: what this project does where each stands.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/flags/flags.h"

namespace megalith {

enum class MegatronKind {
  kTaken,     // accepted with the listed values, which ask for what is done here in any case
  kSpelling,  // another spelling of flags that exist here
  kReplaced,  // rejected; the user chooses another flag
  kFeature,   // rejected, as the feature does not exist here, unless a listed value leaves the feature off
};

// Row of the table. `flags` are separated by blanks. Each is NAME, a toggle, or NAME=VALUE|VALUE|..., a flag with a
// value. A VALUE is a word, or one of <int>, <number> and <text>. A NAME that ends in a dash stands for all names that
// begin with it. In a kFeature row, a NAME without values is a flag of any form.
struct MegatronRow {
  MegatronKind kind;
  // kTaken: what is done here. kSpelling: words of this project, with {} for the value. kReplaced: what to use.
  // kFeature: name of the feature.
  std::string_view text;
  std::string_view flags;
  unsigned apps = static_cast<unsigned>(App::kTrain) | static_cast<unsigned>(App::kPlan);
};

// Flag of a row.
struct MegatronFlag {
  const MegatronRow* row = nullptr;
  std::string_view name;    // as in the row
  std::string_view values;  // "VALUE|VALUE"; empty: none are listed

  bool is_toggle() const { return values.empty(); }
  // True if `words` ask for what is done here.
  bool takes(const std::vector<std::string>& words) const;
  // Values as messages list them: "single", "a number", "nothing".
  std::string expected() const;
};

// Rows in the order of docs/from-megatron.md.
std::span<const MegatronRow> megatron_taken();
std::span<const MegatronRow> megatron_spellings();
std::span<const MegatronRow> megatron_features();
// Features that a value of a flag of this project stands for; the listed values are those of the features.
std::span<const MegatronRow> megatron_values();

std::vector<MegatronFlag> flags_of(const MegatronRow& row);

// Flags of this name, without leading dashes, with dashes or underscores inside; what is taken comes first. If no name
// is equal, the flags whose opposites are taken as toggles: --X and --disable-X for --no-X, --X and --no-X for
// --disable-X. Otherwise those that stand for a beginning of the name.
std::vector<MegatronFlag> find_megatron_flags(std::string_view name, unsigned apps = ~0U);

// Feature that a value of a flag of this project stands for, or null.
const MegatronRow* megatron_feature_of(std::string_view flag, std::string_view value);

}  // namespace megalith
