// Flags that go only with others. For the files of apps/flags* only.
#pragma once

#include <string>

namespace megalith {

// A flag that makes sense only with another, or with a value of it.
struct Companion {
  std::string flag;
  std::string needs;     // "--save", "--lr-decay-style WSD"
  std::string got = {};  // its value; empty: it is not given
};

void only_with(bool holds, const Companion& pair);

}  // namespace megalith
