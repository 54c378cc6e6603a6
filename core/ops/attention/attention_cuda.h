// What attention asks of cuDNN. Needs no CUDA header; only CUDA's own sources call it.
#pragma once

#include <cstddef>

namespace megalith {

inline constexpr std::size_t kOldestCudnn = 91501;  // 9.15.1: older backward may read out of bounds under graph replay

// Exit code 2 and one line if cuDNN of this version (as cudnnGetVersion() says it) is too old, or of another major
// version than 9.
void check_attention_library(std::size_t version);
void check_attention_library();  // the one this program is linked to

}  // namespace megalith
