#include "core/ops/sequence_part.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace megalith {

void check_part(const SequencePart& part, std::int64_t rows, std::string_view name, std::source_location place) {
  if (part.first >= 0 && part.gap >= 0 && (part.gap == 0 || rows % 2 == 0)) return;
  fail({.subject = std::string(name),
        .expected = "positions that are not negative, and an even number of rows with a gap",
        .got = fmt::format("first {}, gap {}, {} rows", part.first, part.gap, rows)},
       place);
}

}  // namespace megalith
