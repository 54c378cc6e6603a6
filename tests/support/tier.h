// The quick tier of tests/run.sh runs a part of the long tests' cases.
#pragma once

#include <cstdlib>
#include <string_view>

namespace megalith::test {

// A build with sanitizers, in which a case is about ten times as slow.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kIsSlow = true;
#else
inline constexpr bool kIsSlow = false;
#endif

// Stride between the cases of a long test: `n` in the quick tier, 1, so each, in all others.
inline int one_of(int n) {
  const char* const tier = std::getenv("MEGALITH_TIER");
  return tier != nullptr && std::string_view(tier) == "quick" ? n : 1;
}

// Long tests of one thread, if the quick tier runs their program in a build without sanitizers too.
inline bool skips_one_thread() { return kIsSlow && one_of(2) > 1; }
inline constexpr const char* kRunsElsewhere = "in the full tier, and in the build without sanitizers";

}  // namespace megalith::test
