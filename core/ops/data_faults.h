// The errors that kernels find in their data. Each throws; both backends say it in the same words. The values are those
// named, in this order: a CUDA kernel can only pass numbers (core/device/cuda/fault.cuh).
#pragma once

#include <cstddef>
#include <cstdint>

namespace megalith {

// Where CUDA's ops leave word in their workspace that an index is out of range.
inline constexpr std::size_t kVerdictBytes = 256;

[[noreturn]] void raise_bad_token(const std::int64_t* row_token_vocabulary);
[[noreturn]] void raise_bad_positions(const std::int64_t* first_last_limit);
[[noreturn]] void raise_bad_label(const std::int64_t* row_label_vocabulary);
[[noreturn]] void raise_no_logits(const std::int64_t* row);
// An entry of a table of experts, rows or tokens: numbered from the table's start.
[[noreturn]] void raise_bad_route(const std::int64_t* entry_value_low_limit);

}  // namespace megalith
