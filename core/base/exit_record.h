// Tells apps/launch.sh with which code this process ends, for a launcher that loses it.
#pragma once

namespace megalith {

// Appends a line with `code` to the file that MEGALITH_EXIT_CODES names, if there is one. A signal handler may call it.
void record_exit_code(int code) noexcept;

}  // namespace megalith
