// Errors that kernels find in their data, with equal texts on both backends. Each function throws. The arguments' names
// list the values in order: a CUDA kernel can pass numbers only (core/device/cuda/fault.cuh).
#pragma once

#include <cstddef>
#include <cstdint>

namespace megalith {

// Bytes of a CUDA op's workspace for the verdict that an index is out of range.
inline constexpr std::size_t kVerdictBytes = 256;

[[noreturn]] void raise_bad_token(const std::int64_t* row_token_vocabulary);
[[noreturn]] void raise_bad_positions(const std::int64_t* first_last_limit);
[[noreturn]] void raise_bad_label(const std::int64_t* row_label_vocabulary);
[[noreturn]] void raise_no_logits(const std::int64_t* row);
// A bad entry of a table of experts, rows or tokens, numbered from the table's start.
[[noreturn]] void raise_bad_route(const std::int64_t* entry_value_low_limit);

}  // namespace megalith
