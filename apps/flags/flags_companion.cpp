#include "apps/flags/flags_companion.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace megalith {

void only_with(bool holds, const Companion& pair) {
  if (holds) return;
  refuse_usage(fmt::format("{} and {}", pair.flag, pair.needs.substr(0, pair.needs.find(' '))),
               {.expected = fmt::format("{} only with {}", pair.flag, pair.needs),
                .got = pair.got.empty() ? pair.flag + " alone" : pair.got,
                .remedy = fmt::format("use {}, or remove {}", pair.needs, pair.flag)});
}

void not_both(bool both, std::string_view one, std::string_view other, std::string_view remedy) {
  if (!both) return;
  refuse_usage(fmt::format("{} and {}", one, other),
               {.expected = "one of them", .got = "both", .remedy = std::string(remedy)});
}

}  // namespace megalith
