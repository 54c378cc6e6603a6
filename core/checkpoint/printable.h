// Printable form of names from files: in single quotes, cut after 100 bytes, bytes outside printable ASCII as \xNN.
// A hostile name can thus neither flood nor control a terminal.
#pragma once

#include <string>
#include <string_view>

namespace megalith {

std::string printable(std::string_view name);

}  // namespace megalith
