// Record of this process's exit code for apps/launch.sh, if the launcher loses the code.
#pragma once

namespace megalith {

// Appends a line with `code` to the file in MEGALITH_EXIT_CODES, if the variable is set. Async-signal-safe.
void record_exit_code(int code) noexcept;

}  // namespace megalith
