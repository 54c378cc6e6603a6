// Messages for the person at the terminal, to standard error, one line each, whatever text they show (text.h),
// and of at most 16 KiB of it: "[megalith] warning: text".
#pragma once

#include <string_view>

namespace megalith {

void log_info(std::string_view text);
void log_warning(std::string_view text);
// The line alone, as at the end of a program; cut after 8 KiB, and without an allocation, which may be what failed.
void log_last_words(std::string_view text);

}  // namespace megalith
