// Record of this process's exit code: for apps/launch.sh, if the launcher loses the code, and for the link to mpirun of
// a rank that another launcher started.
#pragma once

namespace megalith {

// Appends a line with `code` to the file in MEGALITH_EXIT_CODES, if the variable is set. Async-signal-safe.
void record_exit_code(int code) noexcept;

// Makes record_exit_code also write the code as one byte to this descriptor; -1: to none.
void record_exit_code_to(int descriptor) noexcept;
// First recorded code; -1: none.
int recorded_exit_code() noexcept;

}  // namespace megalith
