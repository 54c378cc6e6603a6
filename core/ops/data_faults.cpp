#include "core/ops/data_faults.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace megalith {

void raise_bad_token(const std::int64_t* row_token_vocabulary) {
  fail({.code = ExitCode::kFormat,
        .subject = fmt::format("token of row {}", row_token_vocabulary[0]),
        .expected = fmt::format("0 to {}", row_token_vocabulary[2] - 1),
        .got = fmt::format("{}", row_token_vocabulary[1]),
        .remedy = "use data that was tokenized with the model's vocabulary"});
}

void raise_bad_positions(const std::int64_t* first_last_limit) {
  fail({.code = ExitCode::kUsage,
        .subject = "positions",
        .expected = fmt::format("0 to {}", first_last_limit[2] - 1),
        .got = fmt::format("{} to {}", first_last_limit[0], first_last_limit[1]),
        .remedy = "shorten the sequence, or raise --max-position-embeddings"});
}

void raise_bad_label(const std::int64_t* row_label_vocabulary) {
  fail({.code = ExitCode::kFormat,
        .subject = fmt::format("label of row {}", row_label_vocabulary[0]),
        .expected = fmt::format("at most {}", row_label_vocabulary[2] - 1),
        .got = fmt::format("{}", row_label_vocabulary[1]),
        .remedy = "use data that was tokenized with the model's vocabulary"});
}

void raise_no_logits(const std::int64_t* row) {
  fail({.code = ExitCode::kNumeric,
        .subject = fmt::format("logits of row {}", row[0]),
        .expected = "a number above -inf",
        .got = "none"});
}

void raise_bad_route(const std::int64_t* entry_value_low_limit) {
  fail({.code = ExitCode::kInternal,
        .subject = fmt::format("entry {} of a table of routes", entry_value_low_limit[0]),
        .expected = fmt::format("{} to {}", entry_value_low_limit[2], entry_value_low_limit[3] - 1),
        .got = fmt::format("{}", entry_value_low_limit[1])});
}

}  // namespace megalith
