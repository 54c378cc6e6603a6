// Messages for the person at the terminal, to standard error, one line each: "[megalith] warning: text".
#pragma once

#include <string_view>

namespace megalith {

void log_info(std::string_view text);
void log_warning(std::string_view text);

}  // namespace megalith
