#pragma once

#include <cstdint>

namespace megalith {

struct ModelConfig;

// Exit code 2 for sizes that do not divide; the error lists the flags and valid values. `config` is resolved.
void check_tensor_parallel(const ModelConfig& config, std::int64_t size, bool sequence_parallel);

}  // namespace megalith
