// Names from files in messages: in single quotes, cut after 100 bytes, anything but printable ASCII as \xNN, so that a
// hostile name can neither flood nor steer a terminal.
#pragma once

#include <string>
#include <string_view>

namespace megalith {

std::string printable(std::string_view name);

}  // namespace megalith
