// Flags that go only with others, or not with others. For the files of apps/flags* only.
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

}  // namespace megalith
