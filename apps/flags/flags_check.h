// Parts of check() by section, and their shared functions; only for the files of apps/flags*.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "apps/flags/flags.h"
#include "apps/flags/flags_table.h"

namespace megalith {

// Flag that requires another flag or a value of it.
struct Companion {
  std::string flag;
  std::string needs;        // "--save", "--lr-decay-style WSD"
  std::string got = {};     // its value; empty: the flag is not given
  std::string remedy = {};  // empty: to use the required flag
};

// Checks `needs` and `excludes` (flags_table.h) of each row whose flag is given (ConfigEntry::given).
void check_companions(App app, const Options& options);
// First need of a flag that the values of the table do not meet, or null.
const OtherFlag* unmet_need(const FlagTable& table, const Flag& flag, App app);

void only_with(bool holds, const Companion& pair);
struct FlagNumber {
  std::string_view flag;
  std::int64_t value;
};
// Rejects two flags whose numbers contradict each other.
[[noreturn]] void refuse_numbers(const FlagNumber& one, const FlagNumber& other, const std::string& expected,
                                 const std::string& remedy);
// Rejects two given flags; a flag is shown with its value if the value is the reason.
void not_both(bool both, std::string_view one, std::string_view other, std::string_view remedy = "remove one");

void check_sharding(const Options& options);
void check_offload(const Options& options);
// Rejects layout and memory flags that are incompatible with experts; validate_moe of core/model checks the MoE flags.
void check_moe(const Options& options);
// Runs the user's check, and rejects `own` in a flag if no custom layer exists.
void check_own_flags(const Options& options);
// Rejects a toggle that is on by default with exit code 9, since no flag could turn it off.
void check_own_defaults(const OwnOptions& declared);

}  // namespace megalith
