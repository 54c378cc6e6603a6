// What the codes of error.h mean, for people.
#pragma once

#include <string>

namespace megalith {

// "Exit codes:" and a line for each, for the --help of every program.
std::string exit_codes_text();

}  // namespace megalith
