// What the operating system says about memory (Linux).
#pragma once

#include <cstddef>
#include <string>

namespace megalith {

// The process's own memory, arena and parameters included.
std::size_t resident_bytes();
// What this machine can still give, and the control groups around the process; 0 where it does not say. `root`: where
// /proc and /sys are.
std::size_t available_bytes(const std::string& root = "");

}  // namespace megalith
