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
// What one of so many ranks of this machine may take of it: 0 where `available` is, which is not known.
std::size_t share_of_rank(std::size_t available, std::size_t ranks);

}  // namespace megalith
