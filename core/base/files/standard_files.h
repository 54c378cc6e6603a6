// Guards of a program's standard input, output and error.
#pragma once

namespace megalith {

// Guards the three files; must be the first call in main. If one of them is closed, the next opened file would receive
// printed text; /dev/null takes its number, where writes to standard output fail. Writes to a closed pipe, or past the
// limit of a file's size, then fail with an error, not a signal.
void guard_standard_files();

// Error kFileIo, with this message, if printed text did not reach standard output.
inline constexpr const char* kOutputLost =
    "cannot write to standard output; it is closed, its disk is full, or the program that reads it has ended";
void check_standard_output();

}  // namespace megalith
