// Memory sizes as the operating system reports them (Linux).
#pragma once

#include <cstddef>
#include <string>

namespace megalith {

// Returns the resident memory of the process in bytes, with arena and parameters.
std::size_t resident_bytes();
// Returns the bytes that the machine and the control groups around the process can still provide; 0 if unknown.
// `root` is the folder that contains /proc and /sys.
std::size_t available_bytes(const std::string& root = "");
// Returns the share of `available` bytes for one of `ranks` ranks on this machine; 0 if `available` is 0 (unknown).
std::size_t share_of_rank(std::size_t available, std::size_t ranks);

}  // namespace megalith
