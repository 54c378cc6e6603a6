// What the operating system says about memory (Linux).
#pragma once

#include <cstddef>

namespace megalith {

// The process's own memory, arena and parameters included.
std::size_t resident_bytes();
// What this machine, or the container around the process, can still give; 0 where it does not say.
std::size_t available_bytes();

}  // namespace megalith
