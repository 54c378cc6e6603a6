// Standard input, output and error of a program.
#pragma once

namespace megalith {

// First in main. Where one of the three is closed, the next file that is opened would take its number, and be written
// to by what is printed: something else is opened in its place, to which standard output cannot write. A write to a
// pipe that nobody reads, or beyond the limit of a file's size, is an error from here on and no signal.
void guard_standard_files();

// Error kFileIo, with this message, where something that was printed to standard output is lost.
inline constexpr const char* kOutputLost =
    "cannot write to standard output; it is closed, its disk is full, or the program that reads it has ended";
void check_standard_output();

}  // namespace megalith
