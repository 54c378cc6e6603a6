// Version of the program in --version, logs and checkpoints.
#pragma once

#include <string>
#include <string_view>

namespace megalith {

std::string_view program_version();  // "0.1.0"
// Twelve hex digits, with "-dirty" if tracked files differed from that commit at build time; "unknown" outside of git.
std::string_view program_commit();
std::string version_line(std::string_view program);  // "megalith train 0.1.0 (commit 0123456789ab)"

}  // namespace megalith
