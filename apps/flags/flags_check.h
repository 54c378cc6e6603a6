// The parts of check() by section, and what they share. For the files of apps/flags* only.
#pragma once

#include <string>
#include <string_view>

#include "apps/flags/flags.h"

namespace megalith {

// A flag that makes sense only with another, or with a value of it.
struct Companion {
  std::string flag;
  std::string needs;        // "--save", "--lr-decay-style WSD"
  std::string got = {};     // its value; empty: it is not given
  std::string remedy = {};  // empty: to use it
};

// Each row's needs and excludes (flags_table.h), of the flags that are given (ConfigEntry::given).
void check_companions(App app, const Options& options);

void only_with(bool holds, const Companion& pair);
// Two that are given, each with its value where the value is the reason.
void not_both(bool both, std::string_view one, std::string_view other, std::string_view remedy = "remove one");

void check_sharding(const Options& options);
void check_offload(const Options& options);
// What of layout and memory does not go with experts; those among themselves: validate_moe of core/model.
void check_moe(const Options& options);
// What the user's own code refuses, and flags that name `own` where no layer of the user's own is.
void check_own_flags(const Options& options);
// A toggle that is on by default is an error with exit code 9: no flag could switch it off.
void check_own_defaults(const OwnOptions& declared);

}  // namespace megalith
