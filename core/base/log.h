// Log lines on standard error: "[megalith] warning: text". Each message is one line, escaped by in_one_line (text.h)
// and cut after 16 KiB. A message first erases the status line, which a terminal shows below all messages.
#pragma once

#include <string_view>

namespace megalith {

void log_info(std::string_view text);
void log_warning(std::string_view text);
// Writes only the text, cut after 8 KiB, for the end of a program. Does not allocate, since memory may be exhausted.
void log_last_words(std::string_view text);

// Draws the status line, cut to the width of the terminal.
void show_status(std::string_view text);
void erase_status();
void end_status();  // leaves the status line in the terminal

}  // namespace megalith
